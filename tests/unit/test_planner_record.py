"""Predicted beside measured: kept before a run, completed after it, shown, and fitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.home import Home
from components.core.recipe import Recipe, load_recipe
from components.planner.calibration import Machine, predict_ranks
from components.planner.preflight import local_needs, server_gib
from pipelines.cli import main
from pipelines.plan_record import calibrate_home, keep_measurement, keep_prediction, recipe_run
from pipelines.recipes import locate
from pipelines.report import build_report
from pipelines.server_memory import ServerMemory, server_gibs


@pytest.fixture
def recipe() -> Recipe:
    """The laptop recipe."""
    return load_recipe(locate("laptop"))


def _trained(home: Home, run_id: str, recipe: Recipe, metrics: dict[str, Any]) -> None:
    folder = home.run(run_id)
    (folder / "records").mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(recipe.to_json())
    (folder / "records" / "train.json").write_text(json.dumps({"metrics": metrics}))


def _plan(home: Home, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home.run(run_id) / "records" / "plan.json").read_text())
    return found


def test_a_prediction_is_made_before_and_never_replaced(home: Home, recipe: Recipe) -> None:
    """Neither a resumed run nor its end changes what was said first."""
    keep_prediction(home, "r1", recipe, "vllm")
    first = _plan(home, "r1")
    Machine(process_gib=3.0, runs=5).write(home.root / "machine.json")
    keep_prediction(home, "r1", recipe, "vllm")
    _trained(home, "r1", recipe, {"peak_rank_gib": 0.7, "tokens_per_second": 1000.0})
    keep_measurement(home, "r1", recipe)
    after = _plan(home, "r1")
    assert after["training"]["predicted_peak_gib"] == first["training"]["predicted_peak_gib"]
    assert after["training"]["measured_peak_gib"] == 0.7
    assert after["training"]["measured_tokens_per_second"] == 1000.0
    assert after["serving"]["measured_peak_gib"] is None


def test_damaged_records_do_not_stop_a_run_from_ending(home: Home, recipe: Recipe) -> None:
    """They count as absent, and the prediction is made anew."""
    folder = home.run("r1") / "records"
    folder.mkdir(parents=True)
    for damage in ("", "[]", '{"training": 3}'):
        (folder / "plan.json").write_text(damage)
        keep_measurement(home, "r1", recipe)
        assert _plan(home, "r1")["training"]["predicted_peak_gib"] > 0


@pytest.mark.parametrize("damage", ["much", float("nan"), -1, 0, True, [1], None, 1e300])
def test_a_damaged_measurement_counts_as_none(home: Home, recipe: Recipe, damage: Any) -> None:
    """It neither stops the fit nor bends it; alone it is no measurement at all."""
    _trained(home, "bad", recipe, {"peak_rank_gib": damage, "tokens_per_second": damage})
    with pytest.raises(UserError, match="no finished run"):
        calibrate_home(home)
    _trained(home, "good", recipe, {"peak_rank_gib": 0.8, "tokens_per_second": 2500.0})
    machine, silent = calibrate_home(home)
    assert (machine.runs, silent) == (1, 1)
    assert machine.flops_per_second is not None


def test_calibration_makes_the_next_prediction_hit(home: Home, recipe: Recipe) -> None:
    """Three alike runs: the same recipe is then predicted to be as they were."""
    for number in range(3):
        _trained(home, f"r{number}", recipe, {"peak_rank_gib": 0.8, "tokens_per_second": 2500.0})
    _trained(home, "old", recipe, {"tokens_per_second": 9.0})
    machine, silent = calibrate_home(home)
    assert (machine.runs, silent) == (3, 1)
    assert Machine.read(home.root / "machine.json") == machine
    found = predict_ranks(recipe_run(recipe), machine)
    assert found.peak_gib.value == pytest.approx(0.8, rel=0.02)
    assert found.tokens_per_second == pytest.approx(2500.0, rel=0.02)


def test_calibrate_says_what_it_did(home: Home, recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing measured is bad input; else the constants, as text and as JSON."""
    assert main(["plan", "calibrate", "--home", str(home.root)]) == 2
    assert "pilotline run" in capsys.readouterr().err
    _trained(home, "r1", recipe, {"peak_rank_gib": 0.8, "tokens_per_second": 2500.0})
    assert main(["plan", "calibrate", "--home", str(home.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    assert main(["plan", "calibrate", "--home", str(home.root)]) == 0
    assert "1 run measured" in capsys.readouterr().out


def test_a_damaged_calibration_is_named(home: Home, recipe: Recipe) -> None:
    """Which file, and what to do."""
    (home.root / "machine.json").write_text("{")
    with pytest.raises(UserError, match=r"machine\.json"):
        keep_prediction(home, "r1", recipe, "vllm")


def test_the_report_shows_the_difference(home: Home, recipe: Recipe) -> None:
    """Predicted, measured, and how far apart; a run without either says that it was not reached."""
    assert "Predicted less measured" not in build_report(home, "r0")
    _trained(home, "r1", recipe, {"peak_rank_gib": 0.4})
    keep_measurement(home, "r1", recipe)
    page = build_report(home, "r1")
    predicted = _plan(home, "r1")["training"]["predicted_peak_gib"]
    assert "Peak memory of a training rank" in page
    assert f"{predicted / 0.4 - 1:+.0%}" in page


def test_a_server_is_predicted_below_what_preflight_reserves(recipe: Recipe) -> None:
    """What is seen of a server is at most what it may take."""
    assert server_gib(recipe, "vllm") <= local_needs(recipe, "vllm")[1].gib / 2


def test_a_servers_memory_is_seen_while_it_runs(tmp_path: Path) -> None:
    """A child that holds 64 MiB and is named like a server; other children do not count."""
    script = tmp_path / "vllm_like.py"
    script.write_text("import time\nheld = bytearray(64 << 20)\nprint('up', flush=True)\ntime.sleep(60)\n")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ})
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with ServerMemory(every_seconds=0.05) as memory:
            deadline = time.monotonic() + 20
            while memory.peak_gib is None and time.monotonic() < deadline:
                time.sleep(0.05)
        assert len(server_gibs()) == 1
        assert memory.peak_gib is not None
        assert 64 / 1024 < memory.peak_gib < 0.5
    finally:
        for process in (child, other):
            process.kill()
            process.communicate()
