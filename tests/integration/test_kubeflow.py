"""submit and schedule against the Kubeflow Pipelines API: the fake always, a real one where $KFP_ENDPOINT names it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import PolicyRefusal, TransientError, UserError
from components.core.home import Home
from components.core.people import identify
from components.core.recipe import Recipe, Roles, load_recipe, parse_recipe
from pipelines import kubeflow_client
from pipelines.code_version import git_revision
from pipelines.compile import compile_pipeline
from pipelines.kubeflow import SCHEDULED_DAY, schedule, schedule_retrain, submit, submit_retrain
from pipelines.recipes import locate
from tests.fakes.demo_pipeline import demo
from tests.fakes.fake_kfp import INVALID, UNAVAILABLE, FakeKfp, fake_kfp
from tests.fakes.fake_kfp_scheduler import tick

CRON = "0 0 6 * * 1"
ARGUMENTS = {"source": "s3://bucket/rows", "rate": 0.2}


@dataclass
class Endpoint:
    """Where the tests send, the names they use there, and the fake's state where it is the fake."""

    host: str
    pipeline: str
    experiment: str
    fake: FakeKfp | None


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled pipeline."""
    return compile_pipeline(demo(), tmp_path_factory.mktemp("package") / "demo.yaml")


@pytest.fixture(scope="module")
def other_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another content of the same revision."""
    return compile_pipeline(demo("gpu-pool"), tmp_path_factory.mktemp("package") / "demo.yaml", "gpu-pool")


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kfp)])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """The fake, and the real endpoint where there is one; names are new each time."""
    tag = uuid.uuid4().hex[:8]
    if request.param == "fake":
        with fake_kfp(page_limit=2) as fake:
            yield Endpoint(fake.url, f"demo-{tag}", f"tests-{tag}", fake)
    elif host := os.environ.get("KFP_ENDPOINT"):
        yield Endpoint(host, f"demo-{tag}", f"tests-{tag}", None)
    else:
        pytest.skip("KFP_ENDPOINT names no Kubeflow Pipelines endpoint")


@pytest.fixture
def fake() -> Iterator[FakeKfp]:
    """The fake alone."""
    with fake_kfp() as server:
        yield server


def _submit(endpoint: Endpoint, package: Path, **more: Any) -> Any:
    return submit(endpoint.host, package, endpoint.pipeline, "git-abc", ARGUMENTS, endpoint.experiment, **more)


def _schedule(endpoint: Endpoint, package: Path, arguments: dict[str, Any] | None = None, cron: str = CRON) -> Any:
    arguments = ARGUMENTS | {"until": SCHEDULED_DAY} if arguments is None else arguments
    return schedule(endpoint.host, package, endpoint.pipeline, "git-abc", arguments, endpoint.experiment, cron)


def test_submit_uploads_a_version_and_starts_a_run(endpoint: Endpoint, package: Path) -> None:
    """A first submission makes pipeline, version, experiment and run, in that order and nothing else."""
    done = _submit(endpoint, package)
    assert done.uploaded
    assert done.started
    assert done.version_name == "git-abc"
    assert done.run_id in done.url
    assert done.url.startswith(endpoint.host)
    if endpoint.fake:
        assert endpoint.fake.changes() == [
            "POST /pipelines",
            "POST /pipelines/upload_version",
            "POST /experiments",
            "POST /runs",
        ]
        run = endpoint.fake.runs[done.run_id]
        assert run["runtime_config"]["parameters"] == ARGUMENTS
        assert run["pipeline_version_reference"]["pipeline_version_id"] == done.version_id
        assert [item["name"] for item in endpoint.fake.versions.values()] == ["git-abc"]


def test_submitting_twice_leaves_one_of_everything(endpoint: Endpoint, package: Path) -> None:
    """The same submission finds the pipeline, the version, the experiment and the active run."""
    first, second = _submit(endpoint, package), _submit(endpoint, package)
    assert not second.uploaded
    assert not second.started
    assert (first.pipeline_id, first.version_id, first.run_id) == (second.pipeline_id, second.version_id, second.run_id)


