"""What was known of a row, and from when: a later export never changes what an earlier one said of the past.

An export carries no time at which a row reached us, so it is taken from the sequence of exports. A row of the first
one counts as known from its event. A row that a later export adds behind the end of the one before it is new; one
that it adds before that end is late (a backfill), and a row that it changes is corrected: both count as known from the
day after the end of the export that brought them. What a correction replaces stays beside it, and held until then.

An export that changes more than a tenth of what the one before it said is a restated source: it follows none, and its
rows count as known from their events.

Each export's versions are published once, in a folder named by its clean rows' digest, and name the export that they
follow; so the same export gives the same versions whatever comes later.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.publish import MANIFEST, is_whole, publishing, verify

VERSIONS, ABOUT = "versions.parquet", "about.json"
KEY, EVENT, RECORDED, SUPERSEDED = "pilotline:key", "pilotline:event", "pilotline:recorded", "pilotline:superseded"
OWN = (KEY, EVENT, RECORDED, SUPERSEDED)
SAME_DATA = 0.9  # an earlier export is followed where this share of its rows, in the later one's time, is unchanged


@dataclass(frozen=True)
class Versions:
    """Every version of every row.

    clean: the text columns, shape (versions, columns), index 0, 1, ..., in order of event and key. event, recorded,
    superseded: UTC; a version is what was known from `recorded` until `superseded`, NaT where it holds.
    """

    clean: pd.DataFrame
    event: pd.Series
    recorded: pd.Series
    superseded: pd.Series

    @property
    def current(self) -> np.ndarray:
        """Positions of the versions that hold."""
        return np.flatnonzero(self.superseded.isna().to_numpy())

    def as_of(self, moment: pd.Timestamp | None) -> Versions:
        """What was known at a moment of events up to it; all where None."""
        if moment is None:
            return self
        there = ((self.event <= moment) & (self.recorded <= moment)).to_numpy()
        superseded = self.superseded.where(self.superseded <= moment)
        parts = (self.clean, self.event, self.recorded, superseded)
        return Versions(*(part[there].reset_index(drop=True) for part in parts))


def first_versions(clean: pd.DataFrame, keys: pd.Series, event: pd.Series) -> Versions:
    """The versions of an export that follows none; arguments as of remember()."""
    return _versions(_rows(clean, keys, event), clean.columns.tolist())


def remember(store: Path, name: str, clean: pd.DataFrame, keys: pd.Series, event: pd.Series) -> Versions:
    """The versions after an export, kept in the store.

    Args:
        store: folder of the exports of one kind of data.
        name: the export's digest.
        clean: its rows as text, in its order.
        keys: what names a row; a key that stands twice is counted.
        event: each row's time (UTC).

    Raises:
        IntegrityError: what is kept is not what was written.
    """
    rows = _rows(clean, keys, event)
    folder = store / name
    if not is_whole(folder):
        end = event.max()
        found = _followed(store, rows, end)
        versions = rows if found is None else _after(found.versions, found.end, rows, end)
        about = {"end": end.isoformat(), "number": _count(store), "after": "" if found is None else found.name}
        with publishing(folder) as staging:
            pq.write_table(pa.Table.from_pandas(versions, preserve_index=False), staging / VERSIONS, compression="zstd")
            (staging / ABOUT).write_text(json.dumps(about, indent=1))
    return _versions(_read(folder), clean.columns.tolist())


def _rows(clean: pd.DataFrame, keys: pd.Series, event: pd.Series) -> pd.DataFrame:
    """The export's rows with what we know of them, known from their event."""
    rows = clean.reset_index(drop=True)
    times = event.reset_index(drop=True)
    rows = rows.assign(**{KEY: _counted(keys.reset_index(drop=True)), EVENT: times, RECORDED: times})
    rows[SUPERSEDED] = pd.Series(pd.NaT, index=rows.index, dtype=times.dtype)
    return _ordered(rows)


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values([EVENT, KEY, RECORDED], kind="stable", ignore_index=True)


