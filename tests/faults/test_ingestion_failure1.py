"""Failure 1: a cache hit although the table behind the same path changed. The content digest is in every key.

The components run from one compiled pipeline under Kubeflow's local runner with its cache on, which sees parameters
and artifacts, never the bytes behind a path. Annotations are real ones, as the compiler reads them.
"""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kfp import dsl, local

from components.contract.component import validate
from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from components.core.recipe import Recipe
from components.ingestion.component import ingest
from components.ingestion.ingest import ingest as read_source
from pipelines.run import _run_id, take_snapshot
from tests.fakes.contract_case import contract_file
from tests.fakes.ingestion_case import ROWS, recipe_for, write_csv


class OUTPUTS(NamedTuple):
    digest: str
    held: bool


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubeflow's local runner with its cache, in a root of its own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT_ROOT), os.environ.get("PYTHONPATH", "")]))
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "root"),
        raise_on_error=True,
        enable_caching=True,
    )


@dsl.pipeline
def both(home: str, run_id: str, recipe: str, code_version: str, expected_digest: str) -> OUTPUTS:
    about = {"home": home, "run_id": run_id, "recipe": recipe, "code_version": code_version}
    read = ingest(expected_digest=expected_digest, **about)
    held = validate(snapshot=read.outputs["snapshot"], **about)
    return OUTPUTS(read.outputs["Output"], held.outputs["Output"])


def _case(folder: Path) -> Recipe:
    return recipe_for(folder / "rows.csv", _contract(folder))


def _contract(folder: Path) -> Path:
    properties = [{"name": name, "logicalType": "string"} for name in ("id", "day", "text")]
    return contract_file(folder / "case.yaml", properties)


def _execute(home: Home, recipe: Recipe, expected: str) -> tuple[str, dict[str, Any], dict[str, int]]:
    """Run both steps with the same arguments but the digest; the digest, the verdict and when each step last ran."""
    made = both(
        home=str(home.root), run_id="same", recipe=recipe.to_json(), code_version="0", expected_digest=expected
    ).outputs
    folder = home.run("same")
    ran = {step: (folder / "steps" / f"{step}.json").stat().st_mtime_ns for step in ("ingest", "validate")}
    return made["digest"], json.loads((folder / "records" / "validate.json").read_text()), ran


@pytest.mark.slow
def test_a_changed_table_behind_the_same_path_is_read_anew(home: Home, tmp_path: Path) -> None:
    """Same path, recipe, run and code: unchanged bytes are a cache hit, changed ones run every step again."""
    recipe = _case(tmp_path)
    write_csv(tmp_path / "rows.csv")
    first = _execute(home, recipe, take_snapshot(recipe, home).digest)
    again = _execute(home, recipe, take_snapshot(recipe, home).digest)
    assert again == first  # neither step ran: their notes are those of the first time
    write_csv(tmp_path / "rows.csv", [*ROWS, ("4", "2025-03-01", "four")])
    snapshot = take_snapshot(recipe, home)
    digest, verdict, ran = _execute(home, recipe, snapshot.digest)
    assert digest == snapshot.digest == verdict["snapshot_digest"] != first[0]
    assert (first[1]["rows"], verdict["rows"]) == (3, 4)
    assert all(ran[step] > first[2][step] for step in ran)
    write_csv(tmp_path / "rows.csv")  # back to the first bytes: the first digest again, by content and not by time
    assert take_snapshot(recipe, home).digest == first[0]


@pytest.mark.parametrize("kind", ["file", "database"])
def test_the_run_is_named_by_what_the_source_holds(kind: str, home: Home, tmp_path: Path) -> None:
    """A changed file or table gives another run, which shares no cache entry with the first; equal rows the same."""
    recipe = _case(tmp_path) if kind == "file" else _database_case(tmp_path)
    change = _change_file if kind == "file" else _change_table
    names = []
    for text in ("one", "one", "other"):
        change(tmp_path, text)
        names.append(_run_id(recipe, home, take_snapshot(recipe, home).digest, "0", "reference", False))
    assert names[0] == names[1] != names[2]


def test_a_source_that_changed_under_way_is_not_mixed_in(tmp_path: Path) -> None:
    """The step that expects one content and finds another refuses instead of going on with it."""
    recipe = _case(tmp_path)
    write_csv(tmp_path / "rows.csv")
    expected = read_source(recipe, tmp_path / "before").digest
    write_csv(tmp_path / "rows.csv", [*ROWS, ("4", "2025-03-01", "four")])
    with pytest.raises(IntegrityError, match="the source has changed"):
        read_source(recipe, tmp_path / "after", expected_digest=expected)
    assert not (tmp_path / "after").exists()


def _database_case(folder: Path) -> Recipe:
    uri = f"sqlite:///{folder / 'rows.db'}"
    return recipe_for(uri, _contract(folder), query="SELECT id, day, text FROM rows")


def _change_file(folder: Path, text: str) -> None:
    write_csv(folder / "rows.csv", [*ROWS, ("4", "2025-03-01", text)])


def _change_table(folder: Path, text: str) -> None:
    with sqlite3.connect(folder / "rows.db") as link:
        link.execute("DROP TABLE IF EXISTS rows")
        link.execute("CREATE TABLE rows (id TEXT, day TEXT, text TEXT)")
        link.executemany("INSERT INTO rows VALUES (?, ?, ?)", [*ROWS, ("4", "2025-03-01", text)])
    link.close()
