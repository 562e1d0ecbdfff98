"""A snapshot depends on rows, not on how they are stored."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from components.ingestion.ingest import ingest
from components.tables.read import read_files
from tests.fakes.ingestion_case import recipe_for, write_csv

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ROW = st.tuples(st.sampled_from("abc"), st.sampled_from(["2025-01-01", "2025-01-02", "2024-12-31"]), TEXT)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(ROW, min_size=1, max_size=12))
def test_order_and_partition_do_not_matter(data: st.DataObject, rows: list[tuple[str, str, str]]) -> None:
    """However rows are shuffled and spread over files, duplicates of keys and times included: one digest."""
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = ingest(recipe_for(write_csv(folder / "one.csv", rows)), folder / "a")
        for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            write_csv(folder / "parts" / f"{number}.csv", shuffled[start:end])
        many = ingest(recipe_for(folder / "parts"), folder / "b")
        stored = pq.read_table(folder / "b" / "data.parquet").to_pylist()
    assert many.digest == one.digest
    assert sorted(tuple(row.values()) for row in stored) == sorted(rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=6))
def test_csv_reads_back_what_the_standard_library_wrote(rows: list[tuple[str, str, str]]) -> None:
    """Any text, quotes, separators, line ends and zero bytes included, comes back cell by cell."""
    with tempfile.TemporaryDirectory() as name:
        table = read_files(str(write_csv(Path(name) / "a.csv", rows))).table
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_one_clear_error(content: bytes) -> None:
    """Whatever a file holds, reading gives a table that agrees with the csv module, or a UserError."""
    from components.core.errors import UserError

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.csv"
        path.write_bytes(content)
        try:
            read = read_files(str(path))
        except UserError:
            return
        table, encoding = read.table, read.inputs[0].get("encoding", "utf-8-sig")
        with path.open(newline="", encoding=encoding) as stream:
            rows = [tuple(row) for row in csv.reader(stream) if row]
    assert [tuple(table.column_names), *(tuple(row.values()) for row in table.to_pylist())] == rows
