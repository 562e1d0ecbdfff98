"""Feast's online stores of ours: the newest event wins, whatever the order of arrival, and a stale value is missing.

Named in feature_store.yaml like any custom store:

    online_store:
      type: components.features.online_stores.SqliteNewestOnlineStore     # path: online.db
      type: components.features.online_stores.RedisNewestOnlineStore      # url: redis://host:6379/0

Feast's own SQLite store lets an older write win; its Redis store compares in the client, so that two writers can
pass each other; neither looks at a view's ttl. Here writes are compared where they are kept, and a value beyond its
ttl is read as null with the time of its event. Imports feast.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from feast import Entity, FeatureView
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey as EntityKeyProto
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.repo_config import FeastConfigBaseModel, RepoConfig
from feast.types import Float64
from pydantic import StrictStr

from components.features.latest.entries import (
    NUMBERS,
    Entry,
    LatestStore,
    Written,
    key_of,
    pack_numbers,
    unpack_numbers,
)
from components.features.online import table_of

VALUES = b"p"
Row = tuple[EntityKeyProto, dict[str, ValueProto], datetime, datetime | None]
Found = tuple[datetime | None, dict[str, ValueProto] | None]


class SqliteNewestOnlineStoreConfig(FeastConfigBaseModel):
    """Settings of the embedded store; `path` is relative to the feature repository."""

    type: Literal["components.features.online_stores.SqliteNewestOnlineStore"] = (
        "components.features.online_stores.SqliteNewestOnlineStore"
    )
    path: StrictStr = "online.db"


class RedisNewestOnlineStoreConfig(FeastConfigBaseModel):
    """Settings of the store in Redis."""

    type: Literal["components.features.online_stores.RedisNewestOnlineStore"] = (
        "components.features.online_stores.RedisNewestOnlineStore"
    )
    url: StrictStr = "redis://localhost:6379/0"


class _NewestOnlineStore(OnlineStore):
    """What both stores share."""

    _opened: LatestStore | None = None

    def _open(self, config: RepoConfig) -> LatestStore:
        raise NotImplementedError

    def _latest(self, config: RepoConfig) -> LatestStore:
        if self._opened is None:
            self._opened = self._open(config)
        return self._opened

    def online_write_batch(
        self, config: RepoConfig, table: FeatureView, data: list[Row], progress: Callable[[int], Any] | None
    ) -> None:
        """Write rows; of two for one entity the later event stays, of one event the one created later."""
        features = [field.name for field in table.features]
        numeric = all(field.dtype == Float64 for field in table.features)
        self._latest(config).write(
            table_of(config.project, table.name), (_written(row, features, numeric) for row in data)
        )
        if progress:
            progress(len(data))

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKeyProto],
        requested_features: list[str] | None = None,
    ) -> list[Found]:
        """The values of each entity with the time of their event; null where that is longer ago than the ttl."""
        name = table_of(config.project, table.name)
        entries = self._latest(config).read([(name, _key(key)) for key in entity_keys])
        features = [field.name for field in table.features]
        wanted = features if requested_features is None else requested_features
        oldest = datetime.now(UTC) - table.ttl if table.ttl else None
        return [_found(entry, features, wanted, oldest) for entry in entries]

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],  # noqa: ARG002 - Feast's signature
        entities_to_delete: Sequence[Entity],  # noqa: ARG002
        entities_to_keep: Sequence[Entity],  # noqa: ARG002
        partial: bool,  # noqa: ARG002
    ) -> None:
        """Forget the views that are no more."""
        for table in tables_to_delete:
            self._latest(config).drop(table_of(config.project, table.name))

    def teardown(
        self,
        config: RepoConfig,
        tables: Sequence[FeatureView],
        entities: Sequence[Entity],  # noqa: ARG002 - Feast's signature
    ) -> None:
        """Forget these views."""
        for table in tables:
            self._latest(config).drop(table_of(config.project, table.name))
        self.close_latest()

    def close_latest(self) -> None:
        """Close the store's connections; the next use opens them again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class SqliteNewestOnlineStore(_NewestOnlineStore):
    """Newest values in a SQLite file."""

    def _open(self, config: RepoConfig) -> LatestStore:
        from components.features.latest.sqlite import SqliteLatest

        path = Path(config.online_store.path)
        return SqliteLatest(path if path.is_absolute() or not config.repo_path else Path(config.repo_path) / path)


class RedisNewestOnlineStore(_NewestOnlineStore):
    """Newest values in Redis."""

    def _open(self, config: RepoConfig) -> LatestStore:
        from components.features.latest.redis import RedisLatest

        return RedisLatest(config.online_store.url)


def _written(row: Row, features: Sequence[str], numeric: bool) -> Written:
    key, values, event, created = row
    happened = _microseconds(event)
    return Written(
        _key(key), happened, happened if created is None else _microseconds(created), _body(values, features, numeric)
    )


def _key(key: EntityKeyProto) -> bytes:
    """The values in the order of the join keys' names, as key_of has it."""
    parts = sorted(zip(key.join_keys, key.entity_values, strict=True), key=lambda part: part[0])
    return key_of([getattr(value, value.WhichOneof("val")) if value.WhichOneof("val") else b"" for _, value in parts])


def _body(values: dict[str, ValueProto], features: Sequence[str], numeric: bool) -> bytes:
    if numeric:
        import numpy as np

        given = [values.get(name) for name in features]
        row = [v.double_val if v is not None and v.WhichOneof("val") == "double_val" else np.nan for v in given]
        return pack_numbers(features, np.array([row]))[0]
    parts = [VALUES]
    for name, value in values.items():
        for text in (name.encode(), value.SerializeToString()):
            parts += [struct.pack("<I", len(text)), text]
    return b"".join(parts)


def _found(entry: Entry | None, features: Sequence[str], wanted: Sequence[str], oldest: datetime | None) -> Found:
    if entry is None:
        return None, None
    event = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=entry.event)
    if oldest is not None and event < oldest:
        return event, {name: ValueProto() for name in wanted}
    values = _values(entry.body, features)
    return event, {name: values.get(name, ValueProto()) for name in wanted}


def _values(body: bytes, features: Sequence[str]) -> dict[str, ValueProto]:
    if body[:1] == NUMBERS:
        numbers = unpack_numbers(features, body) or []
        return {
            name: ValueProto() if value is None else ValueProto(double_val=value)
            for name, value in zip(features, numbers, strict=False)
        }
    texts = list(_texts(body))
    found = {}
    for name, text in zip(texts[::2], texts[1::2], strict=True):
        found[name.decode()] = ValueProto.FromString(text)
    return found


def _texts(body: bytes) -> Iterator[bytes]:
    at = 1
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        yield body[at + 4 : at + 4 + length]
        at += 4 + length


def _microseconds(time: datetime) -> int:
    """Since 1970; a time without a zone is UTC."""
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return (aware - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
