"""A checkpoint of another number of ranks or ZeRO stage, in DeepSpeed's universal form.

The launcher converts the newest whole checkpoint before any rank takes memory; the ranks verify and load the result.
Weights and optimizer come over exactly; the sums of later steps run in another order (about 1e-6 a step).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from components.core.errors import IntegrityError, TransientError, UserError, one_line
from components.core.processes import end, spawn, tail
from components.core.publish import check_about, publishing, read_manifest
from components.core.records import CheckpointRef
from components.training.backends.launch import importable
from components.training.checkpoints import (
    ENGINE,
    Found,
    checkpoint_folder,
    newest_whole,
    saved_steps,
    set_aside,
    verify_bytes,
)
from components.training.failpoints import reached
from components.training.job import Job

CONVERTER = "components.training.conversion"
REFUSED = 65  # its exit status where a file holds more than state
WORKERS = 4
FORMS = ({0}, {1, 2}, {3})  # stages that read each other's universal form; DeepSpeed 0.19 writes three kinds of it


def is_other_shape(ref: CheckpointRef, ranks: int, zero_stage: int) -> bool:
    """Whether a checkpoint has to be converted; at stage 0 every rank holds all, so that any number reads it."""
    return ref.zero_stage != zero_stage or (zero_stage > 0 and ref.world_size != ranks)


def convert_if_needed(job: Job, log: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Convert the newest whole checkpoint where the job now has another shape; the usual case costs nothing.

    Raises:
        UserError: the engine cannot convert between the two shapes; told before any rank starts.
        IntegrityError: there are checkpoints and none can be used.
        TransientError: the converter failed.
    """
    training = job.recipe.training
    refs = [_shape(checkpoint_folder(job.folder, step)) for step in saved_steps(job.folder)]
    if not any(ref is not None and is_other_shape(ref, training.ranks, training.zero_stage) for ref in refs):
        _remove_others(job.folder, keep=None)
        return
    found = newest_whole(job.folder, job.key, say)
    if found is None or not is_other_shape(found.ref, training.ranks, training.zero_stage):
        return
    refuse_impossible(found, training.ranks, training.zero_stage)
    target = universal_folder(job.folder, found.ref.step)
    _remove_others(job.folder, keep=target)
    if _is_converted(job.folder, found):
        return
    try:
        _convert(found, target, log, seconds)
    except IntegrityError as error:
        step = found.ref.step
        if not [older for older in saved_steps(job.folder) if older < step]:
            raise
        say(f"WARNING: checkpoint of step {step} is damaged and not used: {one_line(error)}; set aside")
        set_aside(job.folder, [step])
        convert_if_needed(job, log, seconds, say)


def refuse_impossible(found: Found, ranks: int, zero_stage: int) -> None:
    """UserError between stages whose universal forms differ: 0 (no shards), 1 and 2, 3."""
    before = found.ref
    form = next(form for form in FORMS if before.zero_stage in form)
    if zero_stage not in form:
        raise UserError(
            f"{found.folder}: written by {before.world_size} ranks at ZeRO stage {before.zero_stage}; DeepSpeed cannot"
            f" bring it to {ranks} ranks at stage {zero_stage}: set training.zero_stage to"
            f" {' or '.join(map(str, sorted(form)))}, or remove the folder {found.folder.parent}"
        )


def universal_folder(folder: Path, step: int) -> Path:
    """Where the universal form of the checkpoint of `step` lies."""
    return folder / f"universal-{step:06d}"


def check_universal(folder: Path, found: Found, part: int, parts: int) -> None:
    """Verify the universal form of a verified checkpoint; IntegrityError where it is absent or damaged."""
    target = universal_folder(folder, found.ref.step)
    if not target.is_dir():
        raise IntegrityError(
            f"{found.folder}: written by {found.ref.world_size} ranks at ZeRO stage {found.ref.zero_stage} and not"
            " converted"
        )
    manifest = read_manifest(target)
    if manifest["about"].get("source") != found.digest:
        raise IntegrityError(f"{target}: converted from another checkpoint")
    check_about(target, manifest, source=found.digest)
    verify_bytes(target, manifest, part, parts)


def _shape(folder: Path) -> CheckpointRef | None:
    try:
        return CheckpointRef.read(folder)
    except IntegrityError:
        return None


def _is_converted(folder: Path, found: Found) -> bool:
    try:
        check_universal(folder, found, 0, 1)
    except IntegrityError:
        return False
    return True


def _convert(found: Found, target: Path, log: Path, seconds: float) -> None:
    """Run DeepSpeed's converter in a process that builds only tensors and plain values, see conversion.py."""
    with publishing(target, source=found.digest, step=found.ref.step) as staging:
        reached("launch.converting")
        workers = str(min(WORKERS, os.cpu_count() or 1))
        command = [sys.executable, "-m", CONVERTER, "--inject_missing_state"]
        command += ["--input_folder", str(found.folder / ENGINE), "--output_folder", str(staging / ENGINE)]
        command += ["--num_extract_workers", workers, "--num_merge_workers", workers]
        env = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": importable()}
        process = spawn(command, log=log, env=env)
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TransientError(f"{found.folder}: not converted within {seconds:.0f} s; run again") from error
        finally:
            end(process, grace_seconds=1.0)
        if status == REFUSED:
            raise IntegrityError(
                f"{found.folder / ENGINE}: {tail(log, 1)[-240:]}; it was not read: put a good copy back, or remove the"
                " checkpoint"
            )
        if status:
            raise TransientError(f"{found.folder}: DeepSpeed could not convert it ({tail(log, 2)[-200:]}); log: {log}")
        (staging / "latest_universal").unlink(missing_ok=True)
    reached("launch.converted")


def _remove_others(folder: Path, keep: Path | None) -> None:
    for path in folder.glob("universal-*"):
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)
    reached("launch.errors")
