"""Feast's retrieval jobs for asof_store: nothing runs before a result is asked for, and each asking runs it anew."""

# ruff: noqa: S608  - names are quoted by asof_sql; SQL for entity rows is the caller's own code
from __future__ import annotations

import os
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from feast.errors import SavedDatasetLocationAlreadyExists
from feast.infra.offline_stores.file_source import SavedDatasetFileStorage
from feast.infra.offline_stores.offline_store import RetrievalJob, RetrievalMetadata

from components.core.errors import UserError, one_line
from components.features import asof_join, asof_sources, asof_sql
from components.features.asof_join import Limits, engine
from components.features.asof_keys import entity_moments
from components.features.asof_sql import History

if TYPE_CHECKING:
    from feast.on_demand_feature_view import OnDemandFeatureView
    from feast.saved_dataset import SavedDatasetStorage, ValidationReference

EVENT = "event_timestamp"


@dataclass(frozen=True)
class EntityRows:
    """Entity rows as Arrow or as a SELECT, their column of the event time, and a frame's index."""

    rows: pa.Table | str
    moment: str
    index: pd.Index | None = None


class ArrowJob(RetrievalJob):
    """A job whose result comes as Arrow tables, so that it can be written without ever being whole in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    @abstractmethod
    def tables(self) -> Iterator[pa.Table]:
        """The result in parts, at least one, without on-demand features."""

    @property
    def full_feature_names(self) -> bool:
        """Whether features are called view__feature."""
        return False

    @property
    def on_demand_feature_views(self) -> list[OnDemandFeatureView]:
        """On-demand views whose features Feast computes from the result."""
        return []

    def _to_arrow_internal(self, timeout: int | None = None) -> pa.Table:  # noqa: ARG002 - Feast's signature
        return pa.concat_tables(self.tables())

    def _to_df_internal(self, timeout: int | None = None) -> pd.DataFrame:
        return self._to_arrow_internal(timeout).to_pandas()

    def to_parquet(self, path: str | Path) -> None:
        """Write the result to a Parquet file (relative paths begin at the repository), whole or not at all.

        It streams, unless there are on-demand views: these need all rows at once.
        """
        text = str(path)
        local = asof_sources.local_path(text, self.limits.repo)
        filesystem = None if local else asof_sources.remote_filesystem(text, "", None)
        tables = iter([self.to_arrow()]) if self.on_demand_feature_views else self.tables()
        asof_sources.write_tables(tables, local or text, filesystem)

    def persist(  # Feast's signature
        self,
        storage: SavedDatasetStorage,
        allow_overwrite: bool = False,
        timeout: int | None = None,  # noqa: ARG002
    ) -> None:
        """Write the result to the storage's Parquet file, or to one file in its folder.

        Raises:
            SavedDatasetLocationAlreadyExists: there is something, and it may not be replaced.
            UserError: the storage is no local file.
        """
        path = storage.file_options.uri if isinstance(storage, SavedDatasetFileStorage) else None
        local = asof_sources.local_path(path, self.limits.repo) if path else None
        if local is None:
            raise UserError(f"results are saved to local files (SavedDatasetFileStorage), not to {storage}")
        if os.path.exists(local) and not allow_overwrite:
            raise SavedDatasetLocationAlreadyExists(location=path)
        if local.endswith(".parquet"):
            self.to_parquet(local)
            return
        name = f"part-{uuid.uuid4().hex}.parquet"
        self.to_parquet(os.path.join(local, name))
        for old in Path(local).glob("*.parquet"):
            if old.name != name:
                old.unlink()


class HistoricalJob(ArrowJob):
    """Entity rows with features as they were."""

    def __init__(
        self,
        histories: Sequence[History],
        entity: EntityRows,
        known_only: bool,
        limits: Limits,
        on_demand: list[OnDemandFeatureView],
        full_feature_names: bool,
        feature_refs: Sequence[str],
    ) -> None:
        super().__init__(limits)
        self._histories, self._entity, self._known_only = histories, entity, known_only
        self._on_demand, self._full_names, self._refs = on_demand, full_feature_names, list(feature_refs)
        if isinstance(entity.rows, pa.Table):
            asof_join.check_names(entity.rows.column_names, entity.moment, histories)

    def tables(self) -> Iterator[pa.Table]:
        """See join_features."""
        entity = self._entity
        return asof_join.join_features(self._histories, entity.rows, entity.moment, self._known_only, self.limits)

    def to_df(
        self, validation_reference: ValidationReference | None = None, timeout: int | None = None
    ) -> pd.DataFrame:
        """The result as a frame, with the index of the entity frame."""
        frame = self.to_arrow(validation_reference=validation_reference, timeout=timeout).to_pandas()
        return frame if self._entity.index is None else frame.set_axis(self._entity.index, axis=0)

    def to_sql(self) -> str:
        """One DuckDB statement with the same result; entity rows of a frame are called `entity_rows` in it."""
        entity = self._entity
        with engine(self.limits) as connection:
            columns = asof_join.schema_of(connection, entity.rows).names
        asof_join.check_names(columns, entity.moment, self._histories)
        rows = entity.rows if isinstance(entity.rows, str) else "SELECT * FROM entity_rows"
        return asof_sql.whole_statement(rows, columns, entity.moment, self._histories, self._known_only)

    @property
    def full_feature_names(self) -> bool:
        """Whether features are called view__feature."""
        return self._full_names

    @property
    def on_demand_feature_views(self) -> list[OnDemandFeatureView]:
        """On-demand views whose features Feast computes from the result."""
        return self._on_demand

    @property
    def metadata(self) -> RetrievalMetadata:
        """What was asked for and the entity rows' first and last event time (UTC); SQL is run for them."""
        entity = self._entity
        with engine(self.limits) as connection:
            names = asof_join.schema_of(connection, entity.rows).names
            if isinstance(entity.rows, str):
                moment = asof_sql.quoted(entity.moment)
                ends = f"SELECT epoch_us(min({moment})), epoch_us(max({moment})) FROM ({entity.rows})"
                bounds = connection.execute(ends).fetchone() or (None, None)
            else:
                ends = pc.min_max(entity_moments(entity.rows[entity.moment], entity.moment)).as_py()
                bounds = (ends["min"], ends["max"])
        times = [None if end is None else pd.Timestamp(end, unit="us", tz="UTC").to_pydatetime() for end in bounds]
        return RetrievalMetadata(self._refs, [name for name in names if name != entity.moment], *times)


