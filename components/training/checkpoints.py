"""Checkpoints as published folders: whole or absent, verified by all ranks, and only the last few kept.

`step-NNNNNN/` holds a checkpoint with its manifest; `newest.json` names the newest one that was published, so that a
folder which lost its checkpoints is told from one that never had any.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.digest import file_digest
from components.core.errors import IntegrityError, one_line
from components.core.publish import MANIFEST, check_about, folder_digest, manifest_text, read_manifest, write_atomic
from components.core.records import CheckpointRef
from components.training.failpoints import reached

_NAME = re.compile(r"step-(\d{6,})")
ENGINE = "engine"  # sub-folder (and DeepSpeed tag) of the engine's own files
AVERAGES = "averages.safetensors"
STATE = "state.json"
POINTER = "newest.json"
SET_ASIDE = ".damaged-"


@dataclass(frozen=True)
class Found:
    """A checkpoint that verified: its folder, its record, and the digest of its content."""

    folder: Path
    ref: CheckpointRef
    digest: str


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return folder / f"step-{step:06d}"


def saved_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first, whole or not."""
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    return sorted(int(match.group(1)) for match in found if match)


def check(folder: Path, step: int, key: str, part: int = 0, parts: int = 1) -> Found:
    """Verify a checkpoint: its list of files, and the bytes of every `parts`-th file, starting with `part`.

    Args:
        folder: the checkpoint.
        step: the step that it has to be of.
        key: the training job that it has to be of; "" = any.
        part: which share of the bytes this caller reads; the names and sizes of all files are compared by each.
        parts: number of callers that read one folder together.

    Raises:
        IntegrityError: what is wrong, with the file.
    """
    manifest = read_manifest(folder)
    ref = CheckpointRef.read(folder)
    about = manifest["about"]
    if key and (about.get("key"), ref.digest) != (key, key):
        raise IntegrityError(f"{folder}: belongs to another recipe or training set")
    check_about(folder, manifest)  # nothing more is asked of it: the record, a file, names the job and the step too
    if ref.step != step or about.get("step", step) != step:
        raise IntegrityError(f"{folder}: holds step {ref.step} and not {step}")
    verify_bytes(folder, manifest, part, parts)
    return Found(folder, ref, str(manifest["digest"]))


