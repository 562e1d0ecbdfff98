"""`pilotline features`: the home's feature store, for whoever reads features outside a run.

`<home>/features` holds Feast's settings, a SQL registry and, unless the recipe names Redis, the online store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from components.core.environment import with_environment
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.publish import MANIFEST, verify
from components.core.recipe import Recipe
from components.core.records import TrainingSetRef
from components.features.latest.entries import LatestStore
from components.features.latest.places import open_latest
from components.features.latest.sqlite import SqliteLatest
from components.features.online import HISTORY, ONLINE, describe_online, end_of, fill, on_demand_of
from components.features.parity import measure_parity, measure_served
from components.features.push import Pushed
from components.features.push import push as push_rows
from components.features.repository import check_service, locate

NETWORKED = ("redis://", "rediss://", "unix://")


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
    own = asked.online and Path(asked.online).absolute() == (home.features / ONLINE).absolute()
    if asked.online and not own and not asked.online.startswith((*NETWORKED, "${")):
        raise UserError(
            f"features.online {asked.online!r}: Feast's settings name Redis or the home's own, {home.features / ONLINE}"
        )
    with_environment(asked.online, "features.online")  # its settings keep the name; Feast fills it when it reads them
    apply_shared(project, home.features, home.features / HISTORY, "" if own else asked.online)
    return {
        "project": project.project,
        "service": service.name,
        "views": {view.name: list(view.features) for view in service.views}
        | {view.name: list(view.features) for view in service.on_demand},
        "registry": str(home.features),
        "online": _shown(home, recipe),
    }


def materialize(
    home: Home, recipe: Recipe, training_set: str, until: str, whole: bool, rebuild: bool = False
) -> dict[str, Any]:
    """Write what became known up to a moment into the online store, from a training set's history.

    Args:
        home: holds the training sets.
        recipe: its section features, which names the store.
        training_set: a published folder; "" for the newest of the home's runs.
        until: ISO 8601; "" for the end of the training set's history.
        whole: from the beginning, not from where the last call ended.
        rebuild: from the beginning, after what the store holds of the views is dropped, also newer values.

    Raises:
        UserError: no training set, a time that is none, or the recipe names no store.
        TransientError: the store does not answer; run again.
    """
    folder = _folder(home, training_set)
    project, service = describe_online(folder)
    moment = _moment(until) if until else end_of(datetime.fromisoformat(_record(folder).as_of))
    _refuse_unread(home, recipe)
    store = open_latest(_address(home, recipe))
    try:
        done = fill(store, project, service, folder / HISTORY, moment, whole=whole, rebuild=rebuild)
    finally:
        store.close()
    return {
        "training_set": str(folder),
        "online": _shown(home, recipe),
        "until": moment.isoformat(),
        "views": [{"view": view.view, "rows": view.rows, "older": view.older, "until": view.until} for view in done],
    }


def push(
    home: Home,
    recipe: Recipe,
    training_set: str,
    lines: Iterable[str | bytes],
    told: Callable[[Pushed], None],
    **how: Any,
) -> dict[str, Any]:
    """Write rows of streaming events into the online store that the recipe names.

    Args:
        home: holds the training sets.
        recipe: its section features, which names the store.
        training_set: a published folder, whose feature service the rows are of; "" for the newest of the home's runs.
        lines: see push.py.
        told: is called after each batch.
        how: batch, skip_bad and default_view of push().

    Raises:
        UserError: a bad row, with nothing of its batch written; no training set, or the recipe names no store.
        TransientError: the store does not answer; push the rows again.
    """
    project, service = describe_online(_folder(home, training_set))
    _refuse_unread(home, recipe)
    store = open_latest(_address(home, recipe))
    rows = bad = older = 0
    try:
        for done in push_rows(store, project, service, lines, **how):
            told(done)
            rows, bad, older = rows + done.rows, bad + len(done.rejected), older + done.older
    finally:
        store.close()
    if bad and not how.get("skip_bad"):
        kept = f"; {rows} of the batches before it are written" if rows else ", and nothing was written"
        raise UserError(f"push: {bad} bad rows{kept}; mend them and push again, or give --skip-bad")
    return {"online": _shown(home, recipe), "rows": rows, "older": older, "rejected": bad}


def parity(home: Home, recipe: Recipe, training_set: str) -> dict[str, Any]:
    """Compare a training set's rows with online reads as of their moments, by replay, and the stores that serve.

    Those are the training set's own and, where it was filled, the one that the recipe names, else the home's.

    Raises:
        UserError: no training set, or the feature project is not there.
        TransientError: the store that the recipe names does not answer.
        IntegrityError: the feature project's on-demand code is not that which the training set was made with.
    """
    from components.features.feast_store import join_history, load_project

    folder = _folder(home, training_set)
    record = _record(folder)
    name, service = describe_online(folder)
    frame = pd.concat([pd.read_parquet(folder / f"{split.name}.parquet") for split in record.splits])
    ttl = timedelta(days=recipe.features.ttl_days)
    code = on_demand_of(folder, recipe.features.repo, record.features)
    found = measure_parity(frame, name, service, record.features, folder / HISTORY, ttl, code)
    project = load_project(locate(recipe.features.repo), recipe.features.ttl_days)
    until = end_of(datetime.fromisoformat(record.as_of))
    for store, said in _serving(home, recipe, folder):
        served = measure_served(
            store,
            said,
            frame,
            name,
            service,
            record.features,
            until,
            ttl,
            lambda rows: join_history(project, service, folder / HISTORY, rows),
            code,
        )
        found = found.with_served(*served)
    passed = found.skew <= recipe.features.max_skew and not found.insufficient
    about = {"training_set": str(folder), "limit": recipe.features.max_skew, "notes": list(record.notes)}
    about["insufficient"] = list(found.insufficient)
    return {"passed": passed} | about | found.to_dict()


def _serving(home: Home, recipe: Recipe, folder: Path) -> Iterator[tuple[LatestStore, str]]:
    """The stores that may answer requests, for the caller to close; the home's, where it is there: Feast reads it."""
    yield SqliteLatest(folder / ONLINE, read_only=True), "of the training set"
    address = _address(home, recipe)
    if recipe.features.online or Path(address.removeprefix("sqlite:///")).is_file():
        yield open_latest(address), _shown(home, recipe)


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
    if not (folder / MANIFEST).is_file():
        raise UserError(f"--training-set {given!r}: was not published by a step; give one that featurise published")
    verify(folder)
    return folder


def _record(folder: Path) -> TrainingSetRef:
    try:
        return TrainingSetRef.read(folder)
    except IntegrityError as error:
        raise UserError(f"--training-set {str(folder)!r}: is no training set; give what featurise published") from error


def _refuse_unread(home: Home, recipe: Recipe) -> None:
    if not recipe.features.online:
        place = home.features / ONLINE
        raise UserError(
            "features.online is empty: decisions are then answered from the training set's own store, which never "
            f"changes, and nobody would read what is written; name one, as --set features.online={place}"
        )


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
