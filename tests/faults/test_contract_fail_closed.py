"""No evidence never passes: empty batches, results left out, exceptions, and results that contradict themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.contract.engines import duckdb_connection, duckdb_engine
from components.contract.engines.batch import Batch, snapshot_batch
from components.contract.engines.choose import measured
from components.contract.engines.marks import Marks, write_marks
from components.contract.engines.measured import Measured
from components.contract.standard.contract import load
from components.contract.standard.rules import Rule
from components.contract.validate import check, validate_snapshot
from components.core.records import ContractVerdict
from tests.fakes.contract_case import contract_file, snapshot_of
from tests.fakes.ingestion_case import recipe_for

ENGINES = ("duckdb", "great_expectations")
WARNING = [{"property": "ruleSeverity", "value": "warning"}]
PROPERTIES: list[dict[str, Any]] = [
    {"name": "id", "primaryKey": True, "required": True},
    {"name": "day", "logicalType": "date", "required": True},
    {"name": "text", "enum": [{"value": "a"}, {"value": "b"}], "customProperties": WARNING},
]
ROWS = [("1", "2025-01-01", "a"), ("2", "2025-01-02", "b"), ("3", "2025-01-03", "z")]
HALF = [{"property": "maxQuarantinePercent", "value": 50}]
Planted = Callable[[Measured, Mapping[int, Rule], Path], Measured]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """Keys, days, and a set of values whose breach is a warning."""
    return contract_file(tmp_path / "c.yaml", PROPERTIES, customProperties=HALF)


def judged(contract: Path, rows: list[tuple[str, ...]], folder: Path, engine: Any) -> ContractVerdict:
    """The verdict on a snapshot of the rows."""
    snapshot = snapshot_of(folder, rows)
    verdict = validate_snapshot(recipe_for("x", contract), snapshot, folder / "out", engine)
    clean = pq.ParquetFile(folder / "out" / "clean.parquet").metadata.num_rows
    aside = pq.ParquetFile(folder / "out" / "quarantine.parquet").metadata.num_rows
    assert (verdict.clean, verdict.quarantined, verdict.rows) == (clean, aside, len(rows))
    return verdict


@pytest.mark.parametrize("engine", ENGINES)
def test_the_case_passes_when_nothing_is_planted(engine: str, contract: Path, tmp_path: Path) -> None:
    """Two clean rows and one set aside: what the faults below take away."""
    verdict = judged(contract, ROWS, tmp_path, engine)
    assert verdict.passed, verdict.reason
    assert (verdict.clean, verdict.quarantined) == (2, 1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_header_alone_is_refused(engine: str, kind: str, contract: Path, tmp_path: Path) -> None:
    """A not-null check on an empty batch is no pass, on either engine, from either format."""
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        path.write_text("id,day,text\n")
    else:
        pq.write_table(pa.table({name: pa.array([], pa.string()) for name in ("id", "day", "text")}), path)
    verdict = check(contract, path, engine)
    assert not verdict.passed
    assert "no row" in verdict.reason
    assert {result.outcome for result in verdict.checks} <= {"fail", "insufficient", "pass"}
    passed = [result.rule for result in verdict.checks if result.outcome == "pass"]
    assert passed == ["contract has rules"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_batch_is_refused(engine: str, tmp_path: Path) -> None:
    """Fewer rows than the contract asks for."""
    rule = {"metric": "rowCount", "mustBeGreaterOrEqualTo": 4}
    path = contract_file(tmp_path / "c.yaml", PROPERTIES, quality=[rule], customProperties=HALF)
    verdict = judged(path, ROWS, tmp_path, engine)
    assert not verdict.passed
    assert "3 rows" in verdict.reason


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cell", ["", None])
def test_a_required_column_without_a_value_is_refused(
    engine: str, cell: str | None, contract: Path, tmp_path: Path
) -> None:
    """All empty or all null: named, and no rule of that column counts as kept."""
    table = pa.table(
        {"id": pa.array(["1", "2"]), "day": pa.array([cell] * 2, pa.string()), "text": pa.array(["a", "b"])}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    verdict = check(contract, tmp_path / "rows.parquet", engine)
    outcomes = {result.rule: result.outcome for result in verdict.checks if result.subject == "day"}
    assert not verdict.passed
    assert outcomes["required"] == "fail"
    assert outcomes["date"] != "pass"


def test_a_contract_without_rules_accepts_nothing(tmp_path: Path) -> None:
    """A suite of no expectation is no evidence."""
    path = contract_file(tmp_path / "c.yaml", [])
    (tmp_path / "rows.csv").write_text("id\n1\n")
    verdict = check(path, tmp_path / "rows.csv", "duckdb")
    assert not verdict.passed
    assert "declares no rule" in verdict.reason


def _left_out(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
    return replace(seen, observations=dict(list(seen.observations.items())[1:]))


def _nothing(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
    return replace(seen, observations={}, marks=Marks(None, seen.marks.words))


def _of_others(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
    return replace(seen, observations={number + 100: one for number, one in seen.observations.items()})


def _changed(**fields: Any) -> Planted:
    def planted(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
        number = next(number for number, rule in rules.items() if rule.kind == "values")
        return replace(seen, observations={**seen.observations, number: replace(seen.observations[number], **fields)})

    return planted


def _without_marks(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
    return replace(seen, marks=Marks(None, seen.marks.words))


def _marked(*rows: int) -> Planted:
    def planted(seen: Measured, rules: Mapping[int, Rule], folder: Path) -> Measured:
        number = next(number for number, rule in rules.items() if rule.kind == "values")
        marks = write_marks(folder / "planted.parquet", {number: rows}, seen.marks.words)
        return replace(seen, marks=marks)

    return planted


def _disordered(seen: Measured, rules: Mapping[int, Rule], folder: Path) -> Measured:
    table = {"row": pa.array([2, 1]), "w0": pa.array([1, 1], pa.uint64())}
    pq.write_table(pa.table(table), folder / "planted.parquet")
    return replace(seen, marks=Marks(folder / "planted.parquet", 1))


def _no_marks_file(seen: Measured, rules: Mapping[int, Rule], folder: Path) -> Measured:
    (folder / "planted.parquet").write_bytes(b"PAR1 cut")
    return replace(seen, marks=Marks(folder / "planted.parquet", 1))


def _other_rows(seen: Measured, rules: Mapping[int, Rule], _: Path) -> Measured:
    return replace(seen, rows=seen.rows + 1)


FAULTS: dict[str, Planted] = {
    "the first result left out": _left_out,
    "all results left out": _nothing,
    "results of other rules": _of_others,
    "fewer broken rows than it names": _changed(value=0.0),
    "more broken rows than it names": _changed(value=2.0),
    "more broken rows than it looked at": _changed(value=1.0, looked_at=0),
    "looked at more rows than there are": _changed(looked_at=4),
    "a negative count": _changed(value=-1.0),
    "half a row": _changed(value=0.5),
    "NaN": _changed(value=math.nan),
    "infinity": _changed(value=math.inf),
    "an error beside a result": _changed(error="planted"),
    "rows not named": _without_marks,
    "a row that is not there": _marked(3),
    "a negative row": _marked(-1),
    "rows out of order": _disordered,
    "rows in a damaged file": _no_marks_file,
    "another number of rows": _other_rows,
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_faulty_engine_refuses_the_batch(fault: str, contract: Path, tmp_path: Path) -> None:
    """What an engine leaves out, or says against itself, is a failure; every rule still has a result."""

    def faulty(rules: Mapping[int, Rule], words: int, batch: Batch, scratch: Path) -> Measured:
        return FAULTS[fault](duckdb_engine.measure(rules, words, batch, scratch), rules, scratch)

    verdict = judged(contract, ROWS, tmp_path, faulty)
    assert not verdict.passed
    assert "no result" in verdict.reason
    told = {(result.subject, result.rule) for result in verdict.checks}
    assert {(rule.subject, rule.name) for rule in load(contract).rules} <= told
    assert all(result.limit is not None for result in verdict.checks if result.rule != "undeclared column")


@pytest.mark.parametrize("error", [RuntimeError("planted"), MemoryError(), duckdb.InterruptException("Interrupted!")])
@pytest.mark.parametrize("engine", ["given", *ENGINES])
def test_an_exception_inside_an_engine_refuses_the_batch(
    error: Exception, engine: str, contract: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised, also for want of memory or when it is interrupted, is told as the reason."""

    def raising(*_: Any, **__: Any) -> Any:
        raise error

    if engine == "duckdb":
        monkeypatch.setattr(duckdb_engine, "_first_pass", raising)
    elif engine == "great_expectations":
        from components.contract.engines import expectations

        monkeypatch.setattr(expectations, "_run", raising)
    verdict = judged(contract, ROWS, tmp_path, raising if engine == "given" else engine)
    assert not verdict.passed
    assert "no result" in verdict.reason
    said = str(error) if isinstance(error, duckdb.Error) else type(error).__name__  # others may quote the data
    assert said in verdict.reason


