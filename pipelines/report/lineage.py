"""From the data to the decision by digests, with each hand-over checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.core.records import Record
from pipelines.report import words
from pipelines.report.facts import Facts


@dataclass(frozen=True)
class Link:
    """One thing in the chain; `matches` is None where there is nothing to compare with."""

    what: str
    digest: str
    about: str
    matches: bool | None = None


def lineage(facts: Facts) -> dict[str, Any]:
    """The chain as far as the run got; a hand-over whose digests differ makes the section bad."""
    links = [
        link for link in (_snapshot(facts), _contract(facts), _rows(facts), _model(facts), _evidence(facts)) if link
    ] + [link for link in (_version(facts), _rollout(facts)) if link]
    broken = [link for link in links if link.matches is False]
    state = "none" if not links else "bad" if broken else "good"
    summary = {
        "none": "",
        "bad": "A hand-over does not match: what one step made is not what the next one used.",
        "good": "Each step used exactly what the one before it made.",
    }[state]
    return {"id": "lineage", "title": "Lineage", "state": state, "summary": summary, "links": links, "empty": not links}


def _of(record: Record | None, name: str = "digest") -> str | None:
    """A digest that a record holds, None where there is no record."""
    return None if record is None else str(getattr(record, name))


def _same(one: str, other: str | None) -> bool | None:
    return None if not one or not other else one == other


def _snapshot(facts: Facts) -> Link | None:
    found = facts.snapshot
    if found is None:
        return None
    return Link("Snapshot", found.digest, f"{words.number(found.rows)} rows from {found.source}")


def _contract(facts: Facts) -> Link | None:
    found = facts.contract
    if found is None:
        return None
    about = f"{found.contract} {found.version}, {'passed' if found.passed else 'violated'}"
    matches = _same(found.snapshot_digest, _of(facts.snapshot))
    return Link("Contract verdict", found.record_digest, about, matches)


def _rows(facts: Facts) -> Link | None:
    found = facts.training_set
    if found is None:
        return None
    about = f"feature service {found.feature_service}, as of {words.moment(found.as_of)}"
    checks = [
        _same(found.snapshot_digest, _of(facts.snapshot)),
        _same(found.clean_digest, _of(facts.contract, "clean_digest")),
    ]
    return Link("Training set", found.digest, about, _all(checks))


def _model(facts: Facts) -> Link | None:
    found = facts.model
    if found is None:
        return None
    about = (
        f"{words.number(found.parameters)} parameters, {words.number(found.steps)} steps on {found.world_size} ranks"
    )
    return Link("Model", found.digest, about, _same(found.training_set_digest, _of(facts.training_set)))


def _evidence(facts: Facts) -> Link | None:
    found = facts.evidence
    if found is None:
        return None
    checks = [
        _same(found.model_digest, _of(facts.model)),
        _same(found.training_set_digest, _of(facts.training_set)),
    ]
    return Link("Evidence", found.record_digest, f"{words.number(found.rows)} test rows", _all(checks))


def _version(facts: Facts) -> Link | None:
    found = facts.version
    if found is None:
        return None
    checks = [
        _same(found.digest, _of(facts.model)),
        _same(found.evidence_digest, _of(facts.evidence, "record_digest")),
    ]
    return Link("Registered version", found.digest, f"{found.name} version {found.version}", _all(checks))


def _rollout(facts: Facts) -> Link | None:
    found = facts.rollout
    if found is None:
        return None
    about = f"outcome {found.outcome.replace('_', ' ')}, served by {words.engine(found.engine)}"
    return Link("Rollout", found.candidate_digest, about, _same(found.candidate_digest, _of(facts.version)))


def _all(checks: list[bool | None]) -> bool | None:
    known = [check for check in checks if check is not None]
    return all(known) if known else None
