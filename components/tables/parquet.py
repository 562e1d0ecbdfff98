"""Parquet files with every column as text."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from components.core.errors import UserError
from components.tables.values import text_array


def read(stream: BinaryIO, uri: str) -> pa.Table:
    """All rows of a Parquet file; null stays null. UserError where it is damaged or names a column twice."""
    try:
        table = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{uri}: is not a whole Parquet file ({error}); get it again") from error
    twice = [name for name in table.column_names if table.column_names.count(name) > 1]
    if twice:
        raise UserError(f"{uri}: column {twice[0]!r} stands more than once; rename one")
    return pa.table({name: _text(table.column(name), name, uri) for name in table.column_names})


def _text(column: pa.ChunkedArray, name: str, uri: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _text(column.cast(kind.value_type), name, uri)
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    chunks = [text_array(chunk.to_pylist(), name, uri) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.string())
