"""Read one file, a folder or a glob into one table of text columns."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

import pyarrow as pa

from components.core.digest import file_digest
from components.core.errors import TransientError, UserError
from components.tables import delimited, jsonlines, parquet
from components.tables.decode import AUTO, Decoded
from components.tables.locate import LocalFile, located

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


@dataclass(frozen=True)
class TableRead:
    """Text columns, and what they were read from: {"uri", "bytes", "sha256"} a file, and "encoding" if not UTF-8."""

    table: pa.Table
    inputs: tuple[dict[str, Any], ...]


def read_files(uri: str, file_format: str = "auto", encoding: str = AUTO) -> TableRead:
    """Read a file, a folder (all its data files, nested ones too) or a glob, in the order of their names.

    Args:
        uri: local path, folder, glob, or any fsspec URI.
        file_format: csv, jsonl or parquet; auto goes by each file's name.
        encoding: of CSV and JSON lines; a byte order mark that contradicts it is an error. auto: see decode.py.

    Raises:
        UserError: nothing there, an empty or damaged file, files with different columns; names file and place.
        TransientError: a host that does not answer, or a file that changed while it was read.
    """
    tables: list[pa.Table] = []
    inputs: list[dict[str, Any]] = []
    suffixes = tuple(SUFFIXES) if file_format == "auto" else ()
    with located(uri, suffixes) as files:
        for file in files:
            table, read_as = _read_one(file, file_format, encoding)
            if tables:
                table = same_columns(table, file, tables[0].column_names, inputs[0]["uri"])
            tables.append(table)
            about = {"uri": file.uri, "bytes": file.path.stat().st_size, "sha256": file.sha256}
            inputs.append(about if read_as == "utf-8" else {**about, "encoding": read_as})
    return TableRead(pa.concat_tables(tables), tuple(inputs))


def _read_one(file: LocalFile, file_format: str, encoding: str) -> tuple[pa.Table, str]:
    """The table and the encoding it was read in."""
    kind = format_of(file) if file_format == "auto" else file_format
    read_as = "utf-8"
    with reading(file) as stream:
        if kind == "parquet":
            return parquet.read(stream, file.uri), read_as
        with Decoded(stream, encoding, file.uri) as source:
            delimiter = delimiter_of(file)
            table = jsonlines.read(source) if kind == "jsonl" else delimited.read(source, delimiter)
            return table, source.encoding


@contextmanager
def reading(file: LocalFile) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked; notes its digest, and raises where it is empty, damaged, or changes meanwhile."""
    before = file.path.stat()
    if before.st_size == 0:
        raise UserError(f"{file.uri}: the file is empty; give a file with a header and rows")
    file.sha256 = file_digest(file.path)
    try:
        with plain(file) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file.uri}: the gzip stream is damaged or cut off ({error}); get the file again") from error
    after = file.path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise TransientError(f"{file.uri}: changed while it was read; run again when its writer is done")


def delimiter_of(file: LocalFile) -> str:
    """What separates the fields of a delimited file, by its name."""
    return "\t" if ".tsv" in file.name else ","


@contextmanager
def plain(file: LocalFile) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where it is gzipped; seekable."""
    with file.path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield cast(BinaryIO, unpacked)


def format_of(file: LocalFile) -> str:
    """csv, jsonl or parquet by the file's name or first bytes; UserError where neither tells."""
    name = file.name.lower().removesuffix(".gz")
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    with file.path.open("rb") as stream:
        if stream.read(4) == PARQUET_MAGIC:
            return "parquet"
    raise UserError(
        f"{file.uri}: its format is not clear from its name; set source.format to csv, jsonl or parquet, "
        f"or name it {', '.join(SUFFIXES)} (.gz too)"
    )


def same_columns(rows: Rows, file: LocalFile, expected_names: list[str], first_uri: str) -> Rows:
    """The rows with their columns in the first file's order; UserError where they are others."""
    names, expected = set(rows.column_names), set(expected_names)
    if names != expected:
        missing, added = sorted(expected - names), sorted(names - expected)
        parts = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, added))} besides"] if added else []
        raise UserError(
            f"{file.uri}: its columns differ from those of {first_uri}: it {' and '.join(parts)}; "
            "give files of one layout, or ingest them apart"
        )
    return rows.select(expected_names)
