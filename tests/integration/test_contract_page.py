"""The verdict's page and the text of `contract check`: what a person sees, and what nobody may."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.contract.page import MASK, masked_examples, verdict_page
from components.contract.validate import validate_snapshot
from pipelines.cli import main
from tests.fakes.contract_case import contract_file, snapshot_of
from tests.fakes.ingestion_case import recipe_for, write_csv

ENUM = {"enum": [{"value": "a"}, {"value": "b"}]}
WARNING = {"customProperties": [{"property": "ruleSeverity", "value": "warning"}]}
UNIQUE = {"metric": "duplicateValues", "mustBe": 0, "name": "one-a-day", "description": "Each day stands once."}
PROPERTIES: list[dict[str, Any]] = [
    {"name": "text", **ENUM, **WARNING},
    {"name": "id", "required": True, "tags": ["pii"]},
    {"name": "day", "quality": [UNIQUE]},
]
ROWS_RULE = {"metric": "rowCount", "mustBeGreaterThan": 1, "name": "enough", "description": "A short batch is none."}
HALF = [{"property": "maxQuarantinePercent", "value": 50}]
HELD = [
    ("planted-long-person", "2025-01-01", "a"),
    ("p", "2025-01-02", "z"),
    ("q", "2025-01-03", "b"),
    ("r", "2025-01-04", "y"),
]
BROKEN = [("p", "2025-01-01", "a"), ("planted-long-person", "2025-01-02", "a"), ("q", "2025-01-02", "b")]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """Columns in another order than the file's; a warning, personal data, and rules with descriptions."""
    return contract_file(tmp_path / "c.yaml", PROPERTIES, quality=[ROWS_RULE], customProperties=HALF)


def pages(contract: Path, rows: Sequence[tuple[str, ...]], folder: Path) -> tuple[str, str]:
    """The page of a snapshot's verdict, and the one that `contract check --page` writes of the same file."""
    snapshot = snapshot_of(folder, rows)
    verdict = validate_snapshot(recipe_for("x", contract), snapshot, folder / "out", "duckdb")
    page = folder / "verdict.html"
    told = main(
        ["contract", "check", str(contract), str(folder / "rows.csv"), "--engine", "duckdb", "--page", str(page)]
    )
    assert told == (0 if verdict.passed else 3)
    return verdict_page(verdict, folder / "out", contract), page.read_text()


def examples(page: str) -> list[list[str]]:
    """The cells of the rows that a page gives as examples."""
    body = page.partition("Rows set aside, ")[2].partition("<tbody>")[2]
    return [re.findall(r"<td>(.*?)</td>", row) for row in body.split("<tr>")[1:]]


def test_rules_stand_by_column_in_the_order_of_the_contract(contract: Path, tmp_path: Path) -> None:
    """The batch's own first; each rule with its description; nothing from elsewhere is loaded."""
    for page in pages(contract, HELD, tmp_path):
        assert re.findall(r"scope='rowgroup'>(.*?)<", page) == ["The batch", "text", "id", "day"]
        parts = page.split("scope='rowgroup'>")
        assert "A short batch is none." in parts[1]
        assert "Each day stands once." in parts[4]
        assert not re.search(r"(src|href)=|https?://|<script|url\(|@import", page)


def test_a_warning_that_sets_rows_aside_is_told_from_plain_information(contract: Path, tmp_path: Path) -> None:
    """Its own word and its own colour, above what passes."""
    for page in pages(contract, HELD, tmp_path):
        text = page.split("scope='rowgroup'>")[2]
        assert "<td class='warning'>warning: rows set aside</td><td>enum" in text
        assert text.index("class='warning'") < text.index("class='pass'")
        assert page.count("class='warning'") == 1


@pytest.mark.parametrize("rows", [HELD, BROKEN])
def test_examples_are_failing_rows_numbered_as_in_the_quarantine(
    rows: Sequence[tuple[str, ...]], contract: Path, tmp_path: Path
) -> None:
    """From 0, also where the batch was refused as a whole; masks are as wide for a long value as for a short one."""
    published, written = pages(contract, rows, tmp_path)
    broken = [1, 3] if rows is HELD else [1, 2]
    quarantine = pq.read_table(tmp_path / "out" / "quarantine.parquet").to_pylist()
    assert set(broken) <= {row["_row"] for row in quarantine}
    assert all((row["id"], row["day"], row["text"]) == rows[row["_row"]] for row in quarantine)
    for page in (published, written):
        assert "row N of the snapshot, from 0" in page
        assert [cells[0] for cells in examples(page)] == [f"row {number}" for number in broken]
        assert [cells[3:] for cells in examples(page)] == [[MASK, *rows[number][1:]] for number in broken]
        assert "planted-long-person" not in page
        assert "characters)" not in page
    told = masked_examples(tmp_path / "out", contract)
    assert [(row["row"], row["values"]["id"]) for row in told] == [(number, MASK) for number in broken]


def test_every_rule_has_an_example_before_any_has_many(tmp_path: Path) -> None:
    """Many rows break the first rule; the one row that breaks the other is shown all the same."""
    contract = contract_file(tmp_path / "c.yaml", [{"name": "day"}, {"name": "id", **ENUM}, {"name": "text", **ENUM}])
    rows = [(f"z{number}", "2025-01-01", "a") for number in range(200)] + [("a", "2025-01-02", "z")]
    for page in pages(contract, rows, tmp_path):
        assert [cells[0] for cells in examples(page)] == ["row 0", "row 1", "row 2", "row 200"]


def test_a_page_that_cannot_be_written_is_bad_input(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is not there, a folder in place of the file, or what is checked, which stays: one line."""
    data = write_csv(tmp_path / "rows.csv", HELD)
    before = data.read_bytes(), contract.read_bytes()
    for page in (tmp_path / "none" / "v.html", tmp_path, data, contract):
        assert main(["contract", "check", str(contract), str(data), "--engine", "duckdb", "--page", str(page)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert (data.read_bytes(), contract.read_bytes()) == before


def test_the_text_counts_in_whole_numbers(contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows that share a day are 2, not 2.0."""
    data = write_csv(tmp_path / "rows.csv", BROKEN)
    assert main(["contract", "check", str(contract), str(data), "--engine", "duckdb"]) == 3
    printed = capsys.readouterr().out
    assert "day: one-a-day: 2 (= 0 rows)" in printed
    assert ".0" not in printed.replace("duckdb 1", "")


def test_an_empty_batch_is_told_in_few_lines(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason once, what was not looked at counted; the JSON names each rule."""
    data = write_csv(tmp_path / "rows.csv", [])
    words = ["contract", "check", str(contract), str(data), "--engine", "duckdb"]
    assert main(words) == 3
    printed = capsys.readouterr().out
    assert "violated: batch has rows: the batch has no row" in printed
    assert printed.count("there is no row to look at") == 1
    assert "None" not in printed
    assert len(printed.splitlines()) == 3
    assert main([*words, "--json"]) == 3
    checks = json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]
    unseen = sum(not check["passed"] for check in checks) - 1
    assert f"  {unseen} rules were not looked at" in printed


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_records_without_a_field_are_bad_input(
    kind: str, contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line, as ingestion has it."""
    data = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({}), data)
    else:
        data.write_bytes(gzip.compress(b"{}\n{}\n") if kind.endswith("gz") else b"{}\n{}\n")
    assert main(["contract", "check", str(contract), str(data)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "no column" in lines[0]
