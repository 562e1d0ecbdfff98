"""What a column's texts seem to be: type, format, range, closed set, pattern, and how much is missing. Pure.

Every rule drafted here holds for the texts that it was drafted from; a range gets room, as the next batch differs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.contract.evolution.personal import is_identifier, personal, protected
from components.contract.standard.patterns import STRING_FORMATS
from components.contract.standard.reading import EPOCH, fits, read_values
from components.contract.standard.rules import Reading
from components.contract.standard.time_formats import ISO_CLOCK, ISO_TIME

MARKERS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "none", "NaN", "nan", "-", "?")
DATES = (
    *("yyyy-MM-dd", "MM/dd/yy", "MM/dd/yyyy", "M/d/yyyy", "M/d/yy", "dd/MM/yyyy", "dd/MM/yy", "d/M/yyyy", "dd.MM.yyyy"),
    *("d.M.yyyy", "dd.MM.yy", "dd-MM-yyyy", "yyyy/MM/dd", "dd MMM yyyy", "d MMM yyyy", "MMM d, yyyy", "MMMM d, yyyy"),
    *("d MMMM yyyy", "dd-MMM-yy", "dd-MMM-yyyy"),
)
COMPACT = "yyyyMMdd"
MOMENTS = (
    *("MM/dd/yyyy HH:mm", "MM/dd/yyyy HH:mm:ss", "M/d/yyyy H:mm", "M/d/yyyy H:mm:ss", "MM/dd/yyyy hh:mm:ss a"),
    *("MM/dd/yyyy hh:mm a", "dd/MM/yyyy HH:mm", "dd/MM/yyyy HH:mm:ss", "dd.MM.yyyy HH:mm", "dd.MM.yyyy HH:mm:ss"),
    *("yyyy-MM-dd HH:mm", "yyyy-MM-dd'T'HH:mm", "yyyy/MM/dd HH:mm:ss", "yyyyMMdd'T'HHmmssX"),
)
SWAPPED = {"MM/dd": "dd/MM", "M/d": "d/M", "dd/MM": "MM/dd", "d/M": "M/d"}
CLOSED_SET = 20
TIMES_EACH = 5
LONGEST_MEMBER = 120
LONGEST_EXAMPLE = 40
SHOWN = 3
FURTHEST = 10**15  # numbers beyond it get no bounds
LONGEST_LEAST = 20  # characters that any text may have
LEADING_ZERO = r"^[+-]?0[0-9]"
MAX_FORMATS = 3
LONGEST_SHAPE = 12  # runs of letters, digits and others


@dataclass
class Draft:
    """A property (`entry`) as it is written, and what a person should know about it.

    distinct: how many values there are; complete: none is missing. A column that may be a key is both distinct in
    every row and complete.
    """

    name: str
    rows: int
    entry: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    distinct: int = 0
    complete: bool = False
    identifier: bool = False

    @property
    def is_key(self) -> bool:
        """Whether it tells all rows apart."""
        return self.complete and self.distinct == self.rows > 1


def draft_column(name: str, texts: pa.ChunkedArray) -> Draft:
    """The draft of one column of texts; null and the empty text are missing."""
    counts = {
        str(entry["values"]): int(entry["counts"])
        for entry in pc.value_counts(texts.drop_null().combine_chunks()).to_pylist()
    }
    missing = len(texts) - sum(counts.values()) + counts.pop("", 0)
    draft = Draft(name, len(texts), {"name": name}, identifier=is_identifier(name))
    markers = [marker for marker in MARKERS if marker in counts]
    others = {value: count for value, count in counts.items() if value not in markers}
    kept = bool(markers) and (not others or (_closed(counts) and not _measured(others)))
    if markers and not kept:
        missing += sum(counts[marker] for marker in markers)
        counts = others
        draft.notes.append(f"{', '.join(map(repr, markers))} counts as missing: is it?")
    draft.distinct, draft.complete = len(counts), missing == 0 and bool(counts)
    _type(draft, counts)
    _tags(draft, list(counts)[:200])
    _presence(draft, missing, [] if kept else markers)
    return draft


def _measured(counts: dict[str, int]) -> bool:
    """Whether values are numbers or dates: beside them a marker is no member of a set."""
    values = pa.array(list(counts), pa.string())
    return bool(fits(values, Reading("number")).all() or _cover(values, DATES))


def _type(draft: Draft, counts: dict[str, int]) -> None:
    values = pa.array(list(counts), pa.string())
    if not counts:
        draft.entry["logicalType"] = "string"
        draft.notes.append("no value was seen: say what it is, or leave the column out")
    elif set(counts) <= {"true", "false"}:
        draft.entry["logicalType"] = "boolean"
    elif not (_number(draft, values) or _time(draft, values)):
        draft.entry["logicalType"] = "string"
        _text(draft, counts, values)


def _number(draft: Draft, values: pa.Array) -> bool:
    """Integers and numbers; digits that name something (a leading zero, an identifier) are texts."""
    coded = pc.any(pc.match_substring_regex(values, LEADING_ZERO)).as_py() or draft.identifier
    if coded or (_called_a_day(draft.name) and fits(values, Reading("time", (COMPACT,))).all()):
        return False
    for kind in ("integer", "number"):
        found, known = read_values(values, Reading(kind))
        if known.all():
            low, high = min(found.tolist()), max(found.tolist())
            draft.entry |= {"logicalType": kind}
            if -FURTHEST < low <= high < FURTHEST:
                draft.entry |= {"logicalTypeOptions": _range(kind, low, high)}
            draft.notes.append(f"seen {low:g} to {high:g}" if kind == "number" else f"seen {low} to {high}")
            return True
    return False


def _range(kind: str, low: float, high: float) -> dict[str, Any]:
    """Bounds with room: half the span on either side, to a round number; no negative ones where none were seen."""
    room = max((high - low) / 2, abs(high) / 2, 1)
    least = 0 if low >= 0 else -_round_up(room - low)
    most = 0 if high <= 0 else _round_up(high + room)
    return (
        {"minimum": least, "maximum": most} if kind == "integer" else {"minimum": float(least), "maximum": float(most)}
    )


def _round_up(number: float) -> int:
    """The next 1, 2 or 5 times a power of ten."""
    size = 10 ** math.floor(math.log10(max(number, 1)))
    return int(next(step * size for step in (1, 2, 5, 10, 20) if step * size >= number))


def _time(draft: Draft, values: pa.Array) -> bool:
    """Dates, times and times of day; several formats where the rows need them."""
    if fits(values, Reading("clock", (ISO_CLOCK,))).all():
        draft.entry["logicalType"] = "time"
        return True
    whole = bool(fits(values, Reading("time", (ISO_TIME,))).all())
    kind, formats = "timestamp", tuple[str, ...]((ISO_TIME,))
    if not whole:
        dates = (*DATES, COMPACT) if _called_a_day(draft.name) else DATES
        found = [(name, _cover(values, known)) for name, known in (("date", dates), ("timestamp", MOMENTS))]
        kind, formats = next((one for one in found if one[1]), ("", ()))
        if not formats:
            return False
    micros, _ = read_values(values, Reading("time", formats))
    first, last = (EPOCH + timedelta(microseconds=int(end(micros))) for end in (min, max))
    options: dict[str, Any] = {} if whole or formats == ("yyyy-MM-dd",) else {"format": _joined(formats)}
    draft.entry |= {"logicalType": kind, "logicalTypeOptions": options | {"minimum": _january(first)}}
    draft.notes.append(f"seen {first.date().isoformat()} to {last.date().isoformat()}")
    swapped = tuple(re.sub("MM/dd|dd/MM|M/d|d/M", lambda found: SWAPPED[found[0]], name) for name in formats)
    if swapped != formats and fits(values, Reading("time", swapped)).all():
        draft.notes.append("day and month cannot be told apart in these rows: check the format")
    return True


def _called_a_day(name: str) -> bool:
    return bool(re.search("date|day", name.lower()))


def _cover(values: pa.Array, known: tuple[str, ...]) -> tuple[str, ...]:
    """Few formats that read every value, the one that reads most first; none where that needs too many."""
    left, found = values, list[str]()
    while len(left) and len(found) < MAX_FORMATS:
        counted = [(int(fits(left, Reading("time", (name,))).sum()), -place) for place, name in enumerate(known)]
        most, place = max(counted)
        if not most:
            return ()
        found.append(known[-place])
        left = left.filter(pa.array(~fits(left, Reading("time", (known[-place],)))))
    return tuple(found) if not len(left) else ()


def _joined(formats: tuple[str, ...]) -> str:
    return formats[0] if len(formats) == 1 else "".join(f"[{name}]" for name in formats)


def _january(moment: datetime) -> str:
    return f"{moment.year:04}-01-01"


def _closed(counts: dict[str, int]) -> bool:
    """Whether few values make up all rows."""
    rows = sum(counts.values())
    return (
        0 < len(counts) <= CLOSED_SET and rows >= TIMES_EACH * len(counts) and max(map(len, counts)) <= LONGEST_MEMBER
    )


def _text(draft: Draft, counts: dict[str, int], values: pa.Array) -> None:
    if len(counts) == 1:
        draft.notes.append("one value in all rows")
    elif _closed(counts) and not draft.identifier:
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        draft.entry["enum"] = [{"value": value} for value in ordered]
        draft.notes.append(f"{len(counts)} values make up all rows: is the set closed?")
        return
    for name in ("email", "uuid", "ipv4", "uri"):
        if pc.all(pc.match_substring_regex(values, STRING_FORMATS[name])).as_py():
            draft.entry["logicalTypeOptions"] = {"format": name}
            return
    lengths = pc.utf8_length(values)
    least, most = pc.min(lengths).as_py(), pc.max(lengths).as_py()
    grows = 1 if draft.identifier and "code" not in draft.name.lower() else 0
    if pattern := _pattern(list(counts), grows):
        draft.entry["logicalTypeOptions"] = {"pattern": pattern}
    elif least == most and pc.all(pc.match_substring_regex(values, "^[0-9A-Z]+$")).as_py():
        draft.entry["logicalTypeOptions"] = {"pattern": f"^[0-9A-Z]{{{least}}}$"}
    else:
        draft.entry["logicalTypeOptions"] = {"minLength": 1, "maxLength": max(LONGEST_LEAST, _round_up(most * 1.5))}
        draft.notes.append(f"seen {least} to {most} characters" if least < most else f"seen with {most} characters")


def _pattern(values: list[str], grows: int) -> str:
    """The pattern that values of one shape share (`AB-1234`); "" where they have no shape or are words.

    grows: digits and letters that a run may have more than was seen.
    """
    shapes = [re.findall(r"[0-9]+|[A-Z]+|[a-z]+|.", value, re.DOTALL) for value in values]
    kinds = {tuple(_kind(run) for run in shape) for shape in shapes}
    if len(kinds) != 1 or len(shapes[0]) > LONGEST_SHAPE:
        return ""
    (kind,) = kinds
    capitals = kind == ("[A-Z]",) and len({len(value) for value in values}) == 1
    if "[0-9]" not in kind and not capitals:
        return ""
    pieces = []
    for place, part in enumerate(kind):
        lengths = [len(shape[place]) for shape in shapes]
        low, high = min(lengths), max(lengths) + grows
        counted = f"{part}{{{low}}}" if low == high else f"{part}{{{low},{high}}}"
        pieces.append(
            counted if part.startswith("[") and part != "[" else re.sub(r"[][.^$*+?{}()|\\]", r"\\\g<0>", part)
        )
    pattern = f"^{''.join(pieces)}$"
    return pattern if pattern.isascii() else ""


def _kind(run: str) -> str:
    for part in ("[0-9]", "[A-Z]", "[a-z]"):
        if re.fullmatch(f"{part}+", run):
            return part
    return run


def _tags(draft: Draft, values: list[str]) -> None:
    """Personal data and protected groups, as guesses; values of a column without personal data are shown."""
    told = values if draft.entry["logicalType"] == "string" and draft.distinct > CLOSED_SET else []
    about = personal(draft.name, told)
    tags = ["pii"] if about else []
    if about:
        draft.notes.append(f"tagged pii because {about}: a guess")
    if protected(draft.name):
        tags.append("protected")
        draft.notes.append("tagged protected because its name suggests a group: a guess")
    if tags:
        draft.entry |= {"tags": tags, "classification": "restricted"}
    elif draft.entry["logicalType"] == "string" and "enum" not in draft.entry and values:
        draft.entry["examples"] = [value[:LONGEST_MEMBER] for value in values if len(value) <= LONGEST_MEMBER][:SHOWN]


def _presence(draft: Draft, missing: int, markers: list[str]) -> None:
    """required where nothing is missing; else the share that may be, with room."""
    if draft.complete:
        draft.entry["required"] = True
    share = 100 * missing / draft.rows if draft.rows else 100.0
    if draft.complete or not missing or share >= 100:
        return
    limit = math.ceil(min(1.5 * share + 1, (share + 100) / 2))
    draft.notes.append(f"{missing} of {draft.rows} values are missing ({share:.1f} %)")
    draft.entry["quality"] = [
        {
            "id": f"{_slug(draft.name)}-mostly-known",
            "metric": "missingValues",
            "arguments": {"missingValues": [None, "", *markers]},
            "mustBeLessOrEqualTo" if limit < 100 else "mustBeLessThan": limit,
            "unit": "percent",
            "dimension": "completeness",
        }
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "column"
