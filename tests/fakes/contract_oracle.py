"""What a contract's document says of rows, computed cell by cell in plain Python: an oracle for the engines.

It reads the YAML document, not the rules that the loader makes of it, and shares no code with the room: times are taken
apart by hand-written expressions, numbers by Decimal and float, patterns by Python's `re` in its own words. Slow.
"""

from __future__ import annotations

import calendar
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

Row = Mapping[str, str | None]
Key = tuple[str, str]  # where a rule stands in the document, and its kind
PATTERNS: dict[str, Callable[[str], bool]] = {
    "^[a-z]+$": lambda text: bool(text) and all("a" <= letter <= "z" for letter in text),
    "a.c": lambda text: any(
        one == "a" and two != "\n" and three == "c" for one, two, three in zip(text, text[1:], text[2:], strict=False)
    ),
    r"^\s*$": lambda text: all(letter in " \t\n\r\f" for letter in text),
    r"^\d{2}$": lambda text: len(text) == 2 and all(letter in "0123456789" for letter in text),
    "^.$": lambda text: len(text) == 1 and text != "\n",
    r"\bb\b": lambda text: re.search(r"(?<![0-9A-Za-z_])b(?![0-9A-Za-z_])", text) is not None,
    "é|😀": lambda text: "é" in text or "😀" in text,
    "^[^a]*$": lambda text: "a" not in text,
    r"\x{1F600}$": lambda text: text.endswith("😀"),
    "^$": lambda text: text == "",
    "(?i)^yes$": lambda text: len(text) == 3 and text[0] in "yY" and text[1] in "eE" and text[2] in "sSſ",
}
MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if number}
D2, D4 = "([0-9]{2})", "([0-9]{4})"
ZONE = "(Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
TIMES: dict[str, list[tuple[str, str]]] = {
    # the pattern in the contract: expressions, and what their groups are
    "yyyy-MM-dd": [(f"{D4}-{D2}-{D2}", "ymd")],
    "[MM/dd/yy][yyyy-MM-dd]": [(f"{D2}/{D2}/{D2}", "mdY"), (f"{D4}-{D2}-{D2}", "ymd")],
    "d.M.yyyy": [(f"([0-9]{{1,2}})\\.([0-9]{{1,2}})\\.{D4}", "dmy")],
    "yyyyMMdd": [(f"{D4}{D2}{D2}", "ymd")],
    "MMM d, yyyy": [(f"([A-Z][a-z]{{2}}) ([0-9]{{1,2}}), {D4}", "bdy")],
    "yyyy-MM-dd HH:mm[:ss]": [(f"{D4}-{D2}-{D2} {D2}:{D2}:{D2}", "ymdHMS"), (f"{D4}-{D2}-{D2} {D2}:{D2}", "ymdHM")],
    "dd/MM/yyyy h:mm a": [(f"{D2}/{D2}/{D4} ([0-9]{{1,2}}):{D2} (AM|PM|am|pm)", "dmyhMa")],
    "yyyy-MM-dd'T'HH:mm:ss.SSSXXX": [(f"{D4}-{D2}-{D2}T{D2}:{D2}:{D2}\\.([0-9]{{3}}){ZONE}", "ymdHMSfz")],
    "": [(f"{D4}-{D2}-{D2}[T ]{D2}:{D2}:{D2}(?:\\.([0-9]{{1,9}}))?{ZONE}?", "ymdHMSfz")],  # the timestamp's default
    "HH:mm": [(f"{D2}:{D2}", "HM")],
    "HH:mm:ss": [(f"{D2}:{D2}:{D2}", "HMS")],
}
CLOCK = [(f"{D2}:{D2}:{D2}(?:\\.([0-9]{{1,9}}))?", "HMSf")]


@dataclass
class Expected:
    """Of one rule: the rows that break it, how many it looks at, or the number that it measures."""

    broken: list[int] = field(default_factory=list)
    looked_at: int = 0
    number: float | None = None
    severity: str = "error"
    limit: tuple[str, float, float, str] = ("mustBe", 0.0, 0.0, "rows")
    kind: str = ""


def expected_rules(document: Mapping[str, Any], rows: Sequence[Row]) -> dict[Key, Expected]:
    """By place and kind, what every rule of the document's one table sees."""
    table = document["schema"][0]
    found: dict[Key, Expected] = {}
    missing = {one["name"]: _missing(one) for one in table["properties"]}
    for number, one in enumerate(table["properties"]):
        _property(one, f"schema[0].properties[{number}]", rows, missing, found)
    key = [one for one in table["properties"] if one.get("primaryKey")]
    if key and not (len(key) == 1 and key[0].get("unique")):
        names = [one["name"] for one in sorted(key, key=lambda one: one.get("primaryKeyPosition", -1))]
        found["schema[0].primaryKey", "unique"] = _repeated(rows, names, _united(missing, names))
    for number, rule in enumerate(table.get("quality", [])):
        where = f"schema[0].quality[{number}]"
        if rule["metric"] == "rowCount":
            found[where, "rows"] = _declared(rule, Expected(number=float(len(rows)), looked_at=len(rows)))
        else:
            names = rule["arguments"]["properties"]
            found[where, "unique"] = _declared(rule, _repeated(rows, names, _united(missing, names)))
    for (_, kind), one in found.items():
        one.kind = kind
    return found


