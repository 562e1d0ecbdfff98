"""Registration, promotion, roll-back and history on a fake registry and a real ledger."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import roc_auc_score

from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError
from components.core.ledger import Ledger
from components.core.people import identify
from components.core.publish import publishing, verify
from components.core.records import Evidence, ModelRef, ModelVersionRef, TrainingSetRef
from components.models.files import model_digest
from components.registry.aliases import sync_aliases
from components.registry.by_hand import promote_by_hand, rollback
from components.registry.champions import champion
from components.registry.history import history
from components.registry.promote import promote
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    digest_of,
    good_evidence,
    interval,
    judged_rows,
    ledger_of,
    predictions_of,
    publish_evidence,
    publish_model,
    publish_training_set,
    registered,
    rollout_report,
    small_recipe,
    version_ref,
)
from tests.fakes.registering import publish_signed_model, publish_verdicts, register_in

NAME = "triage"


class Room:
    """A training set, a model, its evidence, a fake registry and a ledger in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tracking = FakeTracking(root / "models")
        self.ledger = ledger_of(root)
        self.run = self.tracking.start("triage", "run", "k1", {}, {})
        self.rows: TrainingSetRef = publish_training_set(root / "rows", rows=60, test=judged_rows())
        self.model: ModelRef = publish_signed_model(root / "model", self.rows, run=self.run)
        publish_verdicts(root, self.rows)
        self.evidence: Evidence = publish_evidence(root / "evidence", self.model, self.rows)

    def register(self, run_id: str = "run-1", recipe: Any = None, **changes: Any) -> ModelVersionRef:
        """Register what is in the folder."""
        tracking = changes.pop("tracking", self.tracking)
        return register_in(self.root, recipe or small_recipe(), tracking, self.ledger, run_id)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A room of the test's own."""
    return Room(tmp_path)


def test_a_version_carries_every_digest_and_becomes_challenger(room: Room) -> None:
    """Model bytes are kept under their digest, tags name all inputs, the record is published."""
    version = room.register()
    assert version.gate_passed
    assert ModelVersionRef.read(room.root / "out") == version
    verify(room.root / "out")
    listed = room.tracking.versions(NAME)
    assert [item["aliases"] for item in listed] == [["challenger"]]
    tags = {name.removeprefix("pilotline."): value for name, value in listed[0]["tags"].items()}
    expected = {
        "digest": room.model.digest,
        "snapshot_digest": room.rows.snapshot_digest,
        "contract_digest": "k" * 64,
        "training_set_digest": room.rows.digest,
        "recipe_digest": small_recipe().digest,
        "code_version": "code1",
        "evidence_digest": room.evidence.record_digest,
        "gate": "passed",
    }
    assert expected.items() <= tags.items()
    assert model_digest(Path(listed[0]["source"])) == room.model.digest == Path(listed[0]["source"]).parent.name
    assert champion(NAME, room.ledger) is None


def test_a_refused_candidate_is_a_version_with_its_reason_and_no_alias(room: Room) -> None:
    """The story of what was stopped stays readable."""
    version = room.register(recipe=small_recipe(gate={"min_auc": 0.9}))
    assert not version.gate_passed
    assert "AUC is 0.850, below 0.900" in version.reason
    assert [item["aliases"] for item in room.tracking.versions(NAME)] == [[]]
    told = history(NAME, room.ledger)
    assert [(item["version"], item["event"], item["auc"]) for item in told] == [("1", "refused", 0.85)]
    assert told[0]["text"].startswith("v1 stopped by the gate: min_auc: AUC is 0.850")


def test_registering_again_changes_nothing(room: Room) -> None:
    """The same inputs give the same record, one version and one entry, also from another run."""
    first = room.register()
    shutil.rmtree(room.root / "out")
    assert room.register() == first
    assert room.register(run_id="run-2") == first
    assert len(room.tracking.versions(NAME)) == 1
    assert len(room.ledger.entries("candidate")) == 2  # one a run


def test_registering_again_after_the_promotion_returns_the_same_record(room: Room) -> None:
    """A resumed run finds its version although the champion has changed, to this very version."""
    first = room.register()
    promote(first, rollout_report(first), room.ledger, room.tracking, "run-1")
    assert room.register() == first
    assert room.tracking.alias(NAME, "challenger") is None


