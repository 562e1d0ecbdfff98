"""What an engine's error is called where people read it: its kind and what is safe to say, no value of the data.

Messages of databases and libraries quote the cells that they stumbled over. Only messages that are made before a row is
read, or of no row, are passed on; of all others the kind is told, and the type that a value does not convert to.
"""

from __future__ import annotations

import re

from components.core.errors import one_line

WITHOUT_DATA = (
    "BinderException",
    "CatalogException",
    "ParserException",
    "OutOfMemoryException",
    "InterruptException",
    "PermissionException",
)
OF_DATA = {
    "ConversionException": "Conversion Error: a value cannot be converted",
    "OutOfRangeException": "Out of Range Error: a number is out of range",
    "InvalidInputException": "Invalid Input Error: a function cannot work with a value",
}
TYPES = (
    "U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|U?INT(?:8|16|32|64|128)|DOUBLE|FLOAT|DECIMAL|BOOLEAN|DATE|TIME|TIMESTAMP"
)
TARGET = re.compile(rf"\bto (?:destination )?(?:type )?({TYPES})\b|destination type ({TYPES})\b")
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
WITHHELD = "its message is not shown, as it may hold values of the data"


def safe_error(error: BaseException) -> str:
    """One line about an error that an engine raised."""
    name = type(error).__name__
    of_duckdb = type(error).__module__.partition(".")[0] in ("duckdb", "_duckdb")
    if of_duckdb and name in WITHOUT_DATA:
        return " ".join(one_line(error).partition(" LINE 1:")[0].split())
    if of_duckdb and name in OF_DATA:
        found = TARGET.findall(str(error))
        return OF_DATA[name] + (f" to {''.join(found[-1])}" if found and name == "ConversionException" else "")
    return f"{name}: {WITHHELD}" if str(error) else name


def safe_traceback(text: str) -> str:
    """The same of a traceback in text: the class of the error that was raised first."""
    after = text.partition("Traceback (most recent call last):\n")[2]
    found = RAISED.search(after)
    return f"{found[1].rpartition('.')[2] if found else 'an exception'}: {WITHHELD}"
