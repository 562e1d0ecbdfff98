"""Ingestion on small real inputs: every kind of source gives the same rows as text."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.core.digest import file_digest
from components.core.publish import verify
from components.core.records import SnapshotRef
from components.ingestion.ingest import ingest
from pipelines.generators import GENERATORS
from tests.fakes.ingestion_case import HEADER, ROWS, complaints_recipe, recipe_for, write_csv


def rows_of(folder: Path) -> list[tuple[str | None, ...]]:
    """The snapshot's rows."""
    table = pq.read_table(folder / "data.parquet")
    assert set(table.schema.types) <= {pa.string()}
    return [tuple(row.values()) for row in table.to_pylist()]


IN_ORDER = [ROWS[1], ROWS[0], ROWS[2]]


def a_parquet(path: Path) -> Path:
    """The rows as Parquet."""
    pq.write_table(pa.table(dict(zip(HEADER, zip(*ROWS, strict=True), strict=True))), path)
    return path


def a_jsonl(path: Path) -> Path:
    """The rows as JSON lines."""
    path.write_text("".join(json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in ROWS))
    return path


def a_database(path: Path) -> Path:
    """The rows as a table of SQLite."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE rows (id TEXT, day TEXT, text TEXT)")
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", ROWS)
    connection.close()
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "jsonl", "ndjson.gz", "parquet", "sql", "memory", "folder"])
def test_every_source_gives_the_same_snapshot(kind: str, tmp_path: Path) -> None:
    """CSV, JSON lines, Parquet, packed ones, an fsspec URI, a folder and a query agree to the digest."""
    plain = write_csv(tmp_path / "plain.csv")
    expected = ingest(recipe_for(plain), tmp_path / "expected").digest
    uri, about = str(plain), {}
    if kind == "csv.gz":
        (tmp_path / "p.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
        uri = str(tmp_path / "p.csv.gz")
    elif kind == "tsv":
        with (tmp_path / "p.tsv").open("w", newline="") as stream:
            csv.writer(stream, delimiter="\t").writerows([HEADER, *ROWS])
        uri = str(tmp_path / "p.tsv")
    elif kind == "jsonl":
        uri = str(a_jsonl(tmp_path / "p.jsonl"))
    elif kind == "ndjson.gz":
        (tmp_path / "p.ndjson.gz").write_bytes(gzip.compress(a_jsonl(tmp_path / "p").read_bytes()))
        uri = str(tmp_path / "p.ndjson.gz")
    elif kind == "parquet":
        uri = str(a_parquet(tmp_path / "p.parquet"))
    elif kind == "sql":
        uri, about = f"sqlite:///{a_database(tmp_path / 'rows.db')}", {"query": "SELECT id, day, text FROM rows;"}
    elif kind == "memory":
        import fsspec

        fsspec.filesystem("memory").pipe_file("/case/plain.csv", plain.read_bytes())
        uri = "memory://case/plain.csv"
    elif kind == "folder":
        for number, row in enumerate(ROWS):
            write_csv(tmp_path / "many" / f"year={number}" / "part.csv", [row])
        (tmp_path / "many" / "_SUCCESS").write_text("")
        (tmp_path / "many" / "README.md").write_text("not data")
        uri = str(tmp_path / "many")
    ref = ingest(recipe_for(uri, **about), tmp_path / "out")
    assert ref.digest == expected
    assert rows_of(tmp_path / "out") == IN_ORDER
    assert len(ref.inputs) == (3 if kind == "folder" else 1)


def test_the_record_tells_rows_times_and_lineage(tmp_path: Path) -> None:
    """The published record names the data's digest, the range of times, and each input's bytes and sha256."""
    path = write_csv(tmp_path / "a.csv")
    ref = ingest(recipe_for(path), tmp_path / "out")
    verify(tmp_path / "out")
    assert SnapshotRef.read(tmp_path / "out") == ref
    assert ref.digest == file_digest(tmp_path / "out" / "data.parquet")
    assert (ref.rows, ref.columns) == (3, HEADER)
    assert (ref.time_min, ref.time_max) == ("2025-01-01T00:00:00+00:00", "2025-02-01T00:00:00+00:00")
    assert ref.inputs == ({"uri": str(path), "bytes": path.stat().st_size, "sha256": file_digest(path)},)


@pytest.mark.parametrize(
    ("since", "until", "ids"),
    [
        ("", "", ["2", "1", "3"]),
        ("2025-01-02", "", ["1", "3"]),
        ("", "2025-01-02", ["2"]),
        ("2025-01-01T12:00:00", "2025-02-01", ["1"]),
        ("2025-01-02T00:00:00+02:00", "2025-01-02T00:00:01+00:00", ["1"]),
        ("2030-01-01", "", []),
    ],
)
def test_the_interval_is_half_open(since: str, until: str, ids: list[str], tmp_path: Path) -> None:
    """since <= time < until; an interval without rows is a snapshot without rows."""
    recipe = recipe_for(write_csv(tmp_path / "a.csv"), since=since, until=until)
    ref = ingest(recipe, tmp_path / "out")
    assert [row[0] for row in rows_of(tmp_path / "out")] == ids
    assert (ref.rows, bool(ref.time_min)) == (len(ids), bool(ids))


def test_a_glob_takes_the_files_that_match(tmp_path: Path) -> None:
    """Only matching files are read."""
    for name, row in zip(("x1.csv", "x2.csv", "y.csv"), ROWS, strict=True):
        write_csv(tmp_path / name, [row])
    assert ingest(recipe_for(tmp_path / "x*.csv"), tmp_path / "out").rows == 2


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    """Texts that look missing stay, empty stays empty, JSON null is null, and JSON numbers keep their digits."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": 1, "day": "2025-01-01", "text": "N/A", "x": 1.10, "y": null}\n'
        '{"id": 1e2, "day": "2025-01-02", "text": "", "x": true, "z": {"b": [1.5, null], "a": "é"}}\n'
    )
    ingest(recipe_for(path), tmp_path / "out")
    assert rows_of(tmp_path / "out") == [
        ("1", "2025-01-01", "N/A", "1.10", None, None),
        ("1e2", "2025-01-02", "", "true", None, '{"a":"é","b":[1.5,null]}'),
    ]


