"""What the earlier steps hand over to registration, checked to belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import IntegrityError
from components.core.publish import verify
from components.core.records import ContractVerdict, Evidence, HandOver, ModelRef, TrainingSetRef
from components.models.files import model_digest, read_signature
from components.models.signing import SIGNATURE_FILE
from components.registry.gate import Handed
from components.registry.rescored import check_rescored, check_test_rows
from components.registry.trust import signer_of


@dataclass(frozen=True)
class Folders:
    """Published folders: of the model, its training set, its evaluation, the contract's verdict, the guard's."""

    model: Path
    training_set: Path
    evidence: Path
    clean: Path | None = None
    handover: Path | None = None


@dataclass(frozen=True)
class Given:
    """The records of those folders. `inputs`: what pilotline.json says the model reads and answers."""

    model_dir: Path
    signature_file: Path
    model: ModelRef
    rows: TrainingSetRef
    evidence: Evidence
    inputs: dict[str, object]
    handed: Handed

    @property
    def contract_digest(self) -> str:
        """The data contract's digest, where anybody names it."""
        verdict = self.handed.contract
        return verdict.contract_digest if verdict else self.evidence.contract_digest


def read_given(folders: Folders, trusted: Sequence[str], evaluation: str = "") -> Given:
    """Verify every folder and that each names the one before; verify the model's signature.

    evaluation: digest of the recipe's evaluation and threshold, which the gate compares with the evidence's.

    Raises:
        IntegrityError: bytes differ from their digests, records do not belong together, the evidence's AUC is not that
            of its predictions, these are not of the test split's rows and labels, or a signature does not hold.
            A missing signature or verdict is left to the gate.
    """
    for folder in (folders.model, folders.training_set, folders.evidence, folders.clean, folders.handover):
        if folder is not None:
            verify(folder)
    known, rows = ModelRef.read(folders.model), TrainingSetRef.read(folders.training_set)
    said = Evidence.read(folders.evidence)
    model_dir, signature = folders.model / "model", folders.model / SIGNATURE_FILE
    _same("model files and the model's record", model_digest(model_dir), known.digest)
    _same("the model and its evidence", known.digest, said.model_digest)
    _same("the model and the training set", known.training_set_digest, rows.digest)
    _same("the evidence and the training set", said.training_set_digest, rows.digest)
    _same("the evidence and the test rows", said.test_digest, rows.split("test").digest)
    check_rescored(folders.evidence, said)
    check_test_rows(folders.evidence, folders.training_set, rows)
    handed = Handed(
        signed_by=signer_of(model_dir, signature, trusted),
        contract=_contract(folders.clean, rows, said),
        guard=_guard(folders.handover, rows, said),
        skew=rows.skew,
        evaluation=evaluation,
    )
    return Given(model_dir, signature, known, rows, said, read_signature(model_dir), handed)


def _contract(clean: Path | None, rows: TrainingSetRef, said: Evidence) -> ContractVerdict | None:
    if clean is None:
        return None
    verdict = ContractVerdict.read(clean)
    _same("the contract's verdict and the training set", verdict.clean_digest, rows.clean_digest)
    _same("the contract's verdict and the snapshot", verdict.snapshot_digest, rows.snapshot_digest)
    if said.contract_digest:
        _same("the contract's verdict and the evidence", verdict.contract_digest, said.contract_digest)
    return verdict


def _guard(handover: Path | None, rows: TrainingSetRef, said: Evidence) -> HandOver | None:
    if handover is None:
        return None
    verdict = HandOver.read(handover)
    _same("the guard's verdict and the training set", verdict.training_set_digest, rows.digest)
    _same("the guard's verdict and the snapshot", verdict.snapshot_digest, rows.snapshot_digest)
    if said.handover_digest:
        _same("the guard's verdict and the evidence", verdict.record_digest, said.handover_digest)
    return verdict


def _same(what: str, one: str, other: str) -> None:
    if one != other:
        raise IntegrityError(f"{what} do not belong together ({one[:12]} and {other[:12]}); run the steps again")
