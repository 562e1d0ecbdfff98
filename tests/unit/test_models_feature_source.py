"""A model is given the features that it was trained on, by service, name, order and code, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.core.errors import IntegrityError
from components.models.feature_source import FeatureSource, check_source

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
SOURCE = FeatureSource("triage_v1", ("a", "b", "c"), ("c", "z"), "1" * 64)


@given(NAMES, st.booleans())
def test_what_was_signed_is_accepted(names: list[str], exact: bool) -> None:
    """Whatever the names and the code."""
    source = FeatureSource("s", tuple(names), ("a", "z"), "d" * 64)
    check_source(source.signed(), source, "it", exact=exact)


@given(NAMES, st.data())
def test_the_order_counts_for_the_candidate_only(names: list[str], data: st.DataObject) -> None:
    """Another order or one feature more: refused where the features are the model's own, read by name elsewhere."""
    source = FeatureSource("s", tuple(names))
    other = replace(source, features=tuple(data.draw(st.permutations([*names, "extra"]))))
    check_source(source.signed(), other, "it", exact=False)
    with pytest.raises(IntegrityError, match="in this order"):
        check_source(source.signed(), other, "it")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"service": "triage_v2"}, "'triage_v1' and cannot be given 'triage_v2'"),
        ({"features": ("a", "b")}, "reads 'c', but is given a, b only"),
        ({"on_demand_digest": "2" * 64}, "by on-demand code 111111111111, and would be by 222222222222"),
        ({"on_demand": ("z",)}, "by on-demand code 111111111111, and would be by none"),
    ],
)
def test_each_difference_is_named_with_both_sides(change: dict[str, Any], words: str) -> None:
    """Whether or not the order counts, in one line that begins with the model."""
    for exact in (True, False) if "features" not in change else (False,):
        with pytest.raises(IntegrityError, match=words) as refused:
            check_source(SOURCE.signed(), replace(SOURCE, **change), "version 3", exact=exact)
        assert str(refused.value).startswith("version 3: ")
        assert "\n" not in str(refused.value)


def test_code_counts_only_where_the_model_reads_its_features() -> None:
    """A model of histories alone is served with any on_demand.py, also one signed before there was any."""
    model = FeatureSource("triage_v1", ("a", "b"), ("c",), "1" * 64)
    assert model.signed()["on_demand_digest"] == ""
    check_source(model.signed(), replace(model, on_demand_digest="2" * 64), "it")
    old = {name: value for name, value in model.signed().items() if name != "on_demand_digest"}
    check_source(old, model, "it")
