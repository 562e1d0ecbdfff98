"""What is kept of registered models.

models/<digest>/model/                the model directory, named by its digest
models/<digest>/adapter/              the adapter that was merged into it, unmerged, where one was trained
models/<digest>/model.sig, MLmodel    its signature, and its input signature as MLflow reads it
versions/<name>/<version>/            what was said of a version: record, evidence, card, bill of materials
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from components.core.errors import IntegrityError, UserError
from components.core.home import safe_name
from components.core.publish import is_whole, publishing
from components.models.files import ADAPTER, ADAPTER_FILES, files_digest, model_digest

MODEL, VERSIONS = "model", "versions"


def keep_model(
    model_dir: Path,
    digest: str,
    models_root: Path,
    add: Callable[[Path], object] = bool,
    accept: Callable[[Path], bool] = bool,
) -> Path:
    """Publish a copy of a model directory as `<models_root>/<digest>/model`; one that is there and whole is kept.

    The copy is checked against the digest before it gets its name.

    Args:
        model_dir: what to copy.
        digest: its digest.
        models_root: where.
        add: writes what lies beside `model/` into the staged folder.
        accept: whether what lies beside `model/` of a kept folder is as it has to be; else it is copied anew.

    Returns:
        The kept model directory.

    Raises:
        IntegrityError: the copied bytes have another digest. UserError: the folder cannot be written.
    """
    target = models_root / digest
    with _one_writer(models_root):
        if not is_kept(target / MODEL, digest) or not is_whole(target) or not accept(target):
            with publishing(target, digest=digest) as staging:
                _copy(model_dir, staging / MODEL)
                if (found := model_digest(staging / MODEL)) != digest:
                    raise IntegrityError(f"{model_dir}: copied bytes have digest {found[:12]}, not {digest[:12]}")
                add(staging)
    return target / MODEL


def keep_adapter(adapter: Path, digest: str, staging: Path) -> None:
    """Copy the adapter that lies beside a model directory; nothing where the model has none (digest "").

    Raises:
        IntegrityError: the copied bytes have another digest. UserError: the folder cannot be written.
    """
    if not digest:
        return
    target = staging / ADAPTER
    _copy(adapter, target)
    if (found := files_digest(target)) != digest:
        raise IntegrityError(f"{adapter}: copied bytes have digest {found[:12]}, not {digest[:12]}; train again")
    if odd := sorted({path.name for path in target.iterdir()} - set(ADAPTER_FILES)):
        raise IntegrityError(f"{adapter}: {odd[0]} is no file of an adapter; train again")


def papers(models_root: Path, name: str, version: str) -> Path:
    """The folder of what was said of a version, beside the models folder."""
    return models_root.with_name(VERSIONS) / safe_name(name, "model name") / safe_name(version, "version")


def is_kept(model_dir: Path, digest: str) -> bool:
    """Whether the directory holds exactly the bytes of this digest."""
    try:
        return model_digest(model_dir) == digest
    except IntegrityError:
        return False


def check_kept(model_dir: Path, digest: str, what: str) -> None:
    """IntegrityError where the directory does not hold the bytes of this digest."""
    if not is_kept(model_dir, digest):
        raise IntegrityError(
            f"{what}: {model_dir} does not hold the bytes of digest {digest[:12]}; restore it or train again"
        )


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error}); free space or choose another --home") from error


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Two runs may register the same model: one copies, the other finds it whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another --home") from error
