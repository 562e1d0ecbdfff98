"""Two engines, one verdict: random contracts on random rows, both engines and an oracle in plain Python."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from components.contract.engines.batch import snapshot_batch
from components.contract.engines.choose import measured
from components.contract.standard.contract import load
from components.contract.validate import validate_snapshot
from components.core.digest import file_digest
from components.core.errors import UserError
from components.core.publish import publishing, verify
from components.core.records import ContractVerdict, SnapshotRef
from tests.fakes.contract_cases import documents, rows_of
from tests.fakes.contract_oracle import expected_rules, expected_verdict
from tests.fakes.ingestion_case import recipe_for

EXAMPLES = int(os.environ.get("PILOTLINE_EXAMPLES", "0"))
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
Row = Mapping[str, str | None]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, str | None]]]:
    """A document and rows for it."""
    document = draw(documents())
    return document, draw(rows_of(document))


def contract_of(document: Mapping[str, Any], folder: Path) -> Path:
    """The document as a file; examples that the loader refuses as contradictory are not meant."""
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    try:
        load(path)
    except UserError:
        assume(False)
    return path


def snapshot_of(document: Mapping[str, Any], rows: Sequence[Row], folder: Path) -> Path:
    """A published snapshot of the rows in this order."""
    names = [one["name"] for one in document["schema"][0]["properties"]]
    table = pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in names})
    with publishing(folder / "snapshot") as staging:
        pq.write_table(table, staging / "data.parquet", row_group_size=5)
        about = {"source": "case", "time_column": "", "time_min": "", "time_max": "", "since": "", "until": ""}
        digest = file_digest(staging / "data.parquet")
        SnapshotRef(digest=digest, rows=len(rows), columns=tuple(names), **about).write(staging)
    return folder / "snapshot"


def seen_by(engine: str, contract: Path, snapshot: Path, folder: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """By place and kind: what an engine says of each rule, with the rows that break it."""
    rules = load(contract).rules
    scratch = folder / engine
    scratch.mkdir()
    seen, name = measured(load(contract), snapshot_batch(snapshot / "data.parquet"), scratch, engine)
    assert name.startswith(engine)
    found = {}
    for number, rule in enumerate(rules):
        one = seen.observations[number]
        assert not one.error, (rule, one.error)
        broken = seen.marks.rows(number).tolist() if rule.of_rows else []
        found[rule.where, rule.kind] = (one.value, one.looked_at, broken)
    return found


def expected_of(document: Mapping[str, Any], rows: Sequence[Row]) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The same by the oracle."""
    return {
        key: (float(len(one.broken)) if one.number is None else one.number, one.looked_at, one.broken)
        for key, one in expected_rules(document, rows).items()
    }


def outcome_of(engine: str, contract: Path, snapshot: Path, folder: Path) -> tuple[ContractVerdict, list[Any], str]:
    """The verdict, the rows set aside, and the digest of the clean rows."""
    out = folder / f"out-{engine}"
    verdict = validate_snapshot(recipe_for("x", contract), snapshot, out, engine)
    verify(out)
    aside = pq.read_table(out / "quarantine.parquet").to_pylist()
    return verdict, aside, file_digest(out / "clean.parquet")


def check_rules(engines: Sequence[str], document: dict[str, Any], rows: list[dict[str, str | None]]) -> None:
    """Counts and failing rows of every rule."""
    assume(rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contract = contract_of(document, folder)
        snapshot = snapshot_of(document, rows, folder)
        expected = expected_of(document, rows)
        for engine in engines:
            assert seen_by(engine, contract, snapshot, folder) == expected, engine


@settings(max_examples=EXAMPLES or 150, **COMMON)
@given(case=cases())
def test_duckdb_sees_what_the_contract_s_words_say(case: tuple[dict[str, Any], list[Any]]) -> None:
    """For every rule of a random contract: the same count, number of values looked at, and rows."""
    check_rules(["duckdb"], *case)


@settings(max_examples=EXAMPLES or 40, **COMMON)
@given(case=cases())
def test_both_engines_see_what_the_contract_s_words_say(case: tuple[dict[str, Any], list[Any]]) -> None:
    """Great Expectations and DuckDB agree with the oracle, so with each other."""
    check_rules(["great_expectations", "duckdb"], *case)


@settings(max_examples=EXAMPLES or 25, **COMMON)
@given(case=cases())
def test_both_engines_give_one_verdict(case: tuple[dict[str, Any], list[Any]]) -> None:
    """The same outcome, checks, clean bytes and rows set aside; each row is in one file, and can be told apart."""
    document, rows = case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contract = contract_of(document, folder)
        snapshot = snapshot_of(document, rows, folder)
        passes, aside = expected_verdict(document, rows)
        ours = outcome_of("duckdb", contract, snapshot, folder)
        theirs = outcome_of("great_expectations", contract, snapshot, folder)
        verdict, quarantined, _ = ours
        assert (verdict.passed, verdict.checks, *ours[1:]) == (theirs[0].passed, theirs[0].checks, *theirs[1:])
        assert verdict.passed is passes, verdict.reason
        assert [row["_row"] for row in quarantined] == sorted(aside)
        assert all(row["_rule"] and row["_reason"] for row in quarantined)
        names = [one["name"] for one in document["schema"][0]["properties"]]
        assert [{name: row[name] for name in names} for row in quarantined] == [rows[place] for place in sorted(aside)]
        clean = pq.read_table(folder / "out-duckdb" / "clean.parquet").to_pylist()
        assert clean == [row for place, row in enumerate(rows) if place not in aside]
        assert (verdict.rows, verdict.clean, verdict.quarantined) == (len(rows), len(clean), len(quarantined))


@pytest.mark.parametrize("engine", ["duckdb", "great_expectations"])
def test_an_empty_batch_is_refused_by_both(engine: str, tmp_path: Path) -> None:
    """No row, no pass, for any contract."""
    about = {"apiVersion": "v3.2.0", "kind": "DataContract", "id": "c", "version": "1.0.0", "status": "active"}
    document = about | {"schema": [{"name": "rows", "properties": [{"name": "a", "required": True}]}]}
    contract = contract_of(document, tmp_path)
    verdict, aside, _ = outcome_of(engine, contract, snapshot_of(document, [], tmp_path), tmp_path)
    assert not verdict.passed
    assert (verdict.rows, aside) == (0, [])
