"""Who made a model is asked before it is registered, before it is served, and on demand; failures 26 and 27."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.models.signing import SIGNATURE_FILE, SignatureError, Signer, key_id, public_key_at, signer_at
from components.registry import models
from components.registry.by_hand import promote_by_hand
from components.registry.champions import champion
from components.registry.component import promote as promote_step
from components.registry.decision_signature import check_decision, signer_of_decision, told_signature
from components.registry.promote import promote
from components.registry.register import Place, register
from components.registry.trust import check_before_serving, pin_first, trust, trusted_keys, withdraw
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    judged_rows,
    ledger_of,
    publish_evidence,
    publish_training_set,
    rollout_report,
    small_recipe,
)
from tests.fakes.ledger_places import change
from tests.fakes.registering import (
    folders,
    public_key,
    publish_signed_model,
    publish_verdicts,
    register_in,
    sign_published,
    signer,
)
from tests.fakes.serving_case import open_fake


class Candidate:
    """A signed model with all that a registration needs, in a home of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, Home.at(root)
        self.ledger, self.tracking = Ledger(self.home.ledger_url), FakeTracking(root / "models")
        self.rows = publish_training_set(root / "rows", rows=60, test=judged_rows())
        self.model = publish_signed_model(root / "model", self.rows)
        publish_verdicts(root, self.rows)
        publish_evidence(root / "evidence", self.model, self.rows)

    def register(self, run_id: str = "run-1") -> Any:
        """Register it."""
        return register_in(self.root, small_recipe(), self.tracking, self.ledger, run_id, signer=signer())

    def nothing_registered(self) -> bool:
        """No version, no candidate in the ledger, nothing kept."""
        kept = list((self.root / "models").glob("[!.]*")) if (self.root / "models").exists() else []
        return self.tracking.versions("triage") == [] and self.ledger.entries("candidate") == [] and kept == []


@pytest.fixture
def candidate(tmp_path: Path) -> Candidate:
    """A candidate that the gate would pass."""
    return Candidate(tmp_path)


