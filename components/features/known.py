"""What was known of a row, and from when: a later export never changes what an earlier one said of the past.

An export carries no time at which a row reached us, so it is taken from the sequence of exports. A row of the first
one counts as known from its event. A row that a later export adds behind the end of the one before it is new; one
that it adds before that end is late (a backfill), and a row that it changes is corrected: both count as known from the
day after the end of the export that brought them. What a correction replaces stays beside it, and held until then.

An export that changes or lacks more than a tenth (`features.restated_share`) of what the one before it said is a
restated source, and the recipe says what then holds (`features.restated`): `anew` follows no export, so that its rows
count as known from their events; `follow` takes every change as a correction; `refuse` refuses. It is always named.

Each export's versions are published once, in a folder named by its clean rows' digest, and name the export that they
follow: the newest, by the end of its rows, of those read before it that end no later. So the same export gives the
same versions whatever comes later. Exports are read in the order of their ends: one that is read after a later one is
named as out of order, and changes nothing in what that said (a cut of today's rows would else pass for what was known
on the day of the cut).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.digest import value_digest
from components.core.errors import PolicyRefusal
from components.core.publish import MANIFEST, is_whole, publishing, verify

VERSIONS, ABOUT = "versions.parquet", "about.json"
KEY, EVENT, RECORDED, SUPERSEDED = "pilotline:key", "pilotline:event", "pilotline:recorded", "pilotline:superseded"
OWN = (KEY, EVENT, RECORDED, SUPERSEDED)
SAME_ROWS = 0.5  # an export that holds this share of the keys of an earlier one, in its time, speaks of the same rows


@dataclass(frozen=True)
class Restated:
    """What a restated source does, and the share of an earlier export's rows, 0 to 1, beyond which one is restated."""

    rule: Literal["anew", "follow", "refuse"] = "anew"
    share: float = 0.1

    @property
    def variant(self) -> str:
        """What is added to the names of versions that another rule would make otherwise."""
        given = {"follow": self.rule == "follow", "share": self.share}
        return "" if given == {"follow": False, "share": 0.1} else f"-{value_digest(given)[:8]}"


@dataclass(frozen=True)
class Past:
    """What an export has behind it.

    follows: digest of the export that it follows, "" for none; restates: of the one that it restates; changed: the
    share of that one's rows, in its time, that it changes or lacks; later: how many kept exports of the same rows end
    later; brought: the day from which its changes count as known.
    """

    follows: str = ""
    restates: str = ""
    changed: float = 0.0
    later: int = 0
    brought: str = ""

    def notes(self, restated: Restated) -> tuple[str, ...]:
        """What a person has to know of it, one line each."""
        found = []
        if self.restates:
            about = (
                f"the source is restated: {self.changed:.1%} of the rows of export {self.restates[:12]} are changed "
            )
            about += f"or gone (features.restated_share {restated.share:.1%}); "
            if self.follows:
                about += f"each change counts as known from {self.brought} (features.restated = follow)"
            else:
                about += "no correction is followed, and every row counts as known from its event (features.restated = "
                about += f"{restated.rule}; follow takes them as corrections known from now, refuse stops)"
            found.append(about)
        if self.later:
            found.append(
                f"the export is out of order: {self.later} that were read before it end later, and what they said of "
                "the past stays; read exports in the order of their ends"
            )
        return tuple(found)


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
    past: Past = Past()

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
        seen = Versions(*(part[there].reset_index(drop=True) for part in parts))
        return replace(seen, past=self.past)


def first_versions(clean: pd.DataFrame, keys: pd.Series, event: pd.Series) -> Versions:
    """The versions of an export that follows none; arguments as of remember()."""
    return _versions(_rows(clean, keys, event), clean.columns.tolist())


