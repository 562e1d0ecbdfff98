"""The words of the standard: what each becomes, and what is refused with its place."""

from __future__ import annotations

import ipaddress
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contract.standard.contract import load
from components.contract.standard.patterns import STRING_FORMATS, matches, problem_of
from components.contract.standard.rules import Limit, Reading, Rule, duration_text
from components.contract.standard.sla import at_time
from components.contract.standard.time_formats import ISO_CLOCK, ISO_LOCAL, ISO_ZONED
from components.core.errors import UserError
from tests.fakes.contract_case import contract_file


def _rules(tmp_path: Path, *properties: dict[str, Any], **keys: Any) -> list[Rule]:
    return list(load(contract_file(tmp_path / "c.yaml", properties, **keys)).rules)


def _refused(tmp_path: Path, named: tuple[str, ...], *properties: dict[str, Any], **keys: Any) -> None:
    with pytest.raises(UserError) as raised:
        _rules(tmp_path, *properties, **keys)
    text = str(raised.value)
    assert [part for part in named if part not in text] == [], text
    assert "\n" not in text


def _a(**keys: Any) -> dict[str, Any]:
    return {"name": "a", **keys}


def _options(kind: str, **options: Any) -> dict[str, Any]:
    return _a(logicalType=kind, logicalTypeOptions=options)


def _quality(**keys: Any) -> dict[str, Any]:
    return _a(quality=[keys])


