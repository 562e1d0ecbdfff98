"""Files and signature are looked at again in the last step before users: at the promotion, an approval, a roll-back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import IntegrityError
from components.core.ledger import Ledger
from components.core.people import Person, Policy
from components.core.records import ModelVersionRef
from components.models.signing import SIGNATURE_FILE, SignatureError
from components.registry.approvals import approve, follow_up
from components.registry.by_hand import promote_by_hand, rollback
from components.registry.champions import champion
from components.registry.promote import promote
from components.registry.trust import withdraw
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    judged_rows,
    ledger_of,
    publish_evidence,
    publish_training_set,
    rollout_report,
    small_recipe,
)
from tests.fakes.registering import public_key, publish_signed_model, publish_verdicts, register_in

NAME = "triage"


class Place:
    """A signed version, registered, not in front yet."""

    def __init__(self, root: Path) -> None:
        self.root, self.models = root, root / "models"
        self.tracking, self.ledger = FakeTracking(self.models), ledger_of(root)
        run = self.tracking.start(NAME, "run", "k1", {}, {})
        rows = publish_training_set(root / "rows", rows=60, test=judged_rows())
        model = publish_signed_model(root / "model", rows, run=run)
        publish_verdicts(root, rows)
        publish_evidence(root / "evidence", model, rows)
        self.version: ModelVersionRef = register_in(root, small_recipe(), self.tracking, self.ledger)

    @property
    def kept(self) -> Path:
        """What is kept of the model."""
        return self.models / self.version.digest

    def promote(self, policy: Policy | None = None) -> str:
        """The run's promotion."""
        report = rollout_report(self.version)
        return promote(
            self.version, report, self.ledger, self.tracking, "run-1", policy=policy, requesters=("ana",),
            models_root=self.models,
        ).outcome  # fmt: skip

    def approve(self) -> str:
        """Somebody else's word."""
        bob = Person("bob", "--as", "tester")
        return approve(NAME, self.version.version, bob, "fine", self.ledger, self.tracking, self.models)[0].outcome


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place of the test's own."""
    return Place(tmp_path)


def flip(place: Place) -> None:
    """One bit of the weights."""
    weights = place.kept / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))


def unsign(place: Place) -> None:
    """The signature is gone."""
    (place.kept / SIGNATURE_FILE).unlink()


def distrust(place: Place) -> None:
    """The key that signed counts no longer."""
    withdraw(place.ledger, public_key(), "lost")


def add_pickle(place: Place) -> None:
    """A file of another kind."""
    (place.kept / "model" / "extra.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


DAMAGES: list[tuple[Callable[[Place], None], type[Exception]]] = [
    (flip, IntegrityError), (unsign, SignatureError), (distrust, SignatureError), (add_pickle, IntegrityError),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_between_rollout_and_promotion(place: Place, damage: Callable[[Place], None], error: type[Exception]) -> None:
    """Refused, and nobody is champion; without the damage the same call promotes."""
    damage(place)
    with pytest.raises(error):
        place.promote()
    assert champion(NAME, place.ledger) is None
    assert place.tracking.alias(NAME, "champion") is None


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_between_request_and_approval(place: Place, damage: Callable[[Place], None], error: type[Exception]) -> None:
    """No word counts for files that are not those that were judged."""
    assert place.promote(Policy(required=1)) == "awaiting_approval"
    damage(place)
    with pytest.raises(error):
        place.approve()
    assert champion(NAME, place.ledger) is None
    assert [entry.payload["event"] for entry in place.ledger.entries("approval")] == ["requested"]


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_between_the_last_approval_and_the_promotion_that_a_kill_left_out(
    place: Place, damage: Callable[[Place], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that is asked again looks at the files as they are now; nothing else would."""
    assert place.promote(Policy(required=1)) == "awaiting_approval"
    seq = place.ledger.entries("approval")[0].seq
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("components.registry.approvals.proceed", _die)
        place.approve()
    damage(place)
    with pytest.raises(error):
        follow_up(seq, place.ledger, place.tracking, place.models)
    with pytest.raises(error):
        place.promote(Policy(required=1))
    assert champion(NAME, place.ledger) is None
    assert place.tracking.alias(NAME, "champion") is None


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_before_a_promotion_by_hand_and_a_roll_back(
    place: Place, damage: Callable[[Place], None], error: type[Exception]
) -> None:
    """The target of either is looked at."""
    assert place.promote() == "promoted"
    other = place.version.__class__.from_dict(
        place.version.to_dict() | {"version": "2", "digest": "2" * 64, "champion_version": "1"}
        | {"champion_digest": place.version.digest}
    )  # fmt: skip
    place.tracking.ensure_version(NAME, other.digest, place.kept, "", {"pilotline.key": "2"})
    promote(other, rollout_report(other), place.ledger, place.tracking, "run-2")
    damage(place)
    with pytest.raises(error):
        rollback(NAME, place.ledger, place.tracking, "why", place.models)
    with pytest.raises(error):
        promote_by_hand(NAME, "1", place.ledger, place.tracking, "why", place.models)
    assert champion(NAME, place.ledger).version == "2"  # type: ignore[union-attr]


def test_undamaged_all_of_them_go_through(place: Place) -> None:
    """The damages above are the reason, and nothing else."""
    ledger: Ledger = place.ledger
    assert place.promote(Policy(required=1)) == "awaiting_approval"
    assert place.approve() == "promoted"
    assert champion(NAME, ledger).version == "1"  # type: ignore[union-attr]
    ledger.verify()