def verify_bytes(folder: Path, manifest: dict[str, Any], part: int, parts: int) -> None:
    """Compare a published folder with its manifest, reading this caller's share of the bytes; see `check`."""
    files: dict[str, dict[str, Any]] = manifest["files"]
    try:
        _compare_names(folder, files)
        if folder_digest(manifest) != manifest["digest"]:
            raise IntegrityError(f"{folder / MANIFEST}: its own digest does not match")
        for name in _share(files, part, parts):
            if file_digest(folder / name) != files[name]["sha256"]:
                raise IntegrityError(f"{folder / name}: bytes differ from the manifest")
    except (KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{folder / MANIFEST}: is no list of files ({error!r})") from error


def _compare_names(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    present = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise IntegrityError(f"{path}: is a link; a checkpoint holds plain files only")
        if path.is_file() and path.name != MANIFEST:
            present[path.relative_to(folder).as_posix()] = path.stat().st_size
    if missing := sorted(set(files) - set(present)):
        raise IntegrityError(f"{folder}: {missing[0]} is missing")
    if added := sorted(set(present) - set(files)):
        raise IntegrityError(f"{folder}: {added[0]} is not in the manifest")
    for name, size in present.items():
        if size != files[name]["bytes"]:
            raise IntegrityError(f"{folder / name}: has {size} bytes, the manifest says {files[name]['bytes']}")


def _share(files: dict[str, dict[str, Any]], part: int, parts: int) -> list[str]:
    """This caller's files: the largest first to the caller with the fewest bytes so far."""
    bytes_of, mine = [0] * parts, []
    for name in sorted(files, key=lambda name: (-files[name]["bytes"], name)):
        lightest = bytes_of.index(min(bytes_of))
        bytes_of[lightest] += files[name]["bytes"]
        if lightest == part:
            mine.append(name)
    return mine


def newest_whole(folder: Path, key: str, say: Callable[[str], None]) -> Found | None:
    """The newest checkpoint that verifies, whatever its shape; damaged ones are named through `say` and passed over.

    None where the job never had a checkpoint.

    Raises:
        IntegrityError: there are or were checkpoints and none can be used; training never starts over in silence.
    """
    skipped = []
    for step in reversed(saved_steps(folder)):
        try:
            found = check(checkpoint_folder(folder, step), step, key)
        except IntegrityError as error:
            say(f"WARNING: checkpoint of step {step} is damaged and not used: {one_line(error)}")
            skipped.append(step)
            continue
        tell_if_older(folder, step, skipped, say)
        return found
    refuse_if_lost(folder, skipped)
    return None


def tell_if_older(folder: Path, step: int, skipped: list[int], say: Callable[[str], None]) -> None:
    """Say so where the checkpoint in use is not the newest that was published."""
    lost = [] if (newest := pointed_step(folder)) is None or newest <= step or newest in skipped else [newest]
    if skipped or lost:
        say(f"WARNING: resuming from the older checkpoint of step {step}, as {skipped + lost} cannot be used")


def refuse_if_lost(folder: Path, skipped: list[int]) -> None:
    """IntegrityError where checkpoints are or were there; called when none can be used."""
    if skipped:
        raise IntegrityError(
            f"{folder}: no checkpoint can be used (damaged: steps {', '.join(map(str, sorted(skipped)))}); put a good"
            " copy back, or remove the folder to train from the first step"
        )
    if (step := pointed_step(folder)) is not None:
        raise IntegrityError(
            f"{folder}: the checkpoint of step {step} was published here and is gone; put it back, or remove the"
            " folder to train from the first step"
        )
    if os.path.lexists(folder / POINTER):
        raise IntegrityError(
            f"{folder / POINTER}: cannot be read, so a checkpoint was published here, and none is left; put it back, or"
            " remove the folder to train from the first step"
        )


def pointed_step(folder: Path) -> int | None:
    """The step that `newest.json` names; None where it is absent or unreadable (the folders then speak)."""
    try:
        step = json.loads((folder / POINTER).read_text())["step"]
        return step if type(step) is int else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def point_to(folder: Path, step: int) -> None:
    """Write `newest.json`."""
    write_atomic(folder / POINTER, json.dumps({"step": step}))
    reached("save.pointed")


def publish_checkpoint(staging: Path, target: Path, files: dict[str, dict[str, Any]], about: dict[str, Any]) -> None:
    """Seal a staging folder whose files are written, synced and digested, and rename it to `target`.

    Args:
        staging: folder beside the target that holds exactly the files named.
        target: the checkpoint's folder; one of that name (of an earlier attempt) is replaced.
        files: relative POSIX path → {"bytes", "sha256"}.
        about: values for the manifest: key, step, world size, ZeRO stage, data position, recipe digest.
    """
    write_atomic(staging / MANIFEST, manifest_text(files, about))
    for path in (*(path for path in staging.rglob("*") if path.is_dir()), staging):
        sync(path)
    reached("save.sealed")
    old = target.with_name(f"{SET_ASIDE}replaced-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.is_dir():
        target.rename(old)
    staging.rename(target)
    sync(target.parent)
    reached("save.published")
    shutil.rmtree(old, ignore_errors=True)


def set_aside(folder: Path, steps: list[int]) -> None:
    """Rename damaged checkpoints, newer than one that is used, so that they count no more; one a step is kept."""
    for step in steps:
        source = checkpoint_folder(folder, step)
        aside = folder / f"{SET_ASIDE}{source.name}"
        shutil.rmtree(aside, ignore_errors=True)
        if source.is_dir():
            source.rename(aside)
        reached("resume.set_aside")


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed save left; called when no rank writes."""
    for path in folder.glob(".step-*.staging"):
        shutil.rmtree(path, ignore_errors=True)
    reached("resume.cleared")


def prune(folder: Path, keep: int) -> list[int]:
    """Remove checkpoints older than the newest `keep` that are complete by name and size; returns the steps removed."""
    complete = [step for step in saved_steps(folder) if _is_complete(checkpoint_folder(folder, step))]
    gone = [step for step in saved_steps(folder) if len(complete) >= keep and step < complete[-keep]]
    for step in gone:
        shutil.rmtree(checkpoint_folder(folder, step), ignore_errors=True)
    reached("save.pruned")
    return gone


def _is_complete(folder: Path) -> bool:
    try:
        _compare_names(folder, read_manifest(folder)["files"])
    except (IntegrityError, KeyError, TypeError):
        return False
    return True


def sync(path: Path) -> None:
    """Bring a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
