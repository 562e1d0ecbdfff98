"""CSV by the standard library's reader: quoted fields may hold line ends; nothing is guessed or skipped."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

import pyarrow as pa

from components.core.errors import UserError
from components.tables.decode import Decoded

BATCH_ROWS = 50_000


def read(source: Decoded, delimiter: str = ",") -> pa.Table:
    """The rows below the header, every field as the text between its separators.

    Raises:
        UserError: no header, a duplicate column, a row with more or fewer fields, a stray or unclosed quote,
            bytes that are not in the declared encoding; names the line.
    """
    return pa.Table.from_batches(list(batches(source, delimiter)))


def batches(source: Decoded, delimiter: str = ",") -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most BATCH_ROWS, at least one batch; raises as `read` does, when it gets there."""
    csv.field_size_limit(sys.maxsize)
    rows = _numbered(source, delimiter)
    try:
        _, header = next(rows)
    except StopIteration:
        raise UserError(f"{source.uri}: holds no header and no rows; give a file with a header and rows") from None
    _check_header(header, source.uri)
    schema = pa.schema([(name, pa.string()) for name in header])
    batch: list[list[str]] = []
    whole = 0
    for line, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{source.uri}: the row at line {line} has {len(row)} fields, the header has {len(header)}; "
                "the file is cut off or a field with a separator lacks its quotes"
            )
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield _arrow(batch, schema)
            whole, batch = whole + 1, []
    if batch or not whole:
        yield _arrow(batch, schema)


def _numbered(source: Decoded, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line where each begins; blank lines are no rows."""
    reader = csv.reader(source.text, delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except UnicodeDecodeError:
        raise source.undecodable() from None
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise UserError(
                f"{source.uri}: ends inside a quoted field of the row that begins at line {line}; "
                "the file is cut off: get it again"
            ) from error
        raise UserError(
            f"{source.uri}: the row at line {line} is not valid CSV ({error}); quote the field, doubling quotes in it"
        ) from error


def _check_header(header: list[str], uri: str) -> None:
    if any("\0" in name for name in header):
        raise UserError(f"{uri}: the header holds zero bytes, as UTF-16 read as UTF-8 does; set source.encoding=utf-16")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UserError(f"{uri}: column {twice[0]!r} stands {header.count(twice[0])} times in the header; rename one")


def _arrow(batch: list[list[str]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column, pa.string()) for column in (zip(*batch, strict=True) if batch else [()] * len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
