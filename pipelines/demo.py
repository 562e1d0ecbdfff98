"""Three weekly retrainings on the generator: a first champion, a canaried successor, a poisoned one that is stopped."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

from components.core.errors import PilotlineError
from components.core.home import Home
from components.core.recipe import Recipe, load_recipe
from pipelines.recipes import locate
from pipelines.run import run

FIRST_UNTIL = date(2025, 8, 13)  # the generator's rows begin on 2025-01-01 and cover 240 days
SOURCE = "generator://complaints?rows=20000&seed=7"
POISON_SHARE = 0.5
STOPPED = {"refused", "rolled_back", "inconclusive"}


def demo(home: Home, engine: str = "auto") -> list[dict[str, Any]]:
    """Run the three weeks; each item tells the week's outcome, reason and report."""
    return [_week(number, recipe, home, engine) for number, recipe in enumerate(weekly_recipes(), start=1)]


def weekly_recipes() -> list[Recipe]:
    """Weeks 1 to 3: the interval ends a week later each time; in week 3 the training window's labels are poisoned."""
    recipes = []
    for week in range(3):
        until = FIRST_UNTIL + timedelta(weeks=week)
        uri = SOURCE
        if week == 2:
            uri += f"&poison={POISON_SHARE}&poison_until={until - timedelta(days=110)}"
        overrides = [f'source.uri="{uri}"', f'source.until="{until}"']
        recipes.append(load_recipe(locate("laptop"), overrides))
    return recipes


def _week(number: int, recipe: Recipe, home: Home, engine: str) -> dict[str, Any]:
    told: dict[str, Any] = {"week": number, "until": recipe.source.until}
    try:
        outcome = run(recipe, home, engine=engine)
    except PilotlineError as error:
        return told | {"outcome": "failed", "told": "failed", "reason": str(error), "report": ""}
    return told | {
        "outcome": outcome.outcome,
        "told": "stopped" if outcome.outcome in STOPPED else outcome.outcome,
        "reason": outcome.reason,
        "version": (outcome.model or {}).get("version", ""),
        "metrics": json.loads(json.dumps(outcome.metrics)),
        "report": str(home.run(outcome.run_id) / "report.html"),
    }
