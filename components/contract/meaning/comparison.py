"""A snapshot's profile and what it says beside the earlier ones: the one call of the validate step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from components.contract.engines.batch import Batch
from components.contract.engines.safe_error import safe_error
from components.contract.meaning.findings import findings
from components.contract.meaning.profile import Profile, profile
from components.contract.standard.rules import DataContract
from components.core.errors import PilotlineError, one_line
from components.core.recipe import Recipe
from components.core.records import RuleResult, SnapshotRef

MIN_FRESH_ROWS = 50


def compare_snapshot(
    batch: Batch,
    ref: SnapshotRef,
    contract: DataContract,
    history: Sequence[Profile],
    recipe: Recipe,
    scratch: Path | None = None,
) -> tuple[Profile | None, tuple[RuleResult, ...]]:
    """The profile of a snapshot and the findings against the history.

    A profile that cannot be made is a failure: no profile, and a result that says why.

    Args:
        batch: the snapshot's rows, in the order of time.
        ref: what ingestion recorded of it.
        contract: the contract.
        history: profiles of accepted snapshots, oldest first.
        recipe: its name is the profile's stream, its source's time formats read the time column.
        scratch: folder for what does not fit into memory.
    """
    about = {name: getattr(ref, name) for name in ("source", "time_column", "time_min", "time_max", "since", "until")}
    try:
        whole = profile(batch, contract, ref.digest, scratch=scratch, stream=recipe.name, **about)
        first = _first_new_row(batch, ref, history[-1], recipe.source.time_formats) if history else 0
        fresh = profile(batch, contract, ref.digest, first_row=first, scratch=scratch) if first else None
        return whole, findings(contract, whole, history, fresh)
    except Exception as error:
        return None, (_failed(error),)


def compare_batch(
    batch: Batch, contract: DataContract, history: Sequence[Profile], scratch: Path | None = None
) -> tuple[RuleResult, ...]:
    """The findings on a bare file; as in `compare_snapshot`."""
    try:
        return findings(contract, profile(batch, contract, scratch=scratch), history)
    except Exception as error:
        return (_failed(error),)


def _failed(error: Exception) -> RuleResult:
    reason = f"the batch could not be compared with earlier ones ({_told(error)[:300]})"
    return RuleResult(rule="meaning: history", outcome="fail", observed=None, limit=None, reason=reason)


def _told(error: Exception) -> str:
    return one_line(error) if isinstance(error, PilotlineError) else safe_error(error)


def _first_new_row(batch: Batch, ref: SnapshotRef, last: Profile, time_formats: Sequence[str]) -> int:
    """The first row that is later than all rows of the last snapshot; 0 where there are too few, or all are."""
    if not ref.rows or not last.time_max or last.time_column != ref.time_column:
        return 0
    times = batch.table([ref.time_column]).column(0)
    after = datetime.fromisoformat(last.time_max)
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if _time(str(times[middle]), time_formats) <= after:
            low = middle + 1
        else:
            high = middle
    return low if low >= MIN_FRESH_ROWS and len(times) - low >= MIN_FRESH_ROWS else 0


def _time(text: str, time_formats: Sequence[str]) -> datetime:
    for time_format in time_formats:
        try:
            time = datetime.strptime(text, time_format)
        except ValueError:
            continue
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    raise ValueError(f"time {text!r} is in none of the formats {', '.join(time_formats)}")
