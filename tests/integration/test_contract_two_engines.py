"""Which engine measures what: queries, expectations of the contract's own, service levels, references, many rules."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.contract.engines import choose as engines
from components.contract.engines.batch import snapshot_batch
from components.contract.engines.choose import measured
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.contract.standard.sla import at_time
from components.contract.validate import check, validate_snapshot
from components.core.errors import UserError
from components.core.records import ContractVerdict
from tests.fakes.contract_case import contract_file, snapshot_of
from tests.fakes.ingestion_case import recipe_for

BOTH = ("great_expectations", "duckdb")
WARNING = [{"property": "ruleSeverity", "value": "warning"}]
ROWS = [("1", "2025-01-01", "10"), ("2", "2025-01-02", "20"), ("3", "2025-01-03", "x")]
HEADER = ("id", "day", "amount")
AT_MOST = "expect_column_values_to_be_between"
Kinds = dict[str, tuple[float, list[int]]]


def contract_with(folder: Path, quality: Sequence[Mapping[str, Any]], **table: Any) -> Path:
    """Keys, days and amounts, with these rules of the table."""
    properties = [
        {"name": "id", "primaryKey": True},
        {"name": "day", "logicalType": "date"},
        {"name": "amount", "logicalType": "integer", "customProperties": WARNING},
    ]
    cap = [{"property": "maxQuarantinePercent", "value": 50}]
    return contract_file(folder / "c.yaml", properties, quality=list(quality), customProperties=cap, **table)


def outcome(verdict: ContractVerdict, rule: str) -> tuple[str, Any]:
    """How a rule ended and what was seen."""
    found = next(result for result in verdict.checks if result.rule == rule)
    return found.outcome, found.observed


def judged(path: Path, engine: Any, folder: Path, rows: Sequence[Sequence[str]] = ROWS) -> ContractVerdict:
    """The verdict on a snapshot of the rows."""
    return validate_snapshot(recipe_for("x", path), snapshot_of(folder, rows, HEADER), folder / "out", engine)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize(("asked", "ends"), [(30, "pass"), (31, "fail")])
def test_queries_run_on_duckdb_whichever_engine_has_the_rest(
    engine: str, asked: int, ends: str, tmp_path: Path
) -> None:
    """A query sees typed columns, what does not read as null, and its number is held to its limit."""
    query = {"type": "sql", "id": "total", "query": "SELECT sum(amount) FROM {object} WHERE day < DATE '2025-02-01'"}
    verdict = judged(contract_with(tmp_path, [query | {"mustBe": asked}]), engine, tmp_path)
    assert outcome(verdict, "total") == (ends, 30.0)
    assert verdict.passed is (ends == "pass")
    assert "duckdb" in verdict.engine
    assert ("great_expectations" in verdict.engine) is (engine == "great_expectations")
    assert verdict.clean == (2 if verdict.passed else 0)


@pytest.mark.parametrize("engine", BOTH)
def test_a_query_that_fails_or_gives_nothing_refuses_the_batch(engine: str, tmp_path: Path) -> None:
    """Null, and an error while it runs, are no number."""
    rules = [
        {"type": "sql", "id": "null", "query": "SELECT sum(amount) FROM {object} WHERE id = 'none'", "mustBe": 0},
        {"type": "sql", "id": "error", "query": "SELECT CAST(max(id || 'x') AS INTEGER) FROM {object}", "mustBe": 0},
    ]
    verdict = judged(contract_with(tmp_path, rules), engine, tmp_path)
    assert not verdict.passed
    assert outcome(verdict, "null")[0] == outcome(verdict, "error")[0] == "fail"


@pytest.mark.parametrize("engine", BOTH)
def test_expectations_of_the_contract_run_on_great_expectations(engine: str, tmp_path: Path) -> None:
    """Their broken rows are set aside with those of the other engine; the evidence is published."""
    rule = {
        "type": "custom",
        "engine": "greatExpectations",
        "id": "few",
        "severity": "warning",
        "implementation": {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "amount", "max_value": 15},
        },
    }
    verdict = judged(contract_with(tmp_path, [rule]), engine, tmp_path, [*ROWS, ("4", "2025-01-04", "9")])
    assert verdict.passed, verdict.reason
    assert "great_expectations" in verdict.engine
    aside = pq.read_table(tmp_path / "out" / "quarantine.parquet").to_pylist()
    assert [(row["_row"], row["_rule"]) for row in aside] == [(1, "amount: few"), (2, "amount: integer")]
    suite = json.loads((tmp_path / "out" / "expectations" / "suite.json").read_text())
    assert AT_MOST in json.dumps(suite)
    assert json.loads((tmp_path / "out" / "expectations" / "validation.json").read_text())["results"]


def test_no_evidence_of_an_engine_that_was_not_asked(tmp_path: Path) -> None:
    """DuckDB alone leaves no suite."""
    verdict = judged(contract_with(tmp_path, []), "duckdb", tmp_path)
    assert verdict.engine.startswith("duckdb")
    assert not (tmp_path / "out" / "expectations").exists()


@pytest.mark.parametrize(("most", "name"), [(3, "great_expectations"), (2, "duckdb")])
def test_the_number_of_rows_chooses(most: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the threshold it is Great Expectations, beyond it DuckDB; the verdict is the same."""
    monkeypatch.setattr(engines, "GREAT_EXPECTATIONS_ROWS", most)
    verdict = judged(contract_with(tmp_path, []), None, tmp_path)
    assert verdict.engine.startswith(name)
    assert (verdict.passed, verdict.clean, verdict.quarantined) == (True, 2, 1)


