"""Held-out rows as traffic: the golden set, and requests drawn with replacement by seed, marked as replay."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from components.core.errors import IntegrityError
from components.core.records import TrainingSetRef
from components.rollout.observations import valid_score

Row = Mapping[str, object]
REPLAY = "replay"
GIVEN, TIME = "request:", "event_timestamp"


@dataclass
class Replay:
    """Test rows as they are sent, the score that evaluation gave to each (`champion`: of the version that it was
    judged against), and its known label.

    A row holds row_id, text, "entities" (join key to value), "features" (name to value, None where there is no
    history) and `replay`: True, and "request" (what else features of the request are computed of) where there are
    such features; never the label or a group.
    """

    rows: list[dict[str, object]]
    evaluated: dict[str, float]
    outcomes: dict[str, int]
    seed: int = 0
    champion: dict[str, float] = field(default_factory=dict)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Seed the draws."""
        self._random = random.Random(self.seed)  # noqa: S311 - draws requests, hides nothing

    @classmethod
    def read(cls, training_set: Path, evidence: Path, seed: int) -> Replay:
        """Read test.parquet of the training set and predictions.parquet of the evidence.

        Raises:
            IntegrityError: a file or column is missing, or no test row has an evaluated score.
        """
        ref = TrainingSetRef.read(training_set)
        test = _table(training_set / "test.parquet", ("row_id", "label", *ref.entities, *ref.features))
        scored = _table(evidence / "predictions.parquet", ("row_id", "score"))
        evaluated = dict(zip(scored["row_id"].astype(str), scored["score"].astype(float), strict=True))
        ids = test["row_id"].astype(str)
        outcomes = dict(zip(ids, test["label"].astype(int), strict=True))
        rows = [_request(_plain(row), ref) for row in test.to_dict("records")]
        rows = [row for row in rows if valid_score(evaluated.get(str(row["row_id"])))]
        if not rows:
            raise IntegrityError(f"{evidence}: predictions.parquet scores none of the test rows; evaluate again")
        return cls(rows, evaluated, outcomes, seed, _champion(scored))

    def golden(self, count: int) -> list[dict[str, object]]:
        """`count` distinct rows, the same at each call; all of them where there are fewer."""
        chosen = random.Random(f"golden {self.seed}")  # noqa: S311 - draws rows, hides nothing
        return chosen.sample(self.rows, min(count, len(self.rows)))

    def draw(self, count: int) -> list[dict[str, object]]:
        """The next `count` requests, drawn with replacement."""
        return self._random.choices(self.rows, k=count)

    def evaluated_scores(self, rows: list[dict[str, object]]) -> list[float]:
        """The scores that evaluation gave to these rows."""
        return [self.evaluated[str(row["row_id"])] for row in rows]


def _champion(scored: pd.DataFrame) -> dict[str, float]:
    """What evaluation saw the champion give to each row; empty where there was none."""
    if "champion_score" not in scored.columns:
        return {}
    given = zip(scored["row_id"].astype(str), scored["champion_score"].astype(float), strict=True)
    return {row_id: score for row_id, score in given if valid_score(score)}


def _request(row: Mapping[str, object], ref: TrainingSetRef) -> dict[str, object]:
    """What is sent of a test row."""
    request = {
        "row_id": str(row["row_id"]),
        "text": str(row.get("text") or ""),
        "entities": {name: row[name] for name in ref.entities},
        "features": {name: row[name] for name in ref.features},
        REPLAY: True,
    }
    return request | {"request": _given(row)} if ref.on_demand else request


def _given(row: Mapping[str, object]) -> dict[str, object]:
    """What features of the request are computed of, beside entities and text."""
    named = {name.removeprefix(GIVEN): value for name, value in row.items() if name.startswith(GIVEN)}
    return named | {TIME: row[TIME]}


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: cannot be read ({type(error).__name__}); run its step again") from error
    if missing := [name for name in columns if name not in table.columns]:
        raise IntegrityError(f"{path}: has no column {missing[0]}; run its step again")
    return table


def _plain(row: Mapping[Any, Any]) -> dict[str, object]:
    """JSON values only: NaN becomes None, a time its ISO text."""
    return {str(name): _value(value) for name, value in row.items()}


def _value(value: Any) -> object:
    if value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value
