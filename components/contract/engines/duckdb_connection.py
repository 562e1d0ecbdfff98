"""DuckDB connections as the contract room uses them: bounded memory and threads, no extension, no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

THREADS = 2
MEMORY_MIB = 512


@contextmanager
def connected(scratch: Path | None, memory_mib: int = MEMORY_MIB) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory; what does not fit `memory_mib` goes to a folder in `scratch`, nowhere where it is None."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": min(THREADS, os.cpu_count() or 1),
        "memory_limit": f"{memory_mib}MiB",
        "temp_directory": str(scratch / "spill") if scratch else "",
        "preserve_insertion_order": True,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    try:
        yield connection
    finally:
        connection.close()
