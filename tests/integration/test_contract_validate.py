"""Validation with the real engine: the shipped contract on generated and real rows, the page, the check."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.contract.page import MASK, verdict_page
from components.contract.standard.rules import Observation, Rule
from components.contract.validate import check, validate_snapshot
from components.core.errors import IntegrityError, UserError
from components.core.paths import PROJECT_ROOT
from components.core.publish import verify
from components.core.records import ContractVerdict
from components.ingestion.ingest import ingest
from pipelines.generators import GENERATORS
from pipelines.generators.complaints import generate
from tests.fakes.contract_case import contract_file, snapshot_of
from tests.fakes.ingestion_case import complaints_recipe, recipe_for

COMPLAINTS = PROJECT_ROOT / "data_contracts" / "complaints.odcs.yaml"


def verdict_on(uri: str | Path, folder: Path) -> ContractVerdict:
    """Ingest and validate complaints."""
    recipe = complaints_recipe(uri)
    ingest(recipe, folder / "snapshot", GENERATORS)
    return validate_snapshot(recipe, folder / "snapshot", folder / "clean")


def failed(verdict: ContractVerdict) -> set[tuple[str, str]]:
    """Rules that failed."""
    return {(check.subject, check.rule) for check in verdict.checks if check.outcome == "fail"}


def test_generated_rows_hold_the_contract(tmp_path: Path) -> None:
    """All rules pass with a result each, all rows are clean, and the folder is whole."""
    verdict = verdict_on("generator://complaints?rows=900", tmp_path)
    assert verdict.passed, verdict.reason
    assert (verdict.rows, verdict.clean, verdict.quarantined) == (900, 900, 0)
    assert {check.outcome for check in verdict.checks} == {"pass"}
    assert verdict.engine.startswith("great_expectations")
    verify(tmp_path / "clean")
    assert ContractVerdict.read(tmp_path / "clean") == verdict
    assert pq.read_table(tmp_path / "clean" / "clean.parquet").equals(
        pq.read_table(tmp_path / "snapshot" / "data.parquet")
    )


def test_real_rows_hold_the_contract(real_csv: Path, tmp_path: Path) -> None:
    """The bureau's own rows pass, all 2,827."""
    verdict = verdict_on(real_csv, tmp_path)
    assert verdict.passed, verdict.reason
    assert (verdict.rows, verdict.clean) == (2827, 2827)


def test_a_newer_layout_holds_the_contract(tmp_path: Path) -> None:
    """ISO dates and the two columns that newer exports dropped are no breach."""
    newer = "iso_dates,drop:Consumer disputed?,drop:Consumer consent provided?"
    assert verdict_on(f"generator://complaints?rows=900&schema_break={newer}", tmp_path).passed


@pytest.mark.parametrize(
    ("schema_break", "column", "rule"),
    [
        ("drop:State", "State", "column"),
        ("rename:Company>Firm", "Company", "column"),
        ("category", "Company response to consumer", "enum"),
    ],
)
def test_a_broken_layout_is_refused_by_name(schema_break: str, column: str, rule: str, tmp_path: Path) -> None:
    """A dropped or renamed column and a renamed category are named; no clean row is left, and all are accounted for."""
    verdict = verdict_on(f"generator://complaints?rows=900&schema_break={schema_break}", tmp_path)
    assert not verdict.passed
    assert (column, rule) in failed(verdict)
    assert column in verdict.reason
    assert schema_break != "category" or "Closed - explained" in verdict.reason
    assert (verdict.clean, verdict.quarantined) == (0, 900)
    verify(tmp_path / "clean")


def test_broken_rows_are_set_aside_with_their_reasons(tmp_path: Path) -> None:
    """Rows in progress, wrong state codes and empty-handed narratives leave one by one; the rest goes on."""
    frame = generate(rows=900)
    frame.loc[3, "State"] = "Texas"
    frame.loc[5, "Company response to consumer"] = "In progress"
    frame.loc[5, "ZIP code"] = "1"
    frame.loc[7, "Consumer complaint narrative"] = "x"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    verdict = verdict_on(tmp_path / "rows.csv", tmp_path)
    assert verdict.passed, verdict.reason
    assert (verdict.clean, verdict.quarantined) == (897, 3)
    aside = pq.read_table(tmp_path / "clean" / "quarantine.parquet").to_pylist()
    assert sorted(row["_rule"] for row in aside) == [
        "Consumer complaint narrative: length",
        "State: state-is-a-code",
        "ZIP code: zip-is-a-code; Company response to consumer: response-is-settled",
    ]


