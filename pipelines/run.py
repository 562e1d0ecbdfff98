"""`pilotline run`: compile the pipeline and execute the compiled file with Kubeflow's local runner."""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from components.core.digest import value_digest
from components.core.errors import PilotlineError, UserError
from components.core.home import Home
from components.core.people import RUN, Policy, identify, note_start
from components.core.processes import adopt, end_leftovers, port_is_free
from components.core.publish import MANIFEST, is_whole, write_atomic
from components.core.recipe import Recipe
from components.core.records import SnapshotRef
from components.core.steps import failure_of
from pipelines.code_version import code_version
from pipelines.early_check import check_project
from pipelines.outcome import RUN_FILE, Outcome, stored
from pipelines.plan_record import keep_prediction
from pipelines.preflight import check_run
from pipelines.progress import Progress
from pipelines.settling import awaiting, settle

if TYPE_CHECKING:
    from components.serving.engines import Choice


def run(recipe: Recipe, home: Home, engine: str = "auto", force: bool = False) -> Outcome:
    """Run a recipe to its outcome; resumes a killed run and returns the stored outcome of a finished one.

    Raises:
        UserError: bad input, or another run of this home is active.
        PolicyRefusal: whoever asks may not run this recipe, or it cannot fit this machine's memory.
        PilotlineError: a step failed; the message names the step.
    """
    adopt(home.root)
    who = identify()
    Policy.of(recipe).allow(who.name, RUN)
    with _only_run(home):
        for pid in end_leftovers(home.root):
            print(f"ended process {pid}, left by a run that was killed", file=sys.stderr)
        check_project(recipe)
        choice = _engine(engine, recipe)
        served_by = choice.engine.name
        check_run(recipe, served_by, getattr(choice.engine, "gpus", 0))
        version = code_version(recipe)
        with Progress(home) as progress:
            progress.say(choice.reason)
            progress.say(f"reading {recipe.source.uri}")
            snapshot = take_snapshot(recipe, home)
            run_id = _run_id(recipe, home, snapshot.digest, version, served_by, force)
            if not force and (outcome := stored(home, run_id)):
                progress.say(f"{run_id}: already {outcome.outcome}; --force repeats")
                return outcome
            if not force and (outcome := settle(home, run_id)):
                progress.say(f"{run_id}: {outcome.outcome}")
                return outcome
            _repair_aliases(recipe.model.name, home)
            note_start(home, run_id, who)
            progress.follow(run_id)
            arguments = {
                "recipe": recipe.to_json(),
                "home": str(home.root),
                "run_id": run_id,
                "code_version": version,
                "expected_digest": snapshot.digest,
                "engine": served_by,
            }
            keep_prediction(home, run_id, recipe, served_by)
            execute(home, run_id, arguments)
    return _outcome(home, run_id)


def resume(home: Home, run_id: str) -> Outcome:
    """Go on with a run that was killed, as it was begun; finished steps are not repeated.

    Raises:
        UserError: there is no such run here, or another run of this home is active.
        PilotlineError: a step failed.
    """
    adopt(home.root)
    path = home.run(run_id) / "arguments.json"
    if not path.exists():
        raise UserError(f"run {run_id}: not in {home.root / 'runs'}; `pilotline run` begins one")
    with _only_run(home):
        for pid in end_leftovers(home.root):
            print(f"ended process {pid}, left by a run that was killed", file=sys.stderr)
        if outcome := stored(home, run_id):
            return outcome
        with Progress(home) as progress:
            progress.say(f"{run_id}: goes on")
            progress.follow(run_id)
            execute(home, run_id, json.loads(path.read_text()))
    return _outcome(home, run_id)


