"""The frame around a pipeline step: its record, its time, and its error in words.

Kubeflow's local runner reports only that a step failed. A step therefore leaves
`runs/<run_id>/steps/<name>.json` with status, seconds and, where it failed, the error's kind and text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.core import engine_time
from components.core.errors import KINDS, PilotlineError, one_line
from components.core.home import Home
from components.core.lineage import Lineage
from components.core.processes import follow_main
from components.core.publish import write_atomic
from components.core.recipe import Recipe, parse_recipe
from components.core.records import Record


@dataclass(frozen=True)
class StepRun:
    """What a component body works with."""

    name: str
    home: Home
    run_id: str
    recipe: Recipe
    said: list[str] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)

    def say(self, lines: Iterable[str]) -> None:
        """Tell whoever watches the run, once the step is done, a line each."""
        self.said.extend(lines)

    def keep(self, record: Record) -> None:
        """Copy the record into the run's folder, where the report and the command line read it."""
        path = self.home.run(self.run_id) / "records" / f"{self.name}.json"
        write_atomic(path, json.dumps(record.to_dict(), indent=1, sort_keys=True))
        self.kept.append(record)

    def keep_beside(self, name: str, values: dict[str, Any]) -> None:
        """Keep further facts for the report as `records/<name>.json`."""
        write_atomic(self.home.run(self.run_id) / "records" / f"{name}.json", json.dumps(values))

    def log_path(self, name: str) -> Path:
        """A log file of this run."""
        return self.home.run(self.run_id) / "logs" / f"{name}.log"


@contextmanager
def running(name: str, home: str, run_id: str, recipe: str) -> Iterator[StepRun]:
    """Run a component's body: parses the recipe, notes status and time, keeps the error for the caller."""
    follow_main()
    engine_time.reset()
    place = Home.at(home)
    note = place.run(run_id) / "steps" / f"{name}.json"
    started = time.time()
    about: dict[str, Any] = {"name": name, "status": "running", "started": started, "seconds": 0.0}
    write_atomic(note, json.dumps(about))
    lineage = None
    try:
        step = StepRun(name, place, run_id, parse_recipe(recipe))
        lineage = Lineage(step.recipe, run_id, name)
        lineage.start()
        yield step
    except BaseException as error:
        kind = error.kind if isinstance(error, PilotlineError) else "failed"
        failed = {"status": "failed", "kind": kind, "error": one_line(error), "type": type(error).__name__}
        write_atomic(note, json.dumps(about | failed | {"seconds": round(time.time() - started, 3)}))
        if lineage is not None and isinstance(error, Exception):
            lineage.fail(kind)
        raise
    done = {"status": "done", "seconds": round(time.time() - started, 3), "engines": engine_time.taken()}
    done |= {"said": step.said} if step.said else {}
    write_atomic(note, json.dumps(about | done))
    lineage.complete(step.kept)


def step_notes(home: Home, run_id: str) -> list[dict[str, Any]]:
    """The notes of all steps of a run, in the order they started."""
    folder = home.run(run_id) / "steps"
    notes = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(notes, key=lambda note: float(note["started"]))


def failure_of(home: Home, run_id: str) -> PilotlineError | None:
    """The error of the first failed step as an exception of its kind, or None."""
    for note in step_notes(home, run_id):
        if note["status"] == "failed":
            return KINDS.get(note["kind"], PilotlineError)(f"{note['name']}: {note['error']}")
    return None


def read_record(home: Home, run_id: str, name: str) -> dict[str, Any] | None:
    """The record that a step kept, or None where it did not get that far."""
    path = home.run(run_id) / "records" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