def test_new_evidence_or_policy_of_the_same_model_is_a_new_version(room: Room) -> None:
    """A version is a model with its judgement."""
    room.register()
    assert room.register(recipe=small_recipe(gate={"min_auc": 0.8})).version == "2"
    room.evidence = publish_evidence(room.root / "evidence", room.model, room.rows, test_window_uses=1)
    assert room.register().version == "3"


@pytest.mark.parametrize(
    "name", ["model/model/model.safetensors", "model/record.json", "rows/train.parquet", "evidence/record.json"]
)
def test_a_swapped_byte_is_refused_at_the_hand_over(room: Room, name: str) -> None:
    """Nothing is registered of bytes that differ from their digest."""
    data = bytearray((room.root / name).read_bytes())
    data[len(data) // 2] ^= 1
    (room.root / name).write_bytes(bytes(data))
    with pytest.raises(IntegrityError):
        room.register()
    assert room.tracking.versions(NAME) == []
    assert not (room.root / "out").exists()


@pytest.mark.parametrize("field", ["model_digest", "training_set_digest", "test_digest"])
def test_evidence_of_something_else_is_refused(room: Room, field: str) -> None:
    """Whole and verified, but about another model or other rows."""
    other = replace(room.evidence, **{field: "f" * 64})
    shutil.rmtree(room.root / "evidence")
    (room.root / "evidence").mkdir()
    _publish_record(room.root / "evidence", other)
    with pytest.raises(IntegrityError, match="do not belong together"):
        room.register()


def _publish_record(folder: Path, record: Any) -> None:
    from components.core.publish import publishing

    with publishing(folder) as staging:
        record.write(staging)


def test_a_model_that_carries_code_is_refused(room: Room) -> None:
    """A Python file beside the weights stops the registration."""
    shutil.rmtree(room.root / "model")
    publish_model(room.root / "model", room.rows)
    (room.root / "model" / "model" / "modeling.py").write_text("raise SystemExit")
    with pytest.raises(IntegrityError):
        room.register()


def test_evidence_against_an_old_champion_asks_to_judge_again(room: Room) -> None:
    """Another version won between evaluation and registration."""
    first = room.register()
    promote(first, rollout_report(first), room.ledger, room.tracking, "run-1")
    room.tracking.delete_alias(NAME, "champion")  # and the alias lags behind
    room.model = publish_signed_model(room.root / "model", room.rows, weight=4.0, run=room.run)
    room.evidence = publish_evidence(room.root / "evidence", room.model, room.rows)
    with pytest.raises(PolicyRefusal, match="compares with champion none, but the champion is 1; judge again"):
        room.register(run_id="run-2")
    assert room.tracking.alias(NAME, "champion") == "1"  # the next evaluation finds it
    assert len(room.tracking.versions(NAME)) == 1


def test_a_damaged_kept_model_is_replaced(room: Room) -> None:
    """Bytes in the models folder that differ from their name are copied anew from the verified model."""
    folder = room.root / "models" / room.model.digest / "model"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"half")
    room.register()
    assert model_digest(folder) == room.model.digest
    verify(folder.parent)
    assert [path.name for path in (room.root / "models").glob("[!.]*")] == [room.model.digest]


def test_the_card_names_measurements_gate_and_digests(room: Room) -> None:
    """In the step's folder and among the tracking run's files, escaped, the same on every call."""
    shutil.rmtree(room.root / "evidence")
    part = {"auc": interval(0.84, 200, 40), "brier": interval(0.07, 200, 40)}
    slices = {"<i>a|b</i>": part, "<i>a|b</i>:others": part}
    publish_evidence(room.root / "evidence", room.model, room.rows, slices=slices)
    room.register(recipe=small_recipe(gate={"min_auc": 0.9}))
    markdown, html = ((room.root / "out" / name).read_text() for name in ("card.md", "card.html"))
    for text in (markdown, html):
        assert room.model.digest in text
        assert "AUC is 0.850, below 0.900" in text
        assert "<i>" not in text
    assert "http" not in html
    assert "a\\|b" in markdown
    assert f"{NAME}-v1/card.html" in room.tracking.runs[room.run]["files"]
    room.register(run_id="run-2", recipe=small_recipe(gate={"min_auc": 0.9}))
    assert (room.root / "out" / "card.md").read_text() == markdown