def _versions(rows: pd.DataFrame, columns: Sequence[str]) -> Versions:
    return Versions(rows[[*columns]], rows[EVENT], rows[RECORDED], rows[SUPERSEDED])


@dataclass(frozen=True)
class _Export:
    name: str
    end: pd.Timestamp
    versions: pd.DataFrame


def _followed(store: Path, rows: pd.DataFrame, end: pd.Timestamp) -> _Export | None:
    """The newest kept export that ends no later and is of the same data."""
    kept = []
    for folder in _published(store):
        about = json.loads((folder / ABOUT).read_text())
        kept.append((pd.Timestamp(about["end"]), about["number"], folder))
    for kept_end, _, folder in sorted(kept, key=lambda item: item[:2], reverse=True):
        if kept_end <= end:
            export = _Export(folder.name, kept_end, _read(folder))
            if _same_data(export.versions, rows):
                return export
    return None


def _same_data(earlier: pd.DataFrame, rows: pd.DataFrame) -> bool:
    holds = earlier[earlier[SUPERSEDED].isna() & earlier[EVENT].between(rows[EVENT].min(), rows[EVENT].max())]
    return len(holds) > 0 and float(_unchanged(holds, rows).sum()) / len(holds) >= SAME_DATA


def _unchanged(holds: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """For each row of `holds` whether `rows` has it with equal values in the columns of both."""
    common = [column for column in holds.columns if column in rows.columns and column not in OWN]
    there = rows.set_index(KEY)[common].reindex(holds[KEY])
    same = (there.to_numpy() == holds[common].to_numpy()).all(axis=1)
    return np.asarray(same & holds[KEY].isin(rows[KEY]).to_numpy())


def _after(earlier: pd.DataFrame, earlier_end: pd.Timestamp, rows: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """The versions after `rows`, which end at `end`, given those after the export before it."""
    brought = end.normalize() + pd.Timedelta(days=1)
    inside = earlier[EVENT].between(rows[EVENT].min(), rows[EVENT].max()) | earlier[KEY].isin(rows[KEY])
    earlier = earlier[inside].reset_index(drop=True)
    holds = earlier[earlier[SUPERSEDED].isna()]
    unchanged = pd.Series(_unchanged(holds, rows), index=holds.index)
    earlier.loc[unchanged.index[~unchanged], SUPERSEDED] = brought
    kept = holds.loc[unchanged[unchanged].index].set_index(KEY)
    rows = rows.copy()
    same = rows[KEY].isin(kept.index)
    rows.loc[same, RECORDED] = kept[RECORDED].reindex(rows.loc[same, KEY]).to_numpy()
    known_before = rows[KEY].isin(holds[KEY])
    late = ~same & (known_before | (rows[EVENT] <= earlier_end))
    rows.loc[late, RECORDED] = brought
    replaced = earlier[earlier[SUPERSEDED].notna()]
    columns = [column for column in rows.columns if column not in OWN]
    both = pd.concat([replaced.reindex(columns=[*columns, *OWN]), rows], ignore_index=True)
    both[columns] = both[columns].fillna("")
    return _ordered(both)


def _counted(keys: pd.Series) -> np.ndarray:
    """Keys, the second and later of equal ones with their number."""
    nth = keys.groupby(keys).cumcount()
    texts = keys.astype(str).to_numpy(dtype=object)
    return np.where(nth > 0, texts + "\0" + nth.astype(str).to_numpy(dtype=object), texts)


def _count(store: Path) -> int:
    return len(_published(store))


def _published(store: Path) -> list[Path]:
    """The folders of the kept exports; the one that is read is verified then, not all of years each time."""
    folders = store.iterdir() if store.exists() else ()
    return [folder for folder in folders if folder.name[0] != "." and (folder / MANIFEST).is_file()]


def _read(folder: Path) -> pd.DataFrame:
    verify(folder)
    return pq.read_table(folder / VERSIONS).to_pandas()
