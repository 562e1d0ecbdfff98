"""Failure 15: two candidates judged against the same champion, and the worse one wins because it came last."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from components.core.errors import PolicyRefusal
from components.core.ledger import Ledger
from components.registry.champions import champion
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import registered, rollout_report, version_ref

NAME = "triage"


@pytest.mark.parametrize("order", list(permutations("234")))
def test_the_first_of_several_wins_and_every_stale_one_is_refused(
    ledger_url: str, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """In any order: the first; each other one is told who won and must be judged again; judged again it may win."""
    ledger, tracking = Ledger(ledger_url), FakeTracking(tmp_path / "models")
    registered(tracking, "4")
    first = version_ref("1")
    promote(first, rollout_report(first), ledger, tracking, "run-1")
    candidates = {number: version_ref(number, "1") for number in order}
    winner, *stale = order
    won = candidates[winner]
    assert promote(won, rollout_report(won), ledger, tracking, f"run-{winner}").outcome == "promoted"
    for number in stale:
        late = candidates[number]
        with pytest.raises(
            PolicyRefusal, match=rf"judged against champion 1, but version {winner} won at .*judge again"
        ):
            promote(late, rollout_report(late), ledger, tracking, f"run-{number}")
        assert champion(NAME, ledger).version == tracking.alias(NAME, "champion") == winner  # type: ignore[union-attr]
    again = version_ref(stale[0], winner)
    assert promote(again, rollout_report(again), ledger, tracking, "run-again").outcome == "promoted"
    assert [item["event"] for item in history(NAME, ledger)] == [
        "promoted", "promoted", "refused", "refused", "promoted",
    ]  # fmt: skip
    ledger.close()


def test_a_champion_that_came_back_by_the_same_number_but_other_bytes_is_another(tmp_path: Path) -> None:
    """The comparison is of version and digest."""
    ledger, tracking = Ledger(f"sqlite:///{tmp_path / 'l.db'}"), FakeTracking(tmp_path / "models")
    registered(tracking, "2")
    first = version_ref("1")
    promote(first, rollout_report(first), ledger, tracking, "run-1")
    second = version_ref("2", "1", champion_digest="0" * 64)
    with pytest.raises(PolicyRefusal, match="judge again"):
        promote(second, rollout_report(second), ledger, tracking, "run-2")
    ledger.close()
