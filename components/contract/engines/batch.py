"""The rows that a contract is checked against: one file on this machine that engines read in place, as text.

A Parquet file whose types have a text in SQL equal to `tables.values.as_text`, and a large CSV file that DuckDB reads
as `tables.delimited` does, are taken as they stand. Anything else (folders, URIs, gzip, other encodings, nested types)
is brought into a Parquet file of text columns first, a batch of rows at a time.
"""

# ruff: noqa: S608 - what goes into a query is a generated name or an escaped literal

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.contract.engines.csv_in_place import plain_header
from components.contract.engines.duckdb_connection import connected
from components.core.digest import file_digest
from components.core.errors import TransientError, UserError
from components.tables.decode import AUTO
from components.tables.locate import REMOTE
from components.tables.spool import spool

CSV_IN_PLACE_BYTES = 64 << 20
PARQUET_SUFFIXES, CSV_SUFFIX = (".parquet", ".pq"), ".csv"
ROW_NUMBER = "file_row_number"
TEXT, CAST = "{0}::VARCHAR", "CAST({0} AS VARCHAR)"  # of text, and of other types whose cast is their text
FRACTION = "CASE WHEN epoch_us({0}) % 1000000 <> 0 THEN strftime({0}, '.%f') ELSE '' END"
TIME = f"strftime({{0}}, '%Y-%m-%dT%H:%M:%S') || {FRACTION}"


@dataclass(frozen=True)
class Batch:
    """Rows in the order of a file.

    kind: parquet or csv. rows: how many. texts: one a column, the SQL of its text with {0} for the column. inputs:
    {"uri", "bytes", "sha256"} of what was given.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    rows: int
    texts: tuple[str, ...]
    inputs: tuple[dict[str, Any], ...] = ()

    @property
    def relation(self) -> str:
        """SQL of the rows: text columns c0, c1, ... in the file's order, and `row`, counted from 0."""
        raw = [f"r{number}" for number in range(len(self.names))]
        columns = [f"{text.format(f'r{number}')} AS c{number}" for number, text in enumerate(self.texts)]
        numbered = self.kind == "parquet" and ROW_NUMBER not in {name.lower() for name in self.names}
        row = "row" if numbered else "row_number() OVER () - 1 AS row"
        named = ", ".join([*raw, "row"] if numbered else raw)
        return f"(SELECT {', '.join([*columns, row])} FROM {self._source(numbered)} AS t({named}))"

    def _source(self, numbered: bool) -> str:
        quoted = str(self.path).replace("'", "''")
        if self.kind == "parquet":
            return f"read_parquet('{quoted}'{f', {ROW_NUMBER} = true' if numbered else ''})"
        columns = ", ".join(f"'r{number}': 'VARCHAR'" for number in range(len(self.names)))
        return (
            f"read_csv('{quoted}', auto_detect = false, header = true, columns = {{{columns}}}, delim = ',', "
            "quote = '\"', escape = '\"', new_line = '\\n', strict_mode = true, null_padding = false, "
            "ignore_errors = false, parallel = false, nullstr = '\\x01\\x02\\x01', encoding = 'utf-8')"
        )

    def column(self, name: str) -> str:
        """The column of `relation` that holds a named column."""
        return f"c{self.names.index(name)}"

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Named columns, all where None, as text in memory."""
        wanted = list(self.names if columns is None else columns)
        schema = pa.schema([(name, pa.string()) for name in wanted])
        if self.is_text:
            found = pq.ParquetFile(self.path).read(columns=wanted)
            return found.select(wanted).cast(schema)
        with connected(None) as connection:
            chosen = ", ".join(self.column(name) for name in wanted)
            arrow = connection.execute(f"SELECT {chosen} FROM {self.relation} ORDER BY row").to_arrow_table()
        return arrow.rename_columns(wanted).cast(schema)

    @property
    def is_text(self) -> bool:
        """Whether the file is Parquet with text columns only."""
        return self.kind == "parquet" and all(text == TEXT for text in self.texts)


def snapshot_batch(path: Path) -> Batch:
    """The batch of a snapshot's Parquet file of text columns."""
    file = pq.ParquetFile(path)
    names = tuple(file.schema_arrow.names)
    return Batch(path, "parquet", names, file.metadata.num_rows, (TEXT,) * len(names))


