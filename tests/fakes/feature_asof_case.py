"""Histories as Parquet in every form a source may have, and Feast stores over them with any offline store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fakes.feature_oracle import Fact

ASOF = {"type": "components.features.asof_store.AsofOfflineStore"}
STOCK_DUCKDB, STOCK_DASK = {"type": "duckdb"}, {"type": "dask"}
START = datetime(2024, 3, 30, 22, tzinfo=UTC)  # two hours before a day of 23 hours in Berlin
ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", None)  # None: written without a zone
UNITS = ("us", "ms", "ns")


def at(minutes: float) -> datetime:
    """A moment, minutes after START."""
    return START + timedelta(minutes=minutes)


def times(values: Sequence[datetime | None], zone: str | None = "UTC", unit: str = "us") -> pa.Array:
    """Instants as an Arrow column of this zone and unit; without a zone as the clock in UTC."""
    column = pa.array(values, pa.timestamp("us", tz="UTC"))
    return column.cast(pa.timestamp(unit, tz=zone)) if zone else column.cast(pa.timestamp(unit))


def write_facts(
    path: Path,
    facts: Sequence[Fact],
    keys: Sequence[tuple[str, pa.DataType]],
    features: Sequence[tuple[str, pa.DataType]],
    zone: str | None = "UTC",
    unit: str = "us",
    created: bool = True,
) -> Path:
    """Write facts in their order; columns: keys, event_timestamp, created (if asked for), features."""
    columns: dict[str, Any] = {
        name: pa.array([fact.keys[place] for fact in facts], kind) for place, (name, kind) in enumerate(keys)
    }
    columns["event_timestamp"] = times([fact.event for fact in facts], zone, unit)
    if created:
        columns["created"] = times([fact.created for fact in facts], zone, unit)
    for place, (name, kind) in enumerate(features):
        columns[name] = pa.array([fact.values[place] for fact in facts], kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def feast_store(folder: Path, offline: dict[str, Any], objects: Sequence[Any]) -> Any:
    """A Feast store with these objects, a file registry, and SQLite online."""
    from feast import FeatureStore
    from feast.repo_config import RepoConfig

    config = RepoConfig(
        project="asof",
        provider="local",
        registry=str(folder / "registry.db"),
        offline_store=offline,
        online_store={"type": "sqlite", "path": str(folder / "online.db")},
        entity_key_serialization_version=3,
        repo_path=str(folder),
    )
    store = FeatureStore(config=config)
    store.apply(list(objects))
    return store


def source(path: Path | str, **more: Any) -> Any:
    """A Feast source of Parquet with the columns of write_facts."""
    from feast import FileSource

    named = {"timestamp_field": "event_timestamp", "created_timestamp_column": "created"} | more
    return FileSource(name=Path(path).stem, path=str(path), **named)
