"""Failure 21: a rolling update with no room for a second server says so first, and has an alternative."""

from __future__ import annotations

import pytest

from components.core.errors import PolicyRefusal
from components.core.recipe import parse_recipe
from pipelines.canary_room import Room, Wanted, check_room, compare, free_room, wanted
from tests.fakes.fake_serving import Behaviour, FakeServing
from tests.fakes.rollout_case import make_case, small_recipe


def _recreate():
    return parse_recipe(small_recipe(strategy="recreate").model_dump(mode="json"))


def test_failure21_a_canary_that_does_not_fit_beside_stable_is_refused_with_figures_and_the_alternative() -> None:
    """What it needs, what is free, and that `recreate` costs answers while it starts."""
    with pytest.raises(
        PolicyRefusal, match=r"needs \d+\.\d GiB of memory, free are 0\.5.*recreate.*nobody is answered"
    ):
        check_room(small_recipe(), "vllm", room=Room(0.5, 2))


def test_failure21_recreate_needs_half_and_fits_where_two_servers_do_not() -> None:
    """One server at a time; with room for neither it is refused too, without naming itself as the way out."""
    both, one = wanted(small_recipe(), "vllm"), wanted(_recreate(), "vllm")
    assert (both.servers, one.servers) == (2, 1)
    assert one.memory_gib == pytest.approx(both.memory_gib / 2)
    between = Room((both.memory_gib + one.memory_gib) / 2, 2)
    with pytest.raises(PolicyRefusal):
        check_room(small_recipe(), "vllm", room=between)
    assert "room for 1 vllm server" in check_room(_recreate(), "vllm", room=between)
    with pytest.raises(PolicyRefusal) as refused:
        check_room(_recreate(), "vllm", room=Room(0.1, 2))
    assert "recreate" not in str(refused.value)


@pytest.mark.parametrize(
    ("gpus", "lacks"),
    [((1.0, 1.0), False), ((1.0, 0.2), True), ((0.95,), False), ((0.5,), True), ((), True), ((1.0, 1.0, 0.0), False)],
)
def test_failure21_gpus_in_use_count_as_taken(gpus, lacks) -> None:
    """Two arms want a GPU each, or both a share of the only one."""
    assert bool(compare(Wanted(2, 0.0, 2), Room(100.0, 8, gpus))[0]) == lacks


def test_failure21_cores_that_are_shared_are_said_and_no_reason_to_refuse() -> None:
    """With one core both arms slow each other down: it stands in the line."""
    assert "share 1 core" in check_room(small_recipe(), "reference", room=Room(64.0, 1))


def test_failure21_what_is_free_is_measured() -> None:
    """Memory that this process takes is no longer free; there is at least one core."""
    before = free_room()
    held = bytearray(b"x" * (300 << 20))
    after = free_room()
    assert before.cores >= 1
    assert 0.1 < before.memory_gib - after.memory_gib < 3.0, (len(held), before, after)


def test_failure21_recreate_swaps_the_servers_one_at_a_time_and_states_its_downtime(tmp_path) -> None:
    """Never two replicas; the candidate is proved on golden set and service level; how long nobody was answered."""

    class Counting(FakeServing):
        most = 0

        def start(self, arm, model_dir, version, digest, golden=None):
            served = super().start(arm, model_dir, version, digest, golden)
            self.most = max(self.most, len(self.replicas))
            return served

    stack = Counting()
    report = make_case(tmp_path, strategy="recreate").run(stack)
    assert report.outcome == "passed"
    assert stack.most == 1
    assert stack.replicas["stable"].served.version == "2"
    said = [event.text for event in report.timeline if event.stage == "recreate"]
    assert "nobody is answered for about 2 s" in said[0]
    assert "answers after 2.0 s in which nobody was answered" in said[1]


def test_failure21_a_bad_candidate_gives_the_place_back_to_the_champion(tmp_path) -> None:
    """It fails under traffic: its server ends, the champion's starts again, and the second gap is stated too."""

    class Recreated(FakeServing):
        def start(self, arm, model_dir, version, digest, golden=None):
            bad = Behaviour(error_rate=1.0, healthy_requests=70)
            self.behaviours = {"stable": bad if version == "2" else Behaviour()}
            return super().start(arm, model_dir, version, digest, golden)

    stack = Recreated()
    report = make_case(tmp_path, strategy="recreate").run(stack)
    assert report.outcome == "rolled_back"
    assert stack.replicas["stable"].served.version == "1"
    assert stack.alive("stable")
    said = [event.text for event in report.timeline if event.stage == "recreate"]
    assert "stable answers after" in said[-1]
