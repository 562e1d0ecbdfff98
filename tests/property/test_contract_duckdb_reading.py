"""What a text is as a time or number: DuckDB's SQL against the definition, on all short texts and on near misses."""

from __future__ import annotations

import random
from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from components.contract.engines.duckdb_reading import fits_sql, value_sql
from components.contract.standard.reading import INTEGER, NUMBER, fits, read_values
from components.contract.standard.rules import Reading
from components.contract.standard.time_formats import ISO_CLOCK, ISO_LOCAL, ISO_TIME, ISO_ZONED, MONTHS, PIECES

SIGNS = [
    "0",
    "7",
    "+",
    "-",
    ".",
    "e",
    "E",
    "_",
    " ",
    "\t",
    "\n",
    "\v",
    "\f",
    "\r",
    "\0",
    "n",
    "i",
    "a",
    "f",
    "x",
    ",",
    "A",
]
FEW = [*SIGNS[:13], "\0", "n", "i"]
PATTERNS = [
    *(
        (name,)
        for name in (ISO_TIME, ISO_ZONED, ISO_LOCAL, "yyyy-MM-dd", "d.M.yyyy", "Mdyyyy", "M1d1yyyy", "MMM d, yyyy")
    ),
    *((name,) for name in ("dd MMMM yyyy HH:mm", "yyyyMMdd'T'HHmmssXX", "yyyy-MM-dd HH:mm:ss.SSS", "h:mm a dd/MM/yy")),
    *((name,) for name in ("uuuu.MM.dd HH:mm:ss.SSSSSSSSS Z", "yyyy'%d'MM'é 1'dd", "yy/M/d H:m:s")),
    ("MM/dd/yy", "yyyy-MM-dd"),
]
CLOCKS = [(name,) for name in (ISO_CLOCK, "HH:mm", "h:mm:ss a", "H.m.s", "HHmmss.SS")]
RANGES = [
    Reading("time", ("yyyy-MM-dd",), low="2000-01-01", high="2020-02-29", open_high=True),
    Reading("time", (ISO_TIME,), low="2000-01-01T00:00:00", open_low=True),
    Reading("number", low="0.1", open_low=True, high="1e5"),
    Reading("number", high="7", open_high=True),
    Reading("number", low="-3", multiple_of="0.05"),
    Reading("integer", low="-99999999999999999999", high="12345678901234567890123", multiple_of="7"),
    Reading("integer", low="0", high="7", open_low=True, open_high=True),
]


def test_every_short_text_is_a_number_or_not_in_both() -> None:
    """All texts of up to four signs: the cast that stands for the expression takes what the expression takes."""
    for length in range(1, 5):
        signs = SIGNS if length < 4 else FEW
        listed = f"(SELECT unnest({[ord(sign) for sign in signs]}) AS code)"
        sources = ", ".join(f"{listed} AS t{place}" for place in range(length))
        text = " || ".join(f"chr(t{place}.code)" for place in range(length))
        for reading, expression in ((Reading("number"), NUMBER), (Reading("integer"), INTEGER)):
            value = value_sql("c", reading)
            finite = " AND isfinite(TRY_CAST(c AS DOUBLE))" if reading.kind == "number" else ""
            differ = f"({value} IS NOT NULL) <> (regexp_matches(c, '{expression}'){finite})"
            told = f"count(*), count_if({differ}), any_value(c) FILTER ({differ})"
            query = f"SELECT {told} FROM (SELECT {text} AS c FROM {sources})"
            row = duckdb.sql(query).fetchone()
            assert row == (len(signs) ** length, 0, None)


