"""The home: one folder that holds all of Pilotline's state."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Home:
    """Paths below the home; folders are made on demand by whoever writes them."""

    root: Path

    @classmethod
    def at(cls, given: str | os.PathLike[str] | None = None) -> Home:
        """The home from `given`, else $PILOTLINE_HOME, else ./.pilotline; checked to be writable.

        Raises:
            UserError: the folder cannot be made or written.
        """
        root = Path(given or os.environ.get("PILOTLINE_HOME") or ".pilotline").expanduser().absolute()
        if odd := set(str(root)) & set("?#%\n"):
            raise UserError(f"home {str(root)!r}: {min(odd)!r} cannot be in its path; choose another with --home")
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise UserError(f"home {root}: not writable ({error.strerror}); choose another with --home") from error
        return cls(root)

    @classmethod
    def existing(cls, given: str | os.PathLike[str] | None = None) -> Home | None:
        """The home that `at` would give, where it is there already; nothing is made."""
        root = Path(given or os.environ.get("PILOTLINE_HOME") or ".pilotline").expanduser().absolute()
        return cls(root) if root.is_dir() else None

    @property
    def snapshots(self) -> Path:
        """Snapshots by content digest."""
        return self.root / "snapshots"

    @property
    def known(self) -> Path:
        """What each export held of a row, by contract and export."""
        return self.root / "known"

    @property
    def contracts(self) -> Path:
        """Every contract that a batch was judged by, see contracts.py."""
        return self.root / "contracts"

    @property
    def features(self) -> Path:
        """The shared feature store: Feast's settings, registry and online store."""
        return self.root / "features"

    @property
    def checkpoints(self) -> Path:
        """Training checkpoints by training key."""
        return self.root / "checkpoints"

    @property
    def models(self) -> Path:
        """Registered model directories by digest."""
        return self.root / "models"

    @property
    def keys(self) -> Path:
        """The home's own pair of signing keys, where no other is given."""
        return self.root / "keys"

    @property
    def test_windows(self) -> Path:
        """Which candidates were judged on which test rows."""
        return self.root / "test_windows"

    @property
    def pipeline_root(self) -> Path:
        """Kubeflow's local pipeline root and step cache."""
        return self.root / "kfp"

    @property
    def mlflow_uri(self) -> str:
        """Tracking URI: $PILOTLINE_MLFLOW_URI, else SQLite in the home."""
        return os.environ.get("PILOTLINE_MLFLOW_URI") or f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger: $PILOTLINE_LEDGER_URL, else SQLite in the home."""
        return os.environ.get("PILOTLINE_LEDGER_URL") or f"sqlite:///{self.root / 'ledger.db'}"

    def run(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.root / "runs" / safe_name(run_id, "run id")


def safe_name(name: str, what: str) -> str:
    """Return the name where it is a plain file name; UserError otherwise (no slash, dot-dot, newline or percent)."""
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"{what} {name!r}: use letters, digits, dot, dash and underscore, at most 128, no leading dot")
    return name