def reseal(folder: Path, change: Any) -> None:
    """Change a published folder and publish it again, as one who holds the volume can."""
    from components.core.publish import MANIFEST, publishing

    kept = folder.with_name("kept-aside")
    shutil.copytree(folder, kept)
    with publishing(folder) as staging:
        shutil.copytree(kept, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        change(staging)
    shutil.rmtree(kept)


def test_an_unsigned_model_is_refused_by_the_rule_that_names_it(candidate: Candidate) -> None:
    """Everything else passes; it gets a version with the reason, no alias, and no signature is invented for it."""
    reseal(candidate.root / "model", lambda staging: (staging / SIGNATURE_FILE).unlink())
    version = candidate.register()
    assert not version.gate_passed
    assert [rule.rule for rule in version.gate if rule.outcome not in ("pass", "info")] == ["signature"]
    assert version.reason == "signature: the model has no signature"
    assert candidate.tracking.alias("triage", "challenger") is None
    assert not (candidate.root / "models" / version.digest / SIGNATURE_FILE).exists()


def test_a_signed_model_is_kept_with_its_signature(candidate: Candidate) -> None:
    """Registered, and the key's id is on the version and in the ledger."""
    version = candidate.register()
    assert version.gate_passed
    (row,) = [rule for rule in version.gate if rule.rule == "signature"]
    signed_by = candidate.tracking.versions("triage")[0]["tags"]["pilotline.signed_by"]
    assert row.observed == f"by key {signed_by[:12]}"
    assert candidate.ledger.entries("candidate")[0].payload["signed_by"] == signed_by
    check_before_serving(candidate.home.ledger_url)(candidate.root / "models" / version.digest / "model")


@pytest.mark.parametrize("how", ["altered", "unreadable", "another key"])
def test_a_signature_that_does_not_hold_is_named_and_nothing_is_registered(candidate: Candidate, how: str) -> None:
    """Whole by its manifest, resealed by who holds the volume, and still refused."""
    if how == "another key":
        candidate.register("run-0")  # pins the key
        candidate.tracking, candidate.ledger = FakeTracking(candidate.root / "none"), candidate.ledger
        sign_published(candidate.root / "model", Home.at(candidate.root / "stranger"))
    elif how == "altered":
        other = publish_signed_model(candidate.root / "other", candidate.rows, weight=2.0)
        assert other.digest != candidate.model.digest
        signature = (candidate.root / "other" / SIGNATURE_FILE).read_bytes()
        reseal(candidate.root / "model", lambda staging: (staging / SIGNATURE_FILE).write_bytes(signature))
    else:
        reseal(candidate.root / "model", lambda staging: (staging / SIGNATURE_FILE).write_bytes(b"{}"))
    with pytest.raises(SignatureError) as refused:
        candidate.register()
    assert refused.value.state == how
    assert candidate.tracking.versions("triage") == []
    assert not (candidate.root / "out").exists() or how == "another key"


def test_the_first_key_is_pinned_and_another_one_does_not_replace_it(candidate: Candidate) -> None:
    """Trust on first use, in the ledger: neither a later home nor a later model changes it by itself."""
    other = public_key_at(Home.at(candidate.root / "other"), {})
    assert pin_first(candidate.ledger, public_key()) == [public_key()]
    assert pin_first(candidate.ledger, other) == [public_key()]
    assert len(candidate.ledger.entries("signing_key")) == 1


def test_who_pins_at_once_agrees_on_one_key(tmp_path: Path) -> None:
    """The second of two writers that both saw no key finds the first one's."""
    first, second = ledger_of(tmp_path), ledger_of(tmp_path)
    mine, theirs = (public_key_at(Home.at(tmp_path / name), {}) for name in ("mine", "theirs"))
    entries = second.entries
    second.entries = lambda kind=None: (pin_first(first, mine), [])[1] if not first.entries(kind) else entries(kind)  # type: ignore[method-assign]
    assert pin_first(second, theirs) == [mine]


def test_a_change_of_keys_is_a_decision_with_a_reason(candidate: Candidate) -> None:
    """A second key counts beside the first; withdrawn, what only it signed is served no more; each is an entry."""
    version = candidate.register()
    kept = candidate.root / "models" / version.digest / "model"
    stranger = Home.at(candidate.root / "stranger")
    key = public_key_at(stranger, {})
    with pytest.raises(UserError, match="say why"):
        trust(candidate.ledger, key, "  ")
    with pytest.raises(UserError, match="not trusted"):
        withdraw(candidate.ledger, key, "never was")
    trust(candidate.ledger, key, "the key of the new build machine")
    trust(candidate.ledger, key, "said twice")
    assert trusted_keys(candidate.ledger) == [public_key(), key]
    sign_published(candidate.root / "model", stranger)
    assert candidate.register("run-2").gate_passed
    withdraw(candidate.ledger, public_key(), "lost")
    with pytest.raises(SignatureError, match="signed with key"):
        check_before_serving(candidate.home.ledger_url)(kept)
    assert [entry.payload["event"] for entry in candidate.ledger.entries("signing_key")] == [
        "trusted",
        "trusted",
        "withdrawn",
    ]
    trust(candidate.ledger, public_key(), "found again")
    check_before_serving(candidate.home.ledger_url)(kept)


def test_a_damaged_kept_signature_is_put_back_by_registering_again(candidate: Candidate) -> None:
    """From the model that training published; the version stays the same one."""
    version = candidate.register()
    folder = candidate.root / "models" / version.digest
    for damage in (lambda: (folder / SIGNATURE_FILE).unlink(), lambda: (folder / SIGNATURE_FILE).write_text("{}")):
        damage()
        with pytest.raises(IntegrityError):
            check_before_serving(candidate.home.ledger_url)(folder / "model")
        assert candidate.register(f"again-{folder.stat().st_ino}").version == version.version
        check_before_serving(candidate.home.ledger_url)(folder / "model")


@pytest.mark.parametrize("what", ["bytes", "signature", "unsigned", "another key"])
def test_no_server_is_started_on_a_model_whose_signature_does_not_hold(candidate: Candidate, what: str) -> None:
    """The stack asks before it starts a process: swap one byte, or the signature, after registration."""
    version = candidate.register()
    folder = candidate.root / "models" / version.digest
    if what == "bytes":
        path = folder / "model" / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    elif what == "signature":
        (folder / SIGNATURE_FILE).write_text("{}")
    elif what == "unsigned":
        (folder / SIGNATURE_FILE).unlink()
    check = check_before_serving(candidate.home.ledger_url)
    if what == "another key":
        check = check_before_serving(ledger_of_another(candidate.root))
    with open_fake(candidate.root / "serving") as stack:
        stack._check = check
        with pytest.raises(SignatureError):
            stack.start("stable", folder / "model", version.version, version.digest)
        assert not stack.alive("stable")


def ledger_of_another(root: Path) -> str:
    """A ledger that trusts a key of its own."""
    place = root / "another"
    with closing(ledger_of(place)) as ledger:
        pin_first(ledger, public_key_at(Home.at(place), {}))
    return f"sqlite:///{place / 'ledger.db'}"


def test_the_wiring_hands_the_check_to_the_stack(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pilotline run` opens serves nothing unsigned."""
    from components.core.steps import StepRun
    from pipelines import wiring

    seen: dict[str, Any] = {}

    class Opened:
        def __init__(self, **options: Any) -> None:
            seen.update(options)

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *error: object) -> None:
            return None

    monkeypatch.setattr("components.serving.stack.LocalStack", Opened)
    monkeypatch.setattr("pipelines.preflight.check_rollout", lambda *about: None)
    version = candidate.register()
    step = StepRun("rollout", candidate.home, "run-1", small_recipe())
    with wiring.open_stack(step, "reference", candidate.root / "rows"):
        kept = candidate.root / "models" / version.digest
        seen["check"](kept / "model")
        (kept / SIGNATURE_FILE).unlink()
        with pytest.raises(SignatureError):
            seen["check"](kept / "model")


def test_models_verify_asks_for_the_signature_and_the_papers(candidate: Candidate, monkeypatch: Any) -> None:
    """On demand: signed by which key; then each of signature and card damaged, named."""
    monkeypatch.setattr("components.tracking.mlflow_tracking.Tracking.at", lambda home: candidate.tracking)
    version = candidate.register()
    said = models.verify(candidate.home, "triage", "1")
    assert any(text.startswith("signed by key ") for text in said["checks"])
    signature = candidate.root / "models" / version.digest / SIGNATURE_FILE
    kept = signature.read_bytes()
    signature.write_bytes(b"{}")
    with pytest.raises(SignatureError):
        models.verify(candidate.home, "triage", "1")
    signature.write_bytes(kept)
    card = candidate.root / "versions" / "triage" / "1" / "card.html"
    card.write_text(card.read_text().replace("0.850", "0.990"))
    with pytest.raises(IntegrityError, match=r"card\.html"):
        models.verify(candidate.home, "triage", "1")
    with pytest.raises(IntegrityError, match=r"card\.html"):
        models.card(candidate.home, "triage", "1")


def test_failure26_a_model_with_code_in_it_is_not_registered_and_nothing_runs(candidate: Candidate) -> None:
    """A pickle that would leave a mark, sealed into the published folder."""
    import os
    import pickle

    mark = candidate.root / "exploded"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(mark),)

    def plant(staging: Path) -> None:
        (staging / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))

    reseal(candidate.root / "model", plant)
    with pytest.raises(IntegrityError, match=r"pytorch_model\.bin"):
        candidate.register()
    assert candidate.nothing_registered()
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../escaped", "a/b", "/etc/x", "%2e%2e", "a\nb", ".hidden", "tri\u0430ge", ""])
def test_failure27_a_name_that_is_no_plain_one_is_refused_before_anything_is_written(
    candidate: Candidate, name: str
) -> None:
    """As the model's name and as the run's id."""
    before = sorted(path.relative_to(candidate.root) for path in candidate.root.rglob("*"))
    odd = small_recipe()
    odd = odd.model_copy(update={"model": odd.model.model_copy(update={"name": name})})
    place = Place(candidate.tracking, candidate.ledger, candidate.root / "models", "")
    with pytest.raises(UserError, match="model name"):
        register(odd, folders(candidate.root), candidate.root / "out", place, "run-1", "code")
    with pytest.raises(UserError, match="run id"):
        register(small_recipe(), folders(candidate.root), candidate.root / "out", place, name, "code")
    assert candidate.nothing_registered()
    assert sorted(path.relative_to(candidate.root) for path in candidate.root.rglob("*")) == before


def rewritten(candidate: Candidate, kind: str, change: Any) -> None:
    """The ledger with its entries of a kind altered and the whole chain sealed anew, as its owner can."""
    old, place = candidate.ledger.entries(), candidate.root / "ledger.db"
    candidate.ledger.close()
    place.unlink()
    candidate.ledger = Ledger(candidate.home.ledger_url)
    for entry in old:
        candidate.ledger.append(entry.kind, entry.key, change(entry.payload) if entry.kind == kind else entry.payload)


@pytest.mark.parametrize("how", ["made to pass", "signature left away", "another's signature"])
def test_a_decision_of_the_gate_that_was_written_anew_is_not_promoted(candidate: Candidate, how: str) -> None:
    """Refused by the gate, then turned in the ledger with the chain sealed anew: the key's owner never said so."""
    candidate.register("run-0")  # a signed one before it
    strict = small_recipe(gate={"min_auc": 0.95})
    refused = register_in(candidate.root, strict, candidate.tracking, candidate.ledger, "run-1", signer=signer())
    assert not refused.gate_passed
    forged = replace(refused, gate_passed=True, reason="gate passed")

    def turn(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["version"] != refused.version:
            return payload
        made = payload | {"event": "registered", "record": forged.to_dict(), "reason": forged.reason}
        if how == "signature left away":
            made.pop("decision_signature")
        elif how == "another's signature":
            made["decision_signature"] = Signer.at(Home.at(candidate.root / "stranger"), {}).sign_text("anything")
        return made

    rewritten(candidate, "candidate", turn)
    assert candidate.ledger.verify() == len(candidate.ledger.entries())
    words = "is unsigned" if how == "signature left away" else "not as it was signed"
    with pytest.raises(IntegrityError, match=words):
        promote(
            forged, rollout_report(forged), candidate.ledger, candidate.tracking, "run-1",
            models_root=candidate.root / "models",
        )  # fmt: skip
    with pytest.raises(IntegrityError, match=words):
        promote_by_hand("triage", refused.version, candidate.ledger, candidate.tracking, "because")
    assert champion("triage", candidate.ledger) is None


def test_a_signed_decision_is_promoted_also_after_its_key_was_followed_by_another(candidate: Candidate) -> None:
    """Signed by the key of then, judged by all that count; withdrawn, the key's decisions count no longer."""
    version = candidate.register()
    entry = candidate.ledger.entries("candidate")[0]
    assert signer_of_decision(entry.payload, trusted_keys(candidate.ledger)) == key_id(public_key())
    trust(candidate.ledger, public_key_at(Home.at(candidate.root / "next"), {}), "a new key")
    ended = promote(version, rollout_report(version), candidate.ledger, candidate.tracking, "run-1")
    assert ended.outcome == "promoted"
    withdraw(candidate.ledger, public_key(), "lost")
    with pytest.raises(IntegrityError, match="not as it was signed: signed with key"):
        check_decision("triage", version.version, candidate.ledger)


def test_where_no_trusted_key_is_at_hand_a_decision_is_unsigned_and_said_to_be(candidate: Candidate) -> None:
    """No signer, and one whose key does not count; both are promoted where nobody ever signed."""
    version = register_in(candidate.root, small_recipe(), candidate.tracking, candidate.ledger, "run-1", signer=None)
    stranger = Signer.at(Home.at(candidate.root / "stranger"), {})
    register_in(candidate.root, small_recipe(), candidate.tracking, candidate.ledger, "run-2", signer=stranger)
    trusted = trusted_keys(candidate.ledger)
    told = [told_signature(entry.payload, trusted) for entry in candidate.ledger.entries("candidate")]
    assert told == ["unsigned", "unsigned"]
    ended = promote(version, rollout_report(version), candidate.ledger, candidate.tracking, "run-1")
    assert ended.outcome == "promoted"


def test_a_place_that_only_verifies_has_no_signer(tmp_path: Path) -> None:
    """Nor makes a key: by the environment's public key, and in a home that has no pair yet."""
    home = Home.at(tmp_path / "home")
    assert signer_at(home, {}) is None
    assert not home.keys.exists()
    public_key_at(home, {})  # makes the pair
    assert signer_at(home, {}) == Signer.at(home, {})
    assert signer_at(home, {"PILOTLINE_VERIFYING_KEY": "key.pub"}) is None


def test_the_step_verifies_the_chain_before_it_promotes(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that was altered behind the ledger's back decides nothing; mended, the same step promotes."""
    version = candidate.register()
    report = candidate.root / "report"
    with publishing(report) as staging:
        rollout_report(version).write(staging)
    monkeypatch.setattr("components.tracking.mlflow_tracking.Tracking.at", lambda home: candidate.tracking)
    given = {"version": dsl.Artifact(uri=str(candidate.root / "out")), "report": dsl.Artifact(uri=str(report))}

    def step() -> str:
        return str(promote_step.python_func(str(candidate.root), "run-1", small_recipe().to_json(), "code", **given))

    change(
        candidate.home.ledger_url, "update ledger set payload=replace(payload, 'first use', 'first usE') where seq=1"
    )
    with pytest.raises(IntegrityError, match=r"entry 1 \(signing_key .* was altered"):
        step()
    assert champion("triage", candidate.ledger) is None
    change(
        candidate.home.ledger_url, "update ledger set payload=replace(payload, 'first usE', 'first use') where seq=1"
    )
    assert step() == "promoted"