@pytest.mark.parametrize(
    ("declared", "reading"),
    [
        (_a(logicalType="time"), Reading("clock", (ISO_CLOCK,))),
        (_options("time", format="HH:mm", minimum="09:00"), Reading("clock", ("HH:mm",), low="09:00")),
        (_options("timestamp", timezone=True), Reading("time", (ISO_ZONED,))),
        (_options("timestamp", timezone=False, defaultTimezone="Etc/UTC"), Reading("time", (ISO_LOCAL,))),
        (_options("integer", format="i8"), Reading("integer", low="-128", high="127")),
        (_options("integer", format="u8", minimum=3), Reading("integer", low="3", high="255")),
        (_options("integer", minimum=0.5, exclusiveMaximum=7), Reading("integer", low="1", high="7", open_high=True)),
        (_options("integer", multipleOf=5), Reading("integer", multiple_of="5")),
        (_options("number", multipleOf=0.01), Reading("number", multiple_of="0.01")),
        (_options("number", format="f64", exclusiveMinimum=0), Reading("number", low="0", open_low=True)),
    ],
)
def test_types_and_options_become_readings(declared: dict[str, Any], reading: Reading, tmp_path: Path) -> None:
    """Logical types of times and numbers with their bounds, steps and machine formats."""
    assert [rule.reading for rule in _rules(tmp_path, declared) if rule.kind == "reading"] == [reading]


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (_a(logicalType="object"), ("properties[0].logicalType", "makes no sense")),
        (_a(logicalType="array", items={}), ("logicalType", "makes no sense")),
        (_a(logicalType="vector"), ("logicalType", "makes no sense")),
        (_a(properties=[]), ("properties[0].properties", "nested")),
        (_options("integer", minimum=5, maximum=4), ("contradict",)),
        (_options("integer", exclusiveMinimum=5, maximum=5), ("contradict",)),
        (_options("integer", format="u8", minimum=300), ("contradict",)),
        (_options("integer", format="f32"), ("'f32'", "i8")),
        (_options("integer", multipleOf=0.5), ("multipleOf", "whole")),
        (_options("number", minimum=".inf"), ("minimum",)),
        (_options("date", minimum="2025-02-01", maximum="2025-01-01"), ("contradict",)),
        (_options("time", maximum="25:00"), ("bound", "HH:MM:SS")),
        (_options("timestamp", format="yyyy-MM-dd HH:mm", timezone=True), ("timezone", "contradicts")),
        (_options("timestamp", defaultTimezone="Europe/Paris"), ("defaultTimezone", "UTC")),
        (_options("string", minLength=-1), ("minLength",)),
        (_options("string", pattern="(?=a)b"), ("pattern", "lookahead", "RE2")),
        (_options("string", pattern="(?<!a)b"), ("pattern", "lookbehind", "RE2")),
        (_options("string", pattern=r"(a)\1"), ("pattern", "backreferences")),
        (_options("string", pattern="a++b"), ("pattern", "possessive")),
        (_options("string", pattern="(?>a)b"), ("pattern", "atomic")),
        (_options("string", pattern="(?<n>a)"), ("pattern", "named")),
        (_options("string", pattern="a{2,1}"), ("pattern", "repetition")),
        (
            _quality(metric="invalidValues", arguments={"pattern": "(?!x)"}, mustBe=0),
            ("arguments.pattern", "lookahead"),
        ),
        (_a(logicalType="integer", physicalType="DATE"), ("physicalType", "contradicts", "date")),
        (_a(logicalType="date", physicalType="BIGINT"), ("physicalType", "contradicts")),
        (_a(logicalType="boolean", physicalType="decimal(10,2)"), ("physicalType", "contradicts")),
        (_a(physicalType="ARRAY<INT>"), ("physicalType", "contradicts")),
        (
            _a(logicalTypeOptions={"minLength": 9}, physicalType="VARCHAR(8)"),
            ("physicalType", "minLength 9"),
        ),
        (_a(enum=[{"value": "x"}, {"value": "x"}]), ("enum", "twice")),
        (_a(enum=[]), ("enum", "no value")),
        (_a(enum=[{"value": "long"}], logicalTypeOptions={"maxLength": 3}), ("enum[0]", "'long'", "length")),
        (_a(logicalType="integer", enum=[{"value": "x"}]), ("enum[0]", "'x'", "integer")),
        (_a(examples=["toolong"], logicalTypeOptions={"maxLength": 3}), ("examples[0]", "'toolong'", "own rule")),
        (_a(examples=["ok", "no"], enum=[{"value": "ok"}]), ("examples[1]", "'no'", "enum")),
        (_a(examples=[None], required=True), ("examples[0]", "required")),
        (_a(logicalType="date", examples=["01/02/25"]), ("examples[0]", "reads as a time")),
        (_a(examples=[{"x": 1}]), ("examples[0]", "nested")),
        (
            _a(
                enum=[{"value": "x"}],
                quality=[{"metric": "invalidValues", "arguments": {"validValues": ["y"]}, "mustBe": 0}],
            ),
            ("no value together",),
        ),
        (_a(primaryKeyPosition=1), ("primaryKeyPosition", "primaryKey: true")),
        (_a(customProperties=[{"property": "availability", "value": "later"}]), ("availability", "at_event")),
        (_quality(metric="nullValues", mustBeLessThan=0), ("mustBeLessThan", "< 0 rows")),
        (_quality(metric="nullValues", mustBeBetween=[5, 1]), ("mustBeBetween", "smaller number first")),
        (_quality(metric="nullValues", mustBeGreaterThan=100, unit="percent"), ("mustBeGreaterThan", "share")),
        (_quality(type="text", mustBe=0), ("mustBe", "type text")),
        (_quality(type="sql", metric="rowCount", mustBe=0, query="x"), ("metric", "type sql")),
        (_quality(type="soda"), ("type", "'soda'")),
        (_quality(metric="rowCount", rule="nullCheck", mustBe=0), ("rule", "differ")),
        (_quality(metric="nullValues", mustBe=0, dimension="beauty"), ("dimension", "'beauty'")),
        (
            _quality(type="sql", query="SELECT count(*) FROM {object}", mustBe=0, severity="warning"),
            ("severity", "single rows"),
        ),
        (_a(relationships=[{"to": "rows.b"}]), ("relationships[0]", "no declared column")),
        (_a(relationships=[{"to": "rows.a"}]), ("relationships[0]", "itself")),
        (_a(relationships=[{"to": "others.id"}]), ("relationships[0].to", "outside this table")),
        (_a(relationships=[{"to": "x.yaml#schema/o/properties/p"}]), ("to", "outside this table")),
        (_a(relationships=[{"from": "rows.a", "to": "rows.a"}]), ("from", "remove")),
    ],
)
def test_what_contradicts_itself_or_cannot_be_checked_is_refused(
    declared: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    """One line with the place and what is wrong."""
    _refused(tmp_path, ("c.yaml: schema[0].properties[0]", *named), declared)


@pytest.mark.parametrize(
    ("quality", "named"),
    [
        (
            [{"metric": "rowCount", "mustBeGreaterThan": 9}, {"metric": "rowCount", "mustBeLessThan": 10}],
            ("quality[1]",),
        ),
        ([{"metric": "rowCount", "mustBe": 1}, {"metric": "rowCount", "mustNotBe": 1}], ("quality[1]", "quality[0]")),
        ([{"metric": "rowCount", "mustBe": 0.5}], ("mustBe", "no count")),
        ([{"metric": "rowCount", "mustBe": 5, "unit": "percent"}], ("unit", "rows")),
        ([{"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": ["z"]}}], ("properties", "'z'")),
    ],
)
def test_counts_that_cannot_be_met_are_refused(
    quality: list[dict[str, Any]], named: tuple[str, ...], tmp_path: Path
) -> None:
    """Rules on one count must leave some count."""
    _refused(tmp_path, ("schema[0].quality", *named), _a(), quality=quality)


