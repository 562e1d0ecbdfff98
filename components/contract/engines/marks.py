"""Which rows break which rules, at any number of rows: a Parquet file of row numbers and bits.

The file has the columns `row` (int64, ascending, counted from 0) and w0, w1, ... (uint64): bit n % 64 of word n // 64
says that the row breaks rule n of the contract. Rows that break nothing are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BITS = 64
READ_ROWS = 1 << 17


@dataclass(frozen=True)
class Marks:
    """The marks of one batch. path: None where no row breaks a rule."""

    path: Path | None
    words: int

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Row numbers (n,) and their words (n, words), in order."""
        if self.path is None:
            return
        names = [f"w{word}" for word in range(self.words)]
        file = pq.ParquetFile(self.path, pre_buffer=False)  # what is buffered ahead would stay in memory
        for batch in file.iter_batches(READ_ROWS, columns=["row", *names], use_threads=False):
            words = [batch.column(name).to_numpy(zero_copy_only=False) for name in names]
            yield batch.column("row").to_numpy(zero_copy_only=False), np.stack(words, axis=1).astype(np.uint64)

    def counts(self) -> dict[int, int]:
        """How many rows break each rule; ValueError where a row number is negative, or not above the one before."""
        found: dict[int, int] = {}
        last = -1
        for rows, words in self.batches():
            if int(rows[0]) <= last or (np.diff(rows) <= 0).any():
                raise ValueError("the marked rows are not in order")
            last = int(rows[-1])
            for number in _bits(np.bitwise_or.reduce(words, axis=0)):
                column = words[:, number // BITS]
                found[number] = found.get(number, 0) + int(np.count_nonzero(column & _bit(number)))
        return found

    @property
    def last_row(self) -> int:
        """The highest row that is marked; -1 where none is."""
        if self.path is None:
            return -1
        file = pq.ParquetFile(self.path)
        if not file.metadata.num_rows:
            return -1
        return int(file.read_row_group(file.num_row_groups - 1, ["row"]).column("row")[-1].as_py())

    def rows(self, rule: int, most: int | None = None) -> np.ndarray:
        """The first rows that break a rule, all where `most` is None."""
        found = [np.zeros(0, np.int64)]
        left = most
        for rows, words in self.batches():
            broken = rows[(words[:, rule // BITS] & _bit(rule)) != 0][:left]
            found.append(broken)
            left = None if left is None else left - len(broken)
            if left == 0:
                break
        return np.concatenate(found)

    def of_any(self, rules: Sequence[int]) -> int:
        """How many rows break at least one of these rules."""
        wanted = mask(rules, self.words)
        return sum(int(np.count_nonzero((words & wanted).any(axis=1))) for _, words in self.batches())


def mask(rules: Sequence[int], words: int) -> np.ndarray:
    """The words (words,) in which the bits of these rules are set."""
    found = np.zeros(words, np.uint64)
    for rule in rules:
        found[rule // BITS] |= _bit(rule)
    return found


def word_count(rules: int) -> int:
    """How many words hold the bits of that many rules."""
    return max(1, -(-rules // BITS))


def write_marks(path: Path, broken: Mapping[int, Sequence[int] | np.ndarray], words: int) -> Marks:
    """The marks of rows in memory: the positions, in any order, that break each rule."""
    positions = {rule: np.asarray(rows, np.int64) for rule, rows in broken.items() if len(rows)}
    if not positions:
        return Marks(None, words)
    rows = np.unique(np.concatenate(list(positions.values())))
    columns = np.zeros((words, len(rows)), np.uint64)
    for rule, found in positions.items():
        columns[rule // BITS][np.searchsorted(rows, found)] |= _bit(rule)
    return _written(path, rows, columns)


def merged_marks(path: Path, parts: Sequence[Marks], words: int) -> Marks:
    """The marks of several engines as one; where there is more than one, they are held in memory."""
    some = [part for part in parts if part.path is not None]
    if len(some) < 2:
        return Marks(some[0].path, words) if some else Marks(None, words)
    read = [batch for part in some for batch in part.batches()]
    rows = np.unique(np.concatenate([batch[0] for batch in read]))
    columns = np.zeros((words, len(rows)), np.uint64)
    for places, found in read:
        columns[:, np.searchsorted(rows, places)] |= found.T
    return _written(path, rows, columns)


def _written(path: Path, rows: np.ndarray, columns: np.ndarray) -> Marks:
    table = {"row": pa.array(rows), **{f"w{word}": pa.array(column) for word, column in enumerate(columns)}}
    pq.write_table(pa.table(table), path, compression="lz4")
    return Marks(path, len(columns))


def _bit(rule: int) -> np.uint64:
    return np.uint64(1 << (rule % BITS))


def _bits(words: np.ndarray) -> list[int]:
    """The rules whose bits are set in words (words,)."""
    return [number for number in range(len(words) * BITS) if words[number // BITS] & _bit(number)]