def test_typed_parquet_becomes_text(tmp_path: Path) -> None:
    """Integers, floats, decimals, booleans, times and categories have one text form; null stays null."""
    columns: dict[str, Any] = {
        "id": pa.array([1, 2]),
        "day": pa.array([datetime(2025, 1, 1), datetime(2025, 1, 2)], pa.timestamp("us")),
        "zone": pa.array([datetime(2025, 1, 1, tzinfo=UTC), None], pa.timestamp("ms", tz="UTC")),
        "float": pa.array([0.1, None]),
        "decimal": pa.array([Decimal("1.10"), None]),
        "flag": pa.array([True, None]),
        "kind": pa.array(["a", None]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    ingest(recipe_for(tmp_path / "a.parquet", time_formats=["%Y-%m-%dT%H:%M:%S"]), tmp_path / "out")
    assert rows_of(tmp_path / "out") == [
        ("1", "2025-01-01T00:00:00", "2025-01-01T00:00:00+00:00", "0.1", "1.10", "true", "a"),
        ("2", "2025-01-02T00:00:00", None, None, None, None, None),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "cp1252", "latin-1"])
def test_declared_encodings_and_byte_order_marks(encoding: str, tmp_path: Path) -> None:
    """A file is read in the encoding that the recipe declares; a byte order mark is no part of the first column."""
    path = write_csv(tmp_path / "a.csv", [("1", "2025-01-01", "café")], encoding=encoding)
    declared = "utf-8" if encoding == "utf-8-sig" else encoding
    ingest(recipe_for(path, encoding=declared), tmp_path / "out")
    assert rows_of(tmp_path / "out") == [("1", "2025-01-01", "café")]


@pytest.mark.parametrize(
    ("encoding", "told"),
    [("utf-8", None), ("utf-8-sig", None), ("utf-16", "utf-16-le"), ("utf-32", "utf-32-le"), ("cp1252", "cp1252")],
)
def test_an_encoding_is_found_and_told(encoding: str, told: str | None, tmp_path: Path) -> None:
    """Without a declared encoding the same rows come of every usual one, and the lineage says which it was."""
    path = write_csv(tmp_path / "a.csv", [("1", "2025-01-01", "café – 5 €")], encoding=encoding)
    ref = ingest(recipe_for(path), tmp_path / "out")
    assert rows_of(tmp_path / "out") == [("1", "2025-01-01", "café – 5 €")]
    assert [entry.get("encoding") for entry in ref.inputs] == [told]


def test_a_query_takes_the_interval_and_typed_values(tmp_path: Path) -> None:
    """:since and :until in the query are bound, numbers and NULL come as text and null, and nothing can be written."""
    database = a_database(tmp_path / "rows.db")
    query = "SELECT id, day, length(text) AS text, NULL AS gone FROM rows WHERE day >= :since"
    recipe = recipe_for(f"sqlite:///{database}", query=query, since="2025-01-02")
    ref = ingest(recipe, tmp_path / "out")
    assert rows_of(tmp_path / "out") == [("1", "2025-01-02", "3", None), ("3", "2025-02-01", "4", None)]
    assert ref.source == f"sqlite:///{database}"


def test_the_store_keeps_a_snapshot_once_and_answers_for_the_source(tmp_path: Path) -> None:
    """With the expected digest in the store the source is not needed any more; a damaged copy is read anew."""
    path, store = write_csv(tmp_path / "a.csv"), tmp_path / "snapshots"
    first = ingest(recipe_for(path), tmp_path / "one", store=store)
    verify(store / first.digest)
    path.rename(tmp_path / "moved.csv")
    second = ingest(recipe_for(path), tmp_path / "two", expected_digest=first.digest, store=store)
    assert second == first
    assert rows_of(tmp_path / "two") == IN_ORDER
    (tmp_path / "moved.csv").rename(path)
    (store / first.digest / "data.parquet").write_bytes(b"damaged")
    third = ingest(recipe_for(path), tmp_path / "three", expected_digest=first.digest, store=store)
    assert third.digest == first.digest
    verify(store / first.digest)


def test_the_generator_is_a_source(tmp_path: Path) -> None:
    """`generator://NAME?key=value` gives typed arguments, and an interval is the same whoever cuts it."""
    whole = "generator://complaints?rows=500&seed=3&drift=0.5"
    cut = ingest(complaints_recipe(whole, until="2025-06-01"), tmp_path / "a", GENERATORS)
    asked = ingest(complaints_recipe(f"{whole}&until=2025-06-01"), tmp_path / "b", GENERATORS)
    assert cut.digest == asked.digest
    assert cut.source == whole


def test_the_real_file_is_read_whole(real_csv: Path, tmp_path: Path) -> None:
    """2,827 rows with line ends inside quoted narratives, cell by cell as the standard library reads them."""
    ref = ingest(complaints_recipe(real_csv), tmp_path / "out")
    assert ref.rows == 2827
    assert (ref.time_min[:10], ref.time_max[:10]) == ("2023-01-01", "2023-08-24")
    with real_csv.open(newline="", encoding="utf-8") as stream:
        expected = {row["Complaint ID"]: row for row in csv.DictReader(stream)}
    found = pq.read_table(tmp_path / "out" / "data.parquet").to_pylist()
    assert {row["Complaint ID"]: row for row in found} == expected
