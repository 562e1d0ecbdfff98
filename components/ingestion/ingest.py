"""Read a source once and keep it as an immutable snapshot named by its content."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.core.contracts import ContractRef
from components.core.digest import file_digest
from components.core.environment import with_environment
from components.core.errors import IntegrityError, UserError
from components.core.publish import is_whole, publishing, read_manifest
from components.core.recipe import Recipe, Source
from components.core.records import SnapshotRef
from components.ingestion import generated, sql
from components.ingestion.interval import Selection, interval_ends, select_interval
from components.ingestion.snapshot import DATA, content_lineage, write_parquet
from components.tables.locate import without_credentials
from components.tables.read import read_files


def ingest(
    recipe: Recipe,
    out: Path,
    generators: Mapping[str, Callable[..., Any]] | None = None,
    expected_digest: str = "",
    store: Path | None = None,
    contract: ContractRef | None = None,
) -> SnapshotRef:
    """Publish the source's rows of [since, until) as a snapshot folder: data.parquet and record.json.

    Every column is text as read; null only where the source has JSON null, Parquet null or SQL NULL. Rows are in
    the order of time, then key, then the other columns, and the digest is the sha256 of data.parquet, so the same
    rows give the same digest in whatever order, and from however many files, they come.

    Args:
        recipe: its `source` section is used. `${NAME}` in the URI is replaced from the environment (credentials).
        out: folder to publish.
        generators: what `generator://NAME` may name.
        expected_digest: the content that must result; with `store`, a whole snapshot of that name there is copied
            and the source is left alone.
        store: the home's folder of snapshots by digest; the snapshot is kept there once.
        contract: what the snapshot's record names; the one in `store` keeps the name that it had first.

    Raises:
        UserError: bad source, layout, encoding, dates or query; one line.
        IntegrityError: the content differs from `expected_digest`.
        TransientError: a host that does not answer.
    """
    kept = store / expected_digest if store is not None and expected_digest else None
    if kept is not None and _holds(kept, expected_digest):
        ref = _named(SnapshotRef.read(kept), contract)
        _copy(kept, out, ref)
        return ref
    interval_ends(recipe.source)  # before anything is read
    table, inputs = _read(recipe.source, generators or {})
    shown = inputs[0]["uri"] if len(inputs) == 1 else _shown(recipe.source.uri)
    selection = select_interval(table, recipe.source, shown)
    with publishing(out) as staging:
        write_parquet(selection.table, staging / DATA)
        digest = file_digest(staging / DATA)
        if expected_digest and digest != expected_digest:
            raise IntegrityError(
                f"{shown}: now gives {digest[:12]}, not the expected {expected_digest[:12]}: the source has changed "
                "since it was read first; start a new run to use what it holds now"
            )
        ref = _named(_record(digest, recipe.source, selection, shown, inputs), contract)
        ref.write(staging)
    if store is not None and not _holds(store / digest, digest):
        _copy(out, store / digest, ref)
    return ref


def _named(ref: SnapshotRef, contract: ContractRef | None) -> SnapshotRef:
    if contract is None:
        return ref
    return replace(
        ref,
        contract_id=contract.identity,
        contract_version=contract.version,
        contract_digest=contract.digest,
    )


def _record(
    digest: str, source: Source, selection: Selection, shown: str, inputs: tuple[dict[str, Any], ...]
) -> SnapshotRef:
    return SnapshotRef(
        digest=digest,
        rows=selection.table.num_rows,
        columns=tuple(selection.table.column_names),
        time_column=source.time_column,
        time_min=selection.time_min,
        time_max=selection.time_max,
        source=shown,
        since=source.since,
        until=source.until,
        inputs=inputs,
    )


def _read(source: Source, generators: Mapping[str, Callable[..., Any]]) -> tuple[pa.Table, tuple[dict[str, Any], ...]]:
    kind = source.format
    uri = with_environment(source.uri, "source.uri")
    if kind == "generator" or uri.startswith(generated.SCHEME):
        table = generated.generate(uri, generators)
        return table, (content_lineage(uri, table),)
    if kind == "sql" or (kind == "auto" and sql.is_database(uri)):
        table = sql.select(uri, source.query, source.since, source.until)
        return table, (content_lineage(sql.shown_url(uri), table),)
    if source.query:
        raise UserError("source.query is set, but source.uri is no database; remove the query or set source.format=sql")
    read = read_files(uri, kind, source.encoding)
    return read.table, read.inputs


def _shown(uri: str) -> str:
    return without_credentials(uri)


def _holds(folder: Path, digest: str) -> bool:
    """Whether the store has a whole snapshot whose data is named by the digest."""
    return is_whole(folder) and read_manifest(folder)["files"].get(DATA, {}).get("sha256") == digest


def _copy(folder: Path, target: Path, ref: SnapshotRef) -> None:
    with publishing(target) as staging:
        shutil.copyfile(folder / DATA, staging / DATA)
        ref.write(staging)
