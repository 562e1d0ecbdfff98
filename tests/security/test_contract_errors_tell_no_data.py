"""What an engine raises over a cell is told without the cell: nowhere do planted secrets come out."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from components.contract.engines import expectations
from components.contract.engines.safe_error import safe_error, safe_traceback
from components.contract.page import verdict_page
from components.contract.validate import validate_snapshot
from pipelines.cli import main
from tests.fakes.contract_case import contract_file, snapshot_of
from tests.fakes.ingestion_case import recipe_for

SECRETS = ("SECRETVALUE", "O'SECRET\" x", "(SECRET", "SECRET to INT99 'b'", "SECRETError: x", "98765432109876")
QUERIES = (
    "SELECT max({column})::INT FROM {{object}}",
    "SELECT count(strptime({column}, '%Y')) FROM {{object}}",
    "SELECT count(*) FROM {{object}} WHERE regexp_matches('a', {column})",
    "SELECT count({column}::DATE) FROM {{object}}",
    "SELECT count({column}::TIMESTAMP) FROM {{object}}",
    "SELECT max({column}::BIGINT::INT) FROM {{object}}",
    "SELECT max(({column}::BIGINT * {column}::BIGINT)) FROM {{object}}",
)


def written(folder: Path) -> bytes:
    """All that was published but for the rows themselves."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet")
    return b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("secret", SECRETS)
def test_a_query_that_stumbles_over_a_cell_does_not_tell_it(
    masked: bool, secret: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not on the page, in the records, in what the quarantine gives as the reason, nor on the screen."""
    rules = [
        {"type": "sql", "name": f"q{place}", "query": query.format(column="ssn"), "mustBe": 0}
        for place, query in enumerate(QUERIES)
    ]
    ssn: dict[str, Any] = {"name": "ssn", "tags": ["pii"] if masked else []}
    contract = contract_file(tmp_path / "c.yaml", [{"name": "id"}, {"name": "day"}, ssn], quality=rules)
    snapshot = snapshot_of(tmp_path, [("1", "2025-01-01", secret)], ("id", "day", "ssn"))
    out = tmp_path / "out"
    verdict = validate_snapshot(recipe_for("x", contract), snapshot, out, "duckdb")
    failed = [check for check in verdict.checks if "gave no result" in check.reason]
    assert len(failed) >= 4
    if secret == "SECRETVALUE":
        assert "Conversion Error: a value cannot be converted to INT32" in failed[0].reason
    assert main(["contract", "check", str(contract), str(tmp_path / "rows.csv"), "--json", "--engine", "duckdb"]) == 3
    assert main(["contract", "check", str(contract), str(tmp_path / "rows.csv"), "--engine", "duckdb"]) == 3
    printed = capfd.readouterr()
    page = verdict_page(verdict, out, contract)
    reasons = str(verdict.to_dict()) + printed.out + printed.err + written(out).decode()
    reasons += page if masked else page.partition("Rows set aside")[0]
    reasons += str(pq.read_table(out / "quarantine.parquet").column("_reason").to_pylist())
    assert "SECRET" not in reasons
    assert "98765432109876" not in reasons


@pytest.mark.parametrize(
    "expectation", ["expect_column_max_to_be_between", "expect_column_distinct_values_to_be_in_set"]
)
def test_the_evidence_of_great_expectations_holds_no_cell(
    expectation: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a greatest value, nor a list of the values, nor what it raised."""
    numbers = "max" in expectation
    secret, arguments = ("98765432109876", {"max_value": 2}) if numbers else ("SECRETVALUE", {"value_set": ["a"]})
    rule = {
        "type": "custom",
        "engine": "greatExpectations",
        "implementation": {"type": expectation, "kwargs": arguments},
    }
    ssn: dict[str, Any] = {
        "name": "ssn",
        "logicalType": "integer" if numbers else "string",
        "tags": ["pii"],
        "quality": [rule],
    }
    properties = [{"name": "id"}, {"name": "day"}, ssn]
    contract = contract_file(tmp_path / "c.yaml", properties)
    snapshot = snapshot_of(tmp_path, [("1", "2025-01-01", secret)], ("id", "day", "ssn"))
    verdict = validate_snapshot(recipe_for("x", contract), snapshot, tmp_path / "out", "great_expectations")
    printed = capfd.readouterr()
    told = str(verdict.to_dict()) + printed.out + printed.err + written(tmp_path / "out").decode()
    assert not verdict.passed
    assert secret not in told


def test_what_great_expectations_raises_is_told_by_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An error that quotes a cell, raised inside an expectation, and outside of any."""
    contract = contract_file(tmp_path / "c.yaml", [{"name": "id"}, {"name": "day"}, {"name": "text", "unique": True}])
    snapshot = snapshot_of(tmp_path, [("1", "2025-01-01", "SECRETVALUE")])

    def raising(*_: Any, **__: Any) -> Any:
        raise ValueError("could not convert string to float: SECRETVALUE")

    for place, target in enumerate((("_observe", raising), ("_run", raising))):
        monkeypatch.setattr(expectations, *target)
        verdict = validate_snapshot(recipe_for("x", contract), snapshot, tmp_path / f"out{place}", "great_expectations")
        printed = capfd.readouterr()
        assert not verdict.passed
        assert "ValueError" in verdict.reason
        told = verdict.reason + printed.out + printed.err + written(tmp_path / f"out{place}").decode()
        assert "SECRET" not in told


def test_kind_and_safe_words_of_an_error_stay() -> None:
    """The kind of an error is told; a message that comes from the query, and not from the rows, is told whole."""
    connection = duckdb.connect()
    with pytest.raises(duckdb.BinderException) as bound:
        connection.execute("SELECT nope FROM (SELECT 1 AS ssn)")
    assert '"nope" not found' in safe_error(bound.value)
    assert "LINE" not in safe_error(bound.value)
    assert safe_error(duckdb.InterruptException("INTERRUPT Error: Interrupted!")).endswith("Interrupted!")
    assert safe_error(MemoryError()) == "MemoryError"
    assert safe_error(RuntimeError("SECRET")).startswith("RuntimeError: ")
    try:
        int("SECRET\nSECRETError: x")
    except ValueError:
        text = traceback.format_exc()
    assert safe_traceback(text).startswith("ValueError: ")
    assert "SECRET" not in safe_traceback(text) + safe_traceback("SECRET") + safe_traceback("")
