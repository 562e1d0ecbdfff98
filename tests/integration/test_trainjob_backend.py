"""TrainJobs through the real Kubernetes client against an API double: created once, found again, followed, ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.core.errors import TransientError, UserError
from components.core.paths import PROJECT_ROOT
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ModelRef
from components.training.backends import trainjob as module
from components.training.backends.launch import QUEUED, Ended, Launch
from components.training.backends.trainjob import TrainJobBackend
from components.training.backends.trainjob_spec import trainjob
from components.training.train import train
from tests.fakes import forked_ranks
from tests.fakes.kubernetes_api import KubernetesApi
from tests.fakes.trainer_controller import PLURAL, VERSION, TrainerController, condition
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_launch import KEY, recipe_for

SPACE = "training"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a test, not of a cluster."""
    for name, seconds in (("POLL_SECONDS", 0.05), ("WATCH_SECONDS", 0.02), ("FIRST_WAIT_SECONDS", 0.01)):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    """A cluster with our Role, and nothing more, for whoever speaks to it."""
    role = yaml.safe_load(
        (PROJECT_ROOT / "deploy" / "kubernetes" / "training" / "rbac.yaml").read_text().split("---")[0]
    )
    with KubernetesApi(namespaces=("default", SPACE), rules=role["rules"]) as found:
        yield found


def _recipe(mount: Path, **resources: Any) -> Recipe:
    volume = {"volume": {"claim": "pilotline-home", "mount": str(mount)}}
    return recipe_for("trainjob", namespace=SPACE, pool=volume, **resources)


def _launch(folder: Path, key: str = KEY) -> Launch:
    (folder / "job").mkdir(exist_ok=True)
    return Launch(key, folder / "job" / "job.json", _recipe(folder), folder / "log")


def _posts(api: KubernetesApi) -> int:
    return sum(1 for verb, path in api.requests if verb == "POST" and PLURAL in path)


def _status(api: KubernetesApi, launch: Launch, status: dict[str, Any]) -> None:
    api.set_status(VERSION, PLURAL, launch.name, status, SPACE)


def _silent(pid: int) -> None:
    """Watch nothing."""


def test_submitting_again_finds_the_job(api: KubernetesApi, tmp_path: Path) -> None:
    """Two launchers, one TrainJob: the second one has only its name."""
    launch = _launch(tmp_path)
    first = TrainJobBackend(api.client()).submit(launch)
    assert TrainJobBackend(api.client()).submit(launch) == first == f"{SPACE}/{launch.name}"
    assert _posts(api) == 1
    (made,) = api.list(VERSION, PLURAL)
    assert made["spec"] == trainjob(launch)["spec"]


def test_a_launcher_that_comes_in_between_is_joined(api: KubernetesApi, tmp_path: Path) -> None:
    """Read as absent, created by another a moment later: the conflict is settled by reading back."""
    launch = _launch(tmp_path)
    api.interrupt("POST", PLURAL, lambda: api.create(trainjob(launch), SPACE))
    assert TrainJobBackend(api.client()).submit(launch)
    assert len(api.list(VERSION, PLURAL)) == 1


def test_an_answer_that_is_lost_does_not_make_two(api: KubernetesApi, tmp_path: Path) -> None:
    """The server made it and then failed to say so."""
    launch = _launch(tmp_path)
    api.interrupt("POST", PLURAL, lambda: api.create(trainjob(launch), SPACE))
    api.fail("POST", PLURAL, 503)
    assert TrainJobBackend(api.client()).submit(launch)
    assert len(api.list(VERSION, PLURAL)) == 1


def test_a_job_of_that_name_for_another_training_is_left_alone(api: KubernetesApi, tmp_path: Path) -> None:
    """The name holds a part of the key; the whole one decides."""
    launch, other = _launch(tmp_path), _launch(tmp_path, KEY[:40] + "f" * 24)
    TrainJobBackend(api.client()).submit(other)
    with pytest.raises(UserError, match="belongs to another training"):
        TrainJobBackend(api.client()).submit(launch)
    assert len(api.list(VERSION, PLURAL)) == 1


