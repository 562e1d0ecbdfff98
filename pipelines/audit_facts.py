"""What an audit reads: the decision, the ledger's entries about its model, and a run's records against their seals."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.digest import file_digest
from components.core.errors import IntegrityError, UserError
from components.core.home import SAFE_NAME, Home
from components.core.ledger import Entry, Ledger
from components.registry.champions import CANDIDATE, PROMOTED, PROMOTION, REGISTERED
from components.serving.decision_log import DECISION_LOG, find_decision
from pipelines.outcome import SEALED, run_anchors


@dataclass(frozen=True)
class Facts:
    """One decision and all entries of the ledger; `chain` says what is wrong with the ledger, "" where nothing is."""

    home: Home
    decision: dict[str, Any]
    entries: list[Entry]
    chain: str

    @property
    def name(self) -> str:
        """The model's name: as logged, else by the version's bytes."""
        if self.decision["model"]:
            return str(self.decision["model"])
        known = [entry.payload["name"] for entry in self.of(CANDIDATE) if self.is_about(entry)]
        return str(known[0]) if known else ""

    def of(self, kind: str) -> list[Entry]:
        """Entries of a kind, oldest first."""
        return [entry for entry in self.entries if entry.kind == kind]

    def is_about(self, entry: Entry) -> bool:
        """Whether an entry is about the version and the bytes that answered."""
        asked = (self.decision["version"], self.decision["digest"])
        return (entry.payload.get("version"), entry.payload.get("digest")) == asked

    def own(self, kind: str) -> list[Entry]:
        """Entries of a kind about the very version that answered."""
        return [entry for entry in self.of(kind) if self.is_about(entry) and entry.payload.get("name") == self.name]

    def registered(self) -> Entry:
        """The entry that registered the version; IntegrityError where there is none."""
        found = [entry for entry in self.own(CANDIDATE) if "record" in entry.payload]
        if not found:
            version, digest = self.decision["version"], self.decision["digest"]
            raise IntegrityError(f"the ledger knows no version {version} with digest {digest[:12]}")
        passed = [entry for entry in found if entry.payload["event"] == REGISTERED]
        return (passed or found)[-1]

    def champion_then(self) -> tuple[Entry | None, Entry | None]:
        """The promotion entry in force when the decision was made, and the one before it."""
        until = [e for e in self.of(PROMOTION) if e.payload["name"] == self.name and e.time <= self.decision["time"]]
        return (until[-1] if until else None), (until[-2] if len(until) > 1 else None)

    def promotion(self) -> Entry | None:
        """The last promotion of the version."""
        found = [entry for entry in self.own(PROMOTION) if entry.payload["event"] == PROMOTED]
        return found[-1] if found else None

    def run_entry(self, run_id: str) -> Entry | None:
        """A run's outcome in the ledger."""
        return next((entry for entry in self.of("run") if entry.key == f"run:{run_id}"), None)

    def sealed(self, run_id: str) -> list[str]:
        """The names of the records that the ledger seals of a run."""
        seals = [entry for entry in self.of(SEALED) if entry.payload["run_id"] == run_id]
        return sorted(seals[-1].payload["records"]) if seals else []

    def record(self, run_id: str, file: str) -> dict[str, Any]:
        """A record of a run whose bytes are those that the ledger seals; IntegrityError otherwise."""
        folder = self.home.run(run_id)
        path = folder / file if file == "recipe.json" else folder / "records" / file
        seals = [entry for entry in self.of(SEALED) if entry.payload["run_id"] == run_id]
        if not seals:
            raise IntegrityError(
                f"the ledger seals no records of run {run_id}: it was killed before its end, or is gone"
            )
        sealed = seals[-1].payload["records"].get(file)
        if sealed is None:
            raise IntegrityError(f"run {run_id}: {file} is not among the records that the ledger seals")
        return _sealed(path, sealed, run_id)


def read_facts(home: Home, decision_id: str) -> Facts:
    """Find the decision and read the ledger.

    Raises:
        UserError: no such decision here. TransientError: the ledger does not answer.
    """
    path = home.root / DECISION_LOG
    found = find_decision(path, decision_id) if SAFE_NAME.fullmatch(decision_id) and path.exists() else None
    if found is None:
        raise UserError(f"decision {decision_id!r}: not in the decision log {path}; look at the id and at --home")
    with closing(Ledger(home.ledger_url)) as ledger:
        try:
            ledger.verify(run_anchors(home))
            chain = ""
        except IntegrityError as error:
            chain = str(error)
        return Facts(home, found, ledger.entries(), chain)


def _sealed(path: Path, sealed: str, run_id: str) -> dict[str, Any]:
    if not path.is_file():
        raise IntegrityError(f"run {run_id}: {path.name} is gone")
    if file_digest(path) != sealed:
        raise IntegrityError(f"run {run_id}: {path.name} was altered since the ledger sealed it")
    values: dict[str, Any] = json.loads(path.read_text())
    return values