def test_quality_rules_of_every_metric_operator_and_unit(tmp_path: Path) -> None:
    """Percent goes with every metric of rows; the older spelling of ODCS 3.0 is read."""
    column = [
        {"metric": "nullValues", "mustBeLessOrEqualTo": 5, "unit": "percent"},
        {"metric": "missingValues", "arguments": {"missingValues": [None, "N/A"]}, "mustNotBe": 3},
        {"metric": "invalidValues", "arguments": {"validValues": ["x", 7]}, "mustBeBetween": [0, 2]},
        {"metric": "duplicateValues", "mustNotBeBetween": [10, 20], "unit": "percent"},
        {"rule": "validValues", "validValues": ["x"], "mustBe": 0},
        {"rule": "duplicateCount", "mustBeLessThan": 10},
    ]
    rules = [rule for rule in _rules(tmp_path, _a(quality=column)) if ".quality[" in rule.where]
    assert [(rule.kind, rule.limit, rule.missing, rule.values) for rule in rules] == [
        ("present", Limit("mustBeLessOrEqualTo", 5, 5, "percent"), (), ()),
        ("present", Limit("mustNotBe", 3, 3), ("N/A",), ()),
        ("values", Limit("mustBeBetween", 0, 2), ("N/A",), ("x", "7")),
        ("unique", Limit("mustNotBeBetween", 10, 20, "percent"), ("N/A",), ()),
        ("values", Limit(), ("N/A",), ("x",)),
        ("unique", Limit("mustBeLessThan", 10, 10), ("N/A",), ()),
    ]


def test_what_is_missing_is_what_the_contract_says(tmp_path: Path) -> None:
    """Without missingValues the empty text; with them exactly the texts listed, so that the empty one is a value."""
    said = {"metric": "missingValues", "arguments": {"missingValues": ["N/A"]}, "mustBe": 0}
    silent = _rules(tmp_path, _a(required=True, enum=[{"value": "x"}]))
    spoken = _rules(tmp_path, _a(required=True, enum=[{"value": "x"}], quality=[said]))
    assert {rule.missing for rule in silent if rule.kind != "column"} == {("",)}
    assert {rule.missing for rule in spoken if rule.kind != "column"} == {("N/A",)}


def test_relationships_refer_to_columns_of_the_table(tmp_path: Path) -> None:
    """By name or by id, of one column or several, at the property or at the table."""
    columns = [
        {"name": "id", "id": "i", "relationships": [{"to": "schema/t/properties/p"}]},
        {"name": "parent", "id": "p"},
        {"name": "x"},
        {"name": "y"},
    ]
    both = [{"id": "pair", "from": ["rows.id", "rows.x"], "to": ["rows.parent", "rows.y"]}]
    rules = [rule for rule in _rules(tmp_path, *columns, id="t", relationships=both) if rule.kind == "reference"]
    assert [(rule.name, rule.columns, rule.targets) for rule in rules] == [
        ("pair", ("id", "x"), ("parent", "y")),
        ("relationship", ("id",), ("parent",)),
    ]
    uneven = [{"from": ["rows.id"], "to": ["rows.x", "rows.y"]}]
    _refused(tmp_path, ("relationships[0]", "same number"), *columns, relationships=uneven)


