"""`pilotline audit`: from a decision back to the data, link by link, each verified by the digest that names it.

A link that does not hold is named with the reason; those after it are still looked at, so that one sees how far the
damage goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from components.core import contracts
from components.core.contracts import ContractRef
from components.core.digest import file_digest, value_digest
from components.core.errors import IntegrityError, PilotlineError, TransientError, one_line
from components.core.home import Home
from components.models.files import model_digest
from components.registry.champions import PROMOTED
from components.registry.decision_signature import check_decisions, told_signature
from components.registry.trust import keys_of
from pipelines.audit_facts import Facts, read_facts
from pipelines.outcome import AWAITING, RUN_FILE
from pipelines.serving_versions import published

VERIFIED, BROKEN = "verified", "broken"
READ_ELSEWHERE = {f"{step}.json" for step in ("ingest", "validate", "featurise", "train", "evaluate", "recipe")}
SWITCH_SECONDS = 60.0  # so long after a promotion the version before it may still answer


@dataclass(frozen=True)
class Link:
    """One link: what it is, whether it holds, the digest that names it, and what it says."""

    link: str
    state: str
    digest: str
    said: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Audit:
    """The chain of one decision; `broken` is the first link that does not hold, "" where all do."""

    decision_id: str
    status: str
    name: str
    version: str
    digest: str
    links: tuple[Link, ...]
    broken: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values | {"intact": not self.broken}


def audit(home: Home, decision_id: str) -> Audit:
    """The chain from a decision to the code revision.

    Raises:
        UserError: no such decision. TransientError: the ledger does not answer.
    """
    facts = read_facts(home, decision_id)
    row = facts.decision
    looked: list[tuple[str, Callable[[Facts], Link]]] = [("decision", _decision), ("ledger", _ledger)]
    if row["version"]:
        looked += LINKS
    links = tuple(_look(name, look, facts) for name, look in looked)
    broken = next((link.link for link in links if link.state == BROKEN), "")
    return Audit(decision_id, row["status"], facts.name, row["version"], row["digest"], links, broken)


def _look(name: str, look: Callable[[Facts], Link], facts: Facts) -> Link:
    try:
        return look(facts)
    except TransientError:
        raise
    except PilotlineError as error:
        return Link(name, BROKEN, "", one_line(error))
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        return Link(name, BROKEN, "", f"cannot be read: {type(error).__name__} {error}")


def _decision(facts: Facts) -> Link:
    row = facts.decision
    if not row["intact"]:
        raise IntegrityError("its row in the decision log was altered, or was written without a seal")
    score = "none" if row["score"] is None else f"{row['score']:.4f}"
    answer = f"{row['label']} (score {score})" if row["version"] else f"no model answered ({row['failure']})"
    said = f"{row['time']}: {answer}, drawn {row['drawn']}, answered by {row['answered_by']}"
    kept = ("entities", "features", "threshold", "prompt_digest", "failure", "run_id", "text_digest")
    return Link("decision", VERIFIED, row["prompt_digest"], said, {name: row[name] for name in kept})


def _ledger(facts: Facts) -> Link:
    if facts.chain:
        raise IntegrityError(facts.chain)
    last = facts.entries[-1].hash if facts.entries else ""
    return Link("ledger", VERIFIED, last, f"{len(facts.entries)} entries, chain intact")


def _route(facts: Facts) -> Link:
    """The version that answered was the champion of that moment, or the candidate that this run was rolling out."""
    row, (now, before) = facts.decision, facts.champion_then()
    title = f"version {row['version']}"
    if now is not None and facts.is_about(now):
        return Link("route", VERIFIED, row["digest"], f"{title} was champion since {now.time} (entry {now.seq})")
    if any(entry.payload["run_id"] == row["run_id"] for entry in facts.own("candidate")):
        said = f"{title} was the candidate of run {row['run_id']}, in its rollout"
        return Link("route", VERIFIED, row["digest"], said)
    if now is not None and before is not None and facts.is_about(before):
        late = (datetime.fromisoformat(row["time"]) - datetime.fromisoformat(now.time)).total_seconds()
        if late <= SWITCH_SECONDS:
            return Link("route", VERIFIED, row["digest"], f"{title} was champion until {late:.1f} s before")
    named = f"version {now.payload['version']}" if now else "none"
    raise IntegrityError(f"{title} ({row['digest'][:12]}) answered, but the champion of that moment was {named}")


def _version(facts: Facts) -> Link:
    """Ledger, registry and the kept files name the same bytes."""
    row, entry = facts.decision, facts.registered()
    if (found := model_digest(facts.home.models / row["digest"] / "model")) != row["digest"]:
        raise IntegrityError(f"its files have digest {found[:12]}, not {row['digest'][:12]}")
    from components.registry.models import show

    registry = show(facts.home, facts.name, row["version"])
    if registry["digest"] != row["digest"]:
        raise IntegrityError(f"the registry names digest {registry['digest'][:12]}, not {row['digest'][:12]}")
    said = f"{facts.name} version {row['version']}, registered by run {entry.payload['run_id']} (entry {entry.seq})"
    return Link("model version", VERIFIED, row["digest"], said)


def _promotion(facts: Facts) -> Link:
    now, _ = facts.champion_then()
    entry = now if now is not None and facts.is_about(now) else facts.promotion()
    if entry is None:
        ends = [e for e in facts.own("candidate") if "record" not in e.payload]
        how = f": {ends[-1].payload['event'].replace('_', ' ')}: {ends[-1].payload['reason']}" if ends else ""
        return Link("promotion", VERIFIED, ends[-1].hash if ends else "", f"never promoted{how}")
    given = entry.payload.get("approvals", [])
    approved = "; ".join(f"{a['name']} ({a['source']}, user {a['os_user']}): {a['reason']}" for a in given)
    by = f" by {entry.payload['by']['name']}" if "by" in entry.payload else ""
    event = "promoted" if entry.payload["event"] == PROMOTED else "in front again"
    said = f"{event}{by} at {entry.time} (entry {entry.seq}): {entry.payload['reason']}"
    said += f"; approved by {approved}" if approved else "; no approval was asked for" if not by else ""
    return Link("promotion", VERIFIED, entry.hash, said, {"approvals": given})


def _gate(facts: Facts) -> Link:
    entry = facts.registered()
    gate, named = entry.payload["record"]["gate"], entry.payload["record"]["evidence_digest"]
    evidence = facts.record(entry.payload["run_id"], "evaluate.json")
    _same("the evidence of the gate", named, value_digest(evidence))
    _same("the model of the evidence", facts.decision["digest"], evidence["model_digest"])
    counts = [rule["outcome"] for rule in gate]
    said = ", ".join(f"{counts.count(word)} {word}" for word in ("pass", "fail", "insufficient", "info"))
    how = told_signature(entry.payload, keys_of(facts.entries))
    check_decisions(facts.name, facts.decision["version"], facts.entries)
    table = [{name: rule[name] for name in ("rule", "subject", "observed", "limit", "outcome")} for rule in gate]
    return Link("gate", VERIFIED, named, f"{said}; {how}", {"rules": table})


def _run(facts: Facts) -> Link:
    run_id = facts.registered().payload["run_id"]
    told = json.loads((facts.home.run(run_id) / RUN_FILE).read_text())
    entry = facts.run_entry(run_id)
    if entry is None and told["outcome"] != AWAITING:
        raise IntegrityError(f"run {run_id} has no entry in the ledger")
    if entry is not None and entry.payload != told:
        raise IntegrityError(f"run {run_id}: {RUN_FILE} is not what the ledger holds")
    for file in facts.sealed(run_id):
        if file not in READ_ELSEWHERE:
            facts.record(run_id, file)
    started = ", ".join(told.get("started_by", [])) or "nobody noted"
    said = f"{run_id}: {told['outcome'].replace('_', ' ')}, started by {started}, engine {told['engine'] or 'none'}"
    return Link("pipeline run", VERIFIED, entry.hash if entry else "", said)


def _training_set(facts: Facts) -> Link:
    run_id = facts.registered().payload["run_id"]
    rows, evidence = facts.record(run_id, "featurise.json"), facts.record(run_id, "evaluate.json")
    model = facts.record(run_id, "train.json")
    _same("training set and evidence", rows["digest"], evidence["training_set_digest"])
    _same("training set and model", rows["digest"], model["training_set_digest"])
    _same("the model that was trained", facts.decision["digest"], model["digest"])
    kept = _kept_rows(facts, run_id, rows)
    splits = ", ".join(f"{split['name']} {split['rows']:,}" for split in rows["splits"])
    return Link("training set", VERIFIED, rows["digest"], f"{splits} rows, as of {rows['as_of']}; {kept}")


def _kept_rows(facts: Facts, run_id: str, rows: dict[str, Any]) -> str:
    """The training set's own files against the record that the ledger seals, where this home still has them."""
    for folder in published(facts.home, run_id, "featurise"):
        if json.loads((folder / "record.json").read_text()).get("digest") != rows["digest"]:
            continue
        for split in rows["splits"]:
            _same(
                f"{split['name']}.parquet and its record",
                split["digest"],
                file_digest(folder / f"{split['name']}.parquet"),
            )
        return "its files are as recorded"
    return "its files are not kept here"


