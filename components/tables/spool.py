"""Any source file, folder or glob as one Parquet file of text columns, a batch at a time: memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.tables import delimited, jsonlines, parquet
from components.tables.decode import AUTO, Decoded
from components.tables.locate import LocalFile, located
from components.tables.read import SUFFIXES, delimiter_of, format_of, reading, same_columns

GROUP_ROWS = 65_536


def spool(uri: str, out: Path, file_format: str = "auto", encoding: str = AUTO) -> tuple[dict[str, Any], ...]:
    """Write what `read_files` would read to the Parquet file `out`, and return what it was read from, as that does.

    Only JSON lines are held in memory, a file at a time, as their columns are known at the end.

    Raises:
        UserError, TransientError: as `read_files`; then `out` may be half-written.
    """
    inputs: list[dict[str, Any]] = []
    writer: pq.ParquetWriter | None = None
    suffixes = tuple(SUFFIXES) if file_format == "auto" else ()
    try:
        with located(uri, suffixes) as files:
            for file in files:
                about = {"uri": file.uri, "bytes": file.path.stat().st_size}
                for batch, read_as in _batches(file, file_format, encoding):
                    if writer is None:
                        writer = pq.ParquetWriter(out, batch.schema, compression="lz4")
                    elif inputs:
                        batch = same_columns(batch, file, writer.schema.names, inputs[0]["uri"])  # noqa: PLW2901
                    if read_as != "utf-8":
                        about["encoding"] = read_as
                    writer.write_batch(batch, row_group_size=GROUP_ROWS)
                inputs.append({**about, "sha256": file.sha256})
    finally:
        if writer is not None:
            writer.close()
    return tuple(inputs)


def _batches(file: LocalFile, file_format: str, encoding: str) -> Iterator[tuple[pa.RecordBatch, str]]:
    """The file's batches, at least one, with the encoding they were read in."""
    kind = format_of(file) if file_format == "auto" and file.path.stat().st_size else file_format
    with reading(file) as stream:
        if kind == "parquet":
            yield from ((batch, "utf-8") for batch in parquet.batches(stream, file.uri))
            return
        with Decoded(stream, encoding, file.uri) as source:
            if kind == "jsonl":
                found = iter(jsonlines.read(source).to_batches())
            else:
                found = delimited.batches(source, delimiter_of(file))
            yield from ((batch, source.encoding) for batch in found)
