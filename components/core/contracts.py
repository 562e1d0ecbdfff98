"""The contracts that batches are judged by: an archive by content, and which one each snapshot names.

    contracts/<digest>.odcs.yaml                    the file, as it was
    contracts/named/<snapshot>.<contract>.json      that the snapshot was read under the contract, and when

A snapshot is named by its rows alone and never changes; the same rows read again under a new contract get a record of
their own beside it. So a replay of old rows finds the contract of their time, wherever the project's file has moved on.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from components.core.digest import file_digest
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.paths import find
from components.core.publish import write_atomic


@dataclass(frozen=True)
class ContractRef:
    """A contract as a snapshot names it: the standard's id and version, and the sha256 of the file."""

    identity: str
    version: str
    digest: str


@dataclass(frozen=True)
class Naming:
    """A snapshot's name for a contract; `first` and `last` are when its rows were read under it, ISO 8601 UTC."""

    contract: ContractRef
    first: str
    last: str


def keep(home: Home, path: Path, digest: str) -> Path:
    """Put a contract's file into the archive, whole or not at all, once.

    Raises:
        UserError: the file's bytes are no longer those of the digest.
    """
    kept = _place(home, digest)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"contract {path}: changed while it was read; run again")
    if not kept.is_file() or file_digest(kept) != digest:
        kept.parent.mkdir(parents=True, exist_ok=True)
        staging = kept.with_name(f".{kept.name}.{os.getpid()}.tmp")
        with staging.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        staging.replace(kept)
    return kept


def kept(home: Home, contract: ContractRef) -> Path:
    """The archived file of a contract.

    Raises:
        IntegrityError: it is not there, or holds other bytes.
    """
    path = _place(home, contract.digest)
    about = f"contract {contract.identity} {contract.version}"
    if not path.is_file():
        raise IntegrityError(
            f"{about}: {path} is missing; put the file of that version back (sha256 {path.stem[:12]}…)"
        )
    if file_digest(path) != contract.digest:
        raise IntegrityError(f"{about}: {path} was altered; put the file of that version back")
    return path


def name(home: Home, snapshot: str, contract: ContractRef) -> Naming:
    """Record that a snapshot's rows were read now under a contract."""
    path = _record(home, snapshot, contract.digest)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    before = _read(path) if path.exists() else None
    naming = Naming(contract, before.first if before else now, now)
    write_atomic(path, json.dumps(asdict(naming), indent=1, sort_keys=True))
    return naming


def note_reading(home: Home, source: str, contract: ContractRef, snapshot: str, from_store: bool) -> None:
    """Archive the contract that rows were read under and record the reading.

    Args:
        home: where.
        source: the contract's path as a recipe names it; read where the archive lacks the contract.
        contract: what the snapshot names.
        snapshot: digest of its rows.
        from_store: the rows were only taken from the store again: the time at which they were read stays.
    """
    place = _place(home, contract.digest)
    if not place.is_file() or file_digest(place) != contract.digest:
        keep(home, find(source, "contract"), contract.digest)
    if not from_store or naming(home, snapshot, contract.digest) is None:
        name(home, snapshot, contract)


def naming(home: Home, snapshot: str, contract: str) -> Naming | None:
    """When a snapshot was read under a contract (both by digest); None where this home does not know."""
    path = _record(home, snapshot, contract)
    return _read(path) if path.exists() else None


def namings(home: Home, snapshot: str) -> list[Naming]:
    """All contracts that a snapshot was read under, the last reading last."""
    found = [_read(path) for path in (home.contracts / "named").glob(f"{snapshot}.*.json")]
    return sorted(found, key=lambda naming: naming.last)


def _place(home: Home, digest: str) -> Path:
    return home.contracts / f"{digest}.odcs.yaml"


def _record(home: Home, snapshot: str, contract: str) -> Path:
    return home.contracts / "named" / f"{snapshot}.{contract}.json"


def _read(path: Path) -> Naming:
    try:
        values = json.loads(path.read_text())
        return Naming(ContractRef(**values["contract"]), values["first"], values["last"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: no readable record of a contract ({error}); restore it from a backup") from error
