"""A project with another layout runs to promotion with contract, feature repository and recipe alone.

Its run is also the undisturbed one against which a run is compared that was killed in every step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components.core.ledger import Ledger
from components.training import speed
from tests.e2e.chain import killed_when, none_left, pilotline, records
from tests.second_project.tickets import write_tickets

STEPS = ["ingest", "validate", "featurise", "guard", "train", "evaluate", "register", "rollout", "promote"]
RECIPE = "tests/second_project/recipe.toml"


@dataclass(frozen=True)
class Done:
    """A finished run: its home, exit status, JSON and arguments."""

    home: Path
    code: int
    told: dict[str, Any]
    argv: tuple[str, ...]
    err: str


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run to promotion with the reference engine."""
    folder = tmp_path_factory.mktemp("tickets")
    source = write_tickets(folder / "tickets.jsonl")
    argv = ("run", "--recipe", RECIPE, "--source", str(source), "--engine", "reference")
    code, told, err = pilotline(*argv, home=folder / "home")
    return Done(folder / "home", code, told, argv, err)


def test_it_is_promoted(undisturbed: Done) -> None:
    """Exit 0, a model version, metrics above chance, and a report."""
    assert (undisturbed.code, undisturbed.told.get("outcome")) == (0, "promoted"), undisturbed.err
    assert undisturbed.told["snapshot"]["rows"] == 4000
    assert undisturbed.told["metrics"]["test_auc"] > 0.65
    assert undisturbed.told["engine"].startswith("reference")
    assert [step["name"] for step in undisturbed.told["steps"]] == STEPS
    assert "Promoted" in Path(undisturbed.told["report"]).read_text()
    assert none_left(undisturbed.home)


def test_one_digest_from_training_to_serving(undisturbed: Done) -> None:
    """What is trained is what is evaluated, registered, served and promoted."""
    kept = records(undisturbed.home, undisturbed.told["run_id"])
    digests = {
        kept["train"]["digest"],
        kept["evaluate"]["model_digest"],
        kept["register"]["digest"],
        kept["rollout"]["candidate_digest"],
        kept["promote"]["digest"],
    }
    assert digests == {undisturbed.told["model"]["digest"]}
    assert kept["validate"]["snapshot_digest"] == kept["ingest"]["digest"] == kept["featurise"]["snapshot_digest"]
    assert kept["guard"]["training_set_digest"] == kept["featurise"]["digest"]
    assert kept["evaluate"]["training_set_digest"] == kept["train"]["training_set_digest"]


def test_the_same_run_again_returns_the_stored_outcome(undisturbed: Done) -> None:
    """No step runs twice for the same snapshot, recipe and code."""
    notes = {path: path.stat().st_mtime_ns for path in (undisturbed.home / "runs").rglob("steps/*.json")}
    code, told, _ = pilotline(*undisturbed.argv, home=undisturbed.home)
    assert (code, told) == (undisturbed.code, undisturbed.told)
    assert notes == {path: path.stat().st_mtime_ns for path in (undisturbed.home / "runs").rglob("steps/*.json")}


def test_a_run_killed_in_every_step_ends_like_an_undisturbed_one(undisturbed: Done, tmp_path: Path) -> None:
    """SIGKILL in each step in turn; each start resumes; digests, versions and verdicts are those of the quiet run."""
    home = tmp_path / "home"
    run_id = undisturbed.told["run_id"]
    for step in STEPS:
        note = home / "runs" / run_id / "steps" / f"{step}.json"
        assert killed_when(note.exists, *undisturbed.argv, home=home), f"ended before {step} began"
        assert none_left(home), f"processes left after the kill in {step}"
        if step == "train":  # what lay on disk meanwhile was damaged: its step runs again, nothing is refused
            clean = max((home / "kfp" / run_id).glob("*/validate/clean/clean.parquet"))
            clean.write_bytes(clean.read_bytes() + b"x")
    code, told, err = pilotline(*undisturbed.argv, home=home)
    assert (code, told["outcome"]) == (0, "promoted"), err
    assert none_left(home)
    assert told["model"] == undisturbed.told["model"]
    assert told["metrics"] == undisturbed.told["metrics"]
    assert _timeless(records(home, run_id)) == _timeless(records(undisturbed.home, run_id))
    assert _story(home) == _story(undisturbed.home)
    # Those before were repeated after the damage; the last has effects only, and is asked again.
    for step in STEPS[STEPS.index("train") : -1]:
        begun = len(list((home / "kfp" / run_id).glob(f"pilotline-retrain-*/{step}")))
        assert begun <= 2, f"{step} was begun {begun} times: once when it was killed, once to finish"


TIMED = {
    "timeline",
    "latency_ms",
    "requests",
    "mlflow_run_id",
    "curve",
    "resumed_from_step",
    "evidence_digest",
    "ledger_hash",
}
MEASURED = speed.MEASURED | {"peak_rank_gib"}
OF_THIS_HOME = {"latency", "signature"}  # gate rules that observe a time, and the key that the home made itself
ABOUT_THE_MACHINE = {"plan", "serving_memory", "training_set"}  # what was measured, and where the folder lies


def _timeless(kept: dict[str, Any]) -> dict[str, Any]:
    """Records without times, latencies and what follows from them."""
    kept = {step: record for step, record in kept.items() if step not in ABOUT_THE_MACHINE}
    slim = {step: {k: v for k, v in record.items() if k not in TIMED} for step, record in kept.items()}
    slim["train"]["metrics"] = {k: v for k, v in slim["train"]["metrics"].items() if k not in MEASURED}
    slim["register"]["gate"] = [
        {k: v for k, v in rule.items() if k != "observed" or rule["rule"] not in OF_THIS_HOME}
        for rule in slim["register"]["gate"]
    ]
    slim["rollout"]["rules"] = [(rule["rule"], rule["outcome"]) for rule in slim["rollout"]["rules"]]
    slim["rollout"].pop("reason")
    slim["promote"].pop("reason")
    return slim


def _story(home: Path) -> list[tuple[str, str]]:
    """The ledger's entries without their times: nothing is there twice."""
    entries = Ledger(f"sqlite:///{home / 'ledger.db'}").entries()
    return [(entry.kind, json.dumps(entry.payload.get("version", ""))) for entry in entries]
