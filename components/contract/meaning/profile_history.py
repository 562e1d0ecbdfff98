"""The accepted snapshots of a contract: their profiles in the home, and which of them a run compares with.

`profiles/<contract>/<snapshot digest>/` holds profile.json and a manifest with the time of acceptance. A run chooses
once, when it first comes to validation, and writes the choice down: resumed after a kill it compares with the same
ones, whatever was accepted in between, itself included.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from components.contract.meaning.profile import Profile, read_profile
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.core.digest import value_digest
from components.core.errors import IntegrityError
from components.core.home import SAFE_NAME, Home
from components.core.publish import is_whole, publishing, verify, write_atomic
from components.core.records import ContractVerdict, SnapshotRef
from components.core.steps import StepRun

CHOICE = "history.json"
FILES = ("", "file", "s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "http", "https", "memory", "local")


def load_history(
    home: Home, contract: DataContract, stream: str, source: str, without: str = "", before: str = ""
) -> tuple[Profile, ...]:
    """The last accepted profiles of the stream, oldest first, at most as many as the contract compares with.

    A stream is a contract's batches under one recipe name from one kind of source: a demo's generated rows say nothing
    of the files that come later.

    Args:
        stream: name of the recipe; "" for a bare file, which belongs where files of its folder or name came from.
        source: the batch's source as its snapshot shows it.
        without: digest of the batch's own snapshot.
        before: ISO 8601 time; what was accepted then or later is left out. "" for now.

    Raises:
        IntegrityError: a stored profile is not what was stored.
    """
    folder = _folder(home, contract.identity)
    found = []
    for place in folder.iterdir() if folder.is_dir() else ():
        if place.name.startswith(".") or place.name == without:
            continue
        accepted = str(_checked(place)["about"].get("accepted", ""))
        profile = read_profile(place)
        if (not before or accepted < before) and _belongs(profile, stream, source):
            found.append((accepted, place.name, profile))
    return tuple(profile for _, _, profile in sorted(found, key=lambda item: item[:2])[-contract.drift.history :])


def history_of_run(step: StepRun, snapshot: Path, contract_path: Path) -> tuple[Profile, ...]:
    """`load_history` for a snapshot folder, as of the first time that this run asked about it.

    Raises:
        UserError: the contract cannot be read.
        IntegrityError: as in `load_history`, or the snapshot has no record.
    """
    contract, ref = load(contract_path), SnapshotRef.read(snapshot)
    note = step.home.run(step.run_id) / CHOICE
    asked = {"snapshot": ref.digest, "contract": contract.digest}
    chosen = json.loads(note.read_text()) if note.exists() else {}
    if {name: chosen.get(name) for name in asked} != asked:
        found = load_history(step.home, contract, step.recipe.name, ref.source, without=ref.digest)
        digests = [profile.snapshot_digest for profile in found]
        write_atomic(note, json.dumps(asked | {"profiles": digests}))
        return found
    places = [_folder(step.home, contract.identity) / digest for digest in chosen["profiles"]]
    return tuple(read_profile(place) for place in places if _checked(place))


def accept(home: Home, validated: Path, verdict: ContractVerdict) -> bool:
    """Keep the profile that validation published, where the verdict passed; whether it is kept.

    Again for the same snapshot changes nothing.
    """
    if not verdict.passed:
        return False
    profile = read_profile(validated)
    place = _folder(home, profile.contract) / profile.snapshot_digest
    if not is_whole(place):
        with publishing(place, accepted=datetime.now(UTC).isoformat(timespec="microseconds")) as staging:
            profile.write_beside(staging)
    return True


def _folder(home: Home, name: str) -> Path:
    """The folder of a contract's id, which may hold any signs."""
    safe = name if SAFE_NAME.fullmatch(name) else f"{re.sub('[^A-Za-z0-9]+', '-', name)[:40].strip('-')}.{_short(name)}"
    return home.root / "profiles" / safe


def _short(name: str) -> str:
    return value_digest(name)[:12]


def _checked(place: Path) -> dict[str, Any]:
    """The manifest of a whole profile."""
    try:
        return verify(place)
    except IntegrityError as error:
        raise IntegrityError(f"{error}; to forget this snapshot remove {place}") from error


def _belongs(profile: Profile, stream: str, source: str) -> bool:
    if _kind(profile.source) != _kind(source):
        return False
    if stream:
        return profile.stream == stream
    known, asked = (PurePosixPath(re.sub(r"^[a-z0-9]+://", "", text)) for text in (profile.source, source))
    return known.parent == asked.parent or _without_digits(known.name) == _without_digits(asked.name)


def _kind(source: str) -> str:
    """A generator's name, `files`, or a database's scheme."""
    scheme, found, rest = source.partition("://")
    if not found or scheme in FILES:
        return "files"
    return f"{scheme}://{re.split('[?#]', rest)[0]}" if scheme == "generator" else scheme


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "#", name)
