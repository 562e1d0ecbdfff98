"""Approval by people, on SQLite and PostgreSQL: who counts, what is judged again, how a request ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError
from components.core.ledger import Ledger
from components.core.people import Person, Policy
from components.core.records import ModelVersionRef, PromotionRef
from components.registry.approvals import approve, follow_up, reject
from components.registry.by_hand import promote_by_hand, rollback
from components.registry.champions import PROMOTION, champion
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import registered, rollout_report, version_ref

NAME = "triage"
TWO = Policy(runs=("ana",), approves=("ana", "bob", "carol"), reads=("dave",), required=2, expires_hours=2)


def person(name: str) -> Person:
    """Somebody who says so."""
    return Person(name, "--as", "tester")


class Desk:
    """A registry, a ledger whose clock the test turns, and version 2 judged against version 1."""

    def __init__(self, url: str, root: Path) -> None:
        self.time = 1_800_000_000.0
        self.ledger = Ledger(url, clock=self.now)
        self.tracking = FakeTracking(root / "models")
        registered(self.tracking, "3")
        self.first = version_ref("1")
        promote(self.first, rollout_report(self.first), self.ledger, self.tracking, "run-1")

    def now(self) -> float:
        """Seconds, a little later each time."""
        self.time += 0.001
        return self.time

    def ask(self, number: str = "2", policy: Policy = TWO, run_id: str = "", champion: str = "1") -> PromotionRef:
        """A run by ana brings a version up."""
        version = version_ref(number, champion)
        self.tracking.set_alias(NAME, "challenger", number)
        run = run_id or f"run-{number}"
        return promote(
            version, rollout_report(version), self.ledger, self.tracking, run, policy=policy, requesters=("ana",)
        )

    def approve(self, name: str, number: str = "2", **options: Any) -> PromotionRef:
        """Somebody approves."""
        return approve(NAME, number, person(name), "looks good", self.ledger, self.tracking, **options)[0]

    def reject(self, name: str, number: str = "2") -> PromotionRef:
        """Somebody rejects."""
        return reject(NAME, number, person(name), "wording\nis off", self.ledger, self.tracking)[0]

    @property
    def champion(self) -> str:
        """The version in front, after a look that ledger and alias agree and the chain holds."""
        live = champion(NAME, self.ledger)
        assert live is not None
        assert self.tracking.alias(NAME, "champion") == live.version
        self.ledger.verify()
        return live.version


@pytest.fixture
def desk(ledger_url: str, tmp_path: Path) -> Iterator[Desk]:
    """Version 1 in front, nothing asked."""
    made = Desk(ledger_url, tmp_path)
    yield made
    made.ledger.close()


def test_enough_people_promote(desk: Desk) -> None:
    """Awaited until the second of two approved; then champion, with who approved and why in the entry."""
    asked = desk.ask()
    assert asked.outcome == "awaiting_approval"
    assert "needs 2 approvals of ana, bob, carol" in asked.reason
    assert desk.champion == "1"
    assert desk.approve("bob").outcome == "awaiting_approval"
    assert desk.approve("bob").outcome == "awaiting_approval"  # the same word twice counts once
    assert desk.champion == "1"
    assert desk.approve("carol").outcome == "promoted"
    assert desk.champion == "2"
    entry = desk.ledger.entries(PROMOTION)[-1]
    assert [(vote["name"], vote["os_user"], vote["reason"]) for vote in entry.payload["approvals"]] == [
        ("bob", "tester", "looks good"),
        ("carol", "tester", "looks good"),
    ]
    assert desk.tracking.alias(NAME, "challenger") is None
    assert desk.approve("bob").outcome == "promoted"  # nothing left to do, and nothing done
    assert len(desk.ledger.entries(PROMOTION)) == 2
    assert [item["event"] for item in history(NAME, desk.ledger)][1:] == [
        "requested", "approved", "approved", "promoted",
    ]  # fmt: skip


def test_the_run_asked_again_finds_its_request_and_its_end(desk: Desk) -> None:
    """Waiting: the same answer and one entry. Approved: promoted."""
    asked = desk.ask()
    assert desk.ask() == asked == follow_up(asked.ledger_seq, desk.ledger, desk.tracking)
    desk.approve("bob"), desk.approve("carol")
    again = desk.ask()
    assert (again.outcome, again.ledger_hash) == ("promoted", desk.ledger.entries(PROMOTION)[-1].hash)
    assert follow_up(asked.ledger_seq, desk.ledger, desk.tracking) == again
    assert len(desk.ledger.entries("approval")) == 3


@pytest.mark.parametrize("name", ["ana", "dave", "eve"])
def test_nobody_else_counts(desk: Desk, name: str) -> None:
    """Who started the run, who only reads, who is not named: refused, and no entry."""
    desk.ask()
    before = len(desk.ledger.entries())
    with pytest.raises(PolicyRefusal, match=f"^{name} .*may not approve"):
        desk.approve(name)
    assert len(desk.ledger.entries()) == before


def test_one_who_started_the_run_counts_where_the_recipe_says_so(desk: Desk) -> None:
    """requester_may_approve."""
    desk.ask(policy=replace(TWO, requester_may_approve=True, required=1))
    assert desk.approve("ana").outcome == "promoted"


def test_another_spelling_of_the_starter_is_the_starter(desk: Desk) -> None:
    """Also where anybody may approve."""
    desk.ask(policy=Policy(required=1))
    with pytest.raises(PolicyRefusal, match="started the run"):
        desk.approve("ANA")
    assert desk.approve("zoe").outcome == "promoted"


def test_only_named_approvers_count_where_there_are_some(desk: Desk) -> None:
    """approval.approvers narrows the role."""
    desk.ask(policy=replace(TWO, required=1, approvers=("carol", "dave")))
    for name in ("bob", "dave"):
        with pytest.raises(PolicyRefusal, match="may not approve or reject; carol may"):
            desk.approve(name)
    assert desk.approve("carol").outcome == "promoted"


def test_a_rejection_is_for_good(desk: Desk) -> None:
    """No approval after it, and no other run brings the same bytes up again; the reason is told."""
    asked = desk.ask()
    desk.approve("bob")
    ended = desk.reject("carol")
    assert (ended.outcome, ended.reason) == ("refused", "model triage version 2: rejected by carol: wording is off")
    with pytest.raises(PolicyRefusal, match="rejected by carol: wording is off"):
        desk.approve("bob")
    with pytest.raises(PolicyRefusal, match="rejected by carol"):
        desk.reject("bob")
    for run in ("run-2", "run-2.1"):
        with pytest.raises(PolicyRefusal, match="rejected by carol"):
            desk.ask(run_id=run)
    with pytest.raises(PolicyRefusal, match="rejected by carol"):
        desk.ask(run_id="run-9", policy=Policy())  # without a policy neither
    with pytest.raises(PolicyRefusal, match="was stopped"):
        promote_by_hand(NAME, "2", desk.ledger, desk.tracking, "all the same", who=person("bob"))
    assert follow_up(asked.ledger_seq, desk.ledger, desk.tracking).outcome == "refused"
    assert desk.champion == "1"
    assert desk.tracking.alias(NAME, "challenger") is None


def test_a_request_lapses(desk: Desk) -> None:
    """A word that comes too late does not count; judged again by another run it can be approved."""
    asked = desk.ask()
    desk.approve("bob")
    desk.time += 2 * 3600
    with pytest.raises(PolicyRefusal, match="no approval within 2 hours; it has to be judged again"):
        desk.approve("carol")
    assert follow_up(asked.ledger_seq, desk.ledger, desk.tracking).outcome == "refused"
    assert desk.champion == "1"
    desk.ask(run_id="run-2.1")
    assert desk.approve("bob").outcome == "awaiting_approval"  # the old word is not taken over
    assert desk.approve("carol").outcome == "promoted"


def test_a_lapsed_request_is_found_without_anybodys_word(desk: Desk) -> None:
    """The run asked again says so."""
    asked = desk.ask()
    desk.time += 7201
    with pytest.raises(PolicyRefusal, match="no approval within 2 hours"):
        desk.ask()
    assert follow_up(asked.ledger_seq, desk.ledger, desk.tracking).outcome == "refused"


def test_the_champion_is_compared_again_when_the_last_word_is_given(desk: Desk) -> None:
    """Another version won while people were thinking: the approved one is refused and told who won."""
    desk.ask("2")
    desk.ask("3")
    desk.approve("bob", "2"), desk.approve("bob", "3")
    assert desk.approve("carol", "3").outcome == "promoted"
    with pytest.raises(PolicyRefusal, match="judged against champion 1, but version 3 won"):
        desk.approve("carol", "2")
    assert desk.champion == "3"


def test_the_files_are_checked_when_somebody_approves(desk: Desk, tmp_path: Path) -> None:
    """Bytes that are not those of the digest: no word counts."""
    desk.ask()
    with pytest.raises(IntegrityError, match="does not hold the bytes"):
        desk.approve("bob", models_root=tmp_path / "models")
    assert len(desk.ledger.entries("approval")) == 1


def test_a_kill_between_the_last_word_and_the_promotion_is_mended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run asked again promotes, once."""
    asked = desk.ask()
    desk.approve("bob")

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("components.registry.approvals.transact", die)
        with pytest.raises(KeyboardInterrupt):
            desk.approve("carol")
    assert champion(NAME, desk.ledger).version == "1"  # type: ignore[union-attr]
    assert follow_up(asked.ledger_seq, desk.ledger, desk.tracking).outcome == "promoted"
    assert desk.champion == "2"


