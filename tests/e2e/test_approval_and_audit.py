"""A run that a person has to approve, and decisions that are traced back: by the command alone, with real serving."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chain import none_left, pilotline
from tests.second_project.tickets import write_tickets

pytestmark = pytest.mark.slow
RECIPE = "tests/second_project/recipe.toml"
PEOPLE = (
    "--set", 'roles.runs=["ana"]', "--set", 'roles.approves=["ana", "bob"]', "--set", 'roles.reads=["dave"]',
    "--set", "approval.required=1", "--set", "serving.keep_text=plain",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """What each command of the story answered: exit status and JSON, by name."""

    home: Path
    said: dict[str, tuple[int, dict[str, Any]]]
    seconds: dict[str, float]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Ana runs, tries to approve, Bob approves; a second candidate, whose recipe asks for no approval, waits too."""
    folder = tmp_path_factory.mktemp("approval")
    home = folder / "home"
    source = str(write_tickets(folder / "tickets.jsonl"))
    run = ("run", "--recipe", RECIPE, "--source", source, "--engine", "reference", *PEOPLE)
    second = (*run, "--set", "training.seed=5", "--set", "approval.required=0", "--set", "gate.champion_margin=0.5")
    approve = ("models", "approve", "tickets", "1", "--reason", "wording checked")
    said: dict[str, tuple[int, dict[str, Any]]] = {}
    seconds: dict[str, float] = {}
    with pytest.MonkeyPatch.context() as patched:
        for name, who, argv in (
            ("run by a reader", "dave", run),
            ("run", "ana", run),
            ("run again", "ana", run),
            ("approved by the starter", "ana", approve),
            ("approved by a reader", "dave", approve),
            ("approved", "bob", approve),
            ("run after approval", "ana", run),
            ("second run", "ana", second),
            ("second approved", "bob", ("models", "approve", "tickets", "2", "--reason", "wording checked again")),
            ("ledger", "dave", ("ledger", "verify")),
            ("rolled back by a reader", "dave", ("models", "rollback", "tickets", "--reason", "no")),
        ):
            patched.setenv("PILOTLINE_USER", who)
            started = time.monotonic()
            code, told, err = pilotline(*argv, home=home)
            said[name], seconds[name] = (code, told | {"stderr": err[-2000:]}), time.monotonic() - started
    return Story(home, said, seconds)


def test_the_run_waits_for_a_person_with_exit_4(story: Story) -> None:
    """Everything passed, nothing is promoted; the same run again says the same without work."""
    code, told = story.said["run"]
    assert (code, told["outcome"]) == (4, "awaiting_approval"), told
    assert "needs 1 approval of ana, bob" in told["reason"]
    assert "Awaiting approval" in Path(told["report"]).read_text() or story.said["approved"][0] == 0
    code, again = story.said["run again"]
    assert (code, again["outcome"], again["run_id"]) == (4, "awaiting_approval", told["run_id"])
    assert [step["seconds"] for step in again["steps"]] == [step["seconds"] for step in told["steps"]]


def test_roles_hold_in_every_verb(story: Story) -> None:
    """Who only reads neither runs, approves nor rolls back; who started the run does not approve it."""
    for name in ("run by a reader", "approved by the starter", "approved by a reader", "rolled back by a reader"):
        code, told = story.said[name]
        assert (code, told["kind"]) == (3, "refused"), (name, told)
    assert "ana started the run" in story.said["approved by the starter"][1]["error"]
    assert story.said["ledger"][0] == 0


def test_the_last_word_promotes_and_the_run_says_so(story: Story) -> None:
    """Promoted by the approval itself; the same run again is stored as promoted, exit 0, its report too."""
    code, told = story.said["approved"]
    assert (code, told["outcome"], told["by"]["name"]) == (0, "promoted", "bob"), told
    code, again = story.said["run after approval"]
    assert (code, again["outcome"]) == (0, "promoted"), again
    assert again["run_id"] == told["run_id"]
    assert "Promoted" in Path(again["report"]).read_text()
    entries = pilotline("models", "history", "tickets", home=story.home)[1]["items"]
    assert [item["event"] for item in entries][:3] == ["requested", "approved", "promoted"]


def test_history_and_audit_name_the_same_version_and_digest(story: Story) -> None:
    """Of a decision between two promotions, and of the canary's: every link holds; replayed, the score is equal."""
    code, second = story.said["second run"]
    assert (code, second["outcome"]) == (4, "awaiting_approval"), second
    assert "its recipe changes who decides" in second["reason"], "a recipe alone does not weaken the policy in force"
    code, told = story.said["second approved"]
    assert (code, told["outcome"]) == (0, "promoted"), told
    for arm, version in (("stable", "1"), ("canary", "2")):
        decision_id, moment = _decision(story.home, second["run_id"], arm)
        code, found, err = pilotline("audit", decision_id, "--replay", home=story.home)
        assert (code, found["broken"], found["version"]) == (0, "", version), (found, err)
        assert found["replay"]["state"] == "same", found["replay"]
        if arm == "stable":
            (live,) = pilotline("models", "history", "tickets", "--at", moment, home=story.home)[1]["items"]
            assert (live["version"], live["digest"]) == (found["version"], found["digest"])
            said = {link["link"]: link["said"] for link in found["links"]}
            assert "approved by bob (PILOTLINE_USER, user " in said["promotion"]
            assert "started by ana" in said["pipeline run"]


def test_one_byte_of_the_kept_model_breaks_the_audit(story: Story) -> None:
    """Named; and put back, all holds again. So does a decision that nobody made: exit 2."""
    decision_id, _ = _decision(story.home, story.said["second run"][1]["run_id"], "stable")
    digest = story.said["approved"][1]["digest"]
    weights = story.home / "models" / digest / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, found, _ = pilotline("audit", decision_id, home=story.home)
    assert (code, found["broken"]) == (3, "model version")
    weights.write_bytes(whole)
    assert pilotline("audit", decision_id, home=story.home)[0] == 0
    assert pilotline("audit", "f" * 32, home=story.home)[0] == 2
    assert none_left(story.home)


def _decision(home: Path, run_id: str, arm: str) -> tuple[str, str]:
    """A decision that an arm answered in a run: id and time."""
    with sqlite3.connect(home / "decisions.db") as connection:
        found = connection.execute(
            "select id, time from decisions where run_id=? and answered_by=? and drawn=? order by seq desc limit 1",
            (run_id, arm, arm),
        ).fetchone()
    assert found, json.dumps([run_id, arm])
    return str(found[0]), str(found[1])
