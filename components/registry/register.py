"""Register a model version with its digests, judge it at the gate, and make it challenger where the gate passes."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from components.core.digest import value_digest
from components.core.errors import IntegrityError, PolicyRefusal
from components.core.home import safe_name
from components.core.ledger import Ledger
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelRef, ModelVersionRef, RuleResult, TrainingSetRef
from components.models.feature_source import FeatureSource, check_source
from components.models.files import model_digest, read_signature
from components.registry.aliases import CHALLENGER, sync_aliases
from components.registry.card import write_card
from components.registry.champions import CANDIDATE, REFUSED, REGISTERED, Live, champion
from components.registry.gate import judge, passed, refusal
from components.registry.ports import ModelRegistry
from components.registry.store import keep_model


@dataclass(frozen=True)
class Handover:
    """What the earlier steps hand over, checked to belong together."""

    model_dir: Path
    model: ModelRef
    rows: TrainingSetRef
    evidence: Evidence
    signature: dict[str, object]


def register(
    recipe: Recipe,
    model: Path,
    training_set: Path,
    evidence: Path,
    out: Path,
    tracking: ModelRegistry,
    ledger: Ledger,
    models_root: Path,
    run_id: str,
    code_version: str,
    contract_digest: str = "",
) -> ModelVersionRef:
    """Register the model and judge it; the version exists also where the gate refuses, with the reason in its tags.

    Run again with the same inputs after a kill anywhere: one version, one ledger entry, the same record.

    Args:
        recipe: names the model and the gate's policy.
        model: published folder of the trained model.
        training_set: published folder of its training set.
        evidence: published folder of its evaluation.
        out: folder to publish: record.json, card.md and card.html.
        tracking: model registry.
        ledger: source of truth for who is champion.
        models_root: folder that keeps model directories by digest.
        run_id: the run that asks.
        code_version: revision of the code.
        contract_digest: digest of the data contract, where it is known.

    Raises:
        IntegrityError: what is handed over does not belong together or was altered, or the model reads features of
            another service, order or code than the recipe and its training set.
        PolicyRefusal: the evidence was judged against another champion than the ledger names; judge again.
        TransientError: the registry or the ledger does not answer.
    """
    name = safe_name(recipe.model.name, "model name")
    given = _handover(model, training_set, evidence)
    source = FeatureSource.of(given.rows, recipe.features.model_inputs)
    check_source(given.signature, source, f"model {given.model.digest[:12]}")
    version_key = value_digest([name, given.model.digest, given.evidence.record_digest, recipe.digest])
    key = f"registered:{safe_name(run_id, 'run id')}:{version_key}"
    if (done := ledger.find(key)) is not None:
        version = ModelVersionRef.from_dict(done.payload["record"])
        return _publish(out, version, recipe, given, code_version)
    now = _judged_champion(name, given.evidence, ledger, tracking)
    rules = judge(
        given.evidence, recipe.gate, champion_version=now.version if now else "", signature=bool(given.signature)
    )
    kept = keep_model(given.model_dir, given.model.digest, models_root)
    tags = _tags(recipe, given, rules, now, run_id, code_version, contract_digest) | {"pilotline.key": version_key}
    number = tracking.ensure_version(name, given.model.digest, kept, given.model.mlflow_run_id, tags)
    version = _version(name, number, given, rules, now)
    _publish(out, version, recipe, given, code_version)
    _log_card(tracking, version, out)
    if version.gate_passed:
        tracking.set_alias(name, CHALLENGER, number)
    ledger.append(CANDIDATE, key, _entry(version, given, run_id))
    return version


def _handover(model: Path, training_set: Path, evidence: Path) -> Handover:
    for folder in (model, training_set, evidence):
        verify(folder)
    known, rows, said = ModelRef.read(model), TrainingSetRef.read(training_set), Evidence.read(evidence)
    model_dir = model / "model"
    _same("model files and the model's record", model_digest(model_dir), known.digest)
    _same("the model and its evidence", known.digest, said.model_digest)
    _same("the model and the training set", known.training_set_digest, rows.digest)
    _same("the evidence and the training set", said.training_set_digest, rows.digest)
    _same("the evidence and the test rows", said.test_digest, rows.split("test").digest)
    return Handover(model_dir, known, rows, said, read_signature(model_dir))


def _same(what: str, one: str, other: str) -> None:
    if one != other:
        raise IntegrityError(f"{what} do not belong together ({one[:12]} and {other[:12]}); run the steps again")


def _judged_champion(name: str, evidence: Evidence, ledger: Ledger, tracking: ModelRegistry) -> Live | None:
    """The champion now, which has to be the one that the evidence compares with."""
    now = champion(name, ledger)
    current = now.version if now else ""
    if current != evidence.champion_version:
        sync_aliases(name, ledger, tracking)  # so that the next evaluation finds the right one
        raise PolicyRefusal(
            f"model {name}: evidence compares with champion {evidence.champion_version or 'none'}, "
            f"but the champion is {current or 'none'}; judge again: evaluate the model once more"
        )
    return now


def _tags(
    recipe: Recipe,
    given: Handover,
    rules: tuple[RuleResult, ...],
    now: Live | None,
    run_id: str,
    code_version: str,
    contract_digest: str,
) -> dict[str, str]:
    """Every digest the version comes from, and the gate's verdict."""
    values = {
        "snapshot_digest": given.rows.snapshot_digest,
        "contract_digest": contract_digest,
        "clean_digest": given.rows.clean_digest,
        "training_set_digest": given.rows.digest,
        "test_digest": given.evidence.test_digest,
        "evidence_digest": given.evidence.record_digest,
        "recipe_digest": recipe.digest,
        "code_version": code_version,
        "run_id": run_id,
        "gate": "passed" if passed(rules) else "refused",
        "gate_reason": refusal(rules),
        "gate_rules": "; ".join(f"{rule.rule} {rule.subject}".strip() + f"={rule.outcome}" for rule in rules),
        "champion_version": now.version if now else "",
        "champion_digest": now.digest if now else "",
        "test_auc": _auc(given.evidence),
    }
    return {f"pilotline.{name}": value for name, value in values.items() if value}