def _level(**keys: Any) -> dict[str, Any]:
    return {"property": "freshness", "value": 2, "unit": "d", "element": "rows.a", **keys}


@pytest.mark.parametrize(
    ("level", "seconds", "kind"),
    [
        (_level(), 172_800, "freshness"),
        (_level(value="P1DT12H", unit=None), 129_600, "freshness"),
        (_level(value=1.5, unit="hours"), 5_400, "freshness"),
        (_level(property="retention", value=2, unit="y"), 2 * 365 * 86_400, "retention"),
        (_level(property="frequency", unit="mo"), 60 * 86_400, "frequency"),
        (_level(property="latency", element="rows.a, rows.b"), 172_800, "latency"),
        (_level(property="latency"), 172_800, "freshness"),
        (_level(element="a"), 172_800, "freshness"),
        (_level(property="availability", value="99.9 %"), 0, "note"),
    ],
)
def test_service_levels_become_rules(level: dict[str, Any], seconds: float, kind: str, tmp_path: Path) -> None:
    """Four properties are checked, in seconds; the others are told."""
    days = [{"name": name, "logicalType": "date"} for name in "ab"]
    rule = _rules(tmp_path, *days, levels=[level])[-1]
    assert (rule.kind, rule.seconds, rule.where) == (kind, seconds, "slaProperties[0]")


@pytest.mark.parametrize(
    ("level", "named"),
    [
        (_level(unit="m"), ("slaProperties[0].unit", "minutes or months")),
        (_level(unit="fortnight"), ("unit", "'fortnight'")),
        (_level(value="soon"), ("value", "'soon'")),
        (_level(value=-1), ("value", "-1")),
        (_level(element=None), ("element", "missing")),
        (_level(element="rows.z"), ("element", "not declared")),
        (_level(element="rows.t"), ("element", "string", "date or timestamp")),
        (_level(element="rows.a, rows.b"), ("element", "2 columns")),
        (_level(elemnt="x"), ("'elemnt'", "'element'")),
        (_level(customProperties=[{"property": "ruleSeverity", "value": "warning"}]), ("ruleSeverity", "error")),
    ],
)
def test_service_levels_that_cannot_be_checked_are_refused(
    level: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    """A unit, a value or an element that says nothing."""
    columns = [{"name": "a", "logicalType": "date"}, {"name": "b", "logicalType": "date"}, {"name": "t"}]
    _refused(tmp_path, ("slaProperties[0]", *named), *columns, levels=[level])


def test_a_service_level_is_bound_to_the_time_of_reading(tmp_path: Path) -> None:
    """The time is a value, taken as UTC where it names no zone; rules of other kinds stay as they are."""
    levels = [_level(), _level(property="retention", value=1, unit="d")]
    contract = load(contract_file(tmp_path / "c.yaml", [{"name": "a", "logicalType": "date"}], levels=levels))
    bound = at_time(contract, "2025-01-02T00:00:00")
    assert [rule.now for rule in bound.rules][-2:] == ["2025-01-02T00:00:00+00:00"] * 2
    assert bound.rules[-1].reading == Reading("time", ("yyyy-MM-dd",), low="2025-01-01T00:00:00+00:00")
    assert bound.rules[:-2] == contract.rules[:-2]
    assert at_time(contract, "2025-01-02T01:00:00+01:00") == bound


def test_owner_key_table_and_column_facts_are_told(tmp_path: Path) -> None:
    """What pages, engines and evolution need of a contract beside its rules."""
    path = contract_file(
        tmp_path / "c.yaml",
        [
            {"name": "b", "primaryKey": True, "primaryKeyPosition": 2, "logicalType": "integer", "physicalType": "INT"},
            {"name": "a", "primaryKey": True, "primaryKeyPosition": 1, "tags": ["pii"]},
        ],
    )
    document = yaml.safe_load(path.read_text())
    document["team"] = {"name": "us", "members": [{"username": "jo", "role": "owner"}]}
    path.write_text(yaml.safe_dump(document))
    contract = load(path)
    assert (contract.owner, contract.key, contract.table) == ("jo", ("a", "b"), "rows")
    assert [(column.logical_type, column.physical_type) for column in contract.columns] == [
        ("integer", "INT"),
        ("string", ""),
    ]
    assert contract.columns[0].reading == Reading("integer")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("team", {"nam": "x"}, ("team", "'nam'")),
        ("team", [{"usrname": "x"}], ("team[0]", "'usrname'")),
        ("support", [{"chanel": "x"}], ("support[0]", "'chanel'")),
        ("roles", [{"rol": "x"}], ("roles[0]", "'rol'")),
        ("servers", [{"server": "x", "type": "local", "pth": "x"}], ("servers[0]", "'pth'")),
        ("servers", [{"server": "x"}], ("servers[0].type", "missing")),
        ("description", {"purpos": "x"}, ("description", "'purpos'")),
        ("price", {"amount": 3}, ("price", "'amount'")),
        ("tags", [3], ("tags[0]",)),
        ("kind", "Contract", ("kind", "DataContract")),
        ("apiVersion", "v3.9.0", ("apiVersion", "v3.9.0")),
        ("status", 3, ("status",)),
    ],
)
def test_sections_without_rules_are_held_to_the_standard_too(
    key: str, value: Any, named: tuple[str, ...], tmp_path: Path
) -> None:
    """A key that the standard does not know is refused wherever it stands."""
    path = contract_file(tmp_path / "c.yaml", [_a()])
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), key: value}))
    with pytest.raises(UserError) as raised:
        load(path)
    assert [part for part in named if part not in str(raised.value)] == [], str(raised.value)