@pytest.mark.parametrize("name", ["a/b", "a\nb", "..", "%2e%2e", "", "a b"])
def test_names_that_are_no_plain_names_are_refused(tmp_path: Path, name: str) -> None:
    """Wherever a name enters the registry."""
    tracking, ledger = FakeTracking(tmp_path / "models"), ledger_of(tmp_path)
    bad = version_ref("1", name=name)
    with pytest.raises(UserError):
        promote(bad, rollout_report(bad), ledger, tracking, "run-1")
    good = version_ref("1")
    with pytest.raises(UserError):
        promote(good, rollout_report(good), ledger, tracking, name)
    with pytest.raises(UserError):
        history(name, ledger)
    with pytest.raises(UserError):
        rollback(name, ledger, tracking, "why")
    assert ledger.entries() == []


def put(tracking: FakeTracking, ledger: Ledger, number: str, before: str = "") -> ModelVersionRef:
    """Promote a version."""
    registered(tracking, number)
    version = version_ref(number, before)
    assert promote(version, rollout_report(version), ledger, tracking, f"run-{number}").outcome == "promoted"
    return version


@pytest.fixture
def registry(tmp_path: Path) -> tuple[FakeTracking, Ledger]:
    """A fake registry and an empty ledger."""
    return FakeTracking(tmp_path / "models"), ledger_of(tmp_path)


def test_a_promotion_moves_both_aliases_and_is_done_once(registry: tuple[FakeTracking, Ledger]) -> None:
    """Champion set, challenger gone; the same promotion again adds no entry."""
    tracking, ledger = registry
    registered(tracking, "1")
    tracking.set_alias(NAME, "challenger", "1")
    version = version_ref("1")
    ends = [promote(version, rollout_report(version), ledger, tracking, "run-1") for _ in range(2)]
    assert ends[0] == ends[1]
    assert (ends[0].outcome, ends[0].previous_version) == ("promoted", "")
    assert tracking.alias(NAME, "champion") == "1"
    assert tracking.alias(NAME, "challenger") is None
    assert [entry.kind for entry in ledger.entries()] == ["promotion"]
    again = promote(version, rollout_report(version), ledger, tracking, "run-9")
    assert (again.outcome, len(ledger.entries())) == ("promoted", 1)


def test_the_stale_candidate_is_refused_and_told_who_won(registry: tuple[FakeTracking, Ledger]) -> None:
    """Two candidates judged against version 1: the first one wins, the other reads who did."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    put(tracking, ledger, "2", before="1")
    registered(tracking, "3")
    tracking.set_alias(NAME, "challenger", "3")
    stale = version_ref("3", "1")
    with pytest.raises(PolicyRefusal, match=r"judged against champion 1, but version 2 won at .*judge again"):
        promote(stale, rollout_report(stale), ledger, tracking, "run-3")
    assert tracking.alias(NAME, "champion") == "2"
    assert tracking.alias(NAME, "challenger") is None
    assert [item["text"].split(":")[0] for item in history(NAME, ledger)][-1] == "v3 refused at promotion"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"requests": 0}, "holds no evidence"),
        ({"rules": ()}, "holds no evidence"),
        ({"stable_version": "7"}, "rolled out beside version 7, judged against none"),
    ],
)
def test_a_rollout_without_evidence_does_not_promote(
    registry: tuple[FakeTracking, Ledger], changes: dict[str, Any], match: str
) -> None:
    """The word passed is not enough."""
    tracking, ledger = registry
    version = registered(tracking, "1")
    with pytest.raises(PolicyRefusal, match=match):
        promote(version, rollout_report(version, **changes), ledger, tracking, "run-1")
    assert champion(NAME, ledger) is None
    assert tracking.alias(NAME, "champion") is None


@pytest.mark.parametrize("outcome", ["fail", "insufficient", "error"])
def test_a_rule_that_does_not_hold_does_not_promote(registry: tuple[FakeTracking, Ledger], outcome: str) -> None:
    """Whatever the report's own outcome says."""
    tracking, ledger = registry
    version = registered(tracking, "1")
    report = rollout_report(version)
    report = replace(report, rules=(*report.rules, replace(report.rules[0], rule="latency", outcome=outcome)))
    with pytest.raises(PolicyRefusal, match="rule latency does not hold"):
        promote(version, report, ledger, tracking, "run-1")
    assert champion(NAME, ledger) is None


