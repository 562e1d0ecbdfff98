"""Lineage events against a receiver on loopback: told where a URL is given, and never at a run's cost."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.home import Home
from components.core.lineage import told_by
from components.core.paths import PROJECT_ROOT
from components.core.processes import free_port
from components.core.records import CheckpointRef, SnapshotRef
from components.core.steps import running, step_notes
from tests.fakes.judged import good_evidence, rollout_report, small_recipe, version_ref

SECRET = "hunter2-of-the-receiver"
SNAPSHOT = SnapshotRef(
    digest="a" * 64, rows=1, columns=("id",), time_column="t", time_min="", time_max="", contract_digest="c" * 64,
    source=f"postgresql://me:{SECRET}@host/db", since="", until="",
    inputs=({"uri": f"https://host/x?token={SECRET}", "bytes": 1, "sha256": "b" * 64},),
)  # fmt: skip


class Receiver:
    """Takes events; `delay` seconds before each answer, `status` as the answer."""

    def __init__(self, delay: float = 0.0, status: int = 200) -> None:
        self.events: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.tokens.append(self.headers.get("authorization", ""))
                receiver.events.append(json.loads(body))
                time.sleep(delay)
                with suppress(OSError):
                    self.send_response(status)
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def receiver(**options: Any) -> Iterator[Receiver]:
    """A receiver that is ended."""
    made = Receiver(**options)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


def step(home: Home, url: str, fails: bool = False, seconds: float = 2.0, name: str = "ingest") -> None:
    """One step that keeps a snapshot, or fails with a secret in its error."""
    recipe = small_recipe(lineage={"url": url, "timeout_seconds": seconds}).to_json()
    with running(name, str(home.root), "run-1", recipe) as run:
        if fails:
            raise UserError(f"postgresql://me:{SECRET}@host: no such table")
        run.keep(SNAPSHOT)


def test_start_and_end_of_a_step_are_told_with_datasets_by_digest(home: Home) -> None:
    """One run of one job, its parent the whole pipeline; inputs and outputs are kind and digest, nothing else."""
    with receiver() as got:
        step(home, got.url)
        step(home, got.url, name="validate")
    states = [(event["eventType"], event["job"]["name"]) for event in got.events]
    assert states == [
        ("START", "retrain.ingest"), ("COMPLETE", "retrain.ingest"),
        ("START", "retrain.validate"), ("COMPLETE", "retrain.validate"),
    ]  # fmt: skip
    done = got.events[1]
    assert [item["name"] for item in done["inputs"]] == [f"source/{'b' * 64}", f"contract/{'c' * 64}"]
    assert [item["name"] for item in done["outputs"]] == [f"snapshot/{'a' * 64}"]
    assert got.events[0]["run"]["runId"] == done["run"]["runId"] != got.events[2]["run"]["runId"]
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for event in got.events}
    assert len(parents) == 1
    assert SECRET not in json.dumps(got.events)


def test_a_failure_is_told_by_its_kind_alone(home: Home) -> None:
    """The text may hold secrets; the step's own error is what the caller sees."""
    with receiver() as got, pytest.raises(UserError, match="no such table"):
        step(home, got.url, fails=True)
    assert [event["eventType"] for event in got.events] == ["START", "FAIL"]
    assert got.events[1]["run"]["facets"]["errorMessage"]["message"] == "bad_input"
    assert SECRET not in json.dumps(got.events)


def test_the_url_may_come_from_the_environment_and_the_token_only_from_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The token reaches the receiver and no file of the home and no log."""
    caplog.set_level(logging.DEBUG)
    with receiver() as got:
        monkeypatch.setenv("OPENLINEAGE_URL", got.url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", SECRET)
        step(home, "")
    assert got.tokens == [f"Bearer {SECRET}"] * 2
    kept = "".join(path.read_text() for path in home.root.rglob("*") if path.is_file() and path.name != "ingest.json")
    assert SECRET not in kept + caplog.text


def _refused() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


def _hangs() -> Iterator[str]:
    with receiver(delay=30.0) as got:
        yield got.url


def _errs() -> Iterator[str]:
    with receiver(status=500) as got:
        yield got.url


def _silent() -> Iterator[str]:
    """Takes the connection and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def _no_host() -> Iterator[str]:
    yield "http://host.invalid:99999"


@pytest.mark.parametrize("kind", [_refused, _hangs, _errs, _silent, _no_host])
def test_a_receiver_that_fails_costs_a_bounded_time_and_nothing_else(home: Home, kind: Any) -> None:
    """Refused, hanging, 500, silent, no such host: the step is done, its record kept, within the time allowed."""
    places = kind()
    url = next(places)
    started = time.monotonic()
    step(home, url, seconds=0.5)
    assert time.monotonic() - started < 6.0  # half a second, and a machine that is busy
    assert [note["status"] for note in step_notes(home, "run-1")] == ["done"]
    assert (home.run("run-1") / "records" / "ingest.json").exists()
    next(places, None)


def test_without_a_url_the_engine_is_not_even_imported() -> None:
    """A step costs nothing more."""
    code = (
        "import sys, tempfile\n"
        "from tests.integration.test_core_lineage import step\n"
        "from components.core.home import Home\n"
        "step(Home.at(tempfile.mkdtemp()), '')\n"
        "sys.exit(any(name.startswith('openlineage') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, env={"PATH": "/usr/bin"}, check=False)
    assert done.returncode == 0


def test_each_record_names_what_it_was_made_of() -> None:
    """The events of a run join into one chain: what one step wrote another read."""
    version, evidence = version_ref("2", "1"), good_evidence()
    assert told_by([evidence]).outputs == (f"evidence/{evidence.record_digest}",)
    assert f"model/{version.digest}" in told_by([version]).inputs
    assert told_by([rollout_report(version)]).inputs == (f"model/{version.digest}", f"model/{version.champion_digest}")
    assert told_by([CheckpointRef(digest="d", step=1, world_size=1, zero_stage=0, recipe_digest="r")]).outputs == ()
