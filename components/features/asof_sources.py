"""Where a feature view's rows are: Parquet files, folders of them or globs, local or behind fsspec; and adding rows."""

from __future__ import annotations

import fcntl
import glob
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from components.core.errors import UserError, one_line
from components.features.asof_sql import escaped, unescaped

_MAGIC = frozenset("*?[")


def parquet_files(path: str, filesystem: Any = None) -> tuple[str, ...]:
    """The Parquet files of a path in the order of their names, escaped for DuckDB.

    Args:
        path: a file, a folder (its `*.parquet` at any depth, hidden ones left out) or a glob.
        filesystem: fsspec file system of a remote path.

    Raises:
        UserError: there is none.
    """
    if filesystem is not None:
        found = _remote_files(path, filesystem)
    elif os.path.isdir(path):
        below = sorted(Path(path).rglob("*.parquet"))
        found = [str(file) for file in below if not _is_hidden(file.relative_to(path))]
    elif os.path.isfile(path):
        found = [path]
    else:
        found = sorted(glob.glob(path, recursive=True)) if _MAGIC & set(path) else []
    if not found:
        raise UserError(f"feature source {path}: no Parquet file there; write it first, or mend the path")
    return tuple(escaped(file) for file in found)


def local_path(path: str, repo: Path | str | None) -> str | None:
    """An absolute local path, relative ones beginning at `repo`; None where it is remote."""
    parsed = urlparse(path)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    if "://" in path:
        return None
    return os.path.abspath(os.path.join(repo or "", path))


def remote_filesystem(path: str, endpoint: str, credentials: dict[str, str] | None) -> Any:
    """fsspec's file system for a remote path; UserError where fsspec has none for its scheme."""
    import fsspec

    scheme, options = path.split("://", 1)[0], {}
    if scheme == "s3":
        named = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
        options = {name: (credentials or {})[key] for name, key in named.items() if (credentials or {}).get(key)}
        options |= {"endpoint_url": endpoint} if endpoint else {}
    try:
        return fsspec.filesystem(scheme, **options)
    except (ImportError, ValueError) as error:
        raise UserError(f"feature source {path}: no file system for {scheme}:// ({one_line(error)})") from error


def write_tables(tables: Iterable[pa.Table], path: str, filesystem: Any = None) -> None:
    """Write tables of one schema to a Parquet file: a reader sees the old file or the new one, whole.

    Args:
        tables: at least one.
    """
    with _sink(path, filesystem) as stream:
        writer = None
        for table in tables:
            writer = writer or pq.ParquetWriter(stream, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()


def add_rows(table: pa.Table, path: str) -> None:
    """Add rows behind those of a local Parquet file, or a file to a folder of them; one writer at a time.

    Raises:
        UserError: the columns are not those of the file.
    """
    if os.path.isdir(path):
        with _alone(os.path.join(path, "added")):
            last = Path(unescaped(parquet_files(path)[-1]))
            write_tables([_fitted(table, str(last), path)], str(_after(last)))
        return
    with _alone(path):
        if not os.path.exists(path):
            write_tables([table], path)
            return
        with pq.ParquetFile(path) as old:
            fitted = _fitted(table, path, path)
            groups = (old.read_row_group(at) for at in range(old.num_row_groups))
            write_tables((part.cast(fitted.schema) for part in _then(groups, fitted)), path)


def _after(last: Path) -> Path:
    """A new file's name that sorts behind the last one's: of two rows that tie, the one written last counts."""
    stem, _, number = last.stem.partition("~")
    now = max(time.time_ns(), int(number) + 1 if number.isdigit() else 0)
    return last.with_name(f"{stem}~{now:020d}.parquet")


def _fitted(table: pa.Table, file: str, path: str) -> pa.Table:
    schema = pq.read_schema(file).remove_metadata()
    if table.column_names != schema.names:
        raise UserError(f"{path}: rows to add have columns {table.column_names}, it has {schema.names}, in this order")
    try:
        return table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"{path}: rows to add do not fit its types ({one_line(error)[:300]})") from error


def _then(first: Iterable[pa.Table], last: pa.Table) -> Iterator[pa.Table]:
    yield from first
    yield last


@contextmanager
def _alone(path: str) -> Iterator[None]:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _sink(path: str, filesystem: Any) -> Iterator[IO[bytes]]:
    if filesystem is not None:
        with filesystem.open(path, "wb") as stream:
            yield stream
        return
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    staging = place.with_name(f".{place.name}.{uuid.uuid4().hex}.staging")
    try:
        with staging.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        staging.replace(place)
    finally:
        staging.unlink(missing_ok=True)


def _remote_files(path: str, filesystem: Any) -> list[str]:
    scheme = path.split("://", 1)[0]
    if filesystem.isfile(path):
        return [path]
    pattern = path if _MAGIC & set(path) else f"{path.rstrip('/')}/**/*.parquet"
    return [f"{scheme}://{str(file).removeprefix(f'{scheme}://')}" for file in sorted(filesystem.glob(pattern))]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