def test_nothing_asked_no_reason_no_name(desk: Desk) -> None:
    """Said in a line each."""
    with pytest.raises(UserError, match="nobody asked for an approval"):
        desk.approve("bob")
    with pytest.raises(UserError, match="say why"):
        approve(NAME, "2", person("bob"), " \n ", desk.ledger, desk.tracking)
    with pytest.raises(UserError, match="model name"):
        approve("a/b", "2", person("bob"), "why", desk.ledger, desk.tracking)
    with pytest.raises(UserError, match="is no request"):
        follow_up(1, desk.ledger, desk.tracking)


def test_by_hand_obeys_the_same_policy(desk: Desk) -> None:
    """Nobody goes around the approvals; an earlier champion may come back; who only reads moves nothing."""
    desk.ask(), desk.approve("bob"), desk.approve("carol")
    candidate: ModelVersionRef = version_ref("3", "2")
    payload = {"name": NAME, "version": "3", "digest": candidate.digest, "event": "registered", "reason": "ok"}
    desk.ledger.append("candidate", "registered:run-3", payload)
    with pytest.raises(PolicyRefusal, match="never was champion and the recipe asks for 2 approvals"):
        promote_by_hand(NAME, "3", desk.ledger, desk.tracking, "urgent", who=person("bob"))
    for name in ("dave", "eve"):
        with pytest.raises(PolicyRefusal, match=f"{name} may not roll back"):
            rollback(NAME, desk.ledger, desk.tracking, "why", who=person(name))
    with pytest.raises(PolicyRefusal, match="dave may not promote by hand"):
        promote_by_hand(NAME, "1", desk.ledger, desk.tracking, "why", who=person("dave"))
    assert desk.champion == "2"
    assert rollback(NAME, desk.ledger, desk.tracking, "complaints", who=person("ana")).version == "1"
    desk.ledger.append("candidate", "registered:run-2", payload | {"version": "2", "digest": version_ref("2").digest})
    assert promote_by_hand(NAME, "2", desk.ledger, desk.tracking, "mended", who=person("carol")).version == "2"
    assert desk.champion == "2"
    assert [entry.payload["by"]["name"] for entry in desk.ledger.entries(PROMOTION)[-2:]] == ["ana", "carol"]