def test_a_version_that_the_gate_refused_does_not_promote(registry: tuple[FakeTracking, Ledger]) -> None:
    """Also with a rollout that passed."""
    tracking, ledger = registry
    version = replace(registered(tracking, "1"), gate_passed=False, reason="auc too low")
    with pytest.raises(PolicyRefusal, match="the gate did not pass: auc too low"):
        promote(version, rollout_report(version), ledger, tracking, "run-1")


@pytest.mark.parametrize("field", ["candidate_version", "candidate_digest"])
def test_a_report_about_another_model_is_refused(registry: tuple[FakeTracking, Ledger], field: str) -> None:
    """What was rolled out is what is promoted."""
    tracking, ledger = registry
    version = registered(tracking, "1")
    with pytest.raises(IntegrityError, match="the rollout was of version"):
        promote(version, rollout_report(version, **{field: "9"}), ledger, tracking, "run-1")
    assert ledger.entries() == []


@pytest.mark.parametrize(
    ("said", "noted"), [("rolled_back", "rolled_back"), ("inconclusive", "inconclusive"), ("what", "inconclusive")]
)
def test_a_stopped_candidate_is_noted_and_loses_its_alias(
    registry: tuple[FakeTracking, Ledger], said: str, noted: str
) -> None:
    """No promotion entry; the story says why; a word that is not known is inconclusive."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    registered(tracking, "2")
    tracking.set_alias(NAME, "challenger", "2")
    version = version_ref("2", "1")
    report = rollout_report(version, outcome=said, reason="errors: canary 6/61, stable 3/560")
    for _ in range(2):
        assert promote(version, report, ledger, tracking, "run-2").outcome == noted
    assert tracking.alias(NAME, "champion") == "1"
    assert tracking.alias(NAME, "challenger") is None
    assert [(item["version"], item["event"]) for item in history(NAME, ledger)] == [("1", "promoted"), ("2", noted)]
    assert "canary 6/61" in history(NAME, ledger)[-1]["text"]


def test_the_alias_follows_the_ledger(registry: tuple[FakeTracking, Ledger]) -> None:
    """Whatever the alias was set to, it is repaired; one that the ledger knows nothing of is removed."""
    tracking, ledger = registry
    registered(tracking, "2")
    tracking.set_alias(NAME, "champion", "2")
    assert sync_aliases(NAME, ledger, tracking) is None
    assert tracking.alias(NAME, "champion") is None
    put(tracking, ledger, "1")
    tracking.set_alias(NAME, "champion", "2")
    assert sync_aliases(NAME, ledger, tracking) == "1"
    assert tracking.alias(NAME, "champion") == "1"


def test_a_late_writer_puts_its_own_stale_alias_right(registry: tuple[FakeTracking, Ledger]) -> None:
    """Between a writer's look at the ledger and its write another promotion completes."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    registered(tracking, "2")
    tracking.delete_alias(NAME, "champion")

    def promote_meanwhile(call: str) -> None:
        if call == "set_alias":
            tracking.on_call = lambda name: None
            put(tracking, ledger, "2", before="1")

    tracking.on_call = promote_meanwhile
    assert sync_aliases(NAME, ledger, tracking) == "2"
    assert tracking.alias(NAME, "champion") == "2"


