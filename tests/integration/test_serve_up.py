"""`pilotline serve up|status|down` and `score`: one service in the background that follows the ledger's champion."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from components.core.processes import end_leftovers
from components.registry import models
from components.serving.decision_log import read_decisions
from pipelines import cli, serve
from pipelines.audit import audit
from pipelines.serving_state import read_state, write_state
from tests.fakes.audited_home import AuditedHome
from tests.fakes.serving_case import rows


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditedHome]:
    """A home with version 1 as champion, and a service that is down in the end."""
    monkeypatch.setattr(serve, "DAEMON", "tests.fakes.serve_daemon")
    made = AuditedHome(tmp_path)
    _promote(made, "1")
    yield made
    serve.down(made.home)


def _promote(place: AuditedHome, number: str, before: str = "") -> None:
    place.promote(number, before)
    kept = place.home.pipeline_root / f"run-{number}" / "retrain" / "featurise" / "training_set"
    shutil.copytree(place.root / f"rows-{number}", kept)


def _pilotline(place: AuditedHome, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = cli.main([*words, "--home", str(place.home.root), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def _until(done: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "not within its time"
        time.sleep(0.1)


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _ask(url: str) -> dict[str, Any]:
    row = rows(1)[0]
    body = {"entities": row["entities"], "input": {"text": row["text"]}}
    answer = httpx.post(f"{url}/v1/decisions", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_up_twice_is_one_service_and_down_ends_all_of_it(place, capsys) -> None:
    """Same process and port both times; it survives SIGHUP and the run's clean-up; after down nothing of it lives."""
    code, first = _pilotline(place, capsys, "serve", "up")
    assert (code, first["state"], first["ready"], first["version"]) == (0, "up", True, "1")
    assert _pilotline(place, capsys, "serve", "up")[1]["pid"] == first["pid"]
    family = _family(first["pid"])
    assert len(family) >= 4  # itself, Envoy, the scoring service, a model server
    os.kill(first["pid"], signal.SIGHUP)
    assert end_leftovers(place.home.root) == []  # what `pilotline run` does when it begins
    assert _ask(first["url"])["model"] == {"name": "tiny", "version": "1"}
    code, told = _pilotline(place, capsys, "serve", "down")
    assert (code, told["ended"], told["left_over"]) == (0, first["pid"], [])
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert _pilotline(place, capsys, "serve", "status")[1] == {"state": "down"}
    assert _pilotline(place, capsys, "serve", "down")[1]["ended"] is None


def test_decisions_are_logged_under_the_home_and_can_be_audited(place, capsys, tmp_path) -> None:
    """score prints a decision a line, names bad lines by number, and audit finds each decision's version."""
    serve.up(place.home)
    given = tmp_path / "rows.jsonl"
    good = [json.dumps({"entities": row["entities"], "input": {"text": row["text"]}}) for row in rows(5)]
    given.write_text("\n".join([*good, "", "{not json", json.dumps({"entities": {}}), good[0]]) + "\n")
    assert cli.main(["score", str(given), "--home", str(place.home.root), "--json"]) == 2
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed[-1] == {"lines": 8, "ok": 6, "fallback": 0, "refused": 0, "problem": 2}
    assert [line["line"] for line in printed[:-1]] == [1, 2, 3, 4, 5, 7, 8, 9]
    assert [line["line"] for line in printed[:-1] if "problem" in line] == [7, 8]
    decided = printed[0]["decision_id"]
    _until(lambda: decided in {row["id"] for row in read_decisions(place.home.root / "decisions.db")})
    found = {link.link: link.state for link in audit(place.home, decided).links}
    assert (found["decision"], found["route"]) == ("verified", "verified")


def test_a_new_champion_takes_over_and_a_rollback_brings_the_old_one_back(place) -> None:
    """The ledger is followed: version 2 after its promotion, 1 after a rollback, no refused request in between."""
    told = serve.up(place.home)
    answers: list[dict[str, Any]] = []

    def serves(version: str) -> bool:
        answers.append(_ask(told["url"]))
        return answers[-1]["model"]["version"] == version

    _promote(place, "2", "1")
    _until(lambda: serves("2"))
    models.rollback(place.home, "tiny", "worse on Mondays")
    _until(lambda: serves("1"))
    assert {answer["status"] for answer in answers} == {"ok"}
    _until(lambda: serve.status(place.home)["version"] == "1")  # said once the other is drained
    after = serve.status(place.home)
    assert (after["pid"], after["port"], after["version"], after["champion"]) == (told["pid"], told["port"], "1", "1")
    assert after["problem"] == ""


def test_a_champion_that_cannot_be_served_leaves_the_old_one_in_place_and_says_so(place) -> None:
    """Its kept files were damaged: version 1 goes on answering, status names the reason."""
    told = serve.up(place.home)
    weights = place.home.models / place.digests["2"] / "model" / "model.safetensors"
    place.promote("2", "1")
    weights.write_bytes(weights.read_bytes()[:-1])
    kept = place.home.pipeline_root / "run-2" / "retrain" / "featurise" / "training_set"
    shutil.copytree(place.root / "rows-2", kept)
    _until(lambda: "version 2 is champion and cannot be served" in serve.status(place.home)["problem"])
    assert _ask(told["url"])["model"]["version"] == "1"
    assert serve.status(place.home)["champion"] == "2"


