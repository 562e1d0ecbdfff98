"""The models folder: one directory a model, named by the model's digest, so that its name says what is in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from components.core.errors import IntegrityError, UserError
from components.models.files import model_digest


def keep_model(model_dir: Path, digest: str, models_root: Path) -> Path:
    """Copy a model directory to `<models_root>/<digest>` and return that path; one that is there and whole is kept.

    The copy is checked against the digest before it gets its name, so that a directory with a digest for a name
    holds these bytes or was damaged later (`check_kept` tells).

    Raises:
        IntegrityError: the copied bytes have another digest. UserError: the folder cannot be written.
    """
    target = models_root / digest
    if is_kept(target, digest):
        return target
    staging = models_root / f".{digest}.{os.getpid()}.staging"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(model_dir, staging)
        if (found := model_digest(staging)) != digest:
            raise IntegrityError(f"{model_dir}: copied bytes have digest {found[:12]}, not {digest[:12]}; run again")
        _fsync(staging)
        shutil.rmtree(target, ignore_errors=True)  # only a damaged one gets here
        _name(staging, target, digest)
    except OSError as error:
        raise UserError(f"{models_root}: cannot be written ({error.strerror}); free space or choose --home") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def is_kept(folder: Path, digest: str) -> bool:
    """Whether the folder holds exactly the bytes of this digest."""
    try:
        return model_digest(folder) == digest
    except IntegrityError:
        return False


def check_kept(folder: Path, digest: str, what: str) -> None:
    """IntegrityError where the folder does not hold the bytes of this digest."""
    if not is_kept(folder, digest):
        raise IntegrityError(
            f"{what}: {folder} does not hold the bytes of digest {digest[:12]}; restore it or train again"
        )


def _name(staging: Path, target: Path, digest: str) -> None:
    try:
        staging.rename(target)
    except OSError:
        if not is_kept(target, digest):  # else another process kept the same model a moment ago
            raise
    _sync(target.parent)


def _fsync(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
