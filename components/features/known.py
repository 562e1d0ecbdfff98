"""What was known of a row, and from when: a later export never changes what an earlier one said of the past.

An export carries no time at which a row reached us, so it is taken from the sequence of exports. A row counts as known
from its event where no export before held its time. One that an export adds in a time that an earlier one covered is
late (a backfill), and a row that it changes or lacks is corrected: both count as known from the day after all that was
told by then. What a correction replaces stays beside it, and held until then.

What an export covers: from its first event, or `source.since`, to its last event, or `source.until`; rows outside were
not asked for, and their absence says nothing. What was told reaches further where a set was made of it as of a later
day (`features.as_of`): whatever comes later, or is read again of the same days, such a set stays. No clock is used but
to pass over ends that have not come yet, so the same exports in the same order give the same versions in any home.

An export that changes or lacks more than a tenth (`features.restated_share`) of what was known of its time is a
restated source, and the recipe says what then holds (`features.restated`): `anew` follows no export, so that its rows
count as known from their events, and sets as of a day before it are refused; `follow` takes every change as a
correction; `refuse` refuses. It is always named.

Each export's versions are published once, in a folder named by its clean rows' digest, with all that is remembered of
rows outside its time. It follows the newest, by the end of its rows, of those read before it. One that is read after a
later one is named as out of order: what it says otherwise counts as known after that one's end, and no other export
follows it (a cut of today's rows would else pass for what was known on the day of the cut).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from components.core.errors import PolicyRefusal
from components.features.known_exports import EVENT, Covered, Export, keep, kept, told_until
from components.features.known_past import Asked, Interval, Past, Restated

KEY, RECORDED, SUPERSEDED = "pilotline:key", "pilotline:recorded", "pilotline:superseded"
OWN = (KEY, EVENT, RECORDED, SUPERSEDED)
SAME_ROWS = 0.5  # an export that holds this share of the keys of another one speaks of the same rows


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
    past: Past = field(default_factory=Past)

    @property
    def current(self) -> np.ndarray:
        """Positions of the versions that hold."""
        return np.flatnonzero(self.superseded.isna().to_numpy())

    def as_of(self, moment: pd.Timestamp | None) -> Versions:
        """What was known at a moment of events up to it; all where None.

        Raises:
            PolicyRefusal: the source began anew after it, and what was known then is not remembered.
        """
        if moment is None:
            return self
        if self.past.begins and moment < pd.Timestamp(self.past.begins, tz="UTC"):
            raise PolicyRefusal(
                f"features.as_of {moment:%Y-%m-%d}: the source was restated and began anew on {self.past.begins} "
                "(features.restated = anew), so what was known before is not told by its rows; set features.restated "
                "= follow, or read it into another home"
            )
        there = ((self.event <= moment) & (self.recorded <= moment)).to_numpy()
        superseded = self.superseded.where(self.superseded <= moment)
        parts = (self.clean, self.event, self.recorded, superseded)
        seen = Versions(*(part[there].reset_index(drop=True) for part in parts))
        return replace(seen, past=self.past)


def first_versions(clean: pd.DataFrame, keys: pd.Series, event: pd.Series) -> Versions:
    """The versions of an export that follows none; arguments as of remember()."""
    return _versions(_rows(clean, keys, event), clean.columns.tolist())


def remember(
    store: Path,
    name: str,
    clean: pd.DataFrame,
    keys: pd.Series,
    event: pd.Series,
    restated: Restated | None = None,
    asked: Asked | None = None,
) -> Versions:
    """The versions after an export, kept in the store.

    Args:
        store: folder of the exports of one kind of data.
        name: the export's digest.
        clean: its rows as text, in its order.
        keys: what names a row; a key that stands twice is counted.
        event: each row's time (UTC).
        restated: what a restated source does.
        asked: the interval that it was read for, and as of when a set is made of it.

    Raises:
        PolicyRefusal: the source is restated, and the rule says refuse; nothing is kept.
        IntegrityError: what is kept is not what was written.
    """
    restated = restated or Restated()
    rows = _rows(clean, keys, event)
    interval = (asked or Asked()).interval(event)
    exports = kept(store)
    folder = store / (name + restated.variant)
    own = [one for one in exports if (one.export, one.variant) == (name, restated.variant)]
    if own:
        export = max(own, key=lambda one: one.interval.told)
        versions = export.read()
        _refuse(export.past, restated)  # it may have been kept when the rule was another
    else:
        new = Export(folder, name, restated.variant, len(exports), interval, (), Past())
        export, versions = _next([one for one in exports if one.export != name], new, rows, restated)
        keep(export, versions)
    if interval.told > export.interval.told:  # a set as of a later day than any before: it has to stay
        further = replace(export.interval, told=interval.told)
        export = replace(
            export,
            folder=store / f"{folder.name}-{interval.told:%Y%m%d}",
            interval=further,
            covered=(*export.covered, (further.start, further.told)),
        )
        keep(export, versions)
    seen = _seen(versions, rows, export.interval)
    return replace(_versions(seen, clean.columns.tolist()), past=export.past)


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


def _seen(remembered: pd.DataFrame, rows: pd.DataFrame, interval: Interval) -> pd.DataFrame:
    """Of all that is remembered the export's own rows, and what stood in their places and in its time before."""
    own = remembered[KEY].isin(rows[KEY])
    there = own | (_within(remembered, interval) & remembered[SUPERSEDED].notna())
    seen = remembered[there].reset_index(drop=True)
    columns = [column for column in seen.columns if column not in OWN]
    seen[columns] = seen[columns].fillna("")
    return seen