def _snapshot(facts: Facts) -> Link:
    run_id = facts.registered().payload["run_id"]
    snapshot, rows = facts.record(run_id, "ingest.json"), facts.record(run_id, "featurise.json")
    _same("training set and snapshot", rows["snapshot_digest"], snapshot["digest"])
    data = facts.home.snapshots / snapshot["digest"] / "data.parquet"
    if not data.is_file():
        raise IntegrityError(f"{data} is gone")
    _same(f"{data.name} and its name", snapshot["digest"], file_digest(data))
    said = f"{snapshot['rows']:,} rows of {snapshot['source']}, {snapshot['time_min']} to {snapshot['time_max']}"
    return Link("snapshot", VERIFIED, snapshot["digest"], said)


def _contract(facts: Facts) -> Link:
    run_id = facts.registered().payload["run_id"]
    verdict, snapshot = facts.record(run_id, "validate.json"), facts.record(run_id, "ingest.json")
    _same("contract verdict and snapshot", verdict["snapshot_digest"], snapshot["digest"])
    named = ContractRef(verdict["contract"], verdict["version"], verdict["contract_digest"])
    contracts.kept(facts.home, named)
    held = "holds" if verdict["passed"] else "is violated"
    said = f"{verdict['contract']} {verdict['version']} {held}: {verdict['clean']:,} clean rows of {verdict['rows']:,}"
    return Link("contract verdict", VERIFIED, verdict["contract_digest"], f"{said}, judged by {verdict['engine']}")


def _code(facts: Facts) -> Link:
    run_id = facts.registered().payload["run_id"]
    recipe = facts.record(run_id, "recipe.json")
    told = facts.run_entry(run_id)
    values = told.payload if told else json.loads((facts.home.run(run_id) / RUN_FILE).read_text())
    _same("the recipe and the run", values["recipe_digest"], value_digest(recipe))
    said = f"code {values['code_version']}, recipe {values['recipe']} ({values['recipe_digest'][:12]})"
    return Link("code revision", VERIFIED, values["code_version"], said)


def _same(what: str, one: str, other: str) -> None:
    if one != other:
        raise IntegrityError(f"{what} do not belong together ({str(one)[:12]} and {str(other)[:12]})")


LINKS: list[tuple[str, Callable[[Facts], Link]]] = [
    ("route", _route),
    ("model version", _version),
    ("promotion", _promotion),
    ("gate", _gate),
    ("pipeline run", _run),
    ("training set", _training_set),
    ("snapshot", _snapshot),
    ("contract verdict", _contract),
    ("code revision", _code),
]
