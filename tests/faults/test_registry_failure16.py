"""Failure 16: a registry that is down, slow, answers 500, or drops the connection after it committed.

A bounded failure that says so; no duplicate version; what is served stays untouched; safe to run again.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import TransientError
from components.core.ledger import Ledger
from components.registry.champions import champion
from components.registry.promote import promote
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.judged import (
    judged_rows,
    ledger_of,
    publish_evidence,
    publish_training_set,
    rollout_report,
    small_recipe,
)
from tests.fakes.mlflow_http import MlflowHttp
from tests.fakes.registering import publish_signed_model, publish_verdicts, register_in

BOUND_SECONDS = 30.0
CALLS = ["model-versions/search", "registered-models/create", "model-versions/create", "registered-models/alias"]


class Place:
    """A candidate and a registry behind HTTP."""

    def __init__(self, root: Path, server: MlflowHttp) -> None:
        self.root, self.server, self.ledger = root, server, ledger_of(root)
        rows = publish_training_set(root / "rows", rows=30, test=judged_rows())
        publish_evidence(root / "evidence", publish_signed_model(root / "model", rows), rows)
        publish_verdicts(root, rows)
        self.served: dict[str, bytes] = {}

    def register(self) -> Any:
        """As a new process would: with an adapter of its own."""
        tracking = Tracking(self.server.url, self.root / "mlartifacts", self.root / "models")
        return register_in(self.root, small_recipe(), tracking, self.ledger)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that works, until a fault is planted; a call waits a second at most."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with MlflowHttp() as server:
        yield Place(tmp_path, server)


def refused(place: Place) -> str:
    """Registering fails in time, in one line; what it says."""
    started = time.monotonic()
    with pytest.raises(TransientError, match="does not answer as it should") as failed:
        place.register()
    assert time.monotonic() - started < BOUND_SECONDS
    assert "\n" not in str(failed.value)
    assert place.ledger.entries("candidate") == []
    return str(failed.value)


def completes(place: Place) -> None:
    """The same call again: one version, one entry, the alias in place."""
    version = place.register()
    assert version.version == "1"
    assert len(place.server.versions) == 1
    assert len(place.ledger.entries("candidate")) == 1
    assert place.server.models["triage"] == {"challenger": "1"}
    assert place.register() == version
    assert len(place.server.versions) == 1


def test_a_registry_that_works_needs_no_second_call(place: Place) -> None:
    """The double itself: one creation, one alias."""
    completes(place)
    assert place.server.count("model-versions/create") == 1


@pytest.mark.parametrize("fault", ["500", "slow", "refuse"])
@pytest.mark.parametrize("call", CALLS)
def test_failure16_a_broken_call_fails_in_time_and_completes_when_run_again(
    place: Place, call: str, fault: str
) -> None:
    """At each call of a registration: nothing half done counts, and the second run ends as one undisturbed run."""
    place.server.faults[call] = (fault, 99)
    said = refused(place)
    assert "run again" in said
    assert len(place.server.versions) <= 1
    place.server.faults.clear()
    completes(place)


@pytest.mark.parametrize("call", ["registered-models/create", "model-versions/create", "registered-models/alias"])
def test_failure16_a_connection_dropped_after_the_commit_makes_no_second_version(place: Place, call: str) -> None:
    """The work was done, the answer was lost: it is read back, never done twice."""
    place.server.faults[call] = ("drop", 1)
    completes(place)
    assert place.server.count("model-versions/create") == 1


@pytest.mark.parametrize("call", ["model-versions/create", "registered-models/alias"])
def test_failure16_dropped_every_time_still_makes_one_version(place: Place, call: str) -> None:
    """A network that never brings an answer of a write back."""
    place.server.faults[call] = ("drop", 99)
    if call == "model-versions/create":
        completes(place)  # each read-back finds it
        return
    refused(place)
    place.server.faults.clear()
    completes(place)


def test_failure16_a_read_that_fails_once_is_asked_again(place: Place) -> None:
    """A single lost answer of a read stops nobody."""
    place.server.faults["model-versions/search"] = ("drop", 1)
    place.server.faults["registered-models/search"] = ("500", 1)
    completes(place)


def test_failure16_a_registry_that_is_down_is_said_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens; the ledger's champion stays who it was."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = MlflowHttp.__new__(MlflowHttp)
        monkeypatch.setattr(MlflowHttp, "url", f"http://127.0.0.1:{free.getsockname()[1]}")
        place = Place(tmp_path, server)
        refused(place)


def test_failure16_what_is_served_is_untouched_by_a_registry_that_breaks(place: Place) -> None:
    """A champion is in front; the next candidate meets a broken registry: ledger and the champion's files stay."""
    first = place.register()
    with closing(Ledger(f"sqlite:///{place.root / 'ledger.db'}")) as ledger:
        tracking = Tracking(place.server.url, place.root / "mlartifacts", place.root / "models")
        promote(first, rollout_report(first), ledger, tracking, "run-1")
    folder = place.root / "models" / first.digest
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    entries = place.ledger.entries()
    rows = publish_training_set(place.root / "rows", rows=30, test=judged_rows())
    other = publish_signed_model(place.root / "model", rows, weight=2.0)
    champion_part = {"champion_version": "1", "champion": {}}
    publish_evidence(place.root / "evidence", other, rows, **champion_part)
    place.server.faults[""] = ("500", 999)
    with pytest.raises(TransientError):
        place.register()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert place.ledger.entries() == entries
    assert champion("triage", place.ledger).version == "1"  # type: ignore[union-attr]
    assert place.server.models["triage"]["champion"] == "1"