def _version(
    name: str, number: str, given: Handover, rules: tuple[RuleResult, ...], now: Live | None
) -> ModelVersionRef:
    decided = sum(rule.outcome == "pass" for rule in rules)
    return ModelVersionRef(
        name=name,
        version=number,
        digest=given.model.digest,
        gate_passed=passed(rules),
        gate=rules,
        champion_version=now.version if now else "",
        champion_digest=now.digest if now else "",
        evidence_digest=given.evidence.record_digest,
        mlflow_run_id=given.model.mlflow_run_id,
        reason=refusal(rules) or f"gate passed: {decided} rules hold, AUC {_auc(given.evidence)}",
    )


def _publish(
    out: Path, version: ModelVersionRef, recipe: Recipe, given: Handover, code_version: str
) -> ModelVersionRef:
    with publishing(out) as staging:
        version.write(staging)
        write_card(staging, version, recipe, given.model, given.rows, given.evidence, code_version)
    return version


def _log_card(tracking: ModelRegistry, version: ModelVersionRef, out: Path) -> None:
    """Put the card among the tracking run's artifacts, in a folder of the version's own."""
    if not version.mlflow_run_id:
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(out, Path(folder) / f"{version.name}-v{version.version}")
        tracking.log_artifacts(version.mlflow_run_id, Path(folder))


def _entry(version: ModelVersionRef, given: Handover, run_id: str) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "event": REGISTERED if version.gate_passed else REFUSED,
        "reason": version.reason,
        "run_id": run_id,
        "auc": given.evidence.metrics["auc"].value,
        "record": version.to_dict(),
    }


def _auc(evidence: Evidence) -> str:
    measured = evidence.metrics.get("auc")
    return f"{measured.value:.4f}" if measured is not None and measured.value is not None else "not measured"
