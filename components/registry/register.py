"""Register a model version with its digests, judge it at the gate, and make it challenger where the gate passes."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from components.core.digest import value_digest
from components.core.errors import IntegrityError, PolicyRefusal
from components.core.home import safe_name
from components.core.ledger import Ledger
from components.core.people import Policy
from components.core.publish import is_whole, publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef, RuleResult
from components.models.feature_source import FeatureSource, check_source
from components.models.files import ADAPTER, files_digest
from components.models.signing import SIGNATURE_FILE, Signer
from components.registry.aliases import CHALLENGER, sync_aliases
from components.registry.card import write_card
from components.registry.card_parts import Story, card_parts, card_title
from components.registry.champions import CANDIDATE, REFUSED, REGISTERED, Live, champion
from components.registry.decision_signature import signed
from components.registry.gate import judge, passed, refusal
from components.registry.given import Folders, Given, read_given
from components.registry.input_schema import input_schema
from components.registry.owner import contract_owner
from components.registry.ports import ModelRegistry
from components.registry.sbom import bill_of_materials
from components.registry.store import MODEL, keep_adapter, keep_model, papers
from components.registry.tags import auc_text, digests_of, tags_of
from components.registry.trust import pin_first, signer_of

SBOM = "sbom.cdx.json"


@dataclass(frozen=True)
class Place:
    """Where a registration has its effects: registry, ledger, models folder; and the key that models are signed with.

    public_key: PEM text, pinned in the ledger where that never held one; "" pins none. signer: signs the gate's
    decision; None leaves it unsigned.
    """

    tracking: ModelRegistry
    ledger: Ledger
    models_root: Path
    public_key: str = ""
    signer: Signer | None = None


def register(
    recipe: Recipe, folders: Folders, out: Path, place: Place, run_id: str, code_version: str
) -> ModelVersionRef:
    """Register the model and judge it; the version exists also where the gate refuses, with the reason in its tags.

    Run again with the same inputs after a kill anywhere: one version, one ledger entry, the same record.

    Args:
        recipe: names the model and the gate's policy.
        folders: what the earlier steps published; verdicts that are absent do not pass the gate.
        out: folder to publish: record.json, evidence.json, the card, and the bill of materials.
        place: registry, ledger, models folder and key.
        run_id: the run that asks.
        code_version: revision of the code.

    Raises:
        IntegrityError: what is handed over does not belong together or was altered, the signature is altered or of
            another key, or the model reads features of another service, order or code than the recipe and its
            training set.
        PolicyRefusal: the evidence was judged against another champion than the ledger names; judge again.
        TransientError: the registry or the ledger does not answer.
    """
    name, run_id = safe_name(recipe.model.name, "model name"), safe_name(run_id, "run id")
    trusted = pin_first(place.ledger, place.public_key)
    given = read_given(folders, trusted, recipe.evaluation_digest)
    source = FeatureSource.of(given.rows, recipe.features.model_inputs)
    check_source(given.inputs, source, f"model {given.model.digest[:12]}")
    version_key = value_digest([name, given.model.digest, given.evidence.record_digest, recipe.digest, *_said(given)])
    key = f"registered:{run_id}:{version_key}"
    if (done := place.ledger.find(key)) is not None:
        version = ModelVersionRef.from_dict(done.payload["record"])
        return _publish(out, _papers(version, recipe, given, place, code_version))
    now = _judged_champion(name, given.evidence, place)
    rules = judge(given.evidence, recipe.gate, champion_version=now.version if now else "", handed=given.handed)
    tags = tags_of(recipe, given, rules, now, run_id, code_version) | {"pilotline.key": version_key}
    kept = _keep(given, place, trusted)
    number = place.tracking.ensure_version(name, given.model.digest, kept, given.model.mlflow_run_id, tags)
    version = _version(name, number, given, rules, now)
    said = _papers(version, recipe, given, place, code_version)
    _publish(out, said)
    _log_papers(place.tracking, version, said)
    if version.gate_passed:
        place.tracking.set_alias(name, CHALLENGER, number)
    place.ledger.append(CANDIDATE, key, signed(_entry(version, given, recipe, run_id), place.signer, trusted))
    return version


def _said(given: Given) -> list[str]:
    """What the gate judges beside the evidence: with another signature or verdict it is another judgement."""
    handed = given.handed
    verdicts = [record.record_digest if record else "" for record in (handed.contract, handed.guard)]
    return [handed.signed_by, *verdicts]


def _keep(given: Given, place: Place, trusted: list[str]) -> Path:
    """Keep the model under its digest with its signature, input signature and adapter; a kept one's have to hold."""

    def add(staging: Path) -> None:
        if given.handed.signed_by:
            shutil.copyfile(given.signature_file, staging / SIGNATURE_FILE)
        place.tracking.write_schema(staging, input_schema(given.inputs), given.model.digest)
        keep_adapter(given.model_dir.with_name(ADAPTER), given.model.adapter_digest, staging)

    def accept(kept: Path) -> bool:
        if given.model.adapter_digest and files_digest(kept / ADAPTER) != given.model.adapter_digest:
            return False
        try:
            held = signer_of(kept / MODEL, kept / SIGNATURE_FILE, trusted)
        except IntegrityError:
            return False
        return bool(held) or not given.handed.signed_by

    return keep_model(given.model_dir, given.model.digest, place.models_root, add, accept)


