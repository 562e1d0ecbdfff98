"""A full disk in words, whichever library met it."""

from __future__ import annotations

import errno
from pathlib import Path

from components.core.errors import PilotlineError, UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SIGNS = ("no space left", "disk quota", "file too large", "pytorchstreamwriter failed writing", "unexpected pos")


def in_words(error: Exception, folder: Path) -> Exception:
    """A UserError where the error says that the disk is full; else the error itself."""
    if isinstance(error, PilotlineError):
        return error
    full = isinstance(error, OSError) and error.errno in _FULL
    if full or any(sign in str(error).lower() for sign in _SIGNS):
        return UserError(f"{folder}: no space left on the disk; free some or choose another home with --home")
    return error
