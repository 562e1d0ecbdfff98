"""Rules that a property's logical type and its options declare, and how its texts are read."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

from components.contract.standard.patterns import STRING_FORMATS, UNCHECKED_FORMATS, checked_pattern
from components.contract.standard.reading import bounds
from components.contract.standard.rules import Reading, Rule
from components.contract.standard.time_formats import ISO_CLOCK, ISO_LOCAL, ISO_TIME, ISO_ZONED, formats_of, time_format
from components.contract.standard.yaml_file import Node

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OPTIONS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "date": ("format", *BOUNDS),
    "timestamp": ("format", "timezone", "defaultTimezone", *BOUNDS),
    "time": ("format", "timezone", "defaultTimezone", *BOUNDS),
    "integer": ("format", "multipleOf", *BOUNDS),
    "number": ("format", "multipleOf", *BOUNDS),
    "boolean": (),
}
NESTED = ("object", "array", "map", "vector")
TRUTHS = ("true", "false")
UTC_NAMES = ("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT")
FLOAT_32 = 3.4028235e38
LARGEST = {"integer": "9" * 38, "number": repr(sys.float_info.max)}


def type_of(property_: Node) -> str:
    """The logical type, string where none is given; UserError for one that a column of texts cannot have."""
    kind = str(property_.get("logicalType", str, "string"))
    if kind in NESTED:
        property_.at("logicalType").fail(f"{kind!r} makes no sense for a column of texts; write string, or flatten it")
    if kind not in OPTIONS:
        property_.at("logicalType").fail(f"{kind!r} is unknown; known: {', '.join(OPTIONS)}")
    return kind


def reading_of(property_: Node) -> Reading | None:
    """How the property's texts are read as times or numbers; None for string and boolean."""
    kind, options = type_of(property_), _options(property_)
    if kind in ("string", "boolean"):
        return None
    if kind in ("integer", "number"):
        reading = _number_reading(kind, options)
    else:
        formats = _formats(kind, options)
        reading = Reading("clock" if kind == "time" else "time", formats, **_bounds(options))
    try:
        low, high = bounds(reading)
    except ValueError as error:
        options.fail(f"a bound cannot be read ({error}); write {_bound_form(kind)}")
    if low is not None and high is not None:
        closed = not (reading.open_low or reading.open_high)
        if low > high or (low == high and not closed):
            options.fail(f"nothing is {_range_text(reading)}; the bounds contradict each other")
    if kind in ("integer", "number") and not _admits(reading):
        kept = f", a multiple of {reading.multiple_of}" if reading.multiple_of else ""
        options.fail(f"no {kind} is {_range_text(reading)}{kept}; widen the bounds")
    return reading


def type_rules(property_: Node, name: str, severity: str, missing: tuple[str, ...]) -> list[Rule]:
    """Rules of `logicalType` and `logicalTypeOptions`; UserError for a type or an option that is not checked."""
    kind, options = type_of(property_), _options(property_)
    common: dict[str, Any] = {"columns": (name,), "severity": severity, "missing": missing}
    if kind == "string":
        return _string_rules(options, common)
    if kind == "boolean":
        place = property_.at("logicalType").path
        return [Rule(name="boolean", kind="values", where=place, values=TRUTHS, **common)]
    return [Rule(name=kind, kind="reading", where=options.path, reading=reading_of(property_), **common)]


def _options(property_: Node) -> Node:
    node = property_.at("logicalTypeOptions")
    return Node({} if node.value is None else node.value, node.file, node.path).keys(OPTIONS[type_of(property_)])


def _string_rules(options: Node, common: dict[str, Any]) -> list[Rule]:
    rules = []
    low, high = options.get("minLength", int), options.get("maxLength", int)
    for key, value in (("minLength", low), ("maxLength", high)):
        if value is not None and value < 0:
            options.at(key).fail(f"is {value}; write 0 or more")
    if low is not None or high is not None:
        if (low or 0) > (high if high is not None else low or 0):
            options.fail(f"minLength {low} is above maxLength {high}")
        rules.append(Rule(name="length", kind="length", where=options.path, low=low, high=high, **common))
    if options.get("pattern", str) is not None:
        node = options.at("pattern")
        rules.append(Rule(name="pattern", kind="pattern", where=node.path, pattern=checked_pattern(node), **common))
    return rules + _format_rules(options, common)


def _format_rules(options: Node, common: dict[str, Any]) -> list[Rule]:
    named = options.get("format", str)
    if named is None:
        return []
    place = options.at("format")
    if named in UNCHECKED_FORMATS:
        text = f"the text is a {named}; nothing can be checked of it"
        about = common["columns"]
        return [Rule(f"format {named}", "note", about, place.path, severity="info", description=text)]
    if named not in STRING_FORMATS:
        place.fail(f"{named!r} is unknown; known: {', '.join((*STRING_FORMATS, *UNCHECKED_FORMATS))}")
    return [Rule("format", "pattern", where=place.path, pattern=STRING_FORMATS[named], format=named, **common)]