def _judged_champion(name: str, evidence: Evidence, place: Place) -> Live | None:
    """The champion now, which has to be the one that the evidence compares with."""
    now = champion(name, place.ledger)
    current = now.version if now else ""
    if current != evidence.champion_version:
        sync_aliases(name, place.ledger, place.tracking)  # so that the next evaluation finds the right one
        raise PolicyRefusal(
            f"model {name}: evidence compares with champion {evidence.champion_version or 'none'}, "
            f"but the champion is {current or 'none'}; judge again: evaluate the model once more"
        )
    return now


def _version(name: str, number: str, given: Given, rules: tuple[RuleResult, ...], now: Live | None) -> ModelVersionRef:
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
        reason=refusal(rules) or f"gate passed: {decided} rules hold, AUC {auc_text(given.evidence)}",
    )


def _papers(version: ModelVersionRef, recipe: Recipe, given: Given, place: Place, code_version: str) -> Path:
    """What is said of the version, kept in the home; written once."""
    folder = papers(place.models_root, version.name, version.version)
    if is_whole(folder) and ModelVersionRef.read(folder) == version:
        return folder
    digests = digests_of(recipe, given, code_version)
    story = Story(version, recipe, given, contract_owner(recipe.contract.path, given.contract_digest), digests)
    materials = bill_of_materials(
        version.name, version.version, given.model_dir, digests,
        sum(split.rows for split in given.rows.splits), given.rows.features,
    )  # fmt: skip
    with publishing(folder) as staging:
        version.write(staging)
        (staging / "evidence.json").write_text(json.dumps(given.evidence.to_dict(), indent=1, sort_keys=True))
        (staging / SBOM).write_text(materials, encoding="utf-8")
        write_card(staging, card_title(version), card_parts(story))
    return folder


def _publish(out: Path, said: Path) -> ModelVersionRef:
    """Hand on a copy of what is said of the version."""
    names = verify(said)["files"]
    with publishing(out) as staging:
        for name in names:
            shutil.copyfile(said / name, staging / name)
    return ModelVersionRef.read(out)


def _log_papers(tracking: ModelRegistry, version: ModelVersionRef, said: Path) -> None:
    """Put them among the tracking run's artifacts, in a folder of the version's own."""
    if not version.mlflow_run_id:
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(said, Path(folder) / f"{version.name}-v{version.version}")
        tracking.log_artifacts(version.mlflow_run_id, Path(folder))


def _entry(version: ModelVersionRef, given: Given, recipe: Recipe, run_id: str) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "digest": version.digest,
        "event": REGISTERED if version.gate_passed else REFUSED,
        "reason": version.reason,
        "run_id": run_id,
        "auc": auc.value if (auc := given.evidence.metrics.get("auc")) else None,
        "signed_by": given.handed.signed_by,
        "policy": Policy.of(recipe).to_dict(),
        "record": version.to_dict(),
    }
