"""AUC and near-identical texts against oracles that share no code with them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from components.contract.leakage.near_text import SHINGLE, Texts, jaccard, nearest, shingles
from components.contract.leakage.rules import Counts, separation

ROWS = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=200).filter(
    lambda rows: 0 < sum(label for _, label in rows) < len(rows)
)
WORDS = st.integers(0, 30)


@given(ROWS)
def test_auc_is_that_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    """With ties, whichever way the score points, and whether or not equal scores are grouped."""
    scores = np.array([score for score, _ in rows], dtype=float)
    labels = np.array([label for _, label in rows])
    expected = roc_auc_score(labels, scores)
    seen = separation(Counts(scores, labels.astype(int), (~labels).astype(int)))
    assert abs(seen.auc - max(expected, 1 - expected)) < 1e-9
    assert (seen.positives, seen.negatives) == (int(labels.sum()), int((~labels).sum()))
    assert 0 <= seen.low <= seen.auc <= seen.high <= 1


@given(st.lists(st.lists(WORDS, max_size=14), min_size=1, max_size=8))
def test_runs_of_words_are_those_of_a_loop(texts: list[list[int]]) -> None:
    """Equal runs have equal hashes and other runs other ones; a short text is one run, an empty one none."""
    made, ends = shingles(*_flat(texts))
    starts = [0, *ends[:-1]]
    names: dict[int, tuple[int, ...]] = {}
    for text, start, end in zip(texts, starts, ends, strict=True):
        expected = _runs(text)
        assert end - start == len(expected)
        for found, run in zip(made[start:end].tolist(), expected, strict=True):
            assert names.setdefault(found, run) == run
    assert len(set(names.values())) == len(names)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_nearest_text_is_that_of_brute_force(seed: int) -> None:
    """Edited copies among strangers: every pair of 0.8 or more is found, at its own Jaccard index."""
    draw = np.random.default_rng(seed)
    stored = [draw.integers(0, 400, draw.integers(20, 60)).tolist() for _ in range(40)]
    asked = []
    for at in range(20):
        text = list(stored[at])
        for _ in range(at % 5):
            text[int(draw.integers(len(text)))] = 999
        asked.append(text)
    asked += [draw.integers(0, 400, 40).tolist() for _ in range(10)]
    found = nearest(_texts(asked, 1000), [_texts(stored[:15], 0), _texts(stored[15:], 15)], 0.8)
    for row, text in enumerate(asked):
        exact = [_similarity(text, other) for other in stored]
        best = max(exact)
        if best >= 0.8:
            assert found.similarity[row] == exact[found.other[row]] == best
        else:
            assert found.similarity[row] < 0.8


def test_a_text_is_not_its_own_twin_and_another_key_is_no_copy() -> None:
    """Texts of the same number, or of another key, are not compared."""
    texts = [[1, 2, 3, 4, 5, 6, 7]] * 2
    same = nearest(_texts(texts, 0), [_texts(texts, 0)], 0.8)
    assert same.similarity.tolist() == [1.0, 1.0]
    assert same.other.tolist() == [1, 0]
    alone = nearest(_texts(texts[:1], 0), [_texts(texts[:1], 0)], 0.8)
    assert alone.other.tolist() == [-1]
    keyed = nearest(_texts(texts, 0, [7, 8]), [_texts(texts, 10, [8, 9])], 0.8)
    assert keyed.other.tolist() == [-1, 10]


def test_texts_are_compared_only_that_far_apart() -> None:
    """A twin on the same day does not count where days have to lie between them."""
    texts = _texts([[1, 2, 3, 4, 5, 6, 7]] * 3, 0, moments=[0, 10, 100])
    assert nearest(texts, [texts], 0.8, apart=90).other.tolist() == [2, 2, 0]
    assert nearest(texts, [texts], 0.8, apart=101).other.tolist() == [-1, -1, -1]


def test_a_crowded_template_is_found_far_away() -> None:
    """Among a thousand equal texts in order of time the ones far enough apart are still met."""
    texts = _texts([[1, 2, 3, 4, 5, 6, 7]] * 1000, 0, moments=list(range(1000)))
    found = nearest(texts, [texts], 0.8, apart=300)
    assert (found.similarity == 1.0).mean() > 0.99


def test_no_text_has_no_twin() -> None:
    """Empty texts are not alike."""
    assert nearest(_texts([[], []], 0), [_texts([[], []], 5)], 0.8).similarity.tolist() == [0.0, 0.0]


@given(st.sets(st.integers(0, 50), min_size=1), st.sets(st.integers(0, 50), min_size=1))
def test_jaccard_is_that_of_sets(first: set[int], second: set[int]) -> None:
    """Shared members over all members."""
    arrays = [np.array(sorted(one), dtype=np.uint64) for one in (first, second)]
    assert jaccard(*arrays) == len(first & second) / len(first | second)


def _runs(text: list[int]) -> list[tuple[int, ...]]:
    if len(text) < SHINGLE:
        return [tuple(text)] if text else []
    return [tuple(text[at : at + SHINGLE]) for at in range(len(text) - SHINGLE + 1)]


def _similarity(first: list[int], second: list[int]) -> float:
    one, two = set(_runs(first)), set(_runs(second))
    return len(one & two) / len(one | two)


def _flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    words = np.array([word + 1 for text in texts for word in text], dtype=np.uint64)
    return words, np.cumsum([len(text) for text in texts])


def _texts(
    texts: list[list[int]], first: int, keys: list[int] | None = None, moments: list[int] | None = None
) -> Texts:
    words, ends = _flat(texts)
    numbers = np.arange(first, first + len(texts))
    nothing = [0] * len(texts)
    return Texts(words, ends, numbers, np.array(keys or nothing, dtype=np.uint64), np.array(moments or nothing))
