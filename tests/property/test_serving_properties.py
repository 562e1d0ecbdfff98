"""Properties of serving's pure parts."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.serving.engines import cores_for
from components.serving.scoring import InvalidAnswerError, label_logprobs
from components.serving.vllm import core_ranges

CORES = st.lists(st.integers(0, 200), min_size=1, max_size=64, unique=True)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model", "choices", "logprobs", "top_logprobs", "token_id:5", "token_id:6", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(CORES)
def test_core_ranges_name_exactly_the_cores(cores: list[int]) -> None:
    """Read back by hand, the ranges give the same cores."""
    parts = [part.split("-") for part in core_ranges(cores).split(",")]
    read = list(chain.from_iterable(range(int(part[0]), int(part[-1]) + 1) for part in parts))
    assert read == sorted(cores)


@given(CORES)
def test_arms_share_the_cores_without_overlap_unless_there_is_only_one(cores: list[int]) -> None:
    """Together they use every core; each has at least one."""
    stable, canary = cores_for("stable", cores), cores_for("canary", cores)
    assert stable
    assert canary
    assert set(stable) | set(canary) == set(cores)
    assert len(cores) == 1 or not set(stable) & set(canary)


@given(ANYTHING)
def test_no_answer_whatsoever_gives_anything_but_two_finite_log_probabilities(body: object) -> None:
    """Any other JSON raises the one error that callers treat as an invalid answer."""
    try:
        found = label_logprobs(body, "m", [5, 6])
    except InvalidAnswerError:
        return
    assert all(math.isfinite(value) for value in found)


@given(st.floats(), st.floats())
def test_label_probabilities_are_taken_only_when_both_can_be_probabilities(no: float, yes: float) -> None:
    """NaN, infinity and probabilities over one are refused."""
    body = {"model": "m", "choices": [{"logprobs": {"top_logprobs": [{"token_id:5": no, "token_id:6": yes}]}}]}
    if all(math.isfinite(value) and value <= 1e-3 for value in (no, yes)):
        assert label_logprobs(body, "m", [5, 6]) == (no, yes)
    else:
        with pytest.raises(InvalidAnswerError):
            label_logprobs(body, "m", [5, 6])


def test_an_answer_of_another_model_is_invalid() -> None:
    """A version never answers in the name of another."""
    body = {"model": "m-v4", "choices": [{"logprobs": {"top_logprobs": [{"token_id:5": -1, "token_id:6": -2}]}}]}
    with pytest.raises(InvalidAnswerError, match="m-v4"):
        label_logprobs(body, "m-v3", [5, 6])
