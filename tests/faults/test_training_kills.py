"""Training killed anywhere ends in the very weights and losses of an undisturbed run.

Every place where the training room writes has a name in components/training/failpoints.py. The sources are read to
see that none was forgotten, and each is the scene of a kill: a few in every test run, all of them in the full one.
"""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from components.core.processes import OWNER
from components.core.records import ModelRef
from components.training import failpoints
from components.training.checkpoints import checkpoint_folder, saved_steps
from components.training.failpoints import POINTS
from tests.fakes import forked_ranks
from tests.fakes.training_case import publish_training_set
from tests.fakes.training_runs import disturbed, job_folder, recipe, same_as_undisturbed, undisturbed

ROOM = Path(failpoints.__file__).parent
WRITES = {
    "open", "write_text", "write_bytes", "write_atomic", "write", "publishing", "save_file", "save_pretrained",
    "rename", "replace", "unlink", "rmtree", "touch", "mkdir", "copytree", "copyfile",
}  # fmt: skip
ELSEWHERE = {  # name of the function → where its writes are covered
    "staging.py:write": "save.shard, by its only caller",
    "staging.py:_Hashed.write": "save.shard: a stream of the function above",
    "staging.py:MemoryStaging.makedirs": "save.begin: the folder that a save stages in",
    "component.py:train": "Kubeflow's own file of metrics: without it the step runs again",
    "train.py:train": "launch.job: the job's empty folder",
    "beats.py:Beat.__init__": "rank.init: the empty folder of the beats",
    "saving.py:Saver._guarded": "runs Saver._write in a thread",
    "saving.py:Saver.save": "runs Saver._write, which has its own",
    "progress.py:Forwarder.finish": "a temporary folder; MLflow's writes are keyed, see tests of tracking",
}
RANKS_ALIKE = ("rank.init", "rank.beat", "rank.step", "resume.loaded", "save.begin", "save.shard", "save.part")
SCENES = {  # point → what has to happen for it to be reached: a first run, patches, or another shape
    "launch.error": {"before": "error_in_rank_1"},
    "launch.log": {"before": "error_in_rank_1"},
    "rollback.noted": {"before": "nan_at_step_7", "on_nan": "rollback"},
}
LATER = {"rank.step": 12, "rank.progress": 9}  # not the first time, where that is the duller one
LATER |= dict.fromkeys((point for point in POINTS if point.startswith("save.")), 2)
BY_HAND = {"launch.converting", "launch.converted", "resume.set_aside", "preempt.noted"}  # tests of their own below


def _cases() -> Iterator[str]:
    for point in sorted(set(POINTS) - BY_HAND):
        nth = f"#{LATER[point]}" if point in LATER else ""
        if point.startswith("launch.") and point != "launch.error":
            yield f"{point}@launcher{nth}=kill"
        else:
            who = (0, 1) if point in RANKS_ALIKE else (1,) if point == "launch.error" else (0,)
            yield from (f"{point}@{rank}{nth}=kill" for rank in who)


QUICK = {"save.shard@1#2=kill", "save.published@0#2=kill", "launch.prepared@launcher=kill", "export.begin@0=kill"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", [case if case in QUICK else pytest.param(case, marks=pytest.mark.full) for case in _cases()]
)
def test_a_kill_at_any_point_changes_nothing_in_the_end(tmp_path: Path, failpoint: str) -> None:
    """A rank killed there is replaced with its gang, a launcher killed there is started again: the same model."""
    scene = dict(SCENES.get(failpoint.partition("@")[0], {}))
    model = disturbed(tmp_path, failpoint, before=scene.pop("before", ""), **scene)
    if "on_nan" in scene:  # a step is left out: another model, but the one that is undisturbed by the kill
        (tmp_path / "again").mkdir()
        publish_training_set(tmp_path / "again" / "set")
        expected = forked_ranks.run(tmp_path / "again", recipe(**scene).to_json(), before="nan_at_step_7")
        assert isinstance(model, ModelRef), model
        assert model.digest == expected.digest
    else:
        same_as_undisturbed(model)
    assert not list(job_folder(tmp_path).glob(".step-*"))


def test_quick_cases_are_cases() -> None:
    """A renamed point does not silently drop out of every run."""
    assert set(_cases()) >= QUICK
    assert {case.partition("@")[0] for case in _cases()} | BY_HAND == set(POINTS)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("point", ["launch.converting", "launch.converted"])
def test_a_kill_while_a_checkpoint_is_converted(tmp_path: Path, point: str) -> None:
    """Half a conversion is never loaded; the next start converts again or finds it whole."""
    publish_training_set(tmp_path / "set")
    forked_ranks.run(tmp_path, recipe().to_json(), {failpoints.VARIABLE: "rank.step@0#7=term"})
    step = saved_steps(job_folder(tmp_path))[-1]
    model = disturbed(tmp_path, f"{point}@launcher=kill", ranks=1, zero_stage=2)
    assert isinstance(model, ModelRef), model
    assert model.resumed_from_step == step
    assert model.world_size == 1