@pytest.mark.parametrize(
    ("kind", "exported", "anew"), [("Failed", False, True), ("Complete", False, True), ("Complete", True, False)]
)
def test_a_job_that_ended_is_replaced_unless_it_is_the_finished_one(
    api: KubernetesApi, tmp_path: Path, kind: str, exported: bool, anew: bool
) -> None:
    """A failed one is a new attempt; a finished one stays finished, unless its export is gone."""
    launch, backend = _launch(tmp_path), TrainJobBackend(api.client())
    backend.submit(launch)
    first = api.list(VERSION, PLURAL)[0]["metadata"]["uid"]
    _status(api, launch, {"conditions": [condition(kind, "ByTest")]})
    if exported:
        (launch.folder / "final").mkdir()
    backend.submit(launch)
    assert (api.list(VERSION, PLURAL)[0]["metadata"]["uid"] != first) == anew


def test_waiting_tells_queued_from_running_and_ends_with_the_reason(api: KubernetesApi, tmp_path: Path) -> None:
    """Suspended by Kueue no rank can make progress; once its nodes are ready one can; a failure says why."""
    launch, backend, seen = _launch(tmp_path), TrainJobBackend(api.client()), []
    backend.submit(launch)
    _status(api, launch, {"conditions": [condition("Suspended", "Suspended", "no quota")]})

    def watch(pid: int) -> None:
        seen.append(pid)
        if len(seen) == 5:
            ready = {"name": "node", "ready": 1, "active": 1, "failed": 0, "succeeded": 0, "suspended": 0}
            _status(api, launch, {"conditions": [], "jobsStatus": [ready]})
        if seen.count(0) == 5:
            _status(api, launch, {"conditions": [condition("Failed", "JobsFailed", "node-0 exited with 1")]})

    ended = backend.wait(launch, 30, watch)
    assert ended.status == 1
    assert "node-0 exited with 1" in ended.reason
    assert seen[0] == QUEUED
    assert 0 in seen
    assert "waits for admission (no quota)" in launch.log.read_text()


def test_a_waiting_that_ends_leaves_the_job_to_be_found_again(api: KubernetesApi, tmp_path: Path) -> None:
    """The bound is the waiting's, not the job's; another launcher goes on from there."""
    launch = _launch(tmp_path)
    backend = TrainJobBackend(api.client())
    backend.submit(launch)
    with pytest.raises(TransientError, match="the same command finds it again"):
        backend.wait(launch, 0.2, _silent)
    another = TrainJobBackend(api.client())
    another.submit(launch)
    assert another.result(launch) is None
    threading.Timer(0.2, lambda: _status(api, launch, {"conditions": [condition("Complete", "JobsCompleted")]})).start()
    assert another.wait(launch, 30, _silent) == Ended(0)
    assert another.result(launch) == Ended(0)
    assert _posts(api) == 1


def test_a_job_that_somebody_deletes_has_ended(api: KubernetesApi, tmp_path: Path) -> None:
    """Waiting for what is gone would be waiting for ever."""
    launch, backend = _launch(tmp_path), TrainJobBackend(api.client())
    backend.submit(launch)
    threading.Timer(0.2, lambda: api.delete(VERSION, PLURAL, launch.name, SPACE)).start()
    assert "was deleted" in backend.wait(launch, 30, _silent).reason


@pytest.mark.parametrize(("times", "survives"), [(3, True), (50, False)])
def test_an_api_server_that_is_away_is_waited_for_a_bounded_time(
    api: KubernetesApi, tmp_path: Path, times: int, survives: bool
) -> None:
    """A short outage is not seen; a long one ends the waiting, not the job."""
    launch, backend = _launch(tmp_path), TrainJobBackend(api.client())
    backend.submit(launch)
    _status(api, launch, {"conditions": [condition("Complete", "JobsCompleted")]})
    api.fail("GET", PLURAL, 503, times)
    if survives:
        assert backend.wait(launch, 30, _silent) == Ended(0)
        return
    began = time.monotonic()
    with pytest.raises(TransientError, match="no answer in 5 tries"):
        backend.wait(launch, 30, _silent)
    assert time.monotonic() - began < 10
    api.faults.clear()
    assert backend.result(launch) == Ended(0)


