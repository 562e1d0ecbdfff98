"""The exports that a home remembers: a published folder each, with all versions known after it and what it covers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.publish import MANIFEST, publishing, verify
from components.features.known_past import Interval, Past

VERSIONS, ABOUT = "versions.parquet", "about.json"
EVENT = "pilotline:event"

Covered = tuple[tuple[pd.Timestamp, pd.Timestamp], ...]


@dataclass(frozen=True)
class Export:
    """A kept export.

    number: counts them in the order in which they were read. variant: see Restated. interval: its own. covered: the
    times of which this one and those that it follows told every row, a pair of first and last moment each.
    """

    folder: Path
    export: str
    variant: str
    number: int
    interval: Interval
    covered: Covered
    past: Past

    @property
    def place(self) -> tuple[pd.Timestamp, int, pd.Timestamp]:
        """Order of the exports: by the end of what they hold, then as they were read, then by what was told."""
        return self.interval.through, self.number, self.interval.told

    def read(self) -> pd.DataFrame:
        """Every version that is remembered after it, also of rows outside its interval."""
        verify(self.folder)
        return pq.read_table(self.folder / VERSIONS).to_pandas()


def keep(export: Export, versions: pd.DataFrame) -> None:
    """Publish an export's folder, whole or not at all."""
    about: dict[str, Any] = {
        "export": export.export,
        "variant": export.variant,
        "number": export.number,
        "start": export.interval.start.isoformat(),
        "end": export.interval.through.isoformat(),
        "told": export.interval.told.isoformat(),
        "covered": [[start.isoformat(), end.isoformat()] for start, end in export.covered],
        "past": asdict(export.past),
    }
    with publishing(export.folder) as staging:
        pq.write_table(pa.Table.from_pandas(versions, preserve_index=False), staging / VERSIONS, compression="zstd")
        (staging / ABOUT).write_text(json.dumps(about, indent=1))


def kept(store: Path) -> list[Export]:
    """All of a store; one that is read is verified then, not all of years each time."""
    folders = store.iterdir() if store.exists() else ()
    return [read_about(folder) for folder in folders if folder.name[0] != "." and (folder / MANIFEST).is_file()]


def read_about(folder: Path) -> Export:
    """An export without its rows."""
    about = json.loads((folder / ABOUT).read_text())
    past = Past(**about["past"]) if "past" in about else Past(follows=about["after"])  # as homes had it before
    through = pd.Timestamp(about["end"])
    start = pd.Timestamp(about["start"]) if "start" in about else _first_event(folder)
    covered = tuple((pd.Timestamp(one), pd.Timestamp(other)) for one, other in about.get("covered", ()))
    interval = Interval(start, through, pd.Timestamp(about.get("told", about["end"])))
    name = about.get("export", folder.name)
    variant = about.get("variant", folder.name.removeprefix(name))
    return Export(folder, name, variant, about["number"], interval, covered or ((start, through),), past)


def _first_event(folder: Path) -> pd.Timestamp:
    """Of an export as homes had it before, which did not keep it."""
    first: pd.Timestamp = pq.read_table(folder / VERSIONS, columns=[EVENT]).to_pandas()[EVENT].min()
    return first


def told_until(exports: Sequence[Export], last: Export) -> pd.Timestamp:
    """Up to when sets were made of an export, or of those that it follows."""
    found, name, seen = last.interval.told, last.export, set()
    while name and name not in seen:
        seen.add(name)
        of_it = [one for one in exports if one.export == name]
        found = max([found, *(one.interval.told for one in of_it)])
        name = last.past.follows if name == last.export else next((one.past.follows for one in of_it), "")
    return found