@pytest.mark.parametrize("engine", BOTH)
def test_the_recipe_chooses(engine: str, tmp_path: Path) -> None:
    """contract.engine names the engine; an unknown one is refused by name."""
    path = contract_with(tmp_path, [])
    recipe = recipe_for("x", path)
    named = recipe.model_copy(update={"contract": recipe.contract.model_copy(update={"engine": engine})})
    verdict = validate_snapshot(named, snapshot_of(tmp_path, ROWS, HEADER), tmp_path / "out")
    assert verdict.engine.startswith(engine)
    with pytest.raises(UserError, match="'soda' is unknown"):
        check(path, tmp_path / "rows.csv", "soda")


@pytest.mark.parametrize("engine", BOTH)
def test_more_rules_than_a_word_has_bits(engine: str, tmp_path: Path) -> None:
    """Of 150 rules, each row is set aside by the one that it breaks, and named so."""
    rules = [
        {"metric": "invalidValues", "id": f"not {number}", "arguments": {"pattern": f"^([^{number}]|..+)$"}}
        for number in range(10)
    ]
    many = [
        {**rule, "id": f"{rule['id']} in {letter}", "mustBe": 0, "severity": "warning"}
        for rule in rules
        for letter in "abcdefghijklmno"
    ]
    path = contract_file(
        tmp_path / "c.yaml",
        [{"name": "digit", "quality": many}],
        customProperties=[{"property": "maxQuarantinePercent", "value": 99}],
    )
    table = pa.table({"digit": ["9", "12", "0", "x", "5", "9"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    contract = load(path)
    seen, _ = measured(contract, snapshot_batch(tmp_path / "rows.parquet"), tmp_path, engine)
    assert seen.marks.words == 3
    rows = {rule.name: seen.marks.rows(number).tolist() for number, rule in enumerate(contract.rules)}
    assert rows["not 9 in o"] == [0, 5]
    assert rows["not 0 in a"] == [2]
    assert rows["not 5 in c"] == [4]
    assert sum(map(len, rows.values())) == 4 * 15
    assert seen.marks.of_any([number for number, rule in enumerate(contract.rules) if rule.of_rows]) == 4


DAYS = ["2025-01-01", "2025-01-02", "2025-01-02", "2025-02-01", "2024-12-30", "2025-02-30", "", None]
KEYS = ["a", "b", "c", "", None, "N/A"]


@st.composite
def linked_rows(draw: st.DrawFn) -> list[dict[str, str | None]]:
    """Rows with a key, a reference to it, and two days."""
    cells = {"key": KEYS, "parent": KEYS, "sent": DAYS, "seen": DAYS}
    row = st.fixed_dictionaries({name: st.sampled_from(texts) for name, texts in cells.items()})
    return draw(st.lists(row, min_size=1, max_size=8))


def linked_contract(folder: Path) -> DataContract:
    """A reference, and service levels of every kind."""
    document = {
        "apiVersion": "v3.2.0",
        "kind": "DataContract",
        "id": "c",
        "version": "1.0.0",
        "status": "active",
        "slaProperties": [
            {"property": "freshness", "value": 10, "unit": "d", "element": "rows.seen"},
            {"property": "frequency", "value": 5, "unit": "d", "element": "rows.seen"},
            {"property": "retention", "value": 30, "unit": "d", "element": "rows.seen"},
            {"property": "latency", "value": 1, "unit": "d", "element": "rows.sent,rows.seen"},
        ],
        "schema": [
            {
                "name": "rows",
                "properties": [
                    {"name": "key"},
                    {"name": "parent", "relationships": [{"to": "rows.key"}]},
                    {"name": "sent", "logicalType": "date"},
                    {"name": "seen", "logicalType": "date"},
                ],
            }
        ],
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return at_time(load(folder / "c.yaml"), "2025-02-02")


def _day(text: str | None) -> datetime | None:
    try:
        return datetime.strptime(text or "", "%Y-%m-%d")
    except ValueError:
        return None


def by_loops(rows: Sequence[Mapping[str, str | None]]) -> dict[str, Any]:
    """What the contract's words say: a number or the broken rows; None where there is no evidence."""
    now = datetime(2025, 2, 2)
    days = [_day(row["seen"]) for row in rows]
    known = sorted({day for day in days if day})
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(known)]
    late, old = [], []
    oldest = now - timedelta(days=30)
    for number, row in enumerate(rows):
        if row["seen"] and not (days[number] or datetime.min) >= oldest:
            old.append(number)
        if row["sent"] and row["seen"]:
            sent, seen = _day(row["sent"]), days[number]
            if not (sent and seen and timedelta() <= seen - sent <= timedelta(days=1)):
                late.append(number)
    keys = {row["key"] for row in rows}
    return {
        "freshness": (now - known[-1]).total_seconds() if known else None,
        "frequency": max(gaps) if gaps else None,
        "retention": old,
        "latency": late,
        "reference": [n for n, row in enumerate(rows) if row["parent"] and row["parent"] not in keys],
    }


@pytest.mark.parametrize("engine", BOTH)
def test_references_and_service_levels_are_the_same_in_both(engine: str, tmp_path: Path) -> None:
    """Both engines give the numbers and the rows that loops over the rows give; no time at all is an error."""
    contract = linked_contract(tmp_path)
    run = [0]

    @settings(max_examples=60 if engine == "duckdb" else 15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(rows=linked_rows())
    def agree(rows: list[dict[str, str | None]]) -> None:
        run[0] += 1
        folder = tmp_path / str(run[0])
        folder.mkdir()
        table = pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in rows[0]})
        pq.write_table(table, folder / "rows.parquet")
        seen, _ = measured(contract, snapshot_batch(folder / "rows.parquet"), folder, engine)
        wanted = by_loops(rows)
        for number, rule in enumerate(contract.rules):
            if rule.kind in wanted:
                one, expected = seen.observations[number], wanted[rule.kind]
                if expected is None:
                    assert one.error
                elif isinstance(expected, list):
                    assert seen.marks.rows(number).tolist() == expected, rule.kind
                    assert one.value == len(expected)
                else:
                    assert one.value == expected

    agree()