def expected_verdict(document: Mapping[str, Any], rows: Sequence[Row]) -> tuple[bool, set[int]]:
    """Whether the batch passes, and the rows that are set aside: all of them where it does not."""
    everything = set(range(len(rows)))
    if not rows:
        return False, everything
    rules = expected_rules(document, rows)
    aside: set[int] = set()
    for one in rules.values():
        if one.kind == "column":
            continue
        unseen = one.kind not in ("rows", "required", "present") and not one.looked_at
        if one.severity == "error" and not unseen and not _holds(one, len(rows)):
            return False, everything
        if one.severity == "warning":
            aside |= set(one.broken)
    custom = {item["property"]: item["value"] for item in document["schema"][0].get("customProperties", [])}
    cap = custom.get("maxQuarantinePercent", 10)
    if aside == everything or Fraction(100 * len(aside), len(rows)) > Fraction(cap):
        return False, everything
    return True, aside


def _property(
    one: Mapping[str, Any],
    where: str,
    rows: Sequence[Row],
    missing: Mapping[str, tuple[str, ...]],
    found: dict[Key, Expected],
) -> None:
    name, absent = one["name"], missing[one["name"]]
    severity = {item["property"]: item["value"] for item in one.get("customProperties", [])}.get(
        "ruleSeverity", "error"
    )
    found[where, "column"] = Expected(number=1.0, looked_at=len(rows))
    if one.get("required") or one.get("primaryKey"):
        place = "required" if one.get("required") else "primaryKey"
        found[f"{where}.{place}", "present"] = _absent(rows, name, absent)
    if one.get("unique"):
        found[f"{where}.unique", "unique"] = _repeated(rows, [name], absent)
    for key, kind, keeps in _typed(one):
        found[where + key, kind] = _cells(rows, name, absent, keeps, severity)
    if "enum" in one:
        allowed = {str(item["value"]) for item in one["enum"]}
        found[f"{where}.enum", "values"] = _cells(rows, name, absent, lambda text: text in allowed, severity)
    for number, rule in enumerate(one.get("quality", [])):
        place = f"{where}.quality[{number}]"
        metric, arguments = rule["metric"], rule.get("arguments", {})
        if metric == "nullValues":
            found[place, "present"] = _declared(rule, _absent(rows, name, ("",) if "" in absent else ()))
        elif metric == "missingValues":
            found[place, "present"] = _declared(rule, _absent(rows, name, _listed(rule)))
        elif metric == "duplicateValues":
            found[place, "unique"] = _declared(rule, _repeated(rows, [name], absent))
        elif "pattern" in arguments:
            found[place, "pattern"] = _declared(rule, _cells(rows, name, absent, PATTERNS[arguments["pattern"]]))
        else:
            valid = {str(value) for value in arguments["validValues"] if value is not None}
            found[place, "values"] = _declared(
                rule, _cells(rows, name, absent, lambda text, valid=valid: text in valid)
            )


def _typed(one: Mapping[str, Any]) -> list[tuple[str, str, Callable[[str], bool]]]:
    """Of a property's logical type: the path below it, the kind of rule, and what a text must be."""
    kind, options = one.get("logicalType", "string"), one.get("logicalTypeOptions", {})
    if kind == "boolean":
        return [(".logicalType", "values", lambda text: text in ("true", "false"))]
    if kind == "string":
        found: list[tuple[str, str, Callable[[str], bool]]] = []
        low, high = options.get("minLength"), options.get("maxLength")
        if low is not None or high is not None:
            keeps = lambda text: (low or 0) <= len(text) and (high is None or len(text) <= high)  # noqa: E731
            found.append((".logicalTypeOptions", "length", keeps))
        if "pattern" in options:
            found.append((".logicalTypeOptions.pattern", "pattern", PATTERNS[options["pattern"]]))
        return found
    return [(".logicalTypeOptions", "reading", lambda text: _within(_value(text, kind, options), kind, options))]


def _value(text: str, kind: str, options: Mapping[str, Any]) -> Any:
    if kind == "integer":
        return int(text) if re.fullmatch("[+-]?0*[0-9]{1,38}", text) else None
    if kind == "number":
        shape = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
        value = float(text) if re.fullmatch(shape, text) else None
        return None if value is None or math.isinf(value) else value
    default = {"date": "yyyy-MM-dd", "timestamp": "", "time": None}[kind]
    pattern = options.get("format", default)
    for expression, groups in CLOCK if pattern is None else TIMES[pattern]:
        match = re.fullmatch(expression, text)
        value = _moment(dict(zip(groups, match.groups(), strict=True))) if match else None
        if value is not None:
            return value
    return None