def test_cancelling_twice_is_cancelling_once(api: KubernetesApi, tmp_path: Path) -> None:
    """Gone when it returns, and no error where nothing was."""
    launch, backend = _launch(tmp_path), TrainJobBackend(api.client())
    backend.submit(launch)
    backend.cancel(launch)
    assert api.list(VERSION, PLURAL) == []
    backend.cancel(launch)
    assert backend.result(launch) is None


def test_what_the_cluster_does_not_take_is_one_line(api: KubernetesApi, tmp_path: Path) -> None:
    """No such namespace, no right, an object refused, a folder that pods cannot see."""
    launch, backend = _launch(tmp_path), TrainJobBackend(api.client())
    absent = launch.recipe.model_copy(
        update={"resources": launch.recipe.resources.model_copy(update={"namespace": "nowhere"})}
    )
    lines = []
    with pytest.raises(UserError, match="namespace nowhere: absent") as found:
        backend.submit(Launch(KEY, launch.job_file, absent, launch.log))
    lines.append(found)
    with pytest.raises(UserError, match="pods mount the shared volume at") as found:
        backend.submit(Launch(KEY, tmp_path.parent / "elsewhere" / "job.json", launch.recipe, launch.log))
    lines.append(found)
    api.validate = lambda _: ["spec.trainer: no"]
    with pytest.raises(UserError, match=r"refused: 422 .*spec\.trainer: no") as found:
        backend.submit(launch)
    lines.append(found)
    api.rules = []
    with pytest.raises(UserError, match=r"refused: 403 .*deploy/kubernetes/training") as found:
        backend.submit(launch)
    lines.append(found)
    assert all("\n" not in str(line.value) for line in lines)


def test_the_cluster_of_the_kubeconfig_is_used(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a person's machine has it: KUBECONFIG, its context and its namespace."""
    settings = api.kubeconfig()
    settings["contexts"][0]["context"]["namespace"] = SPACE
    (tmp_path / "config").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    launch = _launch(tmp_path)
    bare = launch.recipe.model_copy(update={"resources": launch.recipe.resources.model_copy(update={"namespace": ""})})
    assert TrainJobBackend().submit(Launch(KEY, launch.job_file, bare, launch.log)) == f"{SPACE}/{launch.name}"
    assert SPACE in TrainJobBackend().place()


@pytest.mark.slow
def test_the_real_ranks_of_a_trainjob_export_what_local_ranks_export(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TrainJob's own command and variables start the ranks; the model is the same to the byte."""
    publish_training_set(tmp_path / "set")
    monkeypatch.setattr("components.training.train.backend_for", lambda _: TrainJobBackend(api.client()))
    with TrainerController(api) as controller:
        recipe = _recipe(tmp_path)
        there = train(recipe, tmp_path / "set", tmp_path / "out", tmp_path / "ck", None, "run", tmp_path / "log")
        assert controller.started == 1
    monkeypatch.undo()
    values = json.loads(recipe.to_json())
    values["training"]["backend"], values["resources"] = "local", {}
    here = parse_recipe(values)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "set").symlink_to(tmp_path / "set")
    assert isinstance(forked_ranks.run(tmp_path / "here", here.to_json()), ModelRef)
    assert there.world_size == 2
    assert _weights(tmp_path / "out") == _weights(tmp_path / "here" / "out")
    assert "model of step" in (tmp_path / "log").read_text()


def _weights(out: Path) -> dict[str, bytes]:
    """Every file of the export but the one that names the recipe, whose back-end differs."""
    files = {path.name: path.read_bytes() for path in (out / "model").iterdir() if path.name != "pilotline.json"}
    assert "model.safetensors" in files
    return files
