"""Cron expressions: whatever Kubeflow's scheduler can read is taken, whatever it cannot is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.core.errors import UserError
from pipelines.cron import FIELDS, check_cron


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    """A valid field: star, number, range, list or step."""
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    one = st.one_of(st.just("*"), number.map(str), span)
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, high or 1)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    return st.one_of(one, stepped, st.lists(one, min_size=2, max_size=3).map(",".join))


@st.composite
def valid(draw: st.DrawFn) -> list[str]:
    """Six valid fields, the seconds a single number."""
    rest = [draw(_field(low, high)) for _, low, high, _ in FIELDS[1:]]
    return [str(draw(st.integers(0, 59))), *rest]


@given(fields=valid())
def test_valid_expressions_are_kept(fields: list[str]) -> None:
    """Six fields in their ranges pass unchanged."""
    assert check_cron(" ".join(fields)) == " ".join(fields)


@given(fields=valid(), at=st.integers(0, 5), data=st.data())
def test_a_value_out_of_range_is_refused(fields: list[str], at: int, data: st.DataObject) -> None:
    """One number above its field's range spoils the expression."""
    fields[at] = str(data.draw(st.integers(FIELDS[at][2] + 1, 10**6)))
    with pytest.raises(UserError, match="is outside"):
        check_cron(" ".join(fields))


@given(fields=valid(), size=st.sampled_from([0, 1, 5, 7]))
def test_any_other_number_of_fields_is_refused(fields: list[str], size: int) -> None:
    """Five fields are not read as six, nor seven."""
    with pytest.raises(UserError, match="six fields"):
        check_cron(" ".join([*fields, "1"][:size]))


@pytest.mark.parametrize("cron", ["0 0 6 ? * MON-FRI", "0 30 7 1 jan,jul ?", "  0   0 6 * *  sun "])
def test_names_question_marks_and_spaces(cron: str) -> None:
    """Names in any case, the question mark and extra spaces are read."""
    assert check_cron(cron) == " ".join(cron.upper().split())


@pytest.mark.parametrize(
    "cron", ["0 0 6 * * MONDAY", "0 0 6 * * 5-1", "0 0 */0 * * *", "0 0 6 * * 1;2", "0 0 -1 * * *"]
)
def test_misspelt_fields_are_refused(cron: str) -> None:
    """An unknown name, a backward range, a step of zero and stray signs are named."""
    with pytest.raises(UserError):
        check_cron(cron)