def test_a_replica_that_dies_is_started_again(place) -> None:
    """kill -9 of the model server: answers again after a back-off, one restart counted, the same service."""
    told = serve.up(place.home)
    server = next(p for p in _family(told["pid"]) if "fake_model_server" in " ".join(p.cmdline()))
    server.kill()
    _until(lambda: serve.status(place.home)["restarts"] == 1 and serve.status(place.home)["ready"])
    assert _ask(told["url"])["status"] == "ok"
    assert serve.status(place.home)["pid"] == told["pid"]


def _process(told: dict[str, Any], word: str) -> psutil.Process:
    return next(p for p in _family(told["pid"]) if any(word in part for part in p.cmdline()))


def test_envoy_or_the_scoring_service_that_dies_is_started_again_alone(place) -> None:
    """kill -9 of each: answers again on the same port from the same model server, each counted as a restart."""
    told = serve.up(place.home)
    server = _process(told, "fake_model_server")
    for number, word in enumerate(("tests.fakes.serving_case", "envoy.json"), 1):
        _process(told, word).kill()
        _until(lambda number=number: serve.status(place.home)["restarts"] == number)
        _until(lambda: serve.status(place.home)["ready"])
        assert _ask(told["url"])["status"] == "ok"
    assert server.is_running()
    assert serve.status(place.home)["pid"] == told["pid"]


def test_envoy_that_dies_while_a_replica_is_being_started_ends_nothing_for_good(place) -> None:
    """kill -9 of the model server, then of Envoy in the wait before the next start: it answers again."""
    told = serve.up(place.home)
    _process(told, "fake_model_server").kill()
    _until(lambda: serve.status(place.home)["restarts"] == 1)
    _process(told, "envoy.json").kill()
    _until(lambda: serve.status(place.home)["ready"], 60.0)
    assert _ask(told["url"])["status"] == "ok"
    assert serve.status(place.home)["pid"] == told["pid"]


@pytest.mark.full
def test_a_model_server_that_hangs_is_named_and_replaced(place) -> None:
    """SIGSTOP: all processes live and nothing is scored; status says so, then everything is started anew."""
    (place.home.root / "patience").write_text("2")
    told = serve.up(place.home)
    server = _process(told, "fake_model_server")
    server.suspend()
    _until(lambda: "no request was scored" in serve.status(place.home)["problem"], 60.0)
    _until(lambda: serve.status(place.home)["ready"], 60.0)
    assert _ask(told["url"])["status"] == "ok"
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert serve.status(place.home)["restarts"] == 1


def test_up_as_something_else_than_what_is_up_is_refused(place, capsys) -> None:
    """Another port or engine, and a port that is none: exit 2 with one line; the same port is fine."""
    told = serve.up(place.home)
    home = str(place.home.root)
    for words in (["--port", str(told["port"] + 1)], ["--engine", "vllm"], ["--port", "70000"], ["--port", "-1"]):
        assert cli.main(["serve", "up", *words, "--home", home]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert serve.up(place.home, port=told["port"])["pid"] == told["pid"]


def test_a_service_that_is_gone_is_stale_and_up_begins_anew(place, capsys) -> None:
    """kill -9 of the service, and a number that another process has by now: both are seen, nobody else is ended."""
    told = serve.up(place.home)
    family = _family(told["pid"])
    os.kill(told["pid"], signal.SIGKILL)
    _until(lambda: serve.status(place.home)["state"] == "stale")
    _until(lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
    state = read_state(place.home)
    write_state(place.home, type(state)(**(state.__dict__ | {"pid": os.getpid()})))  # as after a reboot
    assert serve.status(place.home)["state"] == "stale"
    assert serve.down(place.home)["ended"] is None  # this process still lives
    again = serve.up(place.home)
    assert again["pid"] not in (told["pid"], os.getpid())
    assert again["ready"]


def test_what_does_not_come_up_says_why_and_leaves_nothing(place, capsys) -> None:
    """The model server ends at once: exit 1 with the end of its log, no process and no state left."""
    (place.home.root / "fault").write_text("exit")
    assert cli.main(["serve", "up", "--home", str(place.home.root)]) == 1
    assert "model file is truncated" in capsys.readouterr().err
    assert serve.status(place.home) == {"state": "down"}
    assert end_leftovers(place.home.root / "serve") == []


def test_without_a_champion_there_is_nothing_to_serve(tmp_path, capsys) -> None:
    """Exit 2 with what to do; score without a service exits 1."""
    home = str(tmp_path / "empty")
    assert cli.main(["serve", "up", "--home", home]) == 2
    assert "no version is champion yet" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert cli.main(["score", str(tmp_path / "rows.jsonl"), "--home", home]) == 1
    assert "serve up" in capsys.readouterr().err
