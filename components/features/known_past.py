"""What an export has behind it, what it covers, and what a restated source does: the plain values of known.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from components.core.digest import value_digest

INSTANT = pd.Timedelta(microseconds=1)


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
class Asked:
    """What was asked of an export, each None where it was not said (UTC).

    since, until: the interval [since, until) that the source was read for; as_of: the last moment of the day as of
    which a training set is made of it.
    """

    since: pd.Timestamp | None = None
    until: pd.Timestamp | None = None
    as_of: pd.Timestamp | None = None

    def interval(self, event: pd.Series) -> Interval:
        """What an export of these events covers; a moment that has not come yet is no end."""
        first, last = event.min(), event.max()
        now = pd.Timestamp.now("UTC")
        start = min(first, self.since) if self.since is not None else first
        through = max(last, self.until - INSTANT) if self.until is not None and self.until <= now else last
        told = max(through, self.as_of) if self.as_of is not None and self.as_of <= now else through
        return Interval(start, through, told)


@dataclass(frozen=True)
class Interval:
    """An export holds each row that was known from `start` to `through`; sets were made of it up to `told` (UTC)."""

    start: pd.Timestamp
    through: pd.Timestamp
    told: pd.Timestamp


@dataclass(frozen=True)
class Past:
    """What an export has behind it.

    follows: digest of the export that it follows, "" for none; restates: of the one that it restates; changed: the
    share of that one's rows, in its time, that it changes or lacks; later: how many kept exports of the same rows end
    later; brought: the day from which its changes count as known; begins: the day before which nothing is remembered,
    since a source was restated and began anew ("" = all is).
    """

    follows: str = ""
    restates: str = ""
    changed: float = 0.0
    later: int = 0
    brought: str = ""
    begins: str = ""

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
                f"the past stays: what it says otherwise counts as known from {self.brought}; read exports in the "
                "order of their ends"
            )
        return tuple(found)
