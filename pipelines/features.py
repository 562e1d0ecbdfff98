"""`pilotline features`: the home's feature store, for whoever reads features outside a run.

`<home>/features` holds Feast's settings, a SQL registry and, unless the recipe names Redis, the online store.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from components.core.environment import with_environment
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.publish import verify
from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.features.latest.places import open_latest
from components.features.online import HISTORY, ONLINE, describe_online, end_of, fill, on_demand_of
from components.features.parity import measure_parity
from components.features.repository import check_service, locate


def apply(home: Home, recipe: Recipe) -> dict[str, Any]:
    """Check the recipe's feature project and register it; JSON values for people and programs.

    Raises:
        UserError: the project does not load, or Feast refuses it.
    """
    from components.features.feast_store import apply_shared, load_project

    asked = recipe.features
    project = load_project(locate(asked.repo), asked.ttl_days)
    service = project.service(asked.service)
    check_service(service, asked.entities, asked.model_inputs, asked.request, recipe.model.text_column)
    if asked.online and not asked.online.startswith(("redis://", "rediss://", "unix://", "${")):
        raise UserError(
            f"features.online {asked.online!r}: Feast's settings name Redis or the home's own; leave it empty"
        )
    with_environment(asked.online, "features.online")  # its settings keep the name; Feast fills it when it reads them
    apply_shared(project, home.features, home.features / HISTORY, asked.online)
    return {
        "project": project.project,
        "service": service.name,
        "views": {view.name: list(view.features) for view in service.views}
        | {view.name: list(view.features) for view in service.on_demand},
        "registry": str(home.features),
        "online": _shown(home, recipe),
    }


def materialize(home: Home, recipe: Recipe, training_set: str, until: str, whole: bool) -> dict[str, Any]:
    """Write what became known up to a moment into the online store, from a training set's history.

    Args:
        home: holds the online store unless the recipe names one.
        recipe: its section features.
        training_set: a published folder; "" for the newest of the home's runs.
        until: ISO 8601; "" for the end of the training set's history.
        whole: from the beginning, not from where the last call ended.

    Raises:
        UserError: no training set, or a time that is none.
        TransientError: the store does not answer; run again.
    """
    folder = _folder(home, training_set)
    project, service = describe_online(folder)
    moment = _moment(until) if until else end_of(datetime.fromisoformat(_record(folder).as_of))
    store = open_latest(_address(home, recipe))
    try:
        done = fill(store, project, service, folder / HISTORY, moment, whole=whole)
    finally:
        store.close()
    return {
        "training_set": str(folder),
        "online": _shown(home, recipe),
        "until": moment.isoformat(),
        "views": [{"view": view.view, "rows": view.rows, "until": view.until} for view in done],
    }


def parity(home: Home, recipe: Recipe, training_set: str) -> dict[str, Any]:
    """Compare a training set's rows with online reads as of their moments, by replay.

    Raises:
        UserError: no training set.
        IntegrityError: the feature project's on-demand code is not that which the training set was made with.
    """
    folder = _folder(home, training_set)
    record = _record(folder)
    project, service = describe_online(folder)
    frame = pd.concat([pd.read_parquet(folder / f"{split.name}.parquet") for split in record.splits])
    ttl = timedelta(days=recipe.features.ttl_days)
    code = on_demand_of(folder, recipe.features.repo, record.features)
    found = measure_parity(frame, project, service, record.features, folder / HISTORY, ttl, code)
    passed = found.skew <= recipe.features.max_skew
    return {"passed": passed, "training_set": str(folder), "limit": recipe.features.max_skew} | found.to_dict()


def newest_training_set(home: Home) -> Path:
    """The folder of the training set made last in the home's runs.

    Raises:
        UserError: there is none.
    """
    notes = sorted((home.root / "runs").glob("*/records/training_set.json"), key=lambda path: path.stat().st_mtime)
    for note in reversed(notes):
        folder = home.root / json.loads(note.read_text())["path"]
        if folder.is_dir():
            return folder
    raise UserError(f"{home.root}: holds no training set; run the pipeline first, or give --training-set DIR")


def _folder(home: Home, given: str) -> Path:
    folder = Path(given) if given else newest_training_set(home)
    if not folder.is_dir():
        raise UserError(f"--training-set {given!r}: no such folder; give one that the step featurise published")
    verify(folder)
    return folder


def _record(folder: Path) -> TrainingSetRef:
    try:
        return TrainingSetRef.read(folder)
    except IntegrityError as error:
        raise UserError(f"--training-set {str(folder)!r}: is no training set; give what featurise published") from error


def _address(home: Home, recipe: Recipe) -> str:
    return with_environment(recipe.features.online, "features.online") or str(home.features / ONLINE)


def _shown(home: Home, recipe: Recipe) -> str:
    """The address without a secret: as the recipe has it."""
    return recipe.features.online or str(home.features / ONLINE)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UserError(f"--until {text!r}: write a time as YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS+00:00") from error
