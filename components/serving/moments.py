"""Times in requests: RFC 3339, as one pattern, so that what fits the published schema is a day that exists.

A `date-time` of JSON Schema would admit the year 1 and 31 December 9999 at -10:00, which no feature can be computed of.
"""

from __future__ import annotations

import re
from datetime import datetime

_YEAR = "(?:19[7-9][0-9]|2[01][0-9]{2})"
_LEAP = "(?:19(?:7[26]|8[048]|9[26])|20(?:[02468][048]|[13579][26])|21(?:0[48]|[2468][048]|[13579][26]))"
_LONG, _SHORT = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY = f"(?:{_LONG}|{_SHORT}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])"
MOMENT = f"^(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)T{_CLOCK}{_ZONE}$"
"""Of the years 1970 to 2199, with a zone, to the microsecond."""


def moment(text: str) -> datetime:
    """The time of a text that fits MOMENT, with its zone; ValueError where it does not fit."""
    if re.fullmatch(MOMENT, text) is None:
        raise ValueError(f"{text!r} is no time with a zone, such as 2026-01-31T09:30:00Z")
    return datetime.fromisoformat(text)
