"""An output exists whole or not at all: stage beside, fsync, manifest, rename; readers verify first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from components.core.digest import file_digest, tree_digest, value_digest
from components.core.errors import IntegrityError, UserError

MANIFEST = "manifest.json"


@contextmanager
def publishing(target: Path, **about: Any) -> Iterator[Path]:
    """Give a staging folder; on success it becomes `target` with a manifest, on an error it vanishes.

    Args:
        target: the folder to publish; an existing one is replaced as a whole.
        about: JSON values stored in the manifest under "about".

    Raises:
        UserError: the parent folder cannot be written.
    """
    staging = target.with_name(f".{target.name}.staging")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
    except OSError as error:
        raise UserError(f"{target.parent}: cannot be written ({error.strerror}); choose another folder") from error
    try:
        yield staging
        _seal(staging, about)
        _swap(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def verify(folder: Path, **expected: Any) -> dict[str, Any]:
    """Check every file of a published folder against its manifest and return the manifest.

    Args:
        folder: the published folder.
        expected: what its "about" has to hold, covered by the manifest's digest of it; none = whatever it holds.

    Raises:
        IntegrityError: no manifest or none of the right shape, a file is missing, added, or has other bytes, or the
            folder is about something else.
    """
    manifest = read_manifest(folder)
    check_about(folder, manifest, **expected)
    listed: dict[str, dict[str, Any]] = manifest["files"]
    present = _files(folder)
    if missing := sorted(set(listed) - set(present)):
        raise IntegrityError(f"{folder}: {missing[0]} is missing; run the step that wrote it again")
    if added := sorted(set(present) - set(listed)):
        raise IntegrityError(f"{folder}: {added[0]} is not in the manifest; run the step that wrote it again")
    for name, entry in listed.items():
        path = present[name]
        if path.stat().st_size != entry["bytes"] or file_digest(path) != entry["sha256"]:
            raise IntegrityError(f"{path}: bytes differ from the manifest; run the step that wrote it again")
    if folder_digest(manifest) != manifest["digest"]:
        raise IntegrityError(f"{folder / MANIFEST}: its own digest does not match; run the step again")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest without checking the files; IntegrityError where there is none or it is not of a manifest's shape.

    What is returned has "files" ({name → {"bytes": int, "sha256": str}}), "digest" (str) and "about" (a dict).
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if not isinstance(manifest, dict):
            raise ValueError("no object")
        manifest.setdefault("about", {})
        if why := _misshapen(manifest):
            raise ValueError(why)
        value_digest(manifest)  # no NaN, no half characters: what follows can digest every part of it
        return manifest
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{folder}: no readable {MANIFEST} ({error}); run the step that wrote it again") from error


def _misshapen(manifest: dict[str, Any]) -> str:
    """Why a JSON object is no manifest; empty where it is one."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        return "files is no object"
    for name, entry in files.items():
        size, sha = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or not isinstance(sha, str):
            return f"files: {name[:80]!r} has no bytes and sha256"
    if not isinstance(manifest.get("digest"), str):
        return "digest is no text"
    if not isinstance(manifest["about"], dict):
        return "about is no object"
    return ""


def check_about(folder: Path, manifest: dict[str, Any], **expected: Any) -> None:
    """IntegrityError where a manifest's "about" was changed, or does not hold what is expected.

    Folders published before "about" had a digest of its own pass where nothing is expected of it.
    """
    about, sealed = manifest["about"], manifest.get("about_digest")
    if (sealed is not None or expected) and sealed != value_digest(about):
        raise IntegrityError(
            f"{folder / MANIFEST}: about is not what its digest says; run the step that wrote it again"
        )
    for name, value in expected.items():
        if about.get(name) != value:
            raise IntegrityError(
                f"{folder}: belongs to {name} {str(about.get(name))[:12]} and not {str(value)[:12]}; run the step that"
                " wrote it again"
            )


def is_whole(folder: Path, **expected: Any) -> bool:
    """True where the folder was published, still verifies and is about what is expected; see `verify`."""
    try:
        verify(folder, **expected)
    except IntegrityError:
        return False
    return True


def folder_digest(manifest: dict[str, Any]) -> str:
    """The content digest of a published folder: of its files' names and bytes, not of `about`."""
    return tree_digest({name: entry["sha256"] for name, entry in manifest["files"].items()})


def manifest_text(files: dict[str, dict[str, Any]], about: dict[str, Any]) -> str:
    """The manifest of files ({name → {"bytes", "sha256"}}) and what they are about, each with its digest."""
    manifest: dict[str, Any] = {"files": files, "about": about, "about_digest": value_digest(about)}
    manifest["digest"] = folder_digest(manifest)
    return json.dumps(manifest, indent=1, sort_keys=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with staging.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        staging.replace(path)
    except BaseException:  # a full disk keeps nothing of what could not be written
        with suppress(OSError):
            staging.unlink()
        raise


def _seal(staging: Path, about: dict[str, Any]) -> None:
    files: dict[str, dict[str, Any]] = {}
    for name, path in sorted(_files(staging).items()):
        _fsync(path)
        files[name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    (staging / MANIFEST).write_text(manifest_text(files, about))
    _fsync(staging / MANIFEST)
    _fsync(staging)


def _swap(staging: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.is_dir():
        target.rename(old)
    elif target.exists():
        target.unlink()
    staging.rename(target)
    _fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _files(folder: Path) -> dict[str, Path]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise IntegrityError(f"{path}: is a link; published folders hold plain files only")
        if path.is_file() and path.name != MANIFEST:
            found[path.relative_to(folder).as_posix()] = path
    return found


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