@pytest.mark.parametrize(
    ("change", "column", "rule"),
    [
        ({"Complaint ID": "7000001"}, "Complaint ID", "unique"),
        ({"Complaint ID": ""}, "Complaint ID", "required"),
        ({"Company": ""}, "Company", "company-not-null"),
        ({"Date sent to company": "02/30/25"}, "Date sent to company", "date"),
        ({"Timely response?": "yes"}, "Timely response?", "enum"),
    ],
)
def test_one_broken_row_of_an_error_rule_refuses_the_batch(
    change: dict[str, str], column: str, rule: str, tmp_path: Path
) -> None:
    """A key twice, a missing value, a day that is none, an unknown category."""
    frame = generate(rows=900)
    for name, value in change.items():
        frame.loc[100, name] = value
    frame.to_csv(tmp_path / "rows.csv", index=False)
    verdict = check(COMPLAINTS, tmp_path / "rows.csv")
    assert not verdict.passed
    assert (column, rule) in failed(verdict)


@pytest.mark.parametrize("rows", [0, 300])
def test_empty_and_short_batches_are_refused(rows: int, tmp_path: Path) -> None:
    """Great Expectations calls an empty frame a success; the verdict does not."""
    generate(rows=300).head(rows).to_csv(tmp_path / "rows.csv", index=False)
    verdict = check(COMPLAINTS, tmp_path / "rows.csv")
    assert not verdict.passed
    assert verdict.rows == rows


def test_an_all_missing_column_is_no_pass(tmp_path: Path) -> None:
    """A required column without one value fails, and a rule that saw no value does not count as passed."""
    properties: list[dict[str, Any]] = [
        {"name": "id", "required": True},
        {"name": "text", "enum": [{"value": "a"}]},
        {"name": "day", "required": True},
    ]
    path = contract_file(tmp_path / "c.yaml", properties)
    snapshot = snapshot_of(tmp_path, [("", "2025-01-01", ""), ("", "2025-01-02", "")])
    verdict = validate_snapshot(recipe_for("x", path), snapshot, tmp_path / "out")
    outcomes = {(check.subject, check.rule): check.outcome for check in verdict.checks}
    assert not verdict.passed
    assert outcomes["id", "required"] == "fail"
    assert outcomes["text", "enum"] == "info"


@pytest.mark.parametrize("kind", ["left out", "raises", "all left out"])
def test_an_engine_that_fails_refuses_the_batch(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that Great Expectations leaves out, or an exception inside it, is never a pass."""
    from components.contract.engines import expectations

    run = expectations._run

    def faulty(*arguments: Any) -> list[Any]:
        if kind == "raises":
            raise RuntimeError("planted")
        return run(*arguments)[1:] if kind == "left out" else []

    monkeypatch.setattr(expectations, "_run", faulty)
    generate(rows=600).to_csv(tmp_path / "rows.csv", index=False)
    verdict = check(COMPLAINTS, tmp_path / "rows.csv")
    assert not verdict.passed
    assert "no result" in verdict.reason
    assert kind != "raises" or "RuntimeError" in verdict.reason


def test_a_snapshot_that_was_touched_is_not_read(tmp_path: Path) -> None:
    """Bytes that differ from the manifest break integrity before any rule runs."""
    snapshot = snapshot_of(tmp_path, [("1", "2025-01-01", "a")])
    with (snapshot / "data.parquet").open("ab") as stream:
        stream.write(b"x")

    def engine(rules: Sequence[Rule], table: pa.Table) -> dict[int, Observation]:
        raise AssertionError("not reached")

    with pytest.raises(IntegrityError, match=r"data\.parquet"):
        validate_snapshot(recipe_for("x", COMPLAINTS), snapshot, tmp_path / "out", engine)
    assert not (tmp_path / "out").exists()


def test_check_names_what_cannot_be_read(tmp_path: Path) -> None:
    """A missing contract or data file is the user's to mend."""
    with pytest.raises(UserError, match=r"none\.yaml"):
        check(tmp_path / "none.yaml", tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"none\.csv"):
        check(COMPLAINTS, tmp_path / "none.csv")


def test_the_page_stands_alone_and_masks_personal_data(tmp_path: Path) -> None:
    """No link to anywhere, markup in data is shown as text, and no cell of a personal column appears."""
    frame = generate(rows=900)
    frame.loc[3, "State"] = "Planted<b>State</b>"
    frame.loc[3, "Company"] = "<script>alert(1)</script>"
    frame.loc[3, "Consumer complaint narrative"] = "planted narrative of a person"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    verdict = verdict_on(tmp_path / "rows.csv", tmp_path)
    page = verdict_page(verdict, tmp_path / "clean", COMPLAINTS)
    assert not re.search(r"(src|href)=|https?://|<script", page)
    assert "&lt;script&gt;" in page
    assert "planted narrative" not in page
    assert "Planted" not in page
    assert MASK in page
    assert "state-is-a-code" in page
    record = (tmp_path / "clean" / "record.json").read_text()
    assert "Planted" not in record


def test_importing_the_room_loads_no_engine() -> None:
    """Great Expectations is imported by its adapter alone."""
    code = (
        "import sys; import components.contract.validate, components.contract.page, components.ingestion.ingest;"
        "print([name for name in ('great_expectations', 'sqlalchemy', 'fsspec', 'kfp') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