def test_bytes_that_were_rejected_meanwhile_are_not_promoted_by_an_older_approval(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Granted in one run and killed there, rejected in another: the first run's promotion is refused."""
    one = replace(TWO, required=1)
    asked = desk.ask(policy=one, run_id="run-a")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("components.registry.approvals.proceed", _die)
        desk.approve("bob")
    desk.ask(policy=one, run_id="run-b")
    desk.reject("carol")
    ended = follow_up(asked.ledger_seq, desk.ledger, desk.tracking)
    assert (ended.outcome, desk.champion) == ("refused", "1")
    assert "rejected by carol" in ended.reason


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def three(desk: Desk) -> Desk:
    """Versions 1, 2 and 3 were promoted one after the other."""
    for number, before in (("2", "1"), ("3", "2")):
        version = version_ref(number, before)
        promote(version, rollout_report(version), desk.ledger, desk.tracking, f"run-{number}")
    return desk


def back(desk: Desk, reason: str, **options: Any) -> PromotionRef:
    """One roll-back by bob."""
    return rollback(NAME, desk.ledger, desk.tracking, reason, who=person("bob"), **options)


@pytest.mark.parametrize("last_call", ["alias", "set_alias", "set_tags"])
def test_a_rollback_given_again_after_the_registry_failed_goes_back_once(three: Desk, last_call: str) -> None:
    """Wherever it stopped: version 2, not version 1; a further one, for another reason, goes on to version 1."""

    def fails(name: str) -> None:
        if name == last_call:
            three.tracking.on_call = lambda _: None
            raise TransientError("MLflow does not answer")

    three.tracking.on_call = fails
    with pytest.raises(TransientError, match="version 2 is champion again"):
        back(three, "v3 is bad")
    assert back(three, "v3 is bad").version == "2" == three.champion
    assert back(three, "v2 is bad too").version == "1" == three.champion


def test_a_rollback_names_the_version_that_it_takes_back(three: Desk) -> None:
    """Given again it does nothing, also where only the answer was lost; another champion is refused."""
    for _ in range(3):
        assert back(three, "bad", taken_back="3").version == "2" == three.champion
    with pytest.raises(PolicyRefusal, match="version 2 is champion, not 1"):
        back(three, "bad", taken_back="1")
    assert back(three, "bad", taken_back="2").version == "1" == three.champion


@pytest.mark.parametrize("reason", ["one", "another"])
def test_an_alias_moved_by_hand_swallows_no_rollback(three: Desk, reason: str) -> None:
    """The first roll-back was done; asked again a new one is meant, and the alias is put right."""
    assert back(three, "one").version == "2"
    three.tracking.set_alias(NAME, "champion", "3")
    assert back(three, reason).version == "1" == three.champion


def test_a_recipe_that_asks_for_less_is_governed_by_the_policy_in_force(desk: Desk) -> None:
    """Neither fewer approvals nor other people: who may approve now decides whether the change comes."""
    desk.ask(), desk.approve("bob"), desk.approve("carol")
    weak = Policy(runs=("mallory",), approves=("mallory",), requester_may_approve=True)
    asked = desk.ask("3", weak, champion="2")
    assert asked.outcome == "awaiting_approval"
    assert "needs 2 approvals of ana, bob, carol" in asked.reason
    assert "changes who decides" in asked.reason
    with pytest.raises(PolicyRefusal, match="mallory may not approve"):
        desk.approve("mallory", "3")
    with pytest.raises(PolicyRefusal, match="mallory may not roll back"):
        rollback(NAME, desk.ledger, desk.tracking, "why", who=person("mallory"))
    desk.approve("bob", "3"), desk.approve("carol", "3")
    assert desk.champion == "3"
    assert rollback(NAME, desk.ledger, desk.tracking, "why", who=person("mallory")).version == "2"  # now it is in force


def test_a_policy_that_was_asked_for_first_governs_before_anything_is_promoted_under_it(desk: Desk) -> None:
    """A run beside it that asks for nothing waits for the same people; a rejected request's policy counts no longer."""
    desk.ask("2")
    assert desk.ask("3", Policy()).outcome == "awaiting_approval"
    desk.reject("bob", "2"), desk.reject("bob", "3")
    assert rollback_refused(desk) == "the first"


def rollback_refused(desk: Desk) -> str:
    """Why eve, whom no policy names, cannot roll back the only champion."""
    with pytest.raises(PolicyRefusal) as refused:
        rollback(NAME, desk.ledger, desk.tracking, "why", who=person("eve"))
    return "the first" if "is the first" in str(refused.value) else str(refused.value)


def test_a_recipe_that_asks_for_more_is_obeyed_at_once(desk: Desk) -> None:
    """The policy in force asks for nothing; the recipe's two approvals are waited for."""
    assert desk.ask().outcome == "awaiting_approval"
    desk.approve("bob"), desk.approve("carol")
    assert desk.ask("3", replace(TWO, required=3), champion="2").reason.startswith("needs 3 approvals")


def test_an_approval_of_what_was_taken_back_is_refused_and_so_is_a_strangers(desk: Desk) -> None:
    """It would promote nothing; a word that does not count is never answered with promoted."""
    desk.ask(policy=replace(TWO, required=1)), desk.approve("bob")
    with pytest.raises(PolicyRefusal, match="eve may not approve"):
        desk.approve("eve")
    rollback(NAME, desk.ledger, desk.tracking, "bad", who=person("bob"))
    with pytest.raises(PolicyRefusal, match="was promoted and is over; version 1 is champion now"):
        desk.approve("carol")
    assert desk.champion == "1"
