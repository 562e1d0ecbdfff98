"""What may lie in an exported model directory, and the digest that names it."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from components.core.digest import file_digest, tree_digest
from components.core.errors import IntegrityError
from components.models.reach import INDEX, SHARD, SINGLE, check_shards, reaches_out
from components.models.weights import check_weights

SIGNATURE = "pilotline.json"
WEIGHTS = ".safetensors"
ALLOWED_NAMES = frozenset(
    {
        SIGNATURE,
        SINGLE,
        INDEX,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
    }
)  # and shards; a SentencePiece tokenizer.model is no text and no JSON, and no family reads one
ALLOWED_SUFFIXES = frozenset({WEIGHTS, ".json", ".txt"})
ADAPTER = "adapter"  # an adapter, unmerged, beside the model directory that it was merged into
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
MOST_FILES = 1000
LARGEST_JSON_BYTES = 64 << 20


def model_digest(model_dir: Path) -> str:
    """The name of a model: digest of its files' relative paths and bytes.

    Raises:
        IntegrityError: the directory holds something that `check_files` refuses.
    """
    return tree_digest({path.relative_to(model_dir).as_posix(): file_digest(path) for path in check_files(model_dir)})


def files_digest(folder: Path) -> str:
    """Digest of a folder's files by relative path and bytes, of an adapter that lies beside its model for one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tree_digest({path.relative_to(folder).as_posix(): file_digest(path) for path in files})


def check_files(model_dir: Path) -> list[Path]:
    """The files of a model directory, all of kinds that run no code when they are loaded; sorted by path.

    Raises:
        IntegrityError: no such directory, no weights or signature, a folder inside it, a link of either kind, a name
            that no model's file has, a file of another kind (pickles, Python, templates), weights that are not
            safetensors from first to last byte, shards other than the index's, or a JSON file that asks for remote
            code, names a file of elsewhere or holds a key twice.
    """
    if not model_dir.is_dir() or model_dir.is_symlink():
        raise IntegrityError(f"{model_dir}: no model directory; train the model again")
    files = sorted(model_dir.iterdir())
    if len(files) > MOST_FILES:
        raise IntegrityError(f"{model_dir}: {len(files)} files, at most {MOST_FILES} are a model's; remove the rest")
    for path in files:
        _check_kind(path)
    names = {path.name for path in files}
    if SIGNATURE not in names or not any(path.suffix == WEIGHTS for path in files):
        raise IntegrityError(f"{model_dir}: no {SIGNATURE} or no {WEIGHTS} file; train the model again")
    if why := check_shards(names):
        raise IntegrityError(f"{model_dir}: {why}")
    for path in files:
        if path.suffix == WEIGHTS:
            check_weights(path)
        elif path.suffix == ".json" and (why := reaches_out(path.name, _json(path), names)):
            raise IntegrityError(f"{path}: {why}")
    return files


def _check_kind(path: Path) -> None:
    """A plain file of an allowed kind under a plain name, and under no other name anywhere; nothing is opened."""
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        raise IntegrityError(f"{_shown(path)}: is a link; a model directory holds plain files only")
    if stat.S_ISDIR(about.st_mode):
        raise IntegrityError(f"{_shown(path)}: is a folder; a model directory holds files only: remove it")
    if not stat.S_ISREG(about.st_mode) or path.suffix not in ALLOWED_SUFFIXES:
        allowed = " ".join(sorted(ALLOWED_SUFFIXES))
        raise IntegrityError(f"{_shown(path)}: kind of file not allowed in a model directory ({allowed}); remove it")
    if not PLAIN_NAME.fullmatch(path.name):
        raise IntegrityError(f"{_shown(path)}: name not allowed in a model directory; use letters, digits and . _ -")
    if path.name not in ALLOWED_NAMES and not SHARD.fullmatch(path.name):
        known = " ".join(sorted(ALLOWED_NAMES))
        raise IntegrityError(f"{_shown(path)}: file not allowed in a model directory ({known}, and shards); remove it")
    if about.st_nlink != 1:
        raise IntegrityError(
            f"{_shown(path)}: is a hard link: its bytes can change under another name; copy the directory anew"
        )


def _shown(path: Path) -> str:
    """The path for a message, on one line whatever its name."""
    name = path.name if PLAIN_NAME.fullmatch(path.name) else ascii(path.name)
    return f"{path.parent}/{name}"


def read_signature(model_dir: Path) -> dict[str, Any]:
    """The model's signature (`pilotline.json`); IntegrityError where it lacks what every family's has."""
    signature = _json(model_dir / SIGNATURE)
    asked = {"family", "labels", "features", "feature_service", "calibration"}
    if not isinstance(signature, dict) or (missing := sorted(asked - set(signature))):
        detail = "not an object" if not isinstance(signature, dict) else f"{missing[0]!r} is missing"
        raise IntegrityError(f"{model_dir / SIGNATURE}: {detail}; train the model again")
    return signature


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise IntegrityError(f"{path}: larger than {LARGEST_JSON_BYTES >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: not readable JSON ({type(error).__name__}); train the model again") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a key is there twice, of which two readers may take two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found
