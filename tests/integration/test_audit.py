"""`pilotline audit` on a real ledger, registry, decision log and model: every link holds, and each damage is named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.core.ledger import Ledger
from pipelines.cli import main
from tests.fakes.audited_home import NAME, AuditedHome
from tests.fakes.ledger_places import change

LINKS = [
    "decision", "ledger", "route", "model version", "promotion", "gate", "pipeline run", "training set", "snapshot",
    "contract verdict", "code revision",
]  # fmt: skip


class Story:
    """Version 1, decisions, version 2 after two approvals, decisions, a roll-back, a decision."""

    def __init__(self, root: Path) -> None:
        self.place = AuditedHome(root)
        assert self.place.promote("1") == "promoted"
        self.ids = {"first": self.place.decide("1", "run-1")}
        self.ids["candidate"] = self.place.decide("2", "run-2", arm="canary")
        policy = {"required": 2, "approvers": ["bob", "carol"]}
        assert self.place.promote("2", "1", policy) == "awaiting_approval"
        self.ids["waiting"] = self.place.decide("1", "run-2", keep="hash")
        assert self.place.approve("2", "bob") == "awaiting_approval"
        assert self.place.approve("2", "carol") == "promoted"
        self.ids["second"] = self.place.decide("2", "run-2", keep="none")
        self.ids["refused"] = self.place.decide(
            "2", "run-2", status="refused", version="", digest="", label=None, score=None, answered_by="none",
            failure="timeout", threshold=None,
        )  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The story, made once; tests that damage it work on a copy."""
    return Story(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def copied(told: Story, tmp_path: Path) -> Path:
    """A home of one's own to damage."""
    shutil.copytree(told.place.home.root, tmp_path / "home")
    return tmp_path / "home"


def asked(home: Path, decision_id: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of `pilotline audit`."""
    capsys.readouterr()
    code = main(["audit", decision_id, "--home", str(home), "--json", *more])
    values: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, values


@pytest.mark.parametrize("which", ["first", "candidate", "waiting", "second"])
def test_every_link_holds(told: Story, capsys: pytest.CaptureFixture[str], which: str) -> None:
    """All links in order, each verified and with a digest."""
    code, values = asked(told.place.home.root, told.ids[which], capsys)
    assert (code, values["intact"], values["broken"]) == (0, True, "")
    assert [link["link"] for link in values["links"]] == LINKS
    assert all(link["state"] == "verified" for link in values["links"])
    assert all(link["digest"] for link in values["links"])


def test_a_decision_of_the_gate_that_nobody_signed_says_so(told: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """Version 1 was registered where no key was at hand."""
    _, values = asked(told.place.home.root, told.ids["first"], capsys)
    assert next(link["said"] for link in values["links"] if link["link"] == "gate").endswith("; unsigned")


@pytest.mark.parametrize("which", ["first", "waiting", "second"])
def test_history_at_the_decisions_time_names_the_same_version_and_digest(
    told: Story, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    """The two ways of asking agree."""
    home, decision_id = told.place.home.root, told.ids[which]
    _, values = asked(home, decision_id, capsys)
    with sqlite3.connect(home / "decisions.db") as connection:
        (moment,) = connection.execute("select time from decisions where id=?", (decision_id,)).fetchone()
    assert main(["models", "history", NAME, "--at", moment, "--home", str(home), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out.splitlines()[-1])["items"]
    assert (found["version"], found["digest"]) == (values["version"], values["digest"])


@pytest.mark.parametrize("left", ["the runs' notes", "the registry's tag"])
def test_a_ledger_whose_end_was_cut_off_names_no_champion_of_then(
    copied: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    """The chain holds, and version 1 would be champion still: what others saw of it says otherwise."""
    url = f"sqlite:///{copied / 'ledger.db'}"
    with closing(sqlite3.connect(copied / "ledger.db")) as connection:
        (seq,) = connection.execute("select max(seq) from ledger where kind = 'promotion'").fetchone()
    change(url, f"delete from ledger where seq >= {seq}")
    with closing(Ledger(url)) as ledger:
        assert ledger.verify() == seq - 1
    if left == "the runs' notes":
        (copied / "mlflow.db").unlink()
    else:
        shutil.rmtree(copied / "runs")
    argv = ["models", "history", NAME, "--home", str(copied)]
    for more in ([], ["--at", "2999-01-01"]):
        assert main([*argv, *more]) == 3
        assert "the end was cut off" in capsys.readouterr().err


def test_the_chain_tells_who_approved_and_who_started(told: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, where they come from, reasons; the gate's table; the canary's decisions name their run."""
    home = told.place.home.root
    said = {link["link"]: link for link in asked(home, told.ids["second"], capsys)[1]["links"]}
    assert "approved by bob (--as, user tester): fine; carol (--as, user tester): fine" in said["promotion"]["said"]
    assert "run-2: promoted, started by ana" in said["pipeline run"]["said"]
    assert "; signed by key " in said["gate"]["said"]
    assert said["gate"]["more"]["rules"] == [
        {"rule": "min_auc", "subject": "", "observed": 0.85, "limit": 0.6, "outcome": "pass"}
    ]
    routed = {link["link"]: link for link in asked(home, told.ids["candidate"], capsys)[1]["links"]}
    assert "was the candidate of run run-2" in routed["route"]["said"]
    assert main(["audit", told.ids["second"], "--home", str(home)]) == 0
    printed = capsys.readouterr().out
    assert "approved by bob" in printed
    assert "min_auc: 0.85 (limit 0.6)" in printed


def test_replay_scores_the_stored_inputs_again(told: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """The same score; where the text was not kept, that is said and nothing is guessed."""
    home = told.place.home.root
    code, values = asked(home, told.ids["first"], capsys, "--replay")
    assert (code, values["replay"]["state"]) == (0, "same")
    assert values["replay"]["again"] == pytest.approx(values["replay"]["logged"], abs=1e-6)
    for which in ("waiting", "second"):  # hash, none
        code, values = asked(home, told.ids[which], capsys, "--replay")
        assert (code, values["replay"]["state"]) == (0, "not replayable")
        assert "text was not kept" in values["replay"]["reason"]


def test_a_decision_under_a_subjects_key_replays_until_the_subject_is_forgotten(
    told: Story, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from a Parquet part; afterwards every link and seal still holds, and the ledger says who forgot and why."""
    log_id = told.place.decide("2", "run-2", keep="encrypted", into=copied)
    code, values = asked(copied, log_id, capsys, "--replay")
    assert (code, values["intact"], values["replay"]["state"]) == (0, True, "same")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("components.serving.decision_log.parts.Parts.move.__defaults__", (-1.0,))
        assert main(["decisions", "compact", "--home", str(copied)]) == 0
    code, values = asked(copied, log_id, capsys, "--replay")
    assert (code, values["intact"], values["replay"]["state"]) == (0, True, "same")
    forget = ["decisions", "forget", "shop-1", "--reason", "asked for", "--as", "eve", "--home", str(copied)]
    assert [main(forget), main(forget)] == [0, 0]
    code, values = asked(copied, log_id, capsys, "--replay")
    assert (code, values["intact"], values["replay"]["state"]) == (0, True, "not replayable")
    assert "forgotten" in values["replay"]["reason"]
    with closing(Ledger(f"sqlite:///{copied / 'ledger.db'}")) as ledger:
        (entry,) = ledger.entries("forgotten")
    assert (entry.payload["who"]["name"], entry.payload["reason"]) == ("eve", "asked for")
    assert "shop-1" not in json.dumps(entry.payload)


def test_replay_of_another_score_differs(told: Story, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A logged score that the model does not give: exit 3, whatever the seal says."""
    place = told.place
    wrong = place.decide("2", "run-2", into=copied, score=0.123456)
    code, values = asked(copied, wrong, capsys, "--replay")
    assert (code, values["intact"], values["replay"]["state"]) == (3, True, "differs")


def test_replay_of_other_inputs_is_broken(told: Story, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kept text that does not render the prompt that was answered."""
    with sqlite3.connect(copied / "decisions.db") as connection:
        connection.execute("update decisions set text='another text about late fees' where text is not null")
    code, values = asked(copied, told.ids["first"], capsys, "--replay")
    assert (code, values["broken"], values["replay"]["state"]) == (3, "decision", "broken")


def test_a_request_that_nothing_answered_has_no_model(told: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain ends at the decision, and says what failed."""
    code, values = asked(told.place.home.root, told.ids["refused"], capsys, "--replay")
    assert code == 0
    assert [link["link"] for link in values["links"]] == ["decision", "ledger"]
    assert "no model answered (timeout)" in values["links"][0]["said"]
    assert values["replay"]["state"] == "not replayable"


@pytest.mark.parametrize("unknown", ["0" * 32, "../../etc/passwd", "", "a\nb", "%"])
def test_an_unknown_id_is_bad_input(told: Story, capsys: pytest.CaptureFixture[str], unknown: str) -> None:
    """Exit 2 in one line."""
    capsys.readouterr()
    assert main(["audit", unknown, "--home", str(told.place.home.root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def _record(step: str, old: str, new: str) -> Callable[[Path, Story], None]:
    def damage(home: Path, _: Story) -> None:
        path = home / "runs" / "run-1" / "records" / f"{step}.json"
        content = path.read_text()
        assert old in content
        path.write_text(content.replace(old, new))

    return damage


def _row(sql: str) -> Callable[[Path, Story], None]:
    def damage(home: Path, told: Story) -> None:
        with sqlite3.connect(home / "decisions.db") as connection:
            connection.execute(f"update decisions set {sql} where id=?", (told.ids["first"],))

    return damage


def _ledger(sql: str) -> Callable[[Path, Story], None]:
    return lambda home, _: change(f"sqlite:///{home / 'ledger.db'}", sql)


def _run_file(home: Path, _: Story) -> None:
    path = home / "runs" / "run-1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": "other"}))


def _recipe(home: Path, _: Story) -> None:
    path = home / "runs" / "run-1" / "recipe.json"
    path.write_text(path.read_text().replace('"port": 0', '"port": 1'))


def _model(home: Path, told: Story) -> None:
    _flip(home / "models" / told.place.digests["1"] / "model" / "model.safetensors")


def _registry(home: Path, _: Story) -> None:
    with sqlite3.connect(home / "mlflow.db") as connection:
        connection.execute("update model_version_tags set value='0' where key='pilotline.digest' and version=1")


DAMAGES: dict[str, tuple[Callable[[Path, Story], None], str, str]] = {
    "score of the decision": (_row("score=0.9"), "decision", "altered"),
    "version of the decision": (_row("version='2'"), "decision", "altered"),
    "an entry of the ledger": (_ledger("update ledger set payload='{}' where seq=1"), "ledger", "entry 1"),
    "the ledger's end": (_ledger("delete from ledger where seq>=6"), "ledger", "entry 6 is missing: the end was cut"),
    "a byte of the weights": (_model, "model version", "have digest"),
    "the registry's digest": (_registry, "model version", "the registry names digest"),
    "the evidence": (_record("evaluate", '"positives": 60', '"positives": 61'), "gate", "evaluate.json was altered"),
    "the outcome": (_run_file, "pipeline run", "run.json is not what the ledger holds"),
    "the training set": (_record("featurise", '"embargo_days": 30', '"embargo_days": 0'), "training set", "altered"),
    "the model's record": (_record("train", '"steps": 1', '"steps": 2'), "training set", "train.json was altered"),
    "the snapshot's record": (_record("ingest", '"rows": 10', '"rows": 11'), "snapshot", "ingest.json was altered"),
    "the verdict": (_record("validate", '"clean": 9', '"clean": 10'), "contract verdict", "validate.json was altered"),
    "the recipe": (_recipe, "code revision", "recipe.json was altered"),
    "the data": (lambda home, _: _flip(next(home.glob("snapshots/*/data.parquet"))), "snapshot", "its name"),
    "the contract": (lambda home, _: _flip(next(home.glob("contracts/*.yaml"))), "contract verdict", "was altered"),
    "no snapshot": (lambda home, _: [shutil.rmtree(p) for p in home.glob("snapshots/*")], "snapshot", "is gone"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_broken_link_is_named(told: Story, copied: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    """Exit 3, the first link that does not hold by its name, and why."""
    damage, link, why = DAMAGES[what]
    for place in [copied / "snapshots"]:  # keep only the snapshot of the run that is looked at
        data = json.loads((copied / "runs" / "run-1" / "records" / "ingest.json").read_text())["digest"]
        [shutil.rmtree(folder) for folder in place.iterdir() if folder.name != data]
    damage(copied, told)
    code, values = asked(copied, told.ids["first"], capsys)
    assert (code, values["broken"], values["intact"]) == (3, link, False)
    (said,) = [item["said"] for item in values["links"] if item["link"] == link]
    assert why in said


def test_a_version_that_was_not_in_front_breaks_the_route(
    told: Story, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer long after another version took over, or by bytes that nobody registered."""
    late = told.place.decide("1", "run-9", into=copied)
    odd = told.place.decide("2", "run-2", into=copied, digest="0" * 64)
    assert asked(copied, late, capsys)[0] == 0  # within the minute that a switch may take
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pipelines.audit.SWITCH_SECONDS", 0.0)
        code, values = asked(copied, late, capsys)
    assert (code, values["broken"]) == (3, "route")
    assert "the champion of that moment was version 2" in values["links"][2]["said"]
    code, values = asked(copied, odd, capsys)
    assert (code, values["broken"]) == (3, "route")


def test_the_ledger_verifies_against_runs_and_registry(
    told: Story, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ledger verify` counts the anchors outside of it; an end that was cut off is named though the chain holds."""
    capsys.readouterr()
    assert main(["ledger", "verify", "--home", str(copied), "--json"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert values["intact"]
    assert values["anchors"] >= 5
    [shutil.rmtree(folder) for folder in (copied / "runs").iterdir()]  # only the registry is left to tell
    url = f"sqlite:///{copied / 'ledger.db'}"
    with closing(Ledger(url)) as ledger:
        last = ledger.entries("promotion")[-1].seq
        change(url, f"delete from ledger where seq >= {last}")
        assert ledger.verify() == last - 1
    assert main(["ledger", "verify", "--home", str(copied)]) == 3
    said = capsys.readouterr().err
    assert (
        f"entry {last} is missing: the end was cut off (the registry's tag of tiny version 2 saw entry {last})" in said
    )