def _is(name: str, text: str) -> bool:
    return bool(matches(pa.array([text]), STRING_FORMATS[name])[0].as_py())


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.ip_addresses(v=6).map(str),
        st.ip_addresses(v=6).map(lambda address: address.exploded),
        st.from_regex(r"[0-9a-f:]{2,12}", fullmatch=True),
        st.from_regex(r"(::)?([0-9a-f]{1,4}:){0,6}(:|[0-9a-f]{1,4})?(:?[0-9.]{7,9})?", fullmatch=True),
        st.ip_addresses(v=4).map(str),
        st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){2,4}", fullmatch=True),
    )
)
def test_addresses_are_those_of_the_standard_library(text: str) -> None:
    """The oracle is ipaddress; it refuses leading zeros in IPv4 as we do."""
    for name, kind in (("ipv4", ipaddress.IPv4Address), ("ipv6", ipaddress.IPv6Address)):
        try:
            kind(text)
            wanted = True
        except ValueError:
            wanted = False
        assert _is(name, text) == wanted, (name, text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", ["a@b.co", "first.last+tag@mail.example.org"], ["a@", "@b.co", "a b@c.de", "a@b@c", "a@-b.co"]),
        ("uuid", [str(uuid.UUID(int=7)), "9F" + str(uuid.UUID(int=7))[2:]], ["7", str(uuid.UUID(int=7))[:-1]]),
        (
            "uri",
            ["https://example.org/a?b=c#d", "urn:isbn:1", "mailto:a@b.co"],
            ["example", "http:", "http://a b", ":x", "1a:b"],
        ),
        ("hostname", ["example.org", "a-b.c"], ["-a.b", "a..b", "a_b", "x" * 64]),
        ("byte", ["", "YQ==", "YWI=", "YWJj"], ["YQ", "Y===", "YQ==YQ==", "Y Q="]),
    ],
)
def test_string_formats(name: str, good: list[str], bad: list[str]) -> None:
    """Examples of each format of the standard, and near misses."""
    assert [text for text in good if not _is(name, text)] == []
    assert [text for text in bad if _is(name, text)] == []