def test_roll_backs_go_back_one_version_at_a_time(registry: tuple[FakeTracking, Ledger]) -> None:
    """3 → 2 → 1 → refused, then forward again; every step in the story."""
    tracking, ledger = registry
    for number, before in (("1", ""), ("2", "1"), ("3", "2")):
        put(tracking, ledger, number, before)
    assert rollback(NAME, ledger, tracking, "complaints").version == "2"
    assert tracking.alias(NAME, "champion") == "2"
    assert rollback(NAME, ledger, tracking, "more complaints").version == "1"
    with pytest.raises(PolicyRefusal, match="version 1 is the first"):
        rollback(NAME, ledger, tracking, "even more")
    put(tracking, ledger, "4", before="1")
    assert rollback(NAME, ledger, tracking, "again").version == "1"
    assert [item["event"] for item in history(NAME, ledger)][-4:] == ["rollback", "rollback", "promoted", "rollback"]
    assert history(NAME, ledger)[-1]["text"] == f"v1 in front again by {identify().name}: again"


def test_a_killed_roll_back_is_finished_not_repeated(registry: tuple[FakeTracking, Ledger]) -> None:
    """The registry went away between ledger and alias: the same command brings the alias along, once."""
    tracking, ledger = registry
    for number, before in (("1", ""), ("2", "1"), ("3", "2")):
        put(tracking, ledger, number, before)

    def die(call: str) -> None:
        if call == "set_alias":
            raise TransientError("gone")

    tracking.on_call = die
    with pytest.raises(TransientError):
        rollback(NAME, ledger, tracking, "bad week")
    tracking.on_call = lambda name: None
    assert rollback(NAME, ledger, tracking, "bad week").version == "2"
    assert tracking.alias(NAME, "champion") == "2"
    assert len(ledger.entries("promotion")) == 4


def test_a_roll_back_needs_a_reason_a_champion_and_whole_files(
    registry: tuple[FakeTracking, Ledger], tmp_path: Path
) -> None:
    """Said in a line each."""
    tracking, ledger = registry
    with pytest.raises(UserError, match="reason"):
        rollback(NAME, ledger, tracking, "  \n")
    with pytest.raises(UserError, match="has no champion"):
        rollback(NAME, ledger, tracking, "why")
    put(tracking, ledger, "1")
    put(tracking, ledger, "2", before="1")
    with pytest.raises(IntegrityError, match="does not hold the bytes"):
        rollback(NAME, ledger, tracking, "why", models_root=tmp_path / "models")
    assert champion(NAME, ledger).version == "2"  # type: ignore[union-attr]


def test_a_rolled_back_promotion_is_not_repeated_by_its_run(registry: tuple[FakeTracking, Ledger]) -> None:
    """The run that promoted it is resumed later: the roll-back stands."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    second = put(tracking, ledger, "2", before="1")
    rollback(NAME, ledger, tracking, "why")
    promote(second, rollout_report(second), ledger, tracking, "run-2")
    assert champion(NAME, ledger).version == "1"  # type: ignore[union-attr]
    assert tracking.alias(NAME, "champion") == "1"


def test_a_person_promotes_what_the_gate_passed_and_nothing_else(room: Room) -> None:
    """A registered version, once; a refused or unknown one not at all."""
    first = room.register()
    by_hand = promote_by_hand(NAME, "1", room.ledger, room.tracking, "urgent", room.root / "models")
    assert (by_hand.outcome, by_hand.version) == ("promoted", "1")
    assert promote_by_hand(NAME, "1", room.ledger, room.tracking, "urgent").ledger_seq == by_hand.ledger_seq
    assert champion(NAME, room.ledger).digest == first.digest  # type: ignore[union-attr]
    with pytest.raises(UserError, match="not registered"):
        promote_by_hand(NAME, "7", room.ledger, room.tracking, "urgent")
    room.model = publish_signed_model(room.root / "model", room.rows, weight=3.0, run=room.run)
    difference = replace(interval(-0.2), low=-0.25, high=-0.15)
    champion_part = {"champion_version": "1", "champion": {"auc_difference": difference}}
    room.evidence = publish_evidence(room.root / "evidence", room.model, room.rows, **champion_part)
    assert not room.register(run_id="run-2").gate_passed
    with pytest.raises(PolicyRefusal, match=r"was stopped: champion version 1"):
        promote_by_hand(NAME, "2", room.ledger, room.tracking, "urgent")


def test_two_people_cannot_both_decide(registry: tuple[FakeTracking, Ledger]) -> None:
    """A promotion completes between a person's look and the write: refused, nothing changed twice."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    put(tracking, ledger, "2", before="1")
    registered(tracking, "3")
    real = ledger.hold

    def hold(name: str) -> Any:
        ledger.hold = real  # type: ignore[method-assign]
        put(tracking, ledger, "3", before="2")
        return real(name)

    ledger.hold = hold  # type: ignore[method-assign,assignment]
    with pytest.raises(PolicyRefusal, match="changed meanwhile to version 3"):
        rollback(NAME, ledger, tracking, "why")
    assert tracking.alias(NAME, "champion") == "3"