def remember(
    store: Path, name: str, clean: pd.DataFrame, keys: pd.Series, event: pd.Series, restated: Restated | None = None
) -> Versions:
    """The versions after an export, kept in the store.

    Args:
        store: folder of the exports of one kind of data.
        name: the export's digest.
        clean: its rows as text, in its order.
        keys: what names a row; a key that stands twice is counted.
        event: each row's time (UTC).
        restated: what a restated source does.

    Raises:
        PolicyRefusal: the source is restated, and the rule says refuse; nothing is kept.
        IntegrityError: what is kept is not what was written.
    """
    restated = restated or Restated()
    rows = _rows(clean, keys, event)
    folder = store / (name + restated.variant)
    if not is_whole(folder):
        end = event.max()
        exports = [about for about in _kept(store) if about.export != name]
        followed, past = _followed(exports, rows, end, restated)
        _refuse(past, restated)
        versions = rows if followed is None else _after(followed.read(), followed.end, rows, end)
        about = {"export": name, "end": end.isoformat(), "number": _count(store), "past": asdict(past)}
        with publishing(folder) as staging:
            pq.write_table(pa.Table.from_pandas(versions, preserve_index=False), staging / VERSIONS, compression="zstd")
            (staging / ABOUT).write_text(json.dumps(about, indent=1))
    past = _about(folder).past
    _refuse(past, restated)  # it may have been kept when the rule was another
    return replace(_versions(_read(folder), clean.columns.tolist()), past=past)


def _refuse(past: Past, restated: Restated) -> None:
    if past.restates and restated.rule == "refuse":
        raise PolicyRefusal(
            f"features.restated: {past.changed:.1%} of the rows of export {past.restates[:12]} are changed or gone "
            f"(features.restated_share {restated.share:.1%}); mend the source, or say with features.restated "
            "whether it is followed or begins anew"
        )


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
    """A kept export; `number` counts them in the order in which they were read."""

    folder: Path
    export: str
    end: pd.Timestamp
    number: int
    past: Past

    def read(self) -> pd.DataFrame:
        return _read(self.folder)


def _followed(
    exports: Sequence[_Export], rows: pd.DataFrame, end: pd.Timestamp, restated: Restated
) -> tuple[_Export | None, Past]:
    """The newest kept export that ends no later and is of the same data."""
    later = {one.export for one in exports if one.end > end and _compared(rows, _holding(one.read()))[0] >= SAME_ROWS}
    past = Past(later=len(later), brought=f"{_brought(end):%Y-%m-%d}")
    for one in sorted(exports, key=lambda one: (one.end, one.number), reverse=True):
        if one.end > end:
            continue
        same_keys, changed = _compared(one.read(), rows)
        if changed <= restated.share:
            return one, replace(past, follows=one.export, restates="", changed=0.0)
        if same_keys >= SAME_ROWS and not past.restates:
            past = replace(past, restates=one.export, changed=changed)
            if restated.rule == "follow":
                return one, replace(past, follows=one.export)
    return None, past


def _compared(earlier: pd.DataFrame, rows: pd.DataFrame) -> tuple[float, float]:
    """Of the earlier rows that hold, in the time of `rows`: the share whose key is there, and that of changed ones."""
    holds = _holding(earlier)
    holds = holds[holds[EVENT].between(rows[EVENT].min(), rows[EVENT].max())]
    if not len(holds):
        return 0.0, 1.0
    changed = int((~_unchanged(holds, rows)).sum())
    return float(holds[KEY].isin(rows[KEY]).mean()), changed / len(holds)


def _holding(versions: pd.DataFrame) -> pd.DataFrame:
    return versions[versions[SUPERSEDED].isna()]


def _unchanged(holds: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """For each row of `holds` whether `rows` has it with equal values in the columns of both."""
    common = [column for column in holds.columns if column in rows.columns and column not in OWN]
    there = rows.set_index(KEY)[common].reindex(holds[KEY])
    same = (there.to_numpy() == holds[common].to_numpy()).all(axis=1)
    return np.asarray(same & holds[KEY].isin(rows[KEY]).to_numpy())


def _after(earlier: pd.DataFrame, earlier_end: pd.Timestamp, rows: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """The versions after `rows`, which end at `end`, given those after the export before it."""
    brought = _brought(end)
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


def _brought(end: pd.Timestamp) -> pd.Timestamp:
    """From when a change counts as known that an export brings which ends at `end`."""
    return end.normalize() + pd.Timedelta(days=1)


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


def _kept(store: Path) -> list[_Export]:
    return [_about(folder) for folder in _published(store)]


def _about(folder: Path) -> _Export:
    about = json.loads((folder / ABOUT).read_text())
    past = Past(**about["past"]) if "past" in about else Past(follows=about["after"])  # as homes had it before
    return _Export(folder, about.get("export", folder.name), pd.Timestamp(about["end"]), about["number"], past)


def _read(folder: Path) -> pd.DataFrame:
    verify(folder)
    return pq.read_table(folder / VERSIONS).to_pandas()
