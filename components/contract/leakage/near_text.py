"""Rows whose texts are nearly the same: MinHash with banding finds candidates, the Jaccard index decides.

A text is the set of its runs of five words, letters in lower case, everything that is no letter or digit left out.
Two texts are twins when the Jaccard index of their sets reaches the limit. Candidates are texts that agree in one of
16 bands of four MinHash values (Broder 1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3): a
pair at 0.7 is missed with a chance of 1 in 80, at 0.8 of 2 in 10,000. Cost is linear in the rows: for each text only
the candidates whose signatures agree most are compared, and the texts compared against are read in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

SHINGLE = 5  # words
BANDS, BAND = 16, 4
CANDIDATES = 4  # texts compared exactly, for each text
BUCKET = 8  # texts taken from one band's bucket
SEEDS = np.arange(1, BANDS * BAND + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Texts:
    """Texts as hashed words: `words` (all words), `ends` (texts,) where each text's words end, `numbers` (texts,).

    `keys` (texts,): only texts of one key are compared; the same for all where the text alone counts.
    `moments` (texts,): when the row happened, in seconds.
    """

    words: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray
    keys: np.ndarray
    moments: np.ndarray


@dataclass(frozen=True)
class Twins:
    """The nearest text found for each: `similarity` (texts,) 0 to 1, `other` (texts,) its number, -1 for none."""

    similarity: np.ndarray
    other: np.ndarray


def nearest(asked: Texts, pieces: Iterable[Texts], limit: float, apart: int = 0) -> Twins:
    """The most similar text among the pieces for each text asked about; never the text of the same number.

    Args:
        asked: texts; one without a word has no twin.
        pieces: the texts compared against.
        limit: similarities below it are not looked for.
        apart: seconds that have to lie between two rows for their texts to be compared.
    """
    mine = _Sketch(asked)
    similarity, other = np.zeros(len(asked.ends)), np.full(len(asked.ends), -1, dtype=np.int64)
    for piece in pieces:
        theirs = _Sketch(piece)
        for row, candidate in _candidates(mine, theirs, limit, apart):
            found = jaccard(mine.set(row), theirs.set(candidate))
            if found > similarity[row]:
                similarity[row], other[row] = found, piece.numbers[candidate]
    return Twins(similarity, other)


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Shared part of two sets of hashes, each sorted and without repetition."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def shingles(words: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of all runs of five words (flat), and where each text's runs end; a shorter text is one run."""
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    lengths = np.maximum(ends - starts, 0)
    counts = np.where(lengths == 0, 0, np.maximum(lengths - SHINGLE + 1, 1))
    upto = np.cumsum(counts)
    first = np.repeat(starts - (upto - counts), counts) + np.arange(int(upto[-1]) if len(upto) else 0)
    last = np.repeat(ends, counts)
    hashes = np.zeros(len(first), dtype=np.uint64)
    for offset in range(SHINGLE):
        at = first + offset
        word = np.where(at < last, words[np.minimum(at, max(len(words) - 1, 0))], np.uint64(0))
        hashes = _mixed(hashes * np.uint64(31) + word)
    return hashes, upto


class _Sketch:
    """Sets of runs and MinHash signatures of texts."""

    def __init__(self, texts: Texts) -> None:
        hashes, self._ends = shingles(texts.words, np.asarray(texts.ends, dtype=np.int64))
        self._starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        self._hashes = hashes
        self.numbers, self.keys, self.moments = texts.numbers, texts.keys.astype(np.uint64), texts.moments
        self.filled = np.flatnonzero(self._ends > self._starts)
        self.signatures = np.zeros((len(texts.ends), BANDS * BAND), dtype=np.uint32)
        if len(self.filled):
            for column, seed in enumerate(SEEDS):
                mixed = _mixed(hashes ^ seed) >> np.uint64(32)
                self.signatures[self.filled, column] = np.minimum.reduceat(mixed, self._starts[self.filled])

    def set(self, row: int) -> np.ndarray:
        return np.unique(self._hashes[self._starts[row] : self._ends[row]])

    def band(self, number: int) -> np.ndarray:
        """One key a filled text."""
        part = self.signatures[self.filled, number * BAND : (number + 1) * BAND].astype(np.uint64)
        key = self.keys[self.filled]
        for column in part.T:
            key = _mixed(key * np.uint64(31) + column)
        return key


def _candidates(mine: _Sketch, theirs: _Sketch, limit: float, apart: int) -> Iterator[tuple[int, int]]:
    """Pairs of rows worth comparing: the best few for each of mine by the share of equal MinHash values."""
    pairs = [_same_band(mine, theirs, number) for number in range(BANDS)]
    found = np.unique(np.concatenate(pairs), axis=0) if pairs else np.zeros((0, 2), dtype=np.int64)
    found = found[mine.numbers[found[:, 0]] != theirs.numbers[found[:, 1]]]
    found = found[mine.keys[found[:, 0]] == theirs.keys[found[:, 1]]]
    found = found[np.abs(mine.moments[found[:, 0]] - theirs.moments[found[:, 1]]) >= apart]
    if not len(found):
        return
    agree = np.zeros(len(found))
    for start in range(0, len(found), 65_536):
        part = found[start : start + 65_536]
        agree[start : start + 65_536] = (mine.signatures[part[:, 0]] == theirs.signatures[part[:, 1]]).mean(axis=1)
    hopeful = agree >= limit - 0.25  # five standard deviations of 64 draws at 0.8
    found, agree = found[hopeful], agree[hopeful]
    order = np.lexsort((found[:, 1], -agree, found[:, 0]))
    taken, last = 0, -1
    for row, candidate in found[order]:
        taken = taken + 1 if row == last else 1
        last = row
        if taken <= CANDIDATES:
            yield int(row), int(candidate)


def _same_band(mine: _Sketch, theirs: _Sketch, number: int) -> np.ndarray:
    """Pairs of rows that agree in a band, for each of mine at most BUCKET of theirs, evenly taken; shape (pairs, 2)."""
    keys = theirs.band(number)
    order = np.argsort(keys, kind="stable")
    ordered, wanted = keys[order], mine.band(number)
    low, high = np.searchsorted(ordered, wanted, "left"), np.searchsorted(ordered, wanted, "right")
    counts = np.minimum(high - low, BUCKET)
    rows = np.repeat(mine.filled, counts)
    steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    steps = steps * np.repeat(high - low, counts) // np.repeat(counts, counts)
    return np.column_stack([rows, theirs.filled[order[np.repeat(low, counts) + steps]]]).astype(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