def source_batch(uri: str, scratch: Path, encoding: str = AUTO) -> Batch:
    """The batch of a file, folder, glob or URI; what cannot be read in place is brought into `scratch`.

    Raises:
        UserError, TransientError: as `tables.read.read_files`; UserError where there is no column.
    """
    path = Path(uri.removeprefix("file://"))
    found = None
    if not REMOTE.match(uri.removeprefix("file://")) and path.is_file():
        found = _parquet(path) if path.suffix.lower() in PARQUET_SUFFIXES else _csv(path, encoding)
    if found is None:
        spooled = scratch / "rows.parquet"
        inputs = spool(uri, spooled, encoding=encoding)  # writes nothing where the records have no field
        found = replace(snapshot_batch(spooled), inputs=inputs) if spooled.exists() else None
    if found is None or not found.names:
        raise UserError(f"{uri}: no column is there to check; give a file whose records have fields")
    return found


def unchanged(batch: Batch) -> None:
    """TransientError where the file was written to since the batch was made; call it when all is read."""
    for about in batch.inputs:
        path = Path(about["uri"])
        if path == batch.path and (path.stat().st_size, path.stat().st_mtime_ns) != (about["bytes"], about["time"]):
            raise TransientError(f"{path}: changed while it was read; run again when its writer is done")


def _parquet(path: Path) -> Batch | None:
    """The file in place, or None where reading it batch by batch is needed or tells better what is wrong."""
    try:
        file = pq.ParquetFile(path)
        schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError):
        return None
    texts = [_text(kind) for kind in schema.types]
    if len(set(schema.names)) < len(schema.names) or not all(texts):
        return None
    return Batch(path, "parquet", tuple(schema.names), rows, tuple(filter(None, texts)), _inputs(path))


def _csv(path: Path, encoding: str) -> Batch | None:
    if path.suffix.lower() != CSV_SUFFIX or path.stat().st_size < CSV_IN_PLACE_BYTES or encoding not in (AUTO, "utf-8"):
        return None
    inputs = _inputs(path)
    header = plain_header(path)
    batch = Batch(path, "csv", header, 0, (TEXT,) * len(header), inputs)
    if not header:
        return None
    with connected(None) as connection:
        try:
            row = connection.execute(f"SELECT count(*) FROM {batch.relation}").fetchone()
        except Exception:  # whatever DuckDB has against the file: the library reads it, or says what is wrong
            return None
    return replace(batch, rows=int(row[0])) if row else None


def _inputs(path: Path) -> tuple[dict[str, Any], ...]:
    about = path.stat()
    return ({"uri": str(path), "bytes": about.st_size, "time": about.st_mtime_ns, "sha256": file_digest(path)},)


def _text(kind: pa.DataType) -> str:
    """The SQL of a type's text as `tables.values.as_text` writes it; "" where that is not known to be the same."""
    if pa.types.is_dictionary(kind):
        return _text(kind.value_type) if pa.types.is_string(kind.value_type) else ""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return CAST
    if pa.types.is_floating(kind) and kind.bit_width >= 32:
        return "CASE WHEN isnan({0}) THEN 'nan' ELSE {0}::DOUBLE::VARCHAR END"
    if pa.types.is_decimal128(kind) and 0 <= kind.scale < kind.precision:
        return CAST
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz is None:
        return TIME
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz == "UTC":
        return f"{TIME.replace('{0}', 'make_timestamp(epoch_us({0}))')} || '+00:00'"
    return ""