def test_finished_run_may_be_started_again(fake: FakeKfp, package: Path) -> None:
    """Only an active run of the same name is returned; a finished one does not stand in the way."""
    endpoint = Endpoint(fake.url, "demo", "tests", fake)
    first = _submit(endpoint, package)
    fake.runs[first.run_id]["state"] = "SUCCEEDED"
    second = _submit(endpoint, package)
    assert second.started
    assert second.run_id != first.run_id


def test_a_version_is_never_overwritten(endpoint: Endpoint, package: Path, other_package: Path) -> None:
    """Other content under the same revision becomes a version of its own, found again the next time."""
    first = _submit(endpoint, package)
    other, again = _submit(endpoint, other_package), _submit(endpoint, other_package)
    assert other.version_id != first.version_id
    assert other.version_name.startswith("git-abc-")
    assert again.version_id == other.version_id
    assert not again.uploaded


def test_schedule_runs_one_at_a_time_and_the_latest_interval_only(endpoint: Endpoint, package: Path) -> None:
    """The recurring run has the cron, one run at a time, no catch-up and the scheduled day as the interval's end."""
    done = _schedule(endpoint, package)
    assert done.created
    assert done.replaced == ()
    if endpoint.fake:
        sent = endpoint.fake.recurring[done.recurring_run_id]
        assert sent["trigger"] == {"cron_schedule": {"cron": CRON}}
        assert (sent["max_concurrency"], sent["no_catchup"], sent["mode"]) == (1, True, "ENABLE")
        assert sent["runtime_config"]["parameters"]["until"] == "[[ScheduledTime.2006-01-02]]"
        assert not endpoint.fake.runs
    _forget(endpoint, done.recurring_run_id)


def test_same_schedule_again_changes_nothing(endpoint: Endpoint, package: Path) -> None:
    """The same call finds the recurring run that is there."""
    first = _schedule(endpoint, package)
    before = len(endpoint.fake.changes()) if endpoint.fake else 0
    second = _schedule(endpoint, package)
    assert not second.created
    assert second.recurring_run_id == first.recurring_run_id
    if endpoint.fake:
        assert len(endpoint.fake.changes()) == before
    _forget(endpoint, first.recurring_run_id)


def test_changed_schedule_replaces_the_old_one(endpoint: Endpoint, package: Path) -> None:
    """Another cron leaves one recurring run; the old one is disabled first and deleted last."""
    first = _schedule(endpoint, package)
    second = _schedule(endpoint, package, cron="0 30 7 * * MON-FRI")
    assert second.created
    assert second.replaced == (first.recurring_run_id,)
    if endpoint.fake:
        assert list(endpoint.fake.recurring) == [second.recurring_run_id]
        assert endpoint.fake.changes()[-3:] == [
            "POST /recurringruns/ID:disable",
            "POST /recurringruns",
            "DELETE /recurringruns/ID",
        ]
    _forget(endpoint, second.recurring_run_id)


def test_old_schedule_is_back_where_the_new_one_fails(fake: FakeKfp, package: Path) -> None:
    """A server that refuses the new recurring run leaves the old one enabled."""
    endpoint = Endpoint(fake.url, "demo", "tests", fake)
    first = _schedule(endpoint, package)
    fake.faults.append(("POST", "/recurringruns$", INVALID))
    with pytest.raises(UserError, match="planted fault"):
        _schedule(endpoint, package, cron="0 0 7 * * 1")
    assert fake.recurring[first.recurring_run_id]["mode"] == "ENABLE"
    assert list(fake.recurring) == [first.recurring_run_id]


def test_leftover_duplicates_are_cleared(fake: FakeKfp, package: Path) -> None:
    """A second recurring run of the same name, left by an interrupted call, goes; the right one stays."""
    endpoint = Endpoint(fake.url, "demo", "tests", fake)
    first = _schedule(endpoint, package)
    copies = [dict(fake.recurring[first.recurring_run_id], recurring_run_id=f"copy-{n}", mode="DISABLE") for n in "abc"]
    fake.recurring |= {item["recurring_run_id"]: item for item in copies}
    fake.page_limit = 2
    second = _schedule(endpoint, package)
    assert not second.created
    assert set(second.replaced) == {"copy-a", "copy-b", "copy-c"}
    assert list(fake.recurring) == [first.recurring_run_id]


