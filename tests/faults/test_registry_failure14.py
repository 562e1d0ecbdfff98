"""Failure 14: nobody can say which version was live last Tuesday. (model, time) gives exactly one version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.core.errors import PolicyRefusal, UserError
from components.core.ledger import Ledger
from components.registry.by_hand import rollback
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import digest_of, registered, rollout_report, version_ref

NAME = "triage"
START = 1_790_000_000  # seconds since 1970
MICROSECOND = timedelta(microseconds=1)
HOURS = st.integers(1, 10_000)


def clocked(root: Path, url: str = "") -> tuple[Ledger, FakeTracking, list[float]]:
    """A ledger whose clock the test sets, and a registry."""
    clock = [float(START)]
    tracking = FakeTracking(root / "models")
    registered(tracking, "12")
    return Ledger(url or f"sqlite:///{root / 'ledger.db'}", clock=lambda: clock[0]), tracking, clock


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(st.tuples(st.booleans(), HOURS), min_size=1, max_size=10),
    asked=st.lists(st.integers(-1, 100_000 * 3600), min_size=1, max_size=12),
    offset=st.integers(-14 * 60, 14 * 60),
)
def test_any_moment_has_exactly_one_answer(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[bool, int]], asked: list[int], offset: int
) -> None:
    """Promotions and roll-backs at known times; an oracle that replays them second by second answers the same.

    Times are asked with whatever zone, between changes, at the very second of a change, before the first and after
    the last.
    """
    ledger, tracking, clock = clocked(tmp_path_factory.mktemp("history"))
    ground: list[str] = []  # who a chain of roll-backs would go through
    live: list[tuple[int, str]] = []  # (second, version in front from then on)
    number = 0
    for back, hours in moves:
        clock[0] += hours * 3600
        if back and len(ground) > 1:
            rollback(NAME, ledger, tracking, "why")
            ground.pop()
        else:
            number += 1
            version = version_ref(str(number), ground[-1] if ground else "")
            promote(version, rollout_report(version), ledger, tracking, f"run-{number}")
            ground.append(str(number))
        live.append((int(clock[0]), ground[-1]))
    zone = timezone(timedelta(minutes=offset))
    for second in [*(START + at for at in asked), *(at for at, _ in live)]:
        expected = [version for since, version in live if since <= second]
        for moment in (
            datetime.fromtimestamp(second, zone).isoformat(),
            datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat(),  # without a zone: UTC
        ):
            if expected:
                (found,) = history(NAME, ledger, at=moment)
                assert (found["version"], found["digest"]) == (expected[-1], digest_of(expected[-1]))
            else:
                with pytest.raises(UserError, match=r"no version was champion at .*the first promotion was at"):
                    history(NAME, ledger, at=moment)
    ledger.close()


def test_a_version_is_in_front_from_the_microsecond_of_its_entry(ledger_url: str, tmp_path: Path) -> None:
    """One microsecond before it is still the one before; the first has nothing before it."""
    ledger, tracking, clock = clocked(tmp_path, ledger_url)
    times = []
    for number in ("1", "2", "3"):
        version = version_ref(number, str(int(number) - 1) if number != "1" else "")
        promote(version, rollout_report(version), ledger, tracking, f"run-{number}")
        times.append(datetime.fromisoformat(ledger.entries("promotion")[-1].time))
        clock[0] += 60
    for at, before, after in zip(times[1:], ("1", "2"), ("2", "3"), strict=True):
        assert history(NAME, ledger, at=(at - MICROSECOND).isoformat())[0]["version"] == before
        assert history(NAME, ledger, at=at.isoformat())[0]["version"] == after
    with pytest.raises(UserError, match="no version was champion"):
        history(NAME, ledger, at=(times[0] - MICROSECOND).isoformat())
    ledger.close()


def test_two_promotions_at_one_tick_of_a_clock_that_stands_have_an_order(ledger_url: str, tmp_path: Path) -> None:
    """Times rise strictly, so that no moment has two versions, and the last one stays last."""
    ledger, tracking, clock = clocked(tmp_path, ledger_url)
    for number, before in (("1", ""), ("2", "1"), ("3", "2")):
        version = version_ref(number, before)
        promote(version, rollout_report(version), ledger, tracking, f"run-{number}")
        clock[0] -= 3600  # and it is even set back
    times = [entry.time for entry in ledger.entries("promotion")]
    assert times == sorted(set(times))
    assert [history(NAME, ledger, at=time)[0]["version"] for time in times] == ["1", "2", "3"]
    ledger.close()


def test_the_target_of_a_roll_back_is_derivable(tmp_path: Path) -> None:
    """The version before this one, in one step, at any time, also after roll-backs."""
    ledger, tracking, _ = clocked(tmp_path)
    for number, before in (("1", ""), ("2", "1"), ("3", "2")):
        version = version_ref(number, before)
        promote(version, rollout_report(version), ledger, tracking, f"run-{number}")
    assert rollback(NAME, ledger, tracking, "why").version == "2"
    fourth = version_ref("4", "2")
    promote(fourth, rollout_report(fourth), ledger, tracking, "run-4")
    assert rollback(NAME, ledger, tracking, "why").version == "2"
    assert rollback(NAME, ledger, tracking, "why").version == "1"
    with pytest.raises(PolicyRefusal, match="is the first"):
        rollback(NAME, ledger, tracking, "why")
    ledger.close()
