"""The page as plain values: what the template shows, decided here and not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.report import words
from pipelines.report.canary_section import canary
from pipelines.report.data_sections import data, features, handover, training
from pipelines.report.facts import Facts
from pipelines.report.graph import Step, graph_across, graph_down, steps
from pipelines.report.lineage import lineage
from pipelines.report.parts import section
from pipelines.report.plan_section import plan
from pipelines.report.quality_sections import evaluation, fairness, gate
from pipelines.report.robustness_section import robustness

# outcome: word, tone of the page, what it means for the people who use the model
OUTCOMES = {
    "promoted": ("Promoted", "good", "The new version is the champion and answers all requests."),
    "refused": ("Refused", "bad", "The new version was stopped before any request reached it. Users are not affected."),
    "rolled_back": ("Rolled back", "bad", "The new version met traffic, did worse and was taken off."),
    "inconclusive": (
        "Inconclusive",
        "warn",
        "The canary could not prove the new version good in the time it had; it was not promoted.",
    ),
    "failed": ("Failed", "bad", "The run broke before it came to a decision. Nothing was changed for users."),
    "awaiting_approval": ("Awaiting approval", "wait", "Everything passed; a person has to approve the promotion."),
}
UNKNOWN = ("Not concluded", "warn", "The run has not stated an outcome; it may still be going on or was cut off.")
SECTIONS: dict[str, Callable[[Facts], dict[str, Any]]] = {
    "data": data,
    "features": features,
    "handover": handover,
    "training": training,
    "evaluation": evaluation,
    "fairness": fairness,
    "robustness": robustness,
    "gate": gate,
    "canary": canary,
    "plan": plan,
    "lineage": lineage,
}


@dataclass(frozen=True)
class Fact:
    """One of the figures under the headline."""

    label: str
    value: str
    more: str = ""


def page(facts: Facts) -> dict[str, Any]:
    """Everything the template needs."""
    shown = steps(facts)
    word, tone, meaning = OUTCOMES.get(str(facts.run.get("outcome", "")), UNKNOWN)
    found = [_shown(name, build, facts) for name, build in SECTIONS.items()]
    return {
        "title": f"{word}: {facts.run_id}",
        "run_id": facts.run_id,
        "word": word,
        "tone": tone,
        "meaning": meaning,
        "reason": str(facts.run.get("reason") or _no_reason(shown)),
        "told": _told(facts),
        "facts": _headline(facts),
        "steps": shown,
        "across": graph_across(shown),
        "down": graph_down(shown),
        "sections": {item["id"]: item for item in found},
        "recipe": json.dumps(facts.recipe, indent=2, sort_keys=True, ensure_ascii=False) if facts.recipe else "",
        "recipe_name": words.text(facts.run.get("recipe") or facts.recipe.get("name")),
        "recipe_digest": str(facts.run.get("recipe_digest", "")),
        "code_version": words.text(facts.run.get("code_version")),
        "unreadable": facts.unreadable,
    }


def _shown(name: str, build: Callable[[Facts], dict[str, Any]], facts: Facts) -> dict[str, Any]:
    """A section, or the words that its record could not be shown: one odd value must not cost the whole page."""
    try:
        return build(facts)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        said = f"What the step recorded cannot be shown ({type(error).__name__}: {error})."
        return section(name, words.plain(name), "bad", said, empty=True, said="unreadable", links=[])


def _no_reason(shown: list[Step]) -> str:
    """The reason where run.json gives none: the first step that failed."""
    failed = next((step for step in shown if step.status == "failed"), None)
    return f"{failed.title} failed: {failed.error}" if failed else "No reason was recorded."


def _told(facts: Facts) -> list[str]:
    """Recipe, start and length of the run for the line above the headline."""
    name = facts.run.get("recipe") or facts.recipe.get("name")
    began = words.finite(facts.run.get("started"))
    took = words.finite(facts.run.get("seconds"))
    told = [f"recipe {name}" if name else "", words.moment(began) if began is not None else ""]
    return [item for item in [*told, words.duration(took) if took is not None else ""] if item]


def _headline(facts: Facts) -> list[Fact]:
    return [_model(facts), _quality(facts), _engine(facts), _rows(facts)]


def _model(facts: Facts) -> Fact:
    version = facts.version
    if version is None:
        return Fact("Model", "None registered", "the run did not get that far")
    before = (
        f"champion before: version {version.champion_version}" if version.champion_version else "no champion before"
    )
    return Fact("Model", f"{version.name} version {version.version}", before)


def _quality(facts: Facts) -> Fact:
    auc = facts.evidence.metrics.get("auc") if facts.evidence else None
    if auc is None or words.finite(auc.value) is None:
        return Fact("Test AUC", "Not measured", "the run did not get that far")
    return Fact(
        "Test AUC", words.number(auc.value), f"95 % interval {words.number(auc.low)} to {words.number(auc.high)}"
    )


def _engine(facts: Facts) -> Fact:
    name = str(facts.run.get("engine") or (facts.rollout.engine if facts.rollout else ""))
    said = words.engine(name)
    if facts.rollout is None:
        return Fact("Served by", "Nothing", "no request was served in this run")
    replayed = f"{words.number(facts.rollout.requests)} requests, {words.number(facts.rollout.failed_requests)} failed"
    return Fact("Served by", said, replayed)


def _rows(facts: Facts) -> Fact:
    snapshot = facts.snapshot
    if snapshot is None:
        return Fact("Snapshot", "None", "the run did not get that far")
    return Fact(
        "Snapshot",
        f"{words.number(snapshot.rows)} rows",
        f"{words.day(snapshot.time_min)} to {words.day(snapshot.time_max)}",
    )