def test_history_tells_what_happened_and_who_was_live(registry: tuple[FakeTracking, Ledger]) -> None:
    """Exactly one version for any moment from the first promotion on, edges included; none before."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    put(tracking, ledger, "2", before="1")
    rollback(NAME, ledger, tracking, "why")
    times = [entry.time for entry in ledger.entries("promotion")]
    for time, version in zip([*times, "2999-01-01"], ["1", "2", "1", "1"], strict=True):
        found = history(NAME, ledger, at=time)
        assert [item["version"] for item in found] == [version]
        assert found[0]["digest"] == digest_of(version)
    with pytest.raises(UserError, match="no version was champion at 2001-01-01"):
        history(NAME, ledger, at="2001-01-01")
    with pytest.raises(UserError, match="write it as"):
        history(NAME, ledger, at="last Tuesday")
    assert history("other", ledger) == []


def test_models_of_other_names_do_not_mix(registry: tuple[FakeTracking, Ledger]) -> None:
    """Each name has a champion of its own."""
    tracking, ledger = registry
    put(tracking, ledger, "1")
    other = version_ref("1", name="other")
    folder = tracking.models / "x"
    folder.mkdir(parents=True)
    tracking.ensure_version("other", other.digest, folder, "", {})
    promote(other, rollout_report(other), ledger, tracking, "run-1")
    assert champion("other", ledger).version == "1"  # type: ignore[union-attr]
    assert len(history("other", ledger)) == len(history(NAME, ledger)) == 1


def test_evidence_with_no_measurement_registers_as_refused(room: Room) -> None:
    """A candidate without numbers is kept with its reason, not promoted, not lost."""
    shutil.rmtree(room.root / "evidence")
    nothing = {name: interval(None) for name in good_evidence().metrics}
    publish_evidence(room.root / "evidence", room.model, room.rows, metrics=nothing)
    version = room.register()
    assert not version.gate_passed
    assert "not measured" in version.reason or "not known" in version.reason
    assert json.loads((room.root / "out" / "record.json").read_text())["gate_passed"] is False


def handed_on(room: Room, **changes: Any) -> tuple[ModelVersionRef, Any]:
    """The record as somebody edited it between register and promote, and a rollout that passed of it."""
    forged = replace(ModelVersionRef.read(room.root / "out"), **changes)
    return forged, rollout_report(forged)


@pytest.mark.parametrize("kept", [True, False])
def test_a_refused_version_is_not_promoted_by_an_edited_record(room: Room, kept: bool) -> None:
    """The record between two steps is a file; what counts is what registration put into the ledger."""
    refused = room.register(recipe=small_recipe(gate={"min_auc": 0.9}))
    assert not refused.gate_passed
    held = tuple(replace(rule, outcome="pass", reason="") for rule in refused.gate)
    forged, report = handed_on(room, gate_passed=True, gate=held, reason="gate passed")
    with pytest.raises(PolicyRefusal, match="the gate did not pass: min_auc"):
        promote(forged, report, room.ledger, room.tracking, "run-1", models_root=room.root / "models" if kept else None)
    assert champion(NAME, room.ledger) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"evidence_digest": "0" * 64},
        {"champion_version": "7", "champion_digest": "7" * 64},
        {"digest": "1" * 64},
        {"gate": ()},
        {"reason": "gate passed: trust me"},
    ],
)
def test_another_record_than_the_registered_one_is_not_promoted(room: Room, changes: dict[str, Any]) -> None:
    """Whatever field differs, it is not what was judged."""
    assert room.register().gate_passed
    forged, report = handed_on(room, **changes)
    with pytest.raises(IntegrityError, match="is not the one that was registered"):
        promote(forged, report, room.ledger, room.tracking, "run-1", models_root=room.root / "models")
    assert champion(NAME, room.ledger) is None


def test_a_version_that_was_never_registered_is_not_promoted(room: Room) -> None:
    """Another number over the files of a refused model."""
    room.register(recipe=small_recipe(gate={"min_auc": 0.9}))
    forged, report = handed_on(room, gate_passed=True, version="2")
    with pytest.raises(IntegrityError, match="no registration"):
        promote(forged, report, room.ledger, room.tracking, "run-1", models_root=room.root / "models")
    assert champion(NAME, room.ledger) is None


def test_evidence_without_a_metric_is_a_refused_version_and_no_orphan(room: Room) -> None:
    """What stands in the registry stands in the ledger; asking again changes nothing."""
    metrics = {name: value for name, value in good_evidence().metrics.items() if name != "auc"}
    publish_evidence(room.root / "evidence", room.model, room.rows, metrics=metrics)
    first = room.register()
    assert not first.gate_passed
    assert room.register(run_id="run-1") == first
    assert [item["version"] for item in room.tracking.versions(NAME)] == ["1"]
    assert [entry.payload["event"] for entry in room.ledger.entries("candidate")] == ["refused"]


@pytest.mark.parametrize("what", ["a better AUC", "fewer rows", "a score of 7", "no predictions", "a row twice"])
def test_evidence_is_computed_once_more_from_its_predictions(room: Room, what: str) -> None:
    """Numbers that were edited and sealed anew are not what the predictions say."""
    frame = predictions_of(room.evidence)
    assert roc_auc_score(frame["label"], frame["score"]) == pytest.approx(0.85, abs=1e-4)
    claimed = room.evidence
    if what == "a better AUC":
        claimed = replace(claimed, metrics=claimed.metrics | {"auc": interval(0.99)})
    elif what == "fewer rows":
        frame = frame.iloc[1:]
    elif what == "a score of 7":
        frame.loc[3, "score"] = 7.0
    elif what == "a row twice":
        frame.loc[3, "row_id"] = "p4"
    with publishing(room.root / "evidence") as staging:
        claimed.write(staging)
        if what != "no predictions":
            frame.to_parquet(staging / "predictions.parquet", index=False)
    with pytest.raises(IntegrityError, match="evaluate again"):
        room.register()
    assert room.tracking.versions(NAME) == []


@pytest.mark.parametrize("what", ["other rows", "a row less", "labels that flatter", "a test split sealed anew"])
def test_the_predictions_are_of_the_test_split_and_of_nothing_else(room: Room, what: str) -> None:
    """Sealed anew with numbers that agree with one another: rows and labels are held against the training set."""
    frame, claimed = predictions_of(room.evidence), room.evidence
    if what == "other rows":
        frame["row_id"] = [f"easy{at}" for at in range(len(frame))]
    elif what == "a row less":
        frame, claimed = frame.iloc[1:], replace(claimed, rows=claimed.rows - 1)
    elif what == "labels that flatter":
        frame["label"] = (frame["score"].rank(ascending=False) <= claimed.positives).astype("int8")
    else:
        test = judged_rows().assign(label=lambda rows: rows["label"].to_numpy()[::-1])
        with publishing(room.root / "rows") as staging:
            for split in ("train", "validation"):
                (staging / f"{split}.parquet").write_bytes((room.root / "rows" / f"{split}.parquet").read_bytes())
            test.to_parquet(staging / "test.parquet", index=False)
            room.rows.write(staging)
        frame["label"] = frame["label"].to_numpy()[::-1]
    auc = roc_auc_score(frame["label"], frame["score"])
    claimed = replace(claimed, metrics=claimed.metrics | {"auc": interval(float(auc), claimed.rows)})
    with publishing(room.root / "evidence") as staging:
        claimed.write(staging)
        frame.to_parquet(staging / "predictions.parquet", index=False)
    named = {
        "other rows": "'easy0' is no row",
        "a row less": "'p0' of the test split is not scored",
        "labels that flatter": "another label",
        "a test split sealed anew": "featurise again",
    }
    with pytest.raises(IntegrityError, match=named[what]):
        room.register()
    assert room.tracking.versions(NAME) == []
    assert room.ledger.entries("candidate") == []
