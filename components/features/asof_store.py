"""Feast's offline store on DuckDB's ASOF JOIN, for Parquet sources; the join itself is asof_join.py's.

In feature_store.yaml:

    offline_store:
      type: components.features.asof_store.AsofOfflineStore
      memory_limit_gib: 4.0
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds
from feast.data_format import ParquetFormat
from feast.data_source import DataSource
from feast.feature_logging import LoggingConfig, LoggingSource
from feast.feature_view import DUMMY_ENTITY_ID, FeatureView
from feast.infra.offline_stores.file_source import FileLoggingDestination, FileSource
from feast.infra.offline_stores.offline_store import OfflineStore, RetrievalJob
from feast.infra.registry.base_registry import BaseRegistry
from feast.on_demand_feature_view import OnDemandFeatureView
from feast.repo_config import FeastConfigBaseModel, RepoConfig
from pydantic import Field

from components.core.errors import UserError, one_line
from components.features import asof_sources
from components.features.asof_job import EntityRows, HistoricalJob, QueryJob
from components.features.asof_join import Limits, engine, schema_of
from components.features.asof_sql import History

EVENT = "event_timestamp"


class AsofOfflineStoreConfig(FeastConfigBaseModel):
    """What feature_store.yaml may say of the store; see asof_join.Limits."""

    type: Literal["components.features.asof_store.AsofOfflineStore"] = "components.features.asof_store.AsofOfflineStore"
    memory_limit_gib: float = Field(default=4.0, ge=0.125)
    threads: int | None = Field(default=None, ge=1)
    temp_directory: str | None = None


class AsofOfflineStore(OfflineStore):
    """Rows out equal rows in, in their order; see asof_sql for which value a row gets."""

    supports_filter_by_created_timestamp = True

    @staticmethod
    def get_historical_features(
        config: RepoConfig,
        feature_views: list[FeatureView],
        feature_refs: list[str],
        entity_df: pd.DataFrame | pa.Table | str | None,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
        filter_by_created_timestamp: bool = False,
        **_: Any,
    ) -> HistoricalJob:
        """Features as they were at each entity row's event time.

        Args:
            entity_df: a frame, an Arrow table, or a SELECT for DuckDB (relative paths begin at the repository).
            filter_by_created_timestamp: only values created at or before the row's event time.

        Raises:
            UserError: see join_features; no entity rows; a source that is no Parquet.
        """
        if entity_df is None:
            raise UserError("get_historical_features: give entity rows (entity_df); a range of dates is not supported")
        limits = _limits(config, [view.batch_source for view in feature_views])
        return HistoricalJob(
            histories=[_history(view, feature_refs, full_feature_names, config) for view in feature_views],
            entity=_entity_rows(entity_df, limits),
            known_only=filter_by_created_timestamp,
            limits=limits,
            on_demand=OnDemandFeatureView.get_requested_odfvs(feature_refs, project, registry),
            full_feature_names=full_feature_names,
            feature_refs=feature_refs,
        )

    @staticmethod
    def pull_latest_from_table_or_query(
        config: RepoConfig,
        data_source: DataSource,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
    ) -> RetrievalJob:
        """Each key's newest row, by event then created time, with an event in [start_date, end_date]."""
        keys = [key for key in join_key_columns if key != DUMMY_ENTITY_ID]
        columns = _columns(keys, feature_name_columns, timestamp_field, created_timestamp_column)
        source = _rows_of(data_source, columns, timestamp_field, created_timestamp_column, config)
        constant = None if keys else DUMMY_ENTITY_ID
        return QueryJob(source, columns, (start_date, end_date), keys, constant, _limits(config, [data_source]))

    @staticmethod
    def pull_all_from_table_or_query(
        config: RepoConfig,
        data_source: DataSource,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None = None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
    ) -> RetrievalJob:
        """All rows with an event in [start_date, end_date], in the order of writing."""
        keys = [key for key in join_key_columns if key != DUMMY_ENTITY_ID]
        columns = _columns(keys, feature_name_columns, timestamp_field, created_timestamp_column)
        source = _rows_of(data_source, columns, timestamp_field, created_timestamp_column, config)
        constant = None if keys else DUMMY_ENTITY_ID
        return QueryJob(source, columns, (start_date, end_date), None, constant, _limits(config, [data_source]))

    @staticmethod
    def offline_write_batch(
        config: RepoConfig, feature_view: FeatureView, table: pa.Table, progress: Callable[[int], Any] | None
    ) -> None:
        """Add rows behind those of the view's source (a local file or folder)."""
        source = _parquet(feature_view.batch_source, f"feature view {feature_view.name}")
        path = asof_sources.local_path(source.path, config.repo_path)
        if path is None:
            raise UserError(f"feature view {feature_view.name}: rows can be added to local files only")
        asof_sources.add_rows(table, path)
        if progress:
            progress(table.num_rows)

    @staticmethod
    def write_logged_features(
        config: RepoConfig,
        data: pa.Table | Path,
        source: LoggingSource,  # noqa: ARG004 - Feast's signature
        logging_config: LoggingConfig,
        registry: BaseRegistry,  # noqa: ARG004
    ) -> None:
        """Add logged features to their folder as new files."""
        destination = logging_config.destination
        if not isinstance(destination, FileLoggingDestination):
            raise UserError(f"logged features go to files here, not to {type(destination).__name__}")
        path = asof_sources.local_path(destination.path, config.repo_path)
        if path is None:
            raise UserError(f"{destination.path}: logged features can be written to local folders only")
        ds.write_dataset(
            ds.dataset(data, format="parquet") if isinstance(data, Path) else data,
            base_dir=path,
            basename_template=f"part-{uuid.uuid4().hex}-{{i}}.parquet",
            partitioning=destination.partition_by,
            partitioning_flavor="hive" if destination.partition_by else None,
            format="parquet",
            existing_data_behavior="overwrite_or_ignore",
        )


