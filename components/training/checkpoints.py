"""Checkpoints as published folders: found newest first, verified before use, pruned to the last few."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from components.core.errors import IntegrityError, one_line
from components.core.publish import verify
from components.core.records import CheckpointRef

_NAME = re.compile(r"step-(\d{6,})")
ENGINE = "engine"  # sub-folder (and DeepSpeed tag) of the engine's own files
AVERAGES = "averages.safetensors"
STATE = "state.json"


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return folder / f"step-{step:06d}"


def saved_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, oldest first, whole or not."""
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ()
    return sorted(int(match.group(1)) for match in found if match)


def newest_whole(
    folder: Path, ranks: int, zero_stage: int, say: Callable[[str], None]
) -> tuple[Path, CheckpointRef] | None:
    """The newest checkpoint that verifies and fits the job; damaged ones are named through `say` and passed over."""
    skipped = []
    for step in reversed(saved_steps(folder)):
        path = checkpoint_folder(folder, step)
        try:
            verify(path)
            ref = CheckpointRef.read(path)
            if ref.step != step or ref.world_size != ranks or ref.zero_stage != zero_stage:
                raise IntegrityError(f"{path}: written by {ref.world_size} ranks at ZeRO stage {ref.zero_stage}")
        except IntegrityError as error:
            say(f"WARNING: checkpoint of step {step} is damaged and not used: {one_line(error)}")
            skipped.append(step)
            continue
        if skipped:
            say(f"WARNING: resuming from the older checkpoint of step {step}, as {skipped} cannot be used")
        return path, ref
    if skipped:
        say(f"WARNING: no checkpoint can be used ({skipped} are damaged); training starts from the first step")
    return None


def prune(folder: Path, keep: int) -> list[int]:
    """Remove all but the newest `keep` checkpoints; returns the steps removed."""
    gone = saved_steps(folder)[:-keep]
    for step in gone:
        shutil.rmtree(checkpoint_folder(folder, step), ignore_errors=True)
    return gone
