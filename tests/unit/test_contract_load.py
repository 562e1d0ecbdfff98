"""Loading a contract: what it declares becomes rules, and what cannot be checked is refused with its place."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.contract.evolution.document_changes import DRIFT, OF_RULES_CUSTOM
from components.contract.judge import judge
from components.contract.standard.contract import load
from components.contract.standard.own_properties import PLACES
from components.contract.standard.reading import reads
from components.contract.standard.rules import Limit, Reading
from components.contract.standard.time_formats import ISO_TIME, formats_of
from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from tests.fakes.contract_case import contract_file

COMPLAINTS = PROJECT_ROOT / "data_contracts" / "complaints.odcs.yaml"


def test_the_complaints_contract_declares_all_columns() -> None:
    """18 columns, two of them optional, a protected one and masked ones, a unique key and a least number of rows."""
    contract = load(COMPLAINTS)
    assert len(contract.columns) == 18
    assert {column.name for column in contract.columns if column.optional} == {
        "Consumer consent provided?",
        "Consumer disputed?",
    }
    assert {column.name for column in contract.columns if column.protected} == {"Tags"}
    assert {column.name for column in contract.columns if column.masked} >= {"Consumer complaint narrative", "ZIP code"}
    named = {(rule.name, rule.subject): rule for rule in contract.rules}
    assert len(named) == len(contract.rules)
    assert named["unique", "Complaint ID"].kind == "unique"
    assert named["enough-rows", ""].limit == Limit("mustBeGreaterOrEqualTo", 500.0, 500.0)
    assert named["date", "Date received"].reading == Reading("time", ("MM/dd/yy", "yyyy-MM-dd"), low="2011-12-01")
    assert named["state-is-a-code", "State"].missing == ("", "None", "N/A")
    assert contract.max_quarantine_percent == 5
    assert (contract.version, contract.status) == ("2.0.0", "active")


def test_the_standard_s_own_linter_accepts_it() -> None:
    """The contract is valid against the schema that `datacontract lint` uses."""
    import json
    from importlib.resources import files

    import jsonschema

    schema = json.loads((files("datacontract") / "schemas" / "odcs-3.2.0.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(COMPLAINTS.read_text()), schema)


def test_a_key_of_several_columns_is_unique_as_a_whole(tmp_path: Path) -> None:
    """Parts of a composite key are ordered by position and need not be unique alone."""
    path = contract_file(
        tmp_path / "c.yaml",
        [
            {"name": "b", "primaryKey": True, "primaryKeyPosition": 2},
            {"name": "a", "primaryKey": True, "primaryKeyPosition": 1},
        ],
    )
    unique = [rule for rule in load(path).rules if rule.kind == "unique"]
    assert [rule.columns for rule in unique] == [("a", "b")]


def _property(**keys: Any) -> dict[str, Any]:
    return {"name": "a", **keys}


def _quality(**keys: Any) -> dict[str, Any]:
    return _property(quality=[keys])


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (_property(requird=True), ("schema[0].properties[0]", "'requird'", "did you mean 'required'")),
        (_property(required="yes"), ("properties[0].required", "'yes'", "bool")),
        (_property(logicalType="geometry"), ("logicalType", "'geometry'")),
        (_property(logicalTypeOptions={"maxLenght": 3}), ("logicalTypeOptions", "'maxLenght'", "'maxLength'")),
        (_property(logicalTypeOptions={"format": "emial"}), ("logicalTypeOptions.format", "'emial'", "email")),
        (_property(logicalTypeOptions={"pattern": "("}), ("pattern", "regular expression")),
        (_property(logicalTypeOptions={"minLength": 5, "maxLength": 2}), ("minLength 5",)),
        (_property(logicalType="date", logicalTypeOptions={"format": "MM/QQ"}), ("format", "'QQ'")),
        (_property(logicalType="date", logicalTypeOptions={"minimum": "soon"}), ("bound", "soon")),
        (_property(logicalType="number", logicalTypeOptions={"multipleOf": -2}), ("multipleOf", "positive")),
        (_property(enum=[{"value": True}]), ("enum[0].value", "quote it")),
        (_property(customProperties=[{"property": "columnPresence", "value": "maybe"}]), ("columnPresence",)),
        (_quality(metric="nullValues", mustBe=0, severty="x"), ("quality[0]", "'severty'", "'severity'")),
        (_quality(metric="nullValues", mustBe=0, severity="fatal"), ("severity", "'fatal'", "warning")),
        (_quality(metric="nulls", mustBe=0), ("metric", "'nulls'", "nullValues")),
        (_quality(metric="nullValues"), ("quality[0]", "operators")),
        (_quality(metric="nullValues", mustBe=0, mustBeLessThan=3), ("2 of the operators",)),
        (_quality(metric="nullValues", mustBe="none"), ("mustBe", "'none'", "number")),
        (_quality(metric="nullValues", mustBeBetween=[1]), ("mustBeBetween", "two numbers")),
        (_quality(metric="nullValues", mustBe=0, unit="share"), ("unit", "'share'", "percent")),
        (_quality(metric="duplicateValues", mustBe=0, arguments={"properties": ["a"]}), ("arguments.properties",)),
        (_quality(metric="rowCount", mustBe=1), ("rowCount", "property")),
        (_quality(metric="invalidValues", mustBe=0), ("validValues", "pattern")),
        (_quality(metric="invalidValues", mustBe=0, arguments={"validValues": [True]}), ("validValues[0]", "quote")),
        (_quality(metric="nullValues", mustBeLessThan=9, severity="warning"), ("warning", "mustBe: 0")),
        (_quality(type="sql", query="select 1", mustBe=0), ("quality[0].query", "does not read the batch")),
        (_quality(type="custom", engine="soda", implementation="x"), ("quality[0].engine", "'soda'", "sql")),
    ],
)
def test_what_cannot_be_checked_is_refused_with_its_place(
    declared: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    """An unknown key or a rule that this version cannot check is an error with the path in the YAML, never skipped."""
    path = contract_file(tmp_path / "c.yaml", [declared])
    with pytest.raises(UserError, match=r"contract .*c\.yaml: schema") as raised:
        load(path)
    assert [part for part in named if part not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not valid YAML"),
        ("- a", "no mapping"),
        ("id: a\nid: b", "stands twice"),
        ("id: a\nversion: 1.0.0\napiVersion: v2.2.2", "v2.2.2"),
        ("id: a\nversion: 1.0\napiVersion: v3.1.0", "version"),
        ("id: a\nversion: 1.0.0\napiVersion: v3.1.0\nschema: []", "describes 0 objects"),
        ("id: a\nversion: 1.0.0\napiVersion: v3.1.0\nshema: []", "did you mean 'schema'"),
    ],
)
def test_files_that_are_no_contract(text: str, named: str, tmp_path: Path) -> None:
    """One line with the file's name."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"c\.yaml") as raised:
        load(path)
    assert named in str(raised.value)
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("pattern", "formats"),
    [
        ("yyyy-MM-dd", ("yyyy-MM-dd",)),
        ("[MM/dd/yy][yyyy-MM-dd]", ("MM/dd/yy", "yyyy-MM-dd")),
        ("yyyy-MM-dd['T'HH:mm:ss]", ("yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd")),
        ("dd 'o''clock' MMM 100% yyyy", ("dd 'o''clock' MMM 100% yyyy",)),
    ],
)
def test_optional_sections_of_a_pattern_are_written_out(pattern: str, formats: tuple[str, ...]) -> None:
    """JDK patterns with optional sections and quoted text."""
    assert formats_of(pattern, "time") == formats