def _history(view: FeatureView, refs: Sequence[str], full_names: bool, config: RepoConfig) -> History:
    source = _parquet(view.batch_source, f"feature view {view.name}")
    of_source = {name: column for column, name in source.field_mapping.items()}
    projection = view.projection
    asked = [name for owner, _, name in (ref.partition(":") for ref in refs) if owner == projection.name_to_use()]
    prefix = f"{projection.name_alias or view.name}__" if full_names else ""
    keys = [column.name for column in view.entity_columns if column.name != DUMMY_ENTITY_ID]
    created = source.created_timestamp_column or None
    return History(
        name=projection.name_to_use(),
        files=_files(source, config),
        keys=tuple((projection.join_key_map.get(key, key), of_source.get(key, key)) for key in keys),
        event=of_source.get(source.timestamp_field, source.timestamp_field),
        created=of_source.get(created, created) if created else None,
        features=tuple((prefix + name, of_source.get(name, name)) for name in dict.fromkeys(asked)),
        ttl=view.ttl if isinstance(view.ttl, timedelta) else None,
    )


def _rows_of(
    source: DataSource, columns: Sequence[str], event: str, created: str | None, config: RepoConfig
) -> History:
    parquet = _parquet(source, f"source {source.name}")
    features = tuple((column, column) for column in columns)
    return History(f"source {source.name}", _files(parquet, config), (), event, created or None, features)


def _columns(keys: Sequence[str], features: Sequence[str], event: str, created: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*keys, *features, event, *([created] if created else [])]))


def _parquet(source: DataSource | None, where: str) -> FileSource:
    if source is None:
        raise UserError(f"{where}: has no batch source, so it has no history to join")
    if not isinstance(source, FileSource) or not isinstance(source.file_format or ParquetFormat(), ParquetFormat):
        raise UserError(
            f"{where}: this offline store reads Parquet files (FileSource); for {type(source).__name__} choose Feast's "
            "own store of its kind"
        )
    return source


def _files(source: FileSource, config: RepoConfig) -> tuple[str, ...]:
    local = asof_sources.local_path(source.path, config.repo_path)
    return asof_sources.parquet_files(local or source.path, None if local else _filesystem(source))


def _filesystem(source: FileSource) -> Any:
    return asof_sources.remote_filesystem(source.path, source.s3_endpoint_override, source.resolve_credentials())


def _limits(config: RepoConfig, sources: Sequence[DataSource | None]) -> Limits:
    asked = config.offline_store
    remote = [
        source
        for source in sources
        if isinstance(source, FileSource) and asof_sources.local_path(source.path, config.repo_path) is None
    ]
    # One file system a scheme: DuckDB knows them by their protocol.
    filesystems = {source.path.split("://", 1)[0]: _filesystem(source) for source in remote}
    return Limits(
        memory_gib=asked.memory_limit_gib,
        threads=asked.threads,
        scratch=asked.temp_directory,
        repo=os.path.abspath(config.repo_path or ""),
        filesystems=tuple(filesystems.values()),
    )


def _entity_rows(entity: pd.DataFrame | pa.Table | str, limits: Limits) -> EntityRows:
    if isinstance(entity, str):
        select = entity.strip().rstrip(";")
        with engine(limits) as connection:
            return EntityRows(select, _event_column(schema_of(connection, select)))
    if isinstance(entity, pa.Table):
        return EntityRows(entity, _event_column(entity.schema))
    if duplicated := entity.columns[entity.columns.duplicated()].tolist():
        raise UserError(f"entity rows: two columns are called {duplicated[0]!r}; rename one")
    frame = entity
    if EVENT in frame and not pd.api.types.is_datetime64_any_dtype(frame[EVENT]):
        try:
            frame = frame.assign(**{EVENT: pd.to_datetime(frame[EVENT], utc=True)})
        except (ValueError, TypeError) as error:
            raise UserError(f"entity rows: {EVENT!r} is not a time ({one_line(error)[:200]})") from error
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"entity rows: a column mixes types ({one_line(error)[:200]})") from error
    return EntityRows(table, _event_column(table.schema), entity.index)


def _event_column(schema: pa.Schema) -> str:
    times = [field.name for field in schema if kinds.is_timestamp(field.type)]
    if EVENT in schema.names or len(times) == 1:
        return EVENT if EVENT in schema.names else times[0]
    raise UserError(f"entity rows: no column {EVENT!r} and {len(times)} columns of times; name the event time {EVENT}")