@pytest.mark.parametrize(
    "cron", ["0 6 * * 1", "61 0 6 * * 1", "0 0 6 32 * *", "* 0 6 * * 1", "0 0 6 * * mo", "@weekly", ""]
)
def test_bad_cron_is_refused_before_any_call(fake: FakeKfp, package: Path, cron: str) -> None:
    """A cron that the server's scheduler would not run never reaches it."""
    with pytest.raises(UserError, match="six fields"):
        _schedule(Endpoint(fake.url, "demo", "tests", fake), package, cron=cron)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs it"),
        ({"source": 3}, "string is wanted"),
        ({"source": "x", "rate": True}, "number_double is wanted"),
        ({"source": "x", "rte": 0.1}, "'rte'"),
    ],
)
def test_misfitting_arguments_are_refused_before_any_call(
    fake: FakeKfp, package: Path, arguments: dict[str, Any], said: str
) -> None:
    """A missing, unknown or wrongly typed argument is named without a call."""
    with pytest.raises(UserError, match=said):
        submit(fake.url, package, "demo", "git-abc", arguments, "tests")
    assert fake.calls == []


def test_dead_host_is_one_bounded_line(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port nobody listens on gives one line soon."""
    monkeypatch.setattr(kubeflow_client, "PROBE_PAUSE_SECONDS", 0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{probe.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(TransientError) as caught:
        submit(host, package, "demo", "git-abc", ARGUMENTS, "tests")
    assert time.monotonic() - started < 10
    assert "\n" not in str(caught.value)
    assert host in str(caught.value)


def test_silent_host_is_bounded(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that accepts and never answers is given up."""
    monkeypatch.setattr(kubeflow_client, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(kubeflow_client, "PROBE_PAUSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"http://127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(TransientError, match="nobody answers"):
            submit(host, package, "demo", "git-abc", ARGUMENTS, "tests")
    assert time.monotonic() - started < 10


def test_server_fault_later_on_is_transient(fake: FakeKfp, package: Path) -> None:
    """A 503 in the middle is one line that may be retried, and the retry completes."""
    endpoint = Endpoint(fake.url, "demo", "tests", fake)
    fake.faults.append(("POST", "/upload_version", UNAVAILABLE))
    with pytest.raises(TransientError, match="503 answer"):
        _submit(endpoint, package)
    done = _submit(endpoint, package)
    assert done.started
    assert len(fake.pipelines) == 1


def test_token_reaches_the_server_and_nothing_else(
    package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """$KFP_TOKEN is sent as a bearer token and appears in no output, log or error."""
    caplog.set_level(logging.DEBUG)
    with fake_kfp(token="planted-secret-token") as fake:
        endpoint = Endpoint(fake.url, "demo", "tests", fake)
        with pytest.raises(UserError, match="KFP_TOKEN"):
            _submit(endpoint, package)
        monkeypatch.setenv("KFP_TOKEN", "planted-secret-token")
        done = _submit(endpoint, package)
        fake.faults.append(("GET", "/pipelines", UNAVAILABLE))
        with pytest.raises(TransientError) as caught:
            _submit(endpoint, package)
    assert done.started
    out, err = capfd.readouterr()
    assert "planted-secret-token" not in out + err + caplog.text + str(caught.value) + repr(done)
    assert out == ""


@pytest.mark.parametrize("host", ["localhost:8888", "ftp://x", "http://", "http://user:pw@127.0.0.1:1"])
def test_unusable_address_says_how_to_write_it(package: Path, host: str) -> None:
    """An address without a scheme, of another scheme, or with credentials is bad input."""
    with pytest.raises(UserError, match="--host"):
        submit(host, package, "demo", "git-abc", ARGUMENTS, "tests")


def test_shared_installation_asks_for_a_namespace(package: Path) -> None:
    """A multi-user server without a namespace is bad input, before anything is made."""
    with fake_kfp(multi_user=True) as fake:
        with pytest.raises(UserError, match="KFP_NAMESPACE"):
            submit(fake.url, package, "demo", "git-abc", ARGUMENTS, "tests")
        assert fake.changes() == []


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """The laptop recipe as shipped."""
    return load_recipe(locate("laptop"))


def test_retraining_is_submitted_as_a_version_named_by_the_revision(fake: FakeKfp, recipe: Recipe) -> None:
    """`pilotline submit` sends the compiled retraining pipeline and the recipe with a run id of its own."""
    done = submit_retrain(recipe, fake.url, "gpu-pool", "pilotline", "/pilotline")
    assert done["version_name"] == f"git-{git_revision()}"
    sent = fake.runs[done["run_id"]]["runtime_config"]["parameters"]
    arrived = parse_recipe(sent["recipe"])
    assert arrived.resources.profile == "gpu-pool"
    assert arrived.model_copy(update={"resources": recipe.resources}).digest == recipe.digest
    assert re.fullmatch(r"laptop-\d{8}T\d{6}Z", sent["run_id"])
    assert sent["code_version"].startswith("src-")
    assert sent["home"] == "/pilotline"
    assert sent["started_by"] == identify().name
    assert "platform_spec" in fake.versions[done["version_id"]]["pipeline_spec"]
    assert json.loads(json.dumps(done)) == done


def test_only_who_may_run_submits_or_schedules(fake: FakeKfp, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's roles hold before anything reaches the server."""
    asked = recipe.model_copy(update={"roles": Roles(runs=("ana",))})
    monkeypatch.setenv("PILOTLINE_USER", "dave")
    with pytest.raises(PolicyRefusal, match="dave may not run"):
        submit_retrain(asked, fake.url, "gpu-pool", "pilotline", "/pilotline")
    with pytest.raises(PolicyRefusal, match="dave may not run"):
        schedule_retrain(asked, fake.url, "", "pilotline", "/pilotline", CRON)
    assert not fake.runs


def test_scheduled_retraining_reads_up_to_the_scheduled_day(fake: FakeKfp, recipe: Recipe, home: Home) -> None:
    """Each tick's interval ends on its own day, its run id is its time, and no second run starts beside the first."""
    done = schedule_retrain(recipe, fake.url, "", "pilotline", "/pilotline", CRON)
    runs = []
    for moment in (datetime(2026, 11, 2, 6, tzinfo=UTC), datetime(2026, 11, 9, 6, tzinfo=UTC)):
        run = tick(fake, done["recurring_run_id"], moment)
        assert run is not None
        assert tick(fake, done["recurring_run_id"], moment) is None
        run["state"] = "SUCCEEDED"
        runs.append(run["runtime_config"]["parameters"])
    assert [parse_recipe(run["recipe"]).source.until for run in runs] == ["2026-11-02", "2026-11-09"]
    assert [run["run_id"] for run in runs] == ["laptop-20261102060000", "laptop-20261109060000"]
    assert all(home.run(run["run_id"]) for run in runs)


def test_server_that_leaves_macros_is_refused_by_the_first_step(fake: FakeKfp, recipe: Recipe, home: Home) -> None:
    """Where the scheduled time is not filled in, the run's id is no name and nothing is trained."""
    done = schedule_retrain(recipe, fake.url, "", "pilotline", "/pilotline", CRON)
    run = tick(fake, done["recurring_run_id"], datetime(2026, 11, 2, tzinfo=UTC), expands=False)
    assert run is not None
    with pytest.raises(UserError, match="run id"):
        home.run(run["runtime_config"]["parameters"]["run_id"])


def test_recipe_that_looks_like_a_macro_is_refused(fake: FakeKfp, recipe: Recipe) -> None:
    """Double brackets in a recipe could be replaced by the server, so they are refused before any call."""
    odd = recipe.model_copy(update={"source": recipe.source.model_copy(update={"query": "[[Index]]"})})
    with pytest.raises(UserError, match="macro"):
        schedule_retrain(odd, fake.url, "", "pilotline", "/pilotline", CRON)
    assert fake.calls == []


def _forget(endpoint: Endpoint, recurring_run_id: str) -> None:
    """Leave no schedule behind on a real server."""
    if endpoint.fake is None:
        kubeflow_client.connect(endpoint.host).delete_recurring_run(recurring_run_id)