@pytest.mark.parametrize(
    ("text", "reading", "fits"),
    [
        ("02/29/24", Reading("time", ("MM/dd/yy",)), True),
        ("02/29/25", Reading("time", ("MM/dd/yy",)), False),
        ("2025-01-01", Reading("time", ("yyyy-MM-dd",), low="2025-01-01"), True),
        ("2025-01-01", Reading("time", ("yyyy-MM-dd",), low="2025-01-01", open_low=True), False),
        ("2025-01-02T00:30:00+0100", Reading("time", (ISO_TIME,), high="2025-01-01T23:30:00+00:00"), True),
        ("7", Reading("integer", low="0", high="7"), True),
        ("7", Reading("integer", high="7", open_high=True), False),
        ("7.0", Reading("integer"), False),
        ("-1.5e3", Reading("number"), True),
        ("nan", Reading("number"), False),
        ("1_000", Reading("number"), False),
        ("٣", Reading("integer"), False),
    ],
)
def test_texts_read_as_times_and_numbers(text: str, reading: Reading, fits: bool) -> None:
    """The calendar counts, bounds may be open, and only plain ASCII digits are numbers."""
    assert reads(text, reading) is fits


def _bomb() -> str:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30)]
    return "\n".join(["l0: &l0 [x, x]", *levels])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (_bomb(), "aliases"),
        (
            "\n".join(["l0: &l0 {a: b}", *(f"l{n}: &l{n} {{<<: [*l{n - 1}, *l{n - 1}]}}" for n in range(1, 40))]),
            "aliases",
        ),
        ("\n".join(["l0: &l0 [x]", *(f"l{n}: &l{n} [*l{n - 1}]" for n in range(1, 3000))]), "nested deeper"),
        ("id: &a [*a]", "refers to what it stands in"),
        ("id: &a {b: {c: *a}}", "refers to what it stands in"),
        ("id: " + "[" * 5000, "nested too deeply"),
        ("id: " + "[" * 150 + "]" * 150, "nested deeper"),
        ("id: 2024-13-45", "month"),
        ("a: [1\nb: 2", "not valid YAML"),
    ],
    ids=["lists", "merged", "chain", "itself", "itself-within", "open", "deep", "date", "syntax"],
)
def test_yaml_that_has_no_end_is_refused_at_once(text: str, named: str, tmp_path: Path) -> None:
    """Aliases that expand, refer to themselves or nest, and values that YAML cannot build: one line, soon."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    begun = time.process_time()
    with pytest.raises(UserError) as raised:
        load(path)
    assert time.process_time() - begun < 5
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_plain_aliases_and_long_lists_are_read(tmp_path: Path) -> None:
    """An alias stands for what it names, and a list that is written out may be long."""
    enum = [{"value": f"v{number}"} for number in range(20_000)]
    shared = {"property": "columnPresence", "value": "optional"}
    columns = [{"name": name, "customProperties": [shared]} for name in "ab"]
    path = contract_file(tmp_path / "c.yaml", [*columns, {"name": "c", "enum": enum}])
    assert "&id" in path.read_text()
    contract = load(path)
    assert [column.optional for column in contract.columns] == [True, True, False]
    assert max(len(rule.values) for rule in contract.rules) == 20_000


def _custom(name: str, value: Any = None) -> dict[str, Any]:
    return {"customProperties": [{"property": name, "value": value}]}


@pytest.mark.parametrize(
    ("column", "table", "named"),
    [
        (_custom("columnPresense", "optional"), {}, ("'columnPresense'", "did you mean 'columnPresence'")),
        (_custom("ColumnPresence", "optional"), {}, ("did you mean 'columnPresence'",)),
        (_custom("rule_severity", "info"), {}, ("did you mean 'ruleSeverity'",)),
        (_custom("Availability", "at_event"), {}, ("did you mean 'availability'",)),
        (_custom("driftOfMeaning ", "off"), {}, ("did you mean 'driftOfMeaning'",)),
        ({}, _custom("maxQuarantinePercentage", 1), ("did you mean 'maxQuarantinePercent'",)),
        ({}, _custom("driftRowCountsFactor", 2), ("did you mean 'driftRowCountFactor'",)),
        ({}, _custom("driftNullSharePoint", 2), ("did you mean 'driftNullSharePoints'",)),
        ({}, _custom("driftHistroy", 2), ("did you mean 'driftHistory'",)),
        ({}, _custom("columnPresence", "optional"), ("schema[0].customProperties[0]", "at a property")),
        ({}, _custom("ruleSeverity", "info"), ("at a property or a service level",)),
        (_custom("maxQuarantinePercent", 1), {}, ("properties[0].customProperties[0]", "at the schema object")),
        (_custom("driftHistory", 3), {}, ("at the schema object",)),
        ({"quality": [{"metric": "nullValues", "mustBe": 0, **_custom("ruleSeverity", "info")}]}, {}, ("quality[0]",)),
        ({"customProperties": [{"value": 1}]}, {}, ("customProperties[0].property", "name the property")),
        ({"customProperties": _custom("availability", "at_event")["customProperties"] * 2}, {}, ("given twice",)),
    ],
)
def test_own_properties_that_nothing_reads_are_refused(
    column: dict[str, Any], table: dict[str, Any], named: tuple[str, ...], tmp_path: Path
) -> None:
    """Misspelt, in the wrong place or twice: an error with the place, as it would have no effect."""
    with pytest.raises(UserError) as raised:
        load(contract_file(tmp_path / "c.yaml", [_property(**column)], **table))
    assert [part for part in (*named, "customProperties") if part not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize("name", ["mood", "owner", "costCentre", "retentionClass", "history", "presence"])
def test_properties_of_others_are_let_through(name: str, tmp_path: Path) -> None:
    """What is not near to one of ours belongs to somebody else."""
    assert load(contract_file(tmp_path / "c.yaml", [_property(**_custom(name, "x"))], **_custom(name, "x")))


def test_every_own_property_is_read_somewhere_and_known() -> None:
    """The list of places names those that the code reads."""
    assert set(PLACES) == {*OF_RULES_CUSTOM, *DRIFT, "availability"}


@pytest.mark.parametrize("tags", [["PII", "Protected"], ["pii", "protected"], [" Pii ", "PROTECTED"]])
def test_tags_are_compared_without_case(tags: list[str], tmp_path: Path) -> None:
    """A column tagged PII is masked like one tagged pii."""
    column = load(contract_file(tmp_path / "c.yaml", [_property(tags=tags)])).columns[0]
    assert (column.masked, column.protected) == (True, True)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("GEOGRAPHY", True),
        ("varchr(20)", True),
        ("42", True),
        ("VARCHAR(20)", False),
        ("bignumeric", False),
        ("", False),
    ],
)
def test_a_physical_type_of_unknown_name_is_told_as_not_checked(declared: str, told: bool, tmp_path: Path) -> None:
    """It has a result of its own, which is information."""
    kind = "number" if declared == "bignumeric" else "string"
    contract = load(contract_file(tmp_path / "c.yaml", [_property(physicalType=declared, logicalType=kind)]))
    found = [rule for rule in contract.rules if rule.name == "physical type"]
    assert [(rule.kind, rule.severity, rule.subject) for rule in found] == ([("note", "info", "a")] if told else [])
    results = judge(contract, ["a"], 1, {}, 0).checks
    assert [check.outcome for check in results if check.rule == "physical type"] == (["info"] if told else [])
