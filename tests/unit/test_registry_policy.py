"""A model's policy about people when those whom it names are gone: the ledger's owner, and nobody else, changes it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import PolicyRefusal, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.people import Policy
from components.registry.history import history
from components.registry.policies import change_policy, changes, policy_in_force
from components.registry.sayings import said_of
from pipelines.cli import main
from tests.unit.test_registry_approval import NAME, TWO, Desk, desk, person

__all__ = ["desk"]  # fixture
RECIPE = """
name = "people"
[source]
uri = "rows.csv"
time_column = "when"
key = ["id"]
[contract]
path = "contract.yaml"
[features]
repo = "repo"
service = "s"
entities = { who = "who" }
model_inputs = ["count"]
[model]
name = "triage"
label_column = "answer"
positive_values = ["yes"]
[roles]
approves = ["erin"]
[approval]
required = 1
"""
NEW = Policy(runs=("ana",), approves=("erin",), required=1, expires_hours=2)


def changed(desk: Desk, policy: Policy = NEW, reason: str = "bob and carol left") -> None:
    """The owner does it."""
    change_policy(NAME, policy, desk.ledger, reason, person("root"))


def test_people_put_in_charge_decide_also_on_what_is_open(desk: Desk) -> None:
    """The word of one who was named before counts no longer; the new one's promotes, and governs what comes."""
    desk.ask(), desk.approve("bob")
    changed(desk)
    with pytest.raises(PolicyRefusal, match="carol may not approve"):
        desk.approve("carol")
    assert desk.champion == "1"
    assert desk.approve("erin").outcome == "promoted"
    entry = desk.ledger.entries("promotion")[-1]
    assert [vote["name"] for vote in entry.payload["approvals"]] == ["erin"]
    assert desk.champion == "2"
    assert "1 approval of erin" in desk.ask("3", NEW, champion="2").reason
    assert policy_in_force(NAME, desk.ledger) == NEW


def test_a_change_is_in_the_chain_and_told(desk: Desk) -> None:
    """With who, why and what stood before; the same again is one entry; history tells it and still names champions."""
    desk.ask(), desk.approve("bob"), desk.approve("carol")
    changed(desk), changed(desk)
    (entry,) = changes(NAME, desk.ledger)
    assert entry.payload["reason"] == "bob and carol left"
    assert Policy.from_dict(entry.payload["before"]) == TWO
    (told,) = [item for item in history(NAME, desk.ledger) if item["event"] == "policy_changed"]
    assert "1 approval of erin: bob and carol left" in told["text"]
    assert "root" in told["text"]
    for version in ("1", "2"):  # as the card of each version says it
        assert ("policy changed", "root", "bob and carol left") in [
            row[1:] for row in said_of(desk.ledger, NAME, version)
        ]
    assert desk.champion == "2"
    assert history(NAME, desk.ledger, at=entry.time)[0]["version"] == "2"


@pytest.mark.parametrize(("name", "reason"), [(NAME, " "), (NAME, "a\x1b[2Jb"), ("nobody", "why"), ("../x", "why")])
def test_no_reason_or_no_such_model_changes_nothing(desk: Desk, name: str, reason: str) -> None:
    """One line; nothing noted."""
    with pytest.raises(UserError) as refused:
        change_policy(name, NEW, desk.ledger, reason, person("root"))
    assert len(str(refused.value).splitlines()) == 1
    assert desk.ledger.entries("policy") == []


def test_nobody_but_the_files_owner_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user of the machine who may write the file, say by its group."""
    with closing(Desk(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path).ledger) as ledger:
        owner = (tmp_path / "ledger.db").stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(PolicyRefusal, match=f"belongs to user {owner}, not to {owner + 1}"):
            change_policy(NAME, NEW, ledger, "mine now", person("mallory"))
        assert ledger.entries("policy") == []


def test_the_command_shows_and_changes_it(tmp_path: Path, capsys: Any) -> None:
    """From a recipe, with a reason; a recipe of another model is refused."""
    home = Home.at(tmp_path / "home")
    Desk(home.ledger_url, tmp_path).ledger.close()
    recipe = tmp_path / "people.toml"
    recipe.write_text(RECIPE)
    with closing(Ledger(home.ledger_url)) as ledger:
        ledger.append("candidate", "candidate:1", {"event": "registered", "name": NAME, "version": "1", "run_id": "r"})
    argv = ["models", "policy", NAME, "--home", str(home.root), "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["policy"]["required"] == 0
    assert main([*argv, "--from", str(recipe), "--as", "root"]) == 2
    assert "reason" in capsys.readouterr().err
    assert main([*argv, "--from", str(recipe), "--as", "root", "--reason", "they left"]) == 0
    capsys.readouterr()
    assert main(argv) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["policy"]["required"], said["words"]) == (1, "1 approval of erin")
    assert len(said["changes"]) == 1
    assert main(["models", "policy", "other", "--home", str(home.root), "--from", str(recipe), "--reason", "x"]) == 2