class QueryJob(ArrowJob):
    """Rows of one source within a range of event times, both ends included: all of them, or each key's newest."""

    def __init__(
        self,
        source: History,
        columns: Sequence[str],
        between: tuple[datetime | None, datetime | None],
        newest_of: Sequence[str] | None,
        constant: str | None,
        limits: Limits,
    ) -> None:
        """Keep the question.

        Args:
            source: files, event and created column.
            newest_of: keys of which the newest row is asked for; None: all rows.
            constant: a column of empty texts to add, which stands for the key where a view has none.
        """
        super().__init__(limits)
        self._source, self._columns, self._between = source, tuple(columns), between
        self._newest_of, self._constant = newest_of, constant

    def to_sql(self) -> str:
        """The DuckDB statement."""
        with engine(self.limits) as connection:
            return self._statement(asof_join.describe(connection, self._source))

    def tables(self) -> Iterator[pa.Table]:
        """The rows, a part at a time."""
        with engine(self.limits) as connection:
            statement = self._statement(asof_join.describe(connection, self._source))
            try:
                reader = connection.execute(statement).to_arrow_reader(asof_join.BATCH)
                yield reader.schema.empty_table()
                for batch in reader:
                    yield pa.Table.from_batches([batch])
            except duckdb.Error as error:
                raise UserError(f"{self._source.name}: cannot be read ({one_line(error)[:300]})") from error

    @property
    def metadata(self) -> RetrievalMetadata | None:
        """None: no entity rows were joined."""
        return None

    def _statement(self, types: dict[str, str]) -> str:
        source, event = self._source, f"h.{asof_sql.quoted(self._source.event)}"
        ends = [(">=", self._between[0]), ("<=", self._between[1])]
        bounds = [f"{event} {sign} {_time(end, types[source.event])}" for sign, end in ends if end is not None]
        inside = " AND ".join([f"{event} IS NOT NULL", *bounds])
        if self._newest_of is None:
            statement = asof_sql.every(source.files, self._columns, inside)
        else:
            keys = self._newest_of
            statement = asof_sql.newest(source.files, self._columns, inside, keys, source.event, source.created)
        if self._constant:
            return f"SELECT *, '' AS {asof_sql.quoted(self._constant)} FROM ({statement})"
        return statement


def _time(moment: datetime, kind: str) -> str:
    """A moment as an SQL constant that a column of this type is compared with; without a zone it is UTC."""
    instant = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    text = instant.replace(tzinfo=None).isoformat(sep=" ")
    return f"TIMESTAMPTZ '{text}+00'" if kind == "TIMESTAMP WITH TIME ZONE" else f"TIMESTAMP '{text}'"