def _within(rows: pd.DataFrame, interval: Interval) -> pd.Series:
    return rows[EVENT].between(interval.start, interval.through)


def _next(
    exports: Sequence[Export], new: Export, rows: pd.DataFrame, restated: Restated
) -> tuple[Export, pd.DataFrame]:
    """An export with its past, and every version that is remembered after it.

    Raises:
        PolicyRefusal: see remember().
    """
    base, past = _followed(exports, rows, new.interval, restated)
    passed = [one for one in exports if base is None or one.place > base.place]
    of_it = [one for one in passed if _is_of(rows, one)] + ([base] if base else [])
    told = max([new.interval.told, *(told_until(exports, one) for one in of_it)])
    past = replace(past, brought=f"{_brought(told):%Y-%m-%d}")
    own = (new.interval.start, new.interval.told)
    if base is None:
        if past.restates:
            past = replace(past, begins=past.brought)
        _refuse(past, restated)
        return replace(new, covered=(own,), past=past), rows
    _refuse(past, restated)
    versions = _after(base.read(), base.covered, rows, new.interval, _brought(told))
    covered = tuple(sorted({*base.covered, own}))
    return replace(new, covered=covered, past=replace(past, begins=base.past.begins)), versions


def _followed(
    exports: Sequence[Export], rows: pd.DataFrame, interval: Interval, restated: Restated
) -> tuple[Export | None, Past]:
    """The newest kept export that is of the same data; one of other days, where none has days in common."""
    later = {one.export for one in exports if one.interval.through > interval.through and _is_of(rows, one)}
    past, apart = Past(later=len(later)), None
    for one in sorted(exports, key=lambda one: one.place, reverse=True):
        changed = _changed(one.read(), rows, interval)
        if changed is None:
            apart = apart or one
        elif changed <= restated.share:
            return one, replace(past, follows=one.export, restates="", changed=0.0)
        elif not past.restates:
            past = replace(past, restates=one.export, changed=changed)
            if restated.rule == "follow":
                return one, replace(past, follows=one.export)
    if past.restates or apart is None:
        return None, past
    return apart, replace(past, follows=apart.export)


def _is_of(rows: pd.DataFrame, export: Export) -> bool:
    """Whether another export holds so many of the rows that it speaks of the same."""
    return bool(rows[KEY].isin(_holding(export.read())[KEY]).mean() >= SAME_ROWS)


def _changed(earlier: pd.DataFrame, rows: pd.DataFrame, interval: Interval) -> float | None:
    """Of what holds in the interval by what is remembered: the share that `rows` change or lack; None: nothing does."""
    holds = _holding(earlier)
    holds = holds[_within(holds, interval)]
    return float((~_unchanged(holds, rows)).mean()) if len(holds) else None


def _holding(versions: pd.DataFrame) -> pd.DataFrame:
    return versions[versions[SUPERSEDED].isna()]


def _unchanged(holds: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """For each row of `holds` whether `rows` has it with equal values in the columns of both.

    A value that is null was never read: the export had no such column.
    """
    common = [column for column in holds.columns if column in rows.columns and column not in OWN]
    there, known = rows.set_index(KEY)[common].reindex(holds[KEY]), holds[common]
    same = ((there.to_numpy() == known.to_numpy()) | known.isna().to_numpy()).all(axis=1)
    return np.asarray(same & holds[KEY].isin(rows[KEY]).to_numpy())


def _after(
    remembered: pd.DataFrame, covered: Covered, rows: pd.DataFrame, interval: Interval, brought: pd.Timestamp
) -> pd.DataFrame:
    """All versions after `rows` of an interval came, whose changes are known from `brought`, given those before."""
    inside = _within(remembered, interval) | remembered[KEY].isin(rows[KEY])
    holds = remembered[inside & remembered[SUPERSEDED].isna()]
    unchanged = pd.Series(_unchanged(holds, rows), index=holds.index, dtype=bool)
    same_rows = holds[unchanged].set_index(KEY)
    before = remembered.drop(index=unchanged.index[unchanged]).copy()
    before.loc[unchanged.index[~unchanged], SUPERSEDED] = brought
    rows = rows.copy()
    same = rows[KEY].isin(same_rows.index)
    rows.loc[same, RECORDED] = same_rows[RECORDED].reindex(rows.loc[same, KEY]).to_numpy()
    late = ~same & (rows[KEY].isin(holds[KEY]) | _is_covered(rows[EVENT], covered))
    rows.loc[late, RECORDED] = brought
    columns = [column for column in rows.columns if column not in OWN]
    return _ordered(pd.concat([before.reindex(columns=[*columns, *OWN]), rows], ignore_index=True))


def _is_covered(event: pd.Series, covered: Covered) -> pd.Series:
    found = pd.Series(False, index=event.index)
    for start, end in covered:
        found |= event.between(start, end)
    return found


def _brought(told: pd.Timestamp) -> pd.Timestamp:
    """From when a change counts as known that comes after all was told up to a moment."""
    return told.normalize() + pd.Timedelta(days=1)


def _counted(keys: pd.Series) -> np.ndarray:
    """Keys, the second and later of equal ones with their number."""
    nth = keys.groupby(keys).cumcount()
    texts = keys.astype(str).to_numpy(dtype=object)
    return np.where(nth > 0, texts + "\0" + nth.astype(str).to_numpy(dtype=object), texts)
