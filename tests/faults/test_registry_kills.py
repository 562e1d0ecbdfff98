"""Registration and promotion killed before and after every effect, then run again: the same end, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import TransientError
from components.core.publish import is_whole
from components.core.records import ModelVersionRef
from components.registry import register as module
from components.registry.aliases import ANCHOR
from components.registry.history import history
from components.registry.promote import promote
from components.registry.store import is_kept
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    judged_rows,
    ledger_of,
    publish_evidence,
    publish_training_set,
    registered,
    rollout_report,
    small_recipe,
)
from tests.fakes.registering import publish_signed_model, publish_verdicts, register_in

NAME = "triage"
EFFECTS = {
    "ensure_version",
    "log_artifacts",
    "set_tags",
    "set_alias",
    "delete_alias",
    "append",
    "keep_model",
    "_publish",
}
EFFECT_COUNT = 12  # of one registration and one promotion


class Killed(BaseException):
    """The process dies here."""


class Death:
    """Counts effects and kills before the n-th where n is even, after it where n is odd; -1 never."""

    def __init__(self, moment: int) -> None:
        self.moment, self.seen = moment, 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, deadly at the moment."""

        def effect(*args: Any, **kwargs: Any) -> Any:
            at, self.seen = self.seen, self.seen + 1
            if self.moment == 2 * at:
                raise Killed
            done = call(*args, **kwargs)
            if self.moment == 2 * at + 1:
                raise Killed
            return done

        return effect


class Deadly:
    """An object whose effects can kill."""

    def __init__(self, inner: Any, death: Death) -> None:
        self._inner, self._death = inner, death

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._death.wrap(found) if name in EFFECTS else found


def timeless(tags: dict[str, str]) -> dict[str, str]:
    """Tags without the hash of the promotion's entry, which covers its time; the entry's number stays."""
    return tags | {name: value.partition(":")[0] for name, value in tags.items() if name == ANCHOR}


class Place:
    """Inputs, a fake registry and a ledger."""

    def __init__(self, root: Path) -> None:
        self.root, self.tracking, self.ledger = root, FakeTracking(root / "models"), ledger_of(root)
        run = self.tracking.start("triage", "run", "k", {}, {})
        rows = publish_training_set(root / "rows", rows=30, test=judged_rows())
        publish_evidence(root / "evidence", publish_signed_model(root / "model", rows, run=run), rows)
        publish_verdicts(root, rows)

    def chain(self, death: Death, monkeypatch: pytest.MonkeyPatch) -> ModelVersionRef:
        """Register and promote, with one count of effects over both."""
        tracking: Any = Deadly(self.tracking, death)
        ledger: Any = Deadly(self.ledger, death)
        with monkeypatch.context() as patched:
            for name in ("keep_model", "_papers", "_publish"):
                patched.setattr(module, name, death.wrap(getattr(module, name)))
            version = register_in(self.root, small_recipe(), tracking, ledger)
        promote(version, rollout_report(version), ledger, tracking, "run-1")
        return version

    def kept(self) -> list[Path]:
        """The models that have a name."""
        return sorted((self.root / "models").glob("[!.]*"))

    def state(self) -> dict[str, Any]:
        """Everything that is left behind, times aside."""
        return {
            "versions": [
                (v["version"], v["digest"], timeless(v["tags"]), v["aliases"]) for v in self.tracking.versions(NAME)
            ],
            "ledger": [(entry.seq, entry.kind, entry.key, entry.payload) for entry in self.ledger.entries()],
            "story": [(item["version"], item["event"]) for item in history(NAME, self.ledger)],
            "files": {name: sorted(run["files"]) for name, run in self.tracking.runs.items()},
            "out": is_whole(self.root / "out"),
            "papers": {path.name: is_whole(path) for path in (self.root / "versions" / NAME).glob("[!.]*")},
            "kept": {path.name: is_kept(path / "model", path.name) for path in self.kept()},
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    """The end state without a kill, and how many effects it takes."""
    place, death = Place(tmp_path_factory.mktemp("calm")), Death(-1)
    place.chain(death, pytest.MonkeyPatch())
    state = place.state()
    assert [version[3] for version in state["versions"]] == [["champion"]]
    assert [entry[1] for entry in state["ledger"]] == ["signing_key", "candidate", "promotion"]
    return state, death.seen


@pytest.mark.parametrize("moment", range(2 * EFFECT_COUNT))
def test_killed_anywhere_and_run_again_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: tuple[dict[str, Any], int], moment: int
) -> None:
    """Before or after any effect of registration or promotion: one version, one entry each, aliases in place."""
    expected, effects = undisturbed
    assert effects == EFFECT_COUNT  # else some kill is not tried
    place = Place(tmp_path)
    with pytest.raises(Killed):
        place.chain(Death(moment), monkeypatch)
    place.chain(Death(-1), monkeypatch)
    assert place.state() == expected
    place.ledger.verify()


def test_killed_while_copying_leaves_no_half_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept model gets its name only when it is whole."""
    place = Place(tmp_path)

    def half(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        (target / "model.safetensors").write_bytes(b"ha")
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("components.registry.store.shutil.copytree", half)
        with pytest.raises(Killed):
            place.chain(Death(-1), monkeypatch)
    assert place.kept() == []
    place.chain(Death(-1), monkeypatch)
    assert all(place.state()["kept"].values())


def test_a_dead_registry_fails_in_words_and_leaves_serving_alone(tmp_path: Path) -> None:
    """No ledger entry without its version, no published folder; it comes back and the same call completes."""
    place = Place(tmp_path)
    place.tracking.down = True
    with pytest.raises(TransientError, match="does not answer"):
        register_in(tmp_path, small_recipe(), place.tracking, place.ledger)
    assert place.ledger.entries("candidate") == []
    assert not (tmp_path / "out").exists()
    place.tracking.down = False
    assert register_in(tmp_path, small_recipe(), place.tracking, place.ledger).version == "1"


def test_a_registry_that_dies_after_the_decision_does_not_undo_it(tmp_path: Path) -> None:
    """The ledger has decided; the alias follows when the registry is back, without a second entry."""
    tracking, ledger = FakeTracking(tmp_path / "models"), ledger_of(tmp_path)
    version = registered(tracking, "1")
    tracking.down = True
    with pytest.raises(TransientError):
        promote(version, rollout_report(version), ledger, tracking, "run-1")
    tracking.down = False
    assert tracking.alias(NAME, "champion") is None
    promote(version, rollout_report(version), ledger, tracking, "run-1")
    assert tracking.alias(NAME, "champion") == "1"
    assert len(ledger.entries()) == 1
