"""What a registered version carries as tags: every digest it comes from, what it reads, and the gate's verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence

from components.core.recipe import Recipe
from components.core.records import Evidence, RuleResult
from components.registry.champions import Live
from components.registry.gate import passed, refusal
from components.registry.given import Given
from components.registry.sbom import environment_digest


def digests_of(recipe: Recipe, given: Given, code_version: str) -> dict[str, str]:
    """Every digest that the version comes from, by name; what is not known is left out.

    `environment` is the lock file's at registration; `evaluation_environment` what the evaluation noted.
    """
    guard, checkpoint = given.handed.guard, given.model.checkpoint
    digests = {
        "model": given.model.digest,
        "snapshot": given.rows.snapshot_digest,
        "contract": given.contract_digest,
        "clean_rows": given.rows.clean_digest,
        "training_set": given.rows.digest,
        "test_rows": given.evidence.test_digest,
        "guard_verdict": guard.record_digest if guard else "",
        "evidence": given.evidence.record_digest,
        "recipe": recipe.digest,
        "training_recipe": given.model.recipe_digest,
        "checkpoint": checkpoint.digest if checkpoint else "",
        "code": code_version,
        "environment": environment_digest(),
        "evaluation_environment": given.evidence.environment_digest,
        "signing_key": given.handed.signed_by,
    }
    return {name: value for name, value in digests.items() if value}


def tags_of(
    recipe: Recipe, given: Given, rules: Sequence[RuleResult], now: Live | None, run_id: str, code_version: str
) -> dict[str, str]:
    """All tags of a version; empty ones are left out."""
    digests = digests_of(recipe, given, code_version)
    values = {
        "snapshot_digest": digests["snapshot"],
        "contract_digest": digests.get("contract", ""),
        "clean_digest": digests["clean_rows"],
        "training_set_digest": digests["training_set"],
        "test_digest": digests["test_rows"],
        "handover_digest": digests.get("guard_verdict", ""),
        "evidence_digest": digests["evidence"],
        "recipe_digest": digests["recipe"],
        "checkpoint_digest": digests.get("checkpoint", ""),
        "environment_digest": digests["environment"],
        "signed_by": given.handed.signed_by,
        "code_version": code_version,
        "run_id": run_id,
        "feature_service": str(given.inputs["feature_service"]),
        "features": json.dumps(given.inputs["features"]),
        "prompt": str(given.inputs.get("prompt", "")),
        "labels": json.dumps(given.inputs["labels"]),
        "label_token_ids": json.dumps(given.inputs["label_token_ids"]) if "label_token_ids" in given.inputs else "",
        "gate": "passed" if passed(rules) else "refused",
        "gate_reason": refusal(rules),
        "gate_rules": "; ".join(f"{rule.rule} {rule.subject}".strip() + f"={rule.outcome}" for rule in rules),
        "champion_version": now.version if now else "",
        "champion_digest": now.digest if now else "",
        "test_auc": auc_text(given.evidence),
    }
    return {f"pilotline.{name}": value for name, value in values.items() if value}


def auc_text(evidence: Evidence) -> str:
    """The AUC in four digits, or that it was not measured."""
    measured = evidence.metrics.get("auc")
    return f"{measured.value:.4f}" if measured is not None and measured.value is not None else "not measured"
