"""`pilotline contract infer`: a draft that was loaded and held against its own rows before anybody sees it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from components.contract.evolution.infer import Drafted, infer, write_new
from components.core.errors import PilotlineError, UserError


def infer_checked(data: str, out: Path | None) -> Drafted:
    """Draft a contract, check that its rows hold it, and write it where `out` names a new file.

    Raises:
        UserError: the data cannot be read, or `out` is there already.
        PilotlineError: the rows do not hold the draft: a fault of the draft.
    """
    from components.contract.validate import check

    if out is not None and (out.exists() or out.is_symlink()):
        raise UserError(f"{out}: is there already and is not overwritten; name a new file")
    drafted = infer(data)
    with tempfile.TemporaryDirectory(prefix="pilotline-infer-") as name:
        draft = Path(name) / "draft.odcs.yaml"
        draft.write_text(drafted.text, encoding="utf-8")
        verdict = check(draft, data, "duckdb")
    if not verdict.passed or verdict.quarantined:
        raise PilotlineError(f"{data}: its rows do not hold the contract drafted from them ({verdict.reason})")
    if out is not None:
        write_new(out, drafted.text)
    return drafted