@pytest.mark.parametrize(
    "pattern", [*STRING_FORMATS.values(), r"[(?=]", r"\\1", r"a\+\+", "é{2}", r"^\d+$", "[a-z&&[^b]]"]
)
def test_both_engines_read_an_accepted_pattern(pattern: str) -> None:
    """DuckDB compiles what is accepted; a look-alike inside a class or behind a backslash is no look-around."""
    import duckdb

    assert problem_of(pattern) == ""
    duckdb.execute("SELECT regexp_matches('x', ?)", [pattern])


def test_durations_for_people() -> None:
    """Whole units, the largest first."""
    assert [duration_text(number) for number in (0, 90, 86_400, 90_061, -86_400)] == [
        "0 s",
        "1 min 30 s",
        "1 d",
        "1 d 1 h 1 min 1 s",
        "-1 d",
    ]
    assert Limit("mustBeBetween", -86_400, 172_800, "seconds").text == "between -1 d and 2 d"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("integer", {"exclusiveMinimum": 5, "exclusiveMaximum": 6}),
        ("integer", {"exclusiveMinimum": 5, "maximum": 5.5}),
        ("integer", {"minimum": 5.2, "maximum": 5.8}),
        ("integer", {"minimum": 6, "exclusiveMaximum": 6}),
        ("integer", {"minimum": 1, "maximum": 4, "multipleOf": 5}),
        ("integer", {"exclusiveMinimum": 0, "exclusiveMaximum": 5, "multipleOf": 5}),
        ("integer", {"minimum": 300, "format": "i8"}),
        ("integer", {"minimum": 10**38}),
        ("integer", {"maximum": -(10**38)}),
        ("integer", {"minimum": 10**400}),
        ("number", {"minimum": 2, "maximum": 1}),
        ("number", {"exclusiveMinimum": 2, "maximum": 1}),
        ("number", {"minimum": 2, "exclusiveMaximum": 2}),
        ("number", {"exclusiveMinimum": 2, "exclusiveMaximum": 2}),
        ("number", {"minimum": 1e39, "format": "f32"}),
        ("number", {"minimum": 0.3, "maximum": 0.4, "multipleOf": 0.25}),
        ("number", {"exclusiveMaximum": -1.7976931348623157e308}),
    ],
)
def test_bounds_that_admit_no_number_are_refused(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Whole numbers between open ends, multiples, and the ends of what reads."""
    _refused(tmp_path, ("logicalTypeOptions",), _options(kind, **options))


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(-12, 12),
    width=st.integers(-3, 6),
    opened=st.tuples(st.booleans(), st.booleans()),
    step=st.sampled_from([None, 1, 2, 3, 5]),
)
def test_integer_bounds_are_refused_exactly_where_no_integer_fits(
    low: int, width: int, opened: tuple[bool, bool], step: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against trying every integer nearby."""
    high = low + width
    options = {
        "exclusiveMinimum" if opened[0] else "minimum": low,
        "exclusiveMaximum" if opened[1] else "maximum": high,
        **({"multipleOf": step} if step else {}),
    }
    fitting = [
        number
        for number in range(-40, 41)
        if (number > low if opened[0] else number >= low)
        and (number < high if opened[1] else number <= high)
        and number % (step or 1) == 0
    ]
    folder = tmp_path_factory.mktemp("bounds")
    if fitting:
        assert _rules(folder, _options("integer", **options))
    else:
        _refused(folder, ("logicalTypeOptions",), _options("integer", **options))


def test_an_expectation_that_every_row_keeps_is_refused(tmp_path: Path) -> None:
    """`mostly: 0` cannot fail; a small share can."""

    def rule(mostly: float | None) -> dict[str, Any]:
        kwargs = {"value_set": ["x"], "mostly": mostly}
        implementation = {"type": "expect_column_values_to_be_in_set", "kwargs": kwargs}
        return _quality(type="custom", engine="greatExpectations", implementation=implementation)

    for mostly in (0, 0.0):
        _refused(tmp_path, ("implementation.kwargs", "mostly 0", "cannot fail"), rule(mostly))
    assert _rules(tmp_path, rule(0.01))
    text = "type: expect_column_values_to_be_in_set\nkwargs: &a {value_set: [*a]}"
    _refused(
        tmp_path, ("implementation", "alias"), _quality(type="custom", engine="greatExpectations", implementation=text)
    )
