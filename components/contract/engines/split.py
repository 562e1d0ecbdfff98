"""Clean rows and rows set aside as two Parquet files, a batch of rows at a time, in the order of the snapshot."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components.contract.engines.batch import Batch
from components.contract.engines.marks import BITS, Marks, mask
from components.contract.judge import Judgement, label
from components.contract.standard.rules import Rule
from components.core.errors import IntegrityError, UserError

CLEAN, QUARANTINE = "clean.parquet", "quarantine.parquet"
ROW, RULE, REASON = "_row", "_rule", "_reason"
THE_BATCH = "the batch"
READ_ROWS = 65_536


def split(batch: Batch, marks: Marks, judgement: Judgement, rules: Sequence[Rule], folder: Path) -> None:
    """Write clean.parquet and quarantine.parquet; the same marks give the same bytes.

    The quarantine has the source's columns between `_row`, the row's number in the snapshot counted from 0, and
    `_rule` and `_reason`: the rules that it breaks and what they ask. A refused batch is in the quarantine as a whole.

    Raises:
        UserError: the source has a column of one of these names.
        IntegrityError: the rows written are not as many as the verdict says.
    """
    if taken := {ROW, RULE, REASON} & set(batch.names):
        raise UserError(f"column {min(taken)!r}: this name is used by the quarantine; rename it in the source")
    schema = pa.schema([(name, pa.string()) for name in batch.names])
    whole = pa.schema([(ROW, pa.int64()), *schema, (RULE, pa.string()), (REASON, pa.string())])
    texts = _Texts(rules, judgement, marks.words)
    kept = aside = 0
    copied = judgement.passed and not judgement.quarantined
    if copied:
        shutil.copyfile(batch.path, folder / CLEAN)
        kept = batch.rows
    with pq.ParquetWriter(folder / QUARANTINE, whole, compression="zstd") as quarantine:
        if not copied:
            with pq.ParquetWriter(folder / CLEAN, schema, compression="zstd") as clean:
                for start, rows, words in _rows_with_words(batch, marks, texts.mask):
                    out = np.flatnonzero(words.any(axis=1)) if judgement.passed else np.arange(rows.num_rows)
                    stay = np.setdiff1d(np.arange(rows.num_rows), out, assume_unique=True)
                    if len(stay):
                        clean.write_batch(rows.take(pa.array(stay)), row_group_size=READ_ROWS)
                    if len(out):
                        columns = [pa.array(out + start), *rows.take(pa.array(out)).columns, *texts.of(words[out])]
                        left = pa.RecordBatch.from_arrays(columns, schema=whole)
                        quarantine.write_batch(left, row_group_size=READ_ROWS)
                    kept, aside = kept + len(stay), aside + len(out)
    if (kept, aside) != (judgement.clean, judgement.quarantined):
        told = f"{judgement.clean} and {judgement.quarantined}"
        raise IntegrityError(f"{batch.path}: {kept} rows are clean and {aside} set aside, the verdict says {told}")


def _rows_with_words(
    batch: Batch, marks: Marks, wanted: np.ndarray
) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray]]:
    """The position of the first row, the rows (n), and of each the words (n, words) that count."""
    schema = pa.schema([(name, pa.string()) for name in batch.names])
    marked = _Reader(marks)
    start = 0
    for read in pq.ParquetFile(batch.path, pre_buffer=False).iter_batches(READ_ROWS, use_threads=False):
        rows = read.cast(schema)
        words = np.zeros((rows.num_rows, marks.words), np.uint64)
        places, found = marked.below(start + rows.num_rows)
        words[places - start] = found & wanted
        yield start, rows, words
        start += rows.num_rows


class _Reader:
    """Gives the marks piece by piece, in order."""

    def __init__(self, marks: Marks) -> None:
        self._left = marks.batches()
        self._rows, self._words = np.zeros(0, np.int64), np.zeros((0, marks.words), np.uint64)

    def below(self, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The marks not given yet of rows before `end`."""
        while not len(self._rows) or self._rows[-1] < end:
            more = next(self._left, None)
            if more is None:
                break
            self._rows, self._words = np.concatenate([self._rows, more[0]]), np.concatenate([self._words, more[1]])
        cut = int(np.searchsorted(self._rows, end))
        given = self._rows[:cut], self._words[:cut]
        self._rows, self._words = self._rows[cut:], self._words[cut:]
        return given


class _Texts:
    """The names and the reasons of the rules that rows break, each combination written once."""

    def __init__(self, rules: Sequence[Rule], judgement: Judgement, words: int) -> None:
        self.mask = mask(judgement.setting_aside, words)
        self._named = {number: label(rules[number]) for number in judgement.setting_aside}
        self._asked = {number: f"{rules[number].subject}: {rules[number].asks}" for number in judgement.setting_aside}
        self._refused = f"the batch was refused: {judgement.reason}"

    def of(self, words: np.ndarray) -> tuple[pa.Array, pa.Array]:
        """The two texts of rows with these words (n, words)."""
        distinct, places = np.unique(words, axis=0, return_inverse=True)
        codes = pa.array(places.reshape(-1).astype(np.int32))
        pairs = [self._pair(row) for row in distinct]
        named, asked = (pa.array(list(column), pa.string()) for column in zip(*pairs, strict=True))
        return named.take(codes), asked.take(codes)

    def _pair(self, words: np.ndarray) -> tuple[str, str]:
        broken = [number for number in self._named if int(words[number // BITS]) >> (number % BITS) & 1]
        if not broken:
            return THE_BATCH, self._refused
        return "; ".join(self._named[number] for number in broken), "; ".join(self._asked[number] for number in broken)
