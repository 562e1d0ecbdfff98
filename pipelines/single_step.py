"""`pilotline step`: one component's own function on local folders, without a pipeline around it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.home import Home
from components.core.publish import MANIFEST
from components.core.recipe import Recipe
from components.core.steps import read_record
from pipelines.code_version import code_version

STEPS = {
    "ingest": "components.ingestion.component",
    "validate": "components.contract.component",
    "featurise": "components.features.component",
    "guard": "components.contract.component",
    "train": "components.training.component",
    "evaluate": "components.evaluation.component",
    "register": "components.registry.component",
    "rollout": "components.rollout.component",
    "promote": "components.registry.component",
}


def run_step(
    name: str, recipe: Recipe, home: Home, inputs: Sequence[str], out: Path, run_id: str, engine: str
) -> dict[str, Any]:
    """Run a step on `NAME=DIR` inputs and publish its first output at `out`; returns the step's record.

    Further outputs (pages, metrics) lie beside it as `<out>.<name>`.

    Raises:
        UserError: an unknown step, or an input that is missing or not a folder.
    """
    if name not in STEPS:
        raise UserError(f"step {name!r}: not one of {', '.join(STEPS)}")
    folders = _folders(inputs)
    _check_out(out, folders)
    function: Callable[..., Any] = getattr(importlib.import_module(STEPS[name]), name).python_func
    given = {
        "home": str(home.root),
        "run_id": run_id,
        "recipe": recipe.to_json(),
        "code_version": code_version(recipe),
        "expected_digest": "",
        "engine": engine,
        "started_by": "",
    }
    function(**_arguments(name, function, given, folders, out))
    return read_record(home, run_id, name) or {}


def _check_out(out: Path, folders: dict[str, Path]) -> None:
    """Publishing replaces the folder as a whole: only what a step published before may be replaced."""
    place = out.resolve()
    if place == Path.cwd() or place in Path.cwd().parents or place in [path.resolve() for path in folders.values()]:
        raise UserError(f"--out {str(out)!r}: would replace the working folder or an input; name a new folder")
    if out.exists() and not (out / MANIFEST).is_file():
        raise UserError(f"--out {str(out)!r}: is there and was not published by a step; name a new folder")


def _folders(inputs: Sequence[str]) -> dict[str, Path]:
    folders = {}
    for item in inputs:
        name, _, path = item.partition("=")
        if not path or not Path(path).is_dir():
            raise UserError(f"--input {item!r}: write NAME=DIR with a folder that a step published")
        folders[name] = Path(path).absolute()
    return folders


def _arguments(
    step: str, function: Callable[..., Any], given: dict[str, str], folders: dict[str, Path], out: Path
) -> dict[str, Any]:
    """Values for the function's parameters: texts by name, artifacts by folder."""
    from kfp.dsl.types import type_annotations as kinds

    wanted, arguments, outputs = set(), {}, 0
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if kinds.is_Input_Output_artifact_annotation(kind):
            artifact = kinds.get_io_artifact_class(kind)
            if kinds.is_artifact_wrapped_in_Input(kind):
                wanted.add(name)
                arguments[name] = artifact(name=name, uri=str(folders.get(name, "")))
            else:
                path = out if outputs == 0 else out.with_name(f"{out.name}.{name}")
                outputs += 1
                arguments[name] = artifact(name=name, uri=str(path.absolute()))
        else:
            arguments[name] = given[name]
    if wanted != set(folders):
        odd = min(wanted ^ set(folders))
        raise UserError(f"step {step}: input {odd!r} is missing or not used; it takes {sorted(wanted) or 'no input'}")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    return arguments
