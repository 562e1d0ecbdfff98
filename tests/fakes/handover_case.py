"""A small clean folder and training set that belong together, made without Feast, and ways to plant faults in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.contract.handover import guard_training_set
from components.core.digest import file_digest, value_digest
from components.core.publish import publishing
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ContractVerdict, HandOver, RuleResult, SplitRef, TrainingSetRef
from tests.fakes.contract_case import contract_file

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
DELAY = 20  # days until an outcome is known, and the embargo
TRAIN, VALIDATION, TEST = (0, 140), (160, 190), (210, 260)  # days of the splits
WORDS = [f"{a}{b}" for a in "lmnprst" for b in ("ana", "ebe", "ici", "odo", "ufu", "aro", "ole", "imu", "esi", "uta")]
TYPES = {"label": pa.int8(), "event_timestamp": pa.timestamp("us", tz="UTC"), "shop_rate": pa.float64()}
PLAIN = {"b": pa.bool_(), "f": pa.float64()}
PROPERTIES: list[dict[str, Any]] = [
    {"name": "id", "logicalType": "string", "primaryKey": True, "required": True, "unique": True},
    {"name": "day", "logicalType": "date", "required": True},
    {"name": "shop", "logicalType": "string", "required": True},
    {"name": "words", "logicalType": "string", "tags": ["pii"]},
    {
        "name": "outcome",
        "logicalType": "string",
        "required": True,
        "customProperties": [{"property": "availability", "value": "after_outcome"}],
    },
]

Change = Callable[[pd.DataFrame], pd.DataFrame | None]


@dataclass
class Case:
    """Frames that `publish` writes: `clean` (text), `rows` (typed, all splits) and the feature's `history`."""

    clean: pd.DataFrame
    rows: pd.DataFrame
    history: pd.DataFrame
    recipe: dict[str, Any]
    properties: list[dict[str, Any]]
    on_demand: tuple[str, ...] = ()

    def split(self, name: str) -> pd.Series:
        """Which rows are in a split."""
        low, high = {"train": TRAIN, "validation": VALIDATION, "test": TEST}[name]
        day = (self.rows["event_timestamp"] - FIRST).dt.days
        return (day >= low) & (day < high) if "split" not in self.rows else self.rows["split"] == name

    def guard(self, folder: Path, spoil: Callable[[Path], None] | None = None) -> HandOver:
        """Publish both folders, spoil them where asked, and guard the hand-over."""
        clean, rows = self.publish(folder)
        if spoil is not None:
            spoil(folder)
        return guard_training_set(self.parsed(folder), clean, rows, folder / "handover")

    def parsed(self, folder: Path) -> Recipe:
        """The recipe; its contract is written into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = contract_file(folder / "shop.odcs.yaml", self.properties)
        values = self.recipe | {"contract": {"path": str(path)} | self.recipe.get("contract", {})}
        return parse_recipe(values)

    def publish(self, folder: Path) -> tuple[Path, Path]:
        """Write the clean folder and the training set as validate and featurise do."""
        with publishing(folder / "clean") as staging:
            texts = {name: pa.array(self.clean[name], pa.string()) for name in self.clean}
            pq.write_table(pa.table(texts), staging / "clean.parquet")
            digest = file_digest(staging / "clean.parquet")
            _verdict(len(self.clean), digest).write(staging)
        with publishing(folder / "rows") as staging:
            splits = tuple(
                _write(staging, name, self.rows[self.split(name)]) for name in ("train", "validation", "test")
            )
            (staging / "history").mkdir()
            pq.write_table(_table(self.history), staging / "history" / "shop_past.parquet")
            last = self.rows["event_timestamp"].max().normalize() + timedelta(days=DELAY)
            TrainingSetRef(
                digest=value_digest([split.digest for split in splits]),
                snapshot_digest="5" * 64,
                clean_digest=digest,
                feature_repo="none",
                feature_service="shop_v1",
                features=("shop_rate",),
                entities=("shop",),
                as_of=last.isoformat(),
                embargo_days=DELAY,
                splits=splits,
                on_demand=self.on_demand,
            ).write(staging)
        return folder / "clean", folder / "rows"


def sound_case(count: int = 2400, seed: int = 0, **recipe: Any) -> Case:
    """Rows in which nothing leaks: the shop's past rate is a weak sign of relief, the text none.

    Args:
        recipe: sections that extend the recipe's, key by key.
    """
    draw = random.Random(seed)
    lean = {f"shop {letter}": draw.uniform(0.1, 0.5) for letter in "abcdefghijkl"}
    records = []
    for number in range(count):
        shop = draw.choice(list(lean))
        records.append(
            {
                "row_id": str(10_000 + number),
                "event_timestamp": FIRST + timedelta(minutes=int(260 * 1440 * number / count)),
                "label": int(draw.random() < lean[shop]),
                "text": " ".join(draw.choice(WORDS) for _ in range(draw.randrange(15, 40))),
                "shop": shop,
            }
        )
    rows = pd.DataFrame(records)
    history = _history(rows)
    rows["shop_rate"] = _as_of(rows, history)
    rows["group:shop a"] = rows["shop"] == "shop a"
    clean = pd.DataFrame(
        {
            "id": rows["row_id"],
            "day": rows["event_timestamp"].dt.strftime("%Y-%m-%d"),
            "shop": rows["shop"],
            "words": rows["text"],
            "outcome": np.where(rows["label"] == 1, "yes", "no"),
        }
    )
    values: dict[str, Any] = {
        "name": "shops",
        "source": {"uri": "none", "time_column": "day", "time_formats": ["%Y-%m-%d"], "key": ["id"]},
        "contract": {},
        "features": {
            "repo": "none",
            "service": "shop_v1",
            "entities": {"shop": "shop"},
            "model_inputs": ["shop_rate"],
            "label_delay_days": DELAY,
        },
        "model": {"name": "shops", "label_column": "outcome", "positive_values": ["yes"], "text_column": "words"},
        "evaluation": {
            "embargo_days": DELAY,
            "groups": [{"name": "shop a", "column": "shop", "equals": "shop a"}],
        },
    }
    for section, more in recipe.items():
        values[section] = values.get(section, {}) | more
    return Case(clean, rows, history, values, [dict(one) for one in PROPERTIES])


def broken(verdict: HandOver) -> dict[str, list[RuleResult]]:
    """What did not pass, by rule."""
    found: dict[str, list[RuleResult]] = {}
    for rule in (*verdict.guards, *verdict.checks):
        if rule.outcome in ("fail", "insufficient"):
            found.setdefault(rule.rule, []).append(rule)
    return found


def rewrite_record(folder: Path, **changes: Any) -> None:
    """Publish the training set anew with another record."""
    kept = {path.relative_to(folder / "rows"): path.read_bytes() for path in (folder / "rows").rglob("*.parquet")}
    record = replace(TrainingSetRef.read(folder / "rows"), **changes)
    with publishing(folder / "rows") as staging:
        for name, content in kept.items():
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_bytes(content)
        record.write(staging)


def _history(rows: pd.DataFrame) -> pd.DataFrame:
    """Per shop and row, when its outcome became known: the smoothed rate until then."""
    known = rows.assign(event_timestamp=rows["event_timestamp"] + timedelta(days=DELAY)).sort_values("event_timestamp")
    grouped = known.groupby("shop")["label"]
    rate = (grouped.cumsum() + 3) / (grouped.cumcount() + 1 + 10)
    return pd.DataFrame(
        {
            "shop": known["shop"],
            "event_timestamp": known["event_timestamp"],
            "created_timestamp": known["event_timestamp"],
            "shop_rate": rate,
        }
    )


def _as_of(rows: pd.DataFrame, history: pd.DataFrame) -> np.ndarray:
    joined = pd.merge_asof(rows, history[["shop", "event_timestamp", "shop_rate"]], on="event_timestamp", by="shop")
    return joined["shop_rate"].to_numpy()


def _write(folder: Path, name: str, part: pd.DataFrame) -> SplitRef:
    path = folder / f"{name}.parquet"
    pq.write_table(_table(part.drop(columns=["split"], errors="ignore")), path)
    return SplitRef(
        name=name,
        rows=len(part),
        positives=int((part["label"] == 1).sum()),
        digest=file_digest(path),
        time_min=part["event_timestamp"].min().isoformat(),
        time_max=part["event_timestamp"].max().isoformat(),
    )


def _table(frame: pd.DataFrame) -> pa.Table:
    kinds = TYPES | {"created_timestamp": TYPES["event_timestamp"]}
    arrays = {}
    for name in frame:
        kind = kinds.get(str(name)) or PLAIN.get(frame[name].dtype.kind, pa.string())
        arrays[str(name)] = pa.array(frame[name].to_numpy() if kind == pa.float64() else frame[name], kind)
    return pa.table(arrays)


def _verdict(rows: int, digest: str) -> ContractVerdict:
    return ContractVerdict(
        passed=True,
        contract="shops",
        version="1.0.0",
        contract_digest="c" * 64,
        snapshot_digest="5" * 64,
        rows=rows,
        clean=rows,
        quarantined=0,
        engine="none",
        checks=(),
        clean_digest=digest,
    )
