"""What a registration needs beside model, rows and evidence: verdicts, a signature, and a place for its effects."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import MANIFEST, publishing
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, ModelRef, ModelVersionRef, RuleResult, TrainingSetRef
from components.models.signing import SIGNATURE_FILE, Signer, public_key_at
from components.registry.given import Folders
from components.registry.register import Place, register
from tests.fakes.judged import guard_verdict, publish_model

HELD = RuleResult(rule="a rule", outcome="pass", observed=0.0, limit=0.0)


@lru_cache(maxsize=1)
def keys() -> Home:
    """A home whose key signs the models of these tests."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Home.at(folder)


def public_key() -> str:
    """The public half."""
    return public_key_at(keys(), {})


def signer() -> Signer:
    """Signs decisions with that key."""
    return Signer.at(keys(), {})


def sign_published(folder: Path, home: Home | None = None) -> None:
    """Put a signature into a published model folder and seal it anew."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(shutil.copytree(folder, Path(scratch) / "kept"))
        with publishing(folder) as staging:
            shutil.copytree(kept, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, SIGNATURE_FILE))
            Signer.at(home or keys(), {}).sign(staging / "model", staging / SIGNATURE_FILE)


def publish_signed_model(folder: Path, rows: TrainingSetRef, weight: float = 5.0, run: str = "") -> ModelRef:
    """A model as training publishes one."""
    ref = publish_model(folder, rows, weight, run)
    sign_published(folder)
    return ref


def contract_verdict(rows: TrainingSetRef, **changes: Any) -> ContractVerdict:
    """The contract holds on the rows behind this training set."""
    verdict = ContractVerdict(
        passed=True,
        contract="rows",
        version="1.0.0",
        contract_digest="k" * 64,
        snapshot_digest=rows.snapshot_digest,
        rows=900,
        clean=900,
        quarantined=0,
        engine="duckdb",
        checks=(HELD,),
        clean_digest=rows.clean_digest,
    )
    return replace(verdict, **changes)


def publish_verdicts(root: Path, rows: TrainingSetRef, contract: Any = None, guard: Any = None) -> None:
    """`clean` and `handover` with these records, or ones that hold."""
    for name, record in {"clean": contract or contract_verdict(rows), "handover": guard or guard_verdict(rows)}.items():
        with publishing(root / name) as staging:
            record.write(staging)


def folders(root: Path) -> Folders:
    """The folders as these tests call them."""
    return Folders(*(root / name for name in ("model", "rows", "evidence", "clean", "handover")))


def register_in(
    root: Path,
    recipe: Recipe,
    tracking: Any,
    ledger: Ledger,
    run_id: str = "run-1",
    out: Path | None = None,
    signer: Signer | None = None,
) -> ModelVersionRef:
    """Register what lies in a folder, with the models folder and the key of these tests."""
    place = Place(tracking, ledger, root / "models", public_key(), signer)
    return register(recipe, folders(root), out or root / "out", place, run_id, "code1")