def take_snapshot(recipe: Recipe, home: Home) -> SnapshotRef:
    """Read the source now, so that the run can be named by its content; the ingest step takes it from the store."""
    from components.contract.evolution.accepted import name_contract
    from components.core.contracts import note_reading
    from components.ingestion.ingest import ingest
    from pipelines.generators import GENERATORS

    contract = name_contract(recipe, home)
    incoming = home.root / "incoming"
    try:
        ref = ingest(recipe, incoming, generators=GENERATORS, store=home.snapshots, contract=contract)
        note_reading(home, recipe.contract.path, contract, ref.digest, from_store=False)
        return ref
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def execute(home: Home, run_id: str, arguments: dict[str, Any]) -> None:
    """Compile for the laptop and run the compiled file; the steps' own words go to the run's log."""
    from kfp import components, local

    from pipelines.compile import compile_pipeline
    from pipelines.retrain import pipeline

    folder = home.run(run_id)
    _forget_failures(folder)
    write_atomic(folder / "arguments.json", json.dumps(arguments, indent=1))
    package = folder / "pipeline.yaml"
    compile_pipeline(pipeline("laptop"), package)
    _quiet_kfp(folder / "logs" / "kubeflow.log")
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(_attempts(home, run_id)),
        raise_on_error=True,
        enable_caching=True,
    )
    with (folder / "logs" / "steps.log").open("a", encoding="utf-8", buffering=1) as log, redirect_stdout(log):
        try:
            components.load_component_from_file(str(package))(**arguments)
        except RuntimeError as error:  # the runner's word for "a step failed": the step's note knows why
            logging.getLogger(__name__).debug("local runner: %s", error)
            if failure_of(home, run_id) is None:
                raise PilotlineError(
                    f"the run's last step failed, its outcome is not stored; see {log.name}"
                ) from error


def _attempts(home: Home, run_id: str) -> Path:
    """Where Kubeflow's local runner keeps the artifacts of this run's attempts, without what was damaged since.

    The runner's cache looks only whether an artifact is there: a folder that no longer verifies is taken away, so
    that its step runs again instead of failing all after it.
    """
    root = home.pipeline_root / run_id
    for manifest in root.glob(f"*/*/*/{MANIFEST}"):
        if not is_whole(manifest.parent):
            print(f"{manifest.parent}: damaged since it was written; its step runs again", file=sys.stderr)
            shutil.rmtree(manifest.parent)
    return root


def _outcome(home: Home, run_id: str) -> Outcome:
    if (error := failure_of(home, run_id)) and isinstance(error, UserError):
        raise error
    path = home.run(run_id) / RUN_FILE
    if not path.exists() or not path.with_name("report.html").exists():
        raise PilotlineError(f"run {run_id}: no outcome or report was written; see {path.parent / 'logs'}")
    return Outcome(**json.loads(path.read_text()))


def _repair_aliases(name: str, home: Home) -> None:
    """A kill between the ledger's entry and the registry's alias leaves the alias behind: let it follow first."""
    if (home.root / "mlflow.db").exists():
        from components.registry.models import sync

        sync(home, name)


def _run_id(recipe: Recipe, home: Home, snapshot: str, version: str, engine: str, force: bool) -> str:
    """Named by what goes in, so that the same input finds the same run; --force counts on."""
    base = f"{recipe.name}-{value_digest([snapshot, recipe.digest, version, engine])[:12]}"
    if not force:
        return base
    return next(name for name in _numbered(base) if not stored(home, name) and not awaiting(home, name))


def _numbered(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}.{number}" for number in itertools.count(1))


def _engine(asked: str, recipe: Recipe) -> Choice:
    """The engine that will serve, and whether it can, decided before anything is computed."""
    from components.serving.engines import choose

    wanted = asked if asked != "auto" else recipe.serving.engine
    choice = choose(wanted)
    if (port := recipe.serving.port) and not port_is_free(port):
        raise UserError(f"serving.port {port}: in use on 127.0.0.1; choose another, or 0 for a free one")
    choice.engine.check_head_size(recipe.model.hidden_size // recipe.model.heads, f"recipe {recipe.name}")
    return choice


def _forget_failures(folder: Path) -> None:
    """Take away what the last attempt said of itself; finished steps keep their notes and records."""
    (folder / RUN_FILE).unlink(missing_ok=True)
    for note in (folder / "steps").glob("*.json"):
        if json.loads(note.read_text())["status"] != "done":
            note.unlink()
    (folder / "logs").mkdir(parents=True, exist_ok=True)


def _quiet_kfp(log: Path) -> None:
    """Kubeflow logs to standard error on its own terms: send it to the run's log instead."""
    warnings.filterwarnings("ignore", module=r"kfp\..*")
    root = logging.getLogger()
    root.handlers = [logging.FileHandler(log)]


@contextmanager
def _only_run(home: Home) -> Iterator[None]:
    """One run a home at a time; the lock goes with the process. SIGTERM ends the run in order."""
    with (home.root / "run.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"home {home.root}: another run is active; wait for it or use another --home") from error
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            yield
        except BaseException:
            end_leftovers(home.root)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def keep_environment() -> None:
    """What every process of a run inherits: no network look-ups, no telemetry, few threads."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "FEAST_USAGE": "False",
        "GX_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }.items():
        os.environ.setdefault(name, value)