@pytest.mark.parametrize(
    "reading",
    [Reading("time", names) for names in PATTERNS]
    + [Reading("clock", names) for names in CLOCKS]
    + [Reading("number"), Reading("integer"), *RANGES],
    ids=str,
)
def test_values_are_those_of_the_definition(reading: Reading) -> None:
    """Values, and whether they fit, of texts that are times and numbers or nearly so."""
    rng = random.Random(7)
    drawn: Callable[[], str] = (
        (lambda: _time(rng, rng.choice(reading.formats))) if reading.formats else lambda: _number(rng)
    )
    texts = [drawn() for _ in range(1500)] + ["", " ", "None", "infinity", "epoch", "nan"]
    values, known = read_values(pa.array(texts, pa.string()), reading)
    wanted = [value if reads else None for value, reads in zip(values.tolist(), known.tolist(), strict=True)]
    kept = fits(pa.array(texts, pa.string()), reading)
    query = f"SELECT {value_sql('x', reading)}, {fits_sql('x', reading)} FROM (SELECT unnest($1) AS x)"
    found = duckdb.execute(query, [texts]).fetchall()
    assert [row[0] for row in found] == wanted
    assert [row[1] for row in found] == np.asarray(kept).tolist()
    assert 0 < sum(known) < len(texts)


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


def _number(rng: random.Random) -> str:
    made = [
        _digits(rng, rng.randint(1, 45)),
        f"-{_digits(rng, 3)}.{_digits(rng, 2)}",
        "0" * 60 + _digits(rng, 3),
        f"{_digits(rng, 3)}e{_digits(rng, 3)}",
        f".{_digits(rng, 2)}",
        f"{_digits(rng, 2)}.",
        f"+{_digits(rng, 5)}",
        f"+-{_digits(rng, 1)}",
        str(rng.uniform(-1e9, 1e9)),
        str(rng.randint(0, 20) * 0.1),
        f"{rng.randint(0, 200) / 20}",
        "9" * rng.choice([18, 19, 38, 39]),
        "-" + "9" * 38,
        str(rng.choice([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**53 + 1])),
        rng.choice(
            ["1e999", "nan", "inf", "1_0", " 1", "1 ", "1\n", "٣", "-", "1e-400", "0x1", "1.7976931348623159e308"]
        ),
    ]
    return rng.choice(made)


def _time(rng: random.Random, pattern: str) -> str:
    """A text of the pattern with parts at and beyond their ends, now and then with a letter too many or too few."""
    if pattern in (ISO_TIME, ISO_ZONED, ISO_LOCAL):
        joint, fraction = rng.choice("T "), rng.choice(["", ".S", ".SSS", ".SSSSSSS"])
        pattern = f"yyyy-MM-dd'{joint}'HH:mm:ss{fraction}{rng.choice(['', '', 'XXX'])}"
    if pattern == ISO_CLOCK:
        pattern = f"HH:mm:ss{rng.choice(['', '.SSSS'])}"
    text = "".join(
        _part(rng, piece["letters"]) if piece["letters"] else piece["other"] or piece["quoted"].replace("''", "'")
        for piece in PIECES.finditer(pattern)
    )
    if rng.random() < 0.12:
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice([" ", "٣", "\n", "0", "-", "x", ""]) + text[place + rng.randint(0, 1) :]
    return text


def _part(rng: random.Random, letters: str) -> str:
    width = len(letters)
    if letters[0] in "yu":
        return rng.choice([_digits(rng, 4), str(rng.randint(1990, 2030)), "0000", "0001", "9999"])[-width:]
    if letters[0] == "M" and width > 2:
        return rng.choice(MONTHS)[: 3 if width == 3 else None]
    if letters[0] == "S":
        return rng.choice([_digits(rng, width), "0" * width, "5" + "0" * (width - 1)])
    if letters[0] in "XZ":
        return rng.choice(["Z", "+02", "-0530", "+05:45", "-18:59", "+19", "+00:60", "+00"])
    if letters[0] == "a":
        return rng.choice(["AM", "PM", "am", "pm", "Pm"])
    ends = {"M": (0, 13), "d": (0, 32), "H": (0, 24), "h": (0, 13), "m": (0, 60), "s": (0, 60)}[letters[0]]
    number = rng.choice([ends[0], ends[1], ends[1] - 1, 28, *(rng.randint(*ends) for _ in range(4))])
    return f"{number:0{width}d}"
