"""Service levels (slaProperties) as rules on a batch; the time of reading comes in as a value, so that replay agrees.

freshness     the newest time of `element` is at most value + unit before the time of reading, and less than a day after
              it (clocks and zones differ; a year mistyped is no freshness)
latency       of one element: as freshness. Of two, `event, available`: in each row the second follows the first within
              value + unit, and is not before it
retention     no time of `element` is older than value + unit at the time of reading (what is to be deleted, is)
frequency     between successive times of `element` in the batch, no gap is longer than value + unit

Units are d, h, min, s, w, mo (30 days) and y (365 days) with their long names; a text such as P1DT12H needs none.
`m` is refused: it is a minute to some and a month to others. Other properties (availability, support times ...) promise
something that no batch shows: they are told as notes. A time that does not read is no time (and breaks the column's own
rule); a batch without any time breaks the service level. customProperties `ruleSeverity` as for columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from components.contract.standard.rules import Column, DataContract, Limit, Rule
from components.contract.standard.yaml_file import Node, words

KEYS = words(
    "id property value valueExt unit element driver description scheduler schedule customProperties "
    "authoritativeDefinitions"
)
SIZES = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800, "mo": 2_592_000, "y": 31_536_000}
AHEAD = 86_400.0
UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hr", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "wk", "week", "weeks"), "w"),
    **dict.fromkeys(("mo", "month", "months"), "mo"),
    **dict.fromkeys(("y", "yr", "year", "years"), "y"),
}
ISO_DURATION = re.compile(
    r"P(?=.)(?:(?P<y>\d+)Y)?(?:(?P<mo>\d+)M)?(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<min>\d+)M)?(?:(?P<s>\d+)S)?)?"
)
CHECKED = ("freshness", "latency", "retention", "frequency")


def sla_rules(root: Node, table: Node, columns: Sequence[Column]) -> list[Rule]:
    """The rules of `slaProperties`, in order; UserError for one of the four above that cannot be checked as written."""
    return [_rule(node.keys(KEYS), root, table, columns) for node in root.items("slaProperties")]


def at_time(contract: DataContract, now: datetime | str) -> DataContract:
    """The contract with the time of reading in its service levels.

    Args:
        contract: as loaded.
        now: when the batch was read: of a snapshot, the time in its record; UTC where it names no zone.
    """
    moment = datetime.fromisoformat(now) if isinstance(now, str) else now
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return replace(contract, rules=tuple(_bound(rule, aware) for rule in contract.rules))


def _bound(rule: Rule, now: datetime) -> Rule:
    if rule.kind not in CHECKED:
        return rule
    if rule.kind != "retention":
        return replace(rule, now=now.isoformat())
    assert rule.reading is not None, rule
    try:
        oldest = now - timedelta(seconds=rule.seconds)
    except OverflowError:
        oldest = datetime(1, 1, 1, tzinfo=UTC)
    return replace(rule, now=now.isoformat(), reading=replace(rule.reading, low=oldest.isoformat(), open_low=False))


def _rule(node: Node, root: Node, table: Node, columns: Sequence[Column]) -> Rule:
    name = node.get("property", str)
    if not name or node.value.get("value") is None:
        node.fail("lacks property or value; write both")
    text = str(node.get("description", str, ""))
    label = str(node.get("id", str, name))
    if name not in CHECKED:
        told = text or f"{name}: {node.value['value']} {node.value.get('unit') or ''}".strip()
        return Rule(label, "note", (), node.path, severity="info", description=told)
    seconds = _seconds(node)
    elements = _elements(node, root, table, columns)
    if len(elements) > (2 if name == "latency" else 1):
        node.at("element").fail(f"names {len(elements)} columns; {name} is about {_about(name)}")
    severity = node.custom().get("ruleSeverity", "error")
    rows = name == "retention" or len(elements) == 2
    allowed = ("error", "warning", "info") if rows else ("error", "info")
    if severity not in allowed:
        node.at("customProperties").fail(f"ruleSeverity {severity!r}; write {', '.join(allowed)}")
    missing = tuple(dict.fromkeys(text for column in elements for text in column.missing))
    return Rule(
        name=label,
        kind=name if rows or name != "latency" else "freshness",
        columns=tuple(column.name for column in elements),
        where=node.path,
        severity=severity,
        limit=_limit(name, rows, seconds),
        missing=missing,
        reading=None if len(elements) == 2 else replace(elements[0].reading, low="", high="", open_high=False),  # type: ignore[type-var]
        readings=tuple(column.reading for column in elements) if len(elements) == 2 else (),
        seconds=seconds,
        description=text,
    )


def _limit(name: str, rows: bool, seconds: float) -> Limit:
    if rows:
        return Limit()
    if name == "frequency":
        return Limit("mustBeLessOrEqualTo", seconds, seconds, "seconds")
    return Limit("mustBeBetween", -AHEAD, seconds, "seconds")


def _elements(node: Node, root: Node, table: Node, columns: Sequence[Column]) -> list[Column]:
    """The columns that an SLA is about, written `table.column`, or as the standard's older slaDefaultElement."""
    text = node.get("element", str) or root.get("slaDefaultElement", str)
    place = node.at("element")
    if not text:
        place.fail("is missing; name the column that holds the time, as table.column")
    names = [part.strip().removeprefix(f"{table.value.get('name')}.") for part in str(text).split(",")]
    known = {column.name: column for column in columns}
    whole = str(text).strip().removeprefix(f"{table.value.get('name')}.")
    found = [known[whole]] if whole in known else [known[name] for name in names if name in known]
    if whole not in known and len(found) != len(names):
        place.fail(f"{text!r} names a column that is not declared; write {table.value.get('name')}.COLUMN")
    for column in found:
        if column.reading is None or column.reading.kind != "time":
            place.fail(f"{column.name!r} is a {column.logical_type}; name a column of logicalType date or timestamp")
    return found


def _seconds(node: Node) -> float:
    value, unit = node.value.get("value"), node.get("unit", str)
    if isinstance(value, str) and (found := ISO_DURATION.fullmatch(value)):
        return float(sum(int(count) * SIZES[name] for name, count in found.groupdict().items() if count))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        node.at("value").fail(f"is {value!r}; write a number of units, or a duration such as P1DT12H")
    if unit is None or unit.lower() not in UNITS:
        hint = "; m may mean minutes or months: write min or mo" if unit in ("m", "M") else ""
        node.at("unit").fail(f"{unit!r} is unknown{hint}; known: {', '.join(SIZES)}")
    return float(value * SIZES[UNITS[unit.lower()]])


def _about(name: str) -> str:
    return "the event, and when it was available" if name == "latency" else "one"