@pytest.mark.full
@pytest.mark.slow
def test_a_kill_while_a_damaged_checkpoint_is_set_aside(tmp_path: Path) -> None:
    """The older one is used either way."""
    publish_training_set(tmp_path / "set")
    forked_ranks.run(tmp_path, recipe().to_json(), {failpoints.VARIABLE: "rank.step@0#12=term"})
    _flip_newest(job_folder(tmp_path))
    same_as_undisturbed(disturbed(tmp_path, "resume.set_aside@0=kill"))


@pytest.mark.full
@pytest.mark.slow
def test_a_kill_while_a_preemption_is_noted(tmp_path: Path) -> None:
    """Told to end and killed while saying so: the checkpoint is there, and the gang just goes on."""
    publish_training_set(tmp_path / "set")
    forked_ranks.run(tmp_path, recipe().to_json(), {failpoints.VARIABLE: "rank.step@0#7=term"})
    same_as_undisturbed(disturbed(tmp_path, "launch.errors@launcher=kill"))


def test_every_function_of_the_room_that_writes_has_a_kill_point() -> None:
    """A new write without one fails here, and so does a point that no function reaches."""
    without, found = [], set()
    for path in sorted(ROOM.glob("*.py")):
        for name, function in _functions(ast.parse(path.read_text())):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            points = {
                call.args[0].value
                for call in calls
                if _name(call) == "reached" and call.args and isinstance(call.args[0], ast.Constant)
            }
            found |= points
            place = f"{path.name}:{name}"
            if not points and place not in ELSEWHERE and any(_writes(call) for call in calls):
                without.append(place)
    assert not without, f"write without a failpoint (components/training/failpoints.py): {without}"
    assert found == set(POINTS)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{item.name}", item) for item in node.body if isinstance(item, ast.FunctionDef))


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _writes(call: ast.Call) -> bool:
    name = _name(call)
    if name == "open":  # os.open for reading and flushing, and Path.open("rb"), write nothing
        words = [
            node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        return any(set(word) & set("wax+") for word in words if len(word) <= 3)
    if name == "replace":
        return len(call.args) == 1  # a path's; a text's takes two
    return name in WRITES


@pytest.mark.full
@pytest.mark.slow
def test_twenty_kills_in_a_row_end_in_the_undisturbed_weights(tmp_path: Path) -> None:
    """Twenty jobs, each killed at a moment of chance, rank or launcher, and restarted until it is done."""
    undisturbed()
    (tmp_path / "timed").mkdir()
    publish_training_set(tmp_path / "timed" / "set")
    began = time.monotonic()
    forked_ranks.run(tmp_path / "timed", recipe().to_json())
    typical, killed, rng = time.monotonic() - began, 0, random.Random(20)
    for trial in range(20):
        root = tmp_path / str(trial)
        root.mkdir()
        publish_training_set(root / "set")
        process = forked_ranks.start(root, recipe().to_json())
        process.join(rng.uniform(0.1, 1.0) * typical)
        if process.is_alive():
            launcher = psutil.Process(process.pid)
            rng.choice([launcher, *launcher.children()]).kill()
            killed += 1
        process.join(600)
        assert not process.is_alive()
        found = forked_ranks.outcome(root)
        same_as_undisturbed(found if found is not None else forked_ranks.run(root, recipe().to_json()))
    assert killed >= 15


@pytest.mark.slow
def test_killed_launcher_takes_torchrun_and_its_ranks_along_and_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path,
) -> None:
    """With the real back-end: SIGKILL to the launcher, a flipped byte: the same model as undisturbed, said loudly."""
    publish_training_set(tmp_path / "set")
    process = subprocess.Popen(_launch(tmp_path), env=_environment())
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (_saved(tmp_path) >= 2 and process.poll() is None):
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    while time.monotonic() < deadline and _processes(tmp_path):
        time.sleep(0.1)
    assert not _processes(tmp_path)
    assert not (tmp_path / "out").exists()
    folder = job_folder(tmp_path)
    damaged = _flip_newest(folder)
    assert subprocess.run(_launch(tmp_path), env=_environment(), timeout=240, check=False).returncode == 0
    log = (tmp_path / "log").read_text()
    assert f"checkpoint of step {damaged} is damaged" in log
    model = ModelRef.read(tmp_path / "out")
    assert f"resuming from the older checkpoint of step {model.resumed_from_step}" in log
    assert 0 < model.resumed_from_step < damaged
    same_as_undisturbed(model)
    assert model.checkpoint is not None
    assert model.checkpoint.step == 15


def _flip_newest(folder: Path) -> int:
    step = saved_steps(folder)[-1]
    weights = next(checkpoint_folder(folder, step).glob("engine/*model_states.pt"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(bytes(data))
    return step


def _saved(root: Path) -> int:
    return max((len(saved_steps(path.parent)) for path in (root / "ck").glob("*/job.json")), default=0)


def _launch(root: Path) -> list[str]:
    code = (
        "from pathlib import Path; from components.training.train import train;"
        "from tests.fakes.training_runs import recipe;"
        f"root = Path({str(root)!r});"
        "train(recipe(), root / 'set', root / 'out', root / 'ck', None, 'run', root / 'log')"
    )
    return [sys.executable, "-c", code]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), OWNER: ""}


def _processes(root: Path) -> list[psutil.Process]:
    """Live processes of this test's job, but for the test."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]