def test_an_interruption_by_a_person_publishes_nothing(contract: Path, tmp_path: Path) -> None:
    """Control-C is no verdict: the folder does not appear."""

    def interrupted(*_: Any) -> Measured:
        raise KeyboardInterrupt

    snapshot = snapshot_of(tmp_path, ROWS)
    with pytest.raises(KeyboardInterrupt):
        validate_snapshot(recipe_for("x", contract), snapshot, tmp_path / "out", interrupted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "rows.csv", "snapshot"]


def test_too_little_memory_refuses_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DuckDB can neither hold nor spill its keys, there is no result and no pass."""
    path = contract_file(tmp_path / "c.yaml", [{"name": "id", "unique": True}])
    pq.write_table(pa.table({"id": pa.array([str(number) for number in range(400_000)])}), tmp_path / "rows.parquet")
    connected = duckdb_connection.connected
    monkeypatch.setattr(duckdb_engine, "connected", lambda scratch: connected(None, memory_mib=4))
    verdict = check(path, tmp_path / "rows.parquet", "duckdb")
    assert not verdict.passed
    assert "emory" in verdict.reason


def test_a_rule_that_duckdb_cannot_evaluate_fails(contract: Path, tmp_path: Path) -> None:
    """A pattern outside RE2 that came past the loader is no pass for any rule of the pass."""
    snapshot = snapshot_of(tmp_path, ROWS)
    loaded = load(contract)
    rule = Rule("pattern", "pattern", ("text",), "x", pattern="(?=a)")
    seen, _ = measured(
        replace(loaded, rules=(*loaded.rules, rule)), snapshot_batch(snapshot / "data.parquet"), tmp_path, "duckdb"
    )
    assert seen.observations[len(loaded.rules)].error


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kind_of_rule_that_an_engine_does_not_know_fails(engine: str, contract: Path, tmp_path: Path) -> None:
    """A rule of tomorrow is an error in either engine, not silence."""
    snapshot = snapshot_of(tmp_path, ROWS)
    loaded = load(contract)
    unknown = replace(loaded.rules[1], kind="of tomorrow", name="new")
    seen, _ = measured(
        replace(loaded, rules=(*loaded.rules, unknown)), snapshot_batch(snapshot / "data.parquet"), tmp_path, engine
    )
    assert "of tomorrow" in seen.observations[len(loaded.rules)].error


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["freshness", "frequency", "retention"])
def test_a_service_level_without_a_time_of_reading_fails(
    engine: str, kind: str, contract: Path, tmp_path: Path
) -> None:
    """Freshness against no clock is no freshness, on either engine."""
    snapshot = snapshot_of(tmp_path, ROWS)
    loaded = load(contract)
    rule = Rule(kind, kind, ("day",), "x", reading=loaded.column("day").reading)
    rules = (*loaded.rules, rule)
    seen, _ = measured(replace(loaded, rules=rules), snapshot_batch(snapshot / "data.parquet"), tmp_path, engine)
    assert "no time of reading" in seen.observations[len(loaded.rules)].error
