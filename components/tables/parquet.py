"""Parquet files with every column as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from components.core.errors import UserError
from components.tables.values import text_array

BATCH_ROWS = 50_000


def read(stream: BinaryIO, uri: str) -> pa.Table:
    """All rows of a Parquet file; null stays null. UserError where it is damaged or names a column twice."""
    return pa.Table.from_batches(list(batches(stream, uri)))


def batches(stream: BinaryIO, uri: str) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most BATCH_ROWS, at least one batch."""
    with _damage(uri):
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"), pre_buffer=False)
        names = file.schema_arrow.names
        found = file.iter_batches(BATCH_ROWS)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{uri}: column {twice[0]!r} stands more than once; rename one")
    schema = pa.schema([(name, pa.string()) for name in names])
    some = False
    while True:
        with _damage(uri):
            batch = next(found, None)
        if batch is None:
            break
        columns = [_text(column, name, uri) for name, column in zip(names, batch.columns, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        some = True
    if not some:
        yield pa.RecordBatch.from_arrays([pa.array([], pa.string()) for _ in names], schema=schema)


@contextmanager
def _damage(uri: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{uri}: is not a whole Parquet file ({error}); get it again") from error


def _text(column: pa.Array, name: str, uri: str) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _text(column.cast(kind.value_type), name, uri)
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    return text_array(column.to_pylist(), name, uri)
