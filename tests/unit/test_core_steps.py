"""The frame around a step: its note, its record, and its error in words."""

from __future__ import annotations

import pytest

from components.core.errors import ContractViolation, UserError
from components.core.home import Home
from components.core.recipe import load_recipe
from components.core.records import PromotionRef
from components.core.steps import failure_of, read_record, running, step_notes
from pipelines.recipes import locate

RECIPE = load_recipe(locate("laptop")).to_json()
PROMOTION = PromotionRef(
    outcome="promoted", reason="r", name="m", version="1", digest="d", previous_version="", ledger_seq=1
)


def test_a_step_leaves_its_time_and_its_record(home: Home) -> None:
    """The run's folder tells what the step did."""
    with running("promote", str(home.root), "r1", RECIPE) as step:
        assert step_notes(home, "r1")[0]["status"] == "running"
        step.keep(PROMOTION)
    note = step_notes(home, "r1")[0]
    assert (note["name"], note["status"]) == ("promote", "done")
    assert note["seconds"] >= 0
    assert read_record(home, "r1", "promote") == PROMOTION.to_dict()
    assert failure_of(home, "r1") is None


@pytest.mark.parametrize(("error", "code"), [(UserError("a\nb"), 2), (ContractViolation("c"), 3), (KeyError("k"), 1)])
def test_a_failed_step_keeps_the_kind_and_one_line(home: Home, error: Exception, code: int) -> None:
    """Kubeflow only says that it failed; the note says why."""
    with pytest.raises(type(error)), running("train", str(home.root), "r1", RECIPE):
        raise error
    failure = failure_of(home, "r1")
    assert failure is not None
    assert failure.exit_code == code
    assert "\n" not in str(failure)
    assert str(failure).startswith("train: ")
