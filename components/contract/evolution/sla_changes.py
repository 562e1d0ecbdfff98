"""Changes among a contract's service levels: a promise of time that got weaker breaks those who plan by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from components.contract.evolution.changes import Change, Release, change
from components.contract.evolution.document import item_names
from components.contract.standard.sla import ISO_DURATION, SIZES, UNITS

LESS_IS_BETTER = {
    "freshness",
    "frequency",
    "latency",
    "errorrate",
    "timetodetect",
    "timetonotify",
    "timetorepair",
    "timeofavailability",
    "generalavailability",
}
MORE_IS_BETTER = {"availability", "uptime", "throughput", "endofsupport", "endoflife"}
SHORT = {"ly": "latency", "fy": "frequency", "re": "retention", "av": "availability", "th": "throughput"}
SHORT |= {"er": "errorrate", "ga": "generalavailability", "es": "endofsupport", "el": "endoflife"}
SHORT |= {"td": "timetodetect", "tn": "timetonotify", "tr": "timetorepair"}
EITHER_WAY = {"retention"}  # shorter: less history than was promised; longer: kept beyond what was promised
WORDING = {"driver", "description", "scheduler", "schedule", "id", "tags", "authoritativeDefinitions"}


def sla_changes(old: Release, new: Release) -> list[Change]:
    """Service levels that are gone, new, weaker, stronger or not comparable; told by property and element."""
    before, after = _levels(old), _levels(new)
    names = [*before, *(name for name in after if name not in before)]
    told = _told(old) | _told(new)
    return [made for name in names if (made := _one(told[name], before.get(name), after.get(name)))]


def _levels(release: Release) -> dict[str, Mapping[str, Any]]:
    """By property and element; the element without its table, whose name may have changed."""
    table = f"{release.table[1]}."
    items = [
        {**item, "element": str(item["element"]).replace(table, "")} if item.get("element") else item
        for item in release.document.get("slaProperties") or []
    ]
    return dict(zip(item_names(items, "slaProperties"), items, strict=True))


def _told(release: Release) -> dict[str, str]:
    """What each of them is called in the file."""
    items = release.document.get("slaProperties") or []
    return dict(zip(_levels(release), item_names(items, "slaProperties"), strict=True))


def _one(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change | None:
    place = ("slaProperties", name)
    if old is None or new is None:
        if new is None:
            return change(place, "sla_removed", _shown(old), None, "consumers", f"SLA {name} is no longer promised.")
        return change(place, "sla_added", None, _shown(new), "", f"SLA {name} is promised now: {_shown(new)}.")
    differ = {key for key in {*old, *new} if old.get(key) != new.get(key)} - WORDING
    if not differ:
        if old == new:
            return None
        return change(place, "wording", None, None, "", f"SLA {name} is worded otherwise.", bump="patch")
    sign = _direction(old, new) if differ <= {"value", "unit"} else None
    shown = f"{_shown(old)} before, {_shown(new)} now"
    if sign is None:
        text = f"SLA {name}: {shown}, with another {', '.join(sorted(differ))}: not to be compared, so it breaks."
        return change(place, "sla_changed", _shown(old), _shown(new), "consumers", text)
    if sign == 0:
        return change(place, "restated", _shown(old), _shown(new), "", f"SLA {name}: {shown}, the same.", bump="patch")
    kind, breaks = ("sla_loosened", "consumers") if sign < 0 else ("sla_tightened", "")
    return change(place, kind, _shown(old), _shown(new), breaks, f"SLA {name}: {shown}.")


def _direction(old: Mapping[str, Any], new: Mapping[str, Any]) -> int | None:
    """1 where the new promise is stronger, -1 weaker, 0 equal; None where it cannot be compared."""
    word = "".join(letter for letter in str(new.get("property", "")).casefold() if letter.isalnum())
    word = SHORT.get(word, word)
    before, after = _amount(old), _amount(new)
    if before is None or after is None or before[1] != after[1]:
        return None
    if word in EITHER_WAY:
        return 0 if before == after else -1
    if word not in LESS_IS_BETTER | MORE_IS_BETTER:
        return None
    up = (after[0] > before[0]) - (after[0] < before[0])
    return up if word in MORE_IS_BETTER else -up


def _amount(level: Mapping[str, Any]) -> tuple[Decimal, str] | None:
    """The value as a number and its unit: durations in seconds, times since 1970, others as they stand."""
    value, unit = level.get("value"), str(level.get("unit") or "").casefold()
    if isinstance(value, str) and (found := ISO_DURATION.fullmatch(value)):
        return Decimal(sum(int(count) * SIZES[name] for name, count in found.groupdict().items() if count)), "seconds"
    if isinstance(value, bool):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        try:
            return Decimal(str(datetime.fromisoformat(str(value)).timestamp())), "time"
        except (ValueError, OverflowError):
            return None
    seconds = SIZES.get(UNITS.get(unit, ""))
    return (number * seconds, "seconds") if seconds else (number, unit)


def _shown(level: Mapping[str, Any] | None) -> str:
    known = level or {}
    parts = [str(known[key]) for key in ("value", "valueExt", "unit") if known.get(key) is not None]
    return " ".join(parts)