def _formats(kind: str, options: Node) -> tuple[str, ...]:
    text, zoned = options.get("format", str), options.get("timezone", bool)
    default = options.get("defaultTimezone", str)
    if default is not None and default not in UTC_NAMES:
        options.at("defaultTimezone").fail(f"{default!r} is not supported; times without a zone are read as Etc/UTC")
    if kind == "time":
        if zoned:
            options.at("timezone").fail("true is not supported for a time of day; write it without a zone")
        return _parsed(options, text, "clock") if text else (ISO_CLOCK,)
    if not text:
        if kind == "date":
            return ("yyyy-MM-dd",)
        return ({True: ISO_ZONED, False: ISO_LOCAL, None: ISO_TIME}[zoned],)
    formats = _parsed(options, text, "time")
    if zoned is not None and any(("zone" in time_format(name).groups) != zoned for name in formats):
        options.at("timezone").fail(f"{str(zoned).lower()} contradicts the format {text!r}; change one of them")
    return formats


def _parsed(options: Node, text: str, kind: str) -> tuple[str, ...]:
    try:
        return formats_of(text, kind)
    except ValueError as error:
        options.at("format").fail(str(error))


def _number_reading(kind: str, options: Node) -> Reading:
    named = options.get("format", str)
    for key in (*BOUNDS, "multipleOf"):
        value = options.get(key, (int, float))
        if value is not None and not abs(value) <= sys.float_info.max:
            options.at(key).fail(f"is {value!r}; write a finite number")
    step = options.get("multipleOf", (int, float))
    if step is not None and (step <= 0 or (kind == "integer" and step != int(step))):
        options.at("multipleOf").fail(f"is {step}; write a positive {'whole ' if kind == 'integer' else ''}number")
    given = _bounds(options)
    if kind == "integer":
        given = _whole_bounds(given)
    low, high = _format_range(kind, named, options)
    for key, end, bound in (("low", low, "open_low"), ("high", high, "open_high")):
        if end is not None:
            tighter = max if key == "low" else min
            if not given[key] or Decimal(given[key]) != tighter(Decimal(given[key]), Decimal(end)):
                given |= {key: str(end), bound: False}
    text = "" if step is None else str(int(step)) if kind == "integer" else repr(step)
    return Reading(kind, multiple_of=text, **given)


def _admits(reading: Reading) -> bool:
    """Whether some number that reads is within the bounds and a multiple of the step."""
    end = LARGEST[reading.kind]
    low, high = Fraction(reading.low or f"-{end}"), Fraction(reading.high or end)
    above, below = max(low, Fraction(f"-{end}")), min(high, Fraction(end))
    open_low, open_high = reading.open_low and above == low, reading.open_high and below == high
    step = Fraction(reading.multiple_of or ("1" if reading.kind == "integer" else "0"))
    if not step:
        return above < below or (above == below and not (open_low or open_high))
    first = math.floor(above / step) + 1 if open_low else math.ceil(above / step)
    last = math.ceil(below / step) - 1 if open_high else math.floor(below / step)
    return first <= last


def _format_range(kind: str, named: str | None, options: Node) -> tuple[int | float | None, int | float | None]:
    """The ends of a machine type; 128 bits are cut at 38 digits, the most that an integer may have here."""
    if named is None or (kind == "number" and named == "f64"):
        return None, None
    if kind == "number" and named == "f32":
        return -FLOAT_32, FLOAT_32
    known = [f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64, 128)] if kind == "integer" else ["f32", "f64"]
    if named not in known:
        options.at("format").fail(f"{named!r} is unknown; known: {', '.join(known)}")
    bits = int(named[1:])
    if named[0] == "u":
        return 0, min(2**bits, 10**38) - 1
    return -min(2 ** (bits - 1), 10**38 - 1), min(2 ** (bits - 1), 10**38) - 1


def _whole_bounds(given: dict[str, Any]) -> dict[str, Any]:
    """Bounds of integers as whole numbers: the least at or above, the greatest at or below."""
    whole = dict(given)
    for key, opened, toward in (("low", "open_low", math.ceil), ("high", "open_high", math.floor)):
        if given[key]:
            exact = Decimal(given[key])
            whole[key] = str(toward(exact))
            whole[opened] = given[opened] and exact == int(exact)
    return whole


def _bounds(options: Node) -> dict[str, Any]:
    low, high = options.value.get("minimum"), options.value.get("maximum")
    above, below = options.value.get("exclusiveMinimum"), options.value.get("exclusiveMaximum")
    if (low is not None and above is not None) or (high is not None and below is not None):
        options.fail("gives an inclusive and an exclusive bound for one end; keep one")
    return {
        "low": _text(above if low is None else low),
        "high": _text(below if high is None else high),
        "open_low": above is not None,
        "open_high": below is not None,
    }


def _text(bound: Any) -> str:
    """A bound as text; YAML reads an unquoted day as a date."""
    return "" if bound is None else bound.isoformat() if hasattr(bound, "isoformat") else str(bound)


def _bound_form(kind: str) -> str:
    return {"time": "times of day as HH:MM:SS", "integer": "a number", "number": "a number"}.get(
        kind, "times as YYYY-MM-DD"
    )


def _range_text(reading: Reading) -> str:
    low = f"{'above' if reading.open_low else 'from'} {reading.low}"
    return f"{low} {'and below' if reading.open_high else 'to'} {reading.high}"