def _moment(parts: Mapping[str, str | None]) -> timedelta | None:
    """The time since 1970 (or midnight) of the captured parts; None where calendar or clock has no such time."""
    given = {key: value or "" for key, value in parts.items()}
    year = int(given.get("y", "1970"))
    if "Y" in given:
        year = int(given["Y"]) + (1900 if int(given["Y"]) > 68 else 2000)
    if "b" in given and given["b"] not in MONTHS:
        return None
    month = MONTHS[given["b"]] if "b" in given else int(given.get("m", "1"))
    hour = int(given.get("H", "0"))
    if "h" in given:
        if not 1 <= int(given["h"]) <= 12:
            return None
        hour = int(given["h"]) % 12 + (12 if given["a"] in ("PM", "pm") else 0)
    micro = int((given.get("f", "") + "000000")[:6])
    try:
        found = datetime(
            year, month, int(given.get("d", "1")), hour, int(given.get("M", "0")), int(given.get("S", "0")), micro
        )
    except ValueError:
        return None
    zone = given.get("z", "")
    offset = timedelta()
    if zone not in ("", "Z"):
        digits = zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:] or "0")
        if hours > 18 or minutes > 59:
            return None
        offset = timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    return found - datetime(1970, 1, 1) - offset


def _within(value: Any, kind: str, options: Mapping[str, Any]) -> bool:
    if value is None:
        return False
    ends = {key: _end(options[key], kind) for key in options if key.endswith(("nimum", "ximum"))}
    tests: dict[str, Callable[[Any], bool]] = {
        "minimum": lambda end: value >= end,
        "maximum": lambda end: value <= end,
        "exclusiveMinimum": lambda end: value > end,
        "exclusiveMaximum": lambda end: value < end,
    }
    if not all(tests[key](end) for key, end in ends.items()):
        return False
    if step := options.get("multipleOf"):
        if kind == "integer":
            return bool(value % step == 0)
        times = value / step
        nearest = round(times) if math.isfinite(times) else math.nan
        return abs(times - nearest) <= 4 * 2.0**-52 * max(1.0, abs(times))
    return True


def _end(end: Any, kind: str) -> Any:
    if kind in ("integer", "number"):
        return end
    if kind == "time":
        hour, minute, second = map(int, end.split(":"))
        return timedelta(hours=hour, minutes=minute, seconds=second)
    moment = datetime.fromisoformat(end)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment - datetime(1970, 1, 1, tzinfo=UTC)


def _cells(
    rows: Sequence[Row], name: str, missing: Sequence[str], keeps: Callable[[str], bool], severity: str = "error"
) -> Expected:
    found = Expected(severity=severity)
    for number, row in enumerate(rows):
        text = row[name]
        if text is not None and text not in missing:
            found.looked_at += 1
            if not keeps(text):
                found.broken.append(number)
    return found


def _absent(rows: Sequence[Row], name: str, missing: Sequence[str]) -> Expected:
    broken = [number for number, row in enumerate(rows) if row[name] is None or row[name] in missing]
    return Expected(broken, len(rows))


def _repeated(rows: Sequence[Row], names: Sequence[str], missing: Sequence[str]) -> Expected:
    keys = [tuple(None if row[name] in missing else row[name] for name in names) for row in rows]
    counts = Counter(keys)
    looked = [number for number, key in enumerate(keys) if any(part is not None for part in key)]
    return Expected([number for number in looked if counts[keys[number]] > 1], len(looked))


def _declared(rule: Mapping[str, Any], found: Expected) -> Expected:
    operator = next(key for key in rule if key.startswith("must"))
    values = rule[operator] if isinstance(rule[operator], list) else [rule[operator]]
    found.limit = (operator, float(values[0]), float(values[-1]), rule.get("unit", "rows"))
    found.severity = rule.get("severity", "error")
    return found


def _holds(one: Expected, rows: int) -> bool:
    operator, low, high, unit = one.limit
    count = float(len(one.broken)) if one.number is None else one.number
    value = 100 * count / rows if unit == "percent" else count
    return {
        "mustBe": value == low,
        "mustNotBe": value != low,
        "mustBeGreaterThan": value > low,
        "mustBeGreaterOrEqualTo": value >= low,
        "mustBeLessThan": value < low,
        "mustBeLessOrEqualTo": value <= low,
        "mustBeBetween": low <= value <= high,
        "mustNotBeBetween": value < low or value > high,
    }[operator]


def _missing(one: Mapping[str, Any]) -> tuple[str, ...]:
    lists = [_listed(rule) for rule in one.get("quality", []) if rule["metric"] == "missingValues"]
    return tuple(text for texts in lists for text in texts) if lists else ("",)


def _listed(rule: Mapping[str, Any]) -> tuple[str, ...]:
    listed = rule.get("arguments", {}).get("missingValues")
    return ("",) if listed is None else tuple(str(text) for text in listed if text is not None)


def _united(missing: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for name in names for text in missing[name])
