"""The adapter of a registered model: kept beside it, held against its digest, restored where it was damaged."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from components.core.errors import IntegrityError
from components.core.publish import MANIFEST, publishing
from components.core.records import ModelRef
from components.models.files import files_digest
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import judged_rows, ledger_of, publish_evidence, publish_training_set, small_recipe
from tests.fakes.registering import publish_signed_model, publish_verdicts, register_in

FILES = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"\x00" * 8}


def adapted(root: Path, **more: bytes) -> ModelRef:
    """A model as training publishes one that was adapted; `more` are files that no adapter has."""
    rows = publish_training_set(root / "rows", rows=60, test=judged_rows())
    model = publish_signed_model(root / "model", rows)
    kept = Path(shutil.copytree(root / "model", root / "scratch"))
    with publishing(root / "model") as staging:
        shutil.copytree(kept, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (staging / "adapter").mkdir()
        for name, content in {**FILES, **more}.items():
            (staging / "adapter" / name).write_bytes(content)
        model = replace(model, adapter_digest=files_digest(staging / "adapter"))
        model.write(staging)
    publish_verdicts(root, rows)
    publish_evidence(root / "evidence", model, rows)
    return model


def register(root: Path) -> Path:
    """Register what lies in the folder; where its model is kept."""
    version = register_in(root, small_recipe(), FakeTracking(root / "models"), ledger_of(root))
    return root / "models" / version.digest


def kept_files(kept: Path) -> dict[str, str]:
    """Names and digests of the kept adapter's files."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (kept / "adapter").iterdir()}


def test_a_registered_model_keeps_its_adapter(tmp_path: Path) -> None:
    """Byte for byte, beside the model directory, where serving looks for it."""
    adapted(tmp_path)
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    assert kept_files(register(tmp_path)) == expected


@pytest.mark.parametrize("damage", ["byte", "gone"])
def test_a_kept_adapter_that_is_another_or_missing_is_replaced(tmp_path: Path, damage: str) -> None:
    """The folder is whole by its own manifest: it was kept before adapters were, or sealed anew."""
    model = adapted(tmp_path)
    with publishing(tmp_path / "models" / model.digest, digest=model.digest) as staging:
        shutil.copytree(tmp_path / "model", staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (staging / "adapter" / "adapter_model.safetensors").write_bytes(b"\x01" * 8)
        if damage == "gone":
            shutil.rmtree(staging / "adapter")
    assert files_digest(register(tmp_path) / "adapter") == model.adapter_digest


def test_another_adapter_than_training_recorded_is_refused(tmp_path: Path) -> None:
    """The folder is sealed anew around it; nothing is kept."""
    model = adapted(tmp_path)
    kept = Path(shutil.copytree(tmp_path / "model", tmp_path / "other"))
    with publishing(tmp_path / "model") as staging:
        shutil.copytree(kept, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (staging / "adapter" / "adapter_model.safetensors").write_bytes(b"\x01" * 8)
    with pytest.raises(IntegrityError, match="copied bytes have digest"):
        register(tmp_path)
    assert not (tmp_path / "models" / model.digest).exists()


def test_an_adapter_with_a_pickle_is_refused(tmp_path: Path) -> None:
    """Its digest is right, but no file of it may be read by a loader that unpickles; nothing is kept."""
    model = adapted(tmp_path, **{"adapter_model.bin": b"pickle"})
    with pytest.raises(IntegrityError, match=r"adapter_model\.bin is no file of an adapter"):
        register(tmp_path)
    assert not (tmp_path / "models" / model.digest).exists()
