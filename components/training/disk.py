"""A full or a read-only disk in words, whichever library met it."""

from __future__ import annotations

import errno
from pathlib import Path

from components.core.errors import PilotlineError, UserError

DISK_FULL = 74  # EX_IOERR: exit status of a rank that met a full disk
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SIGNS = ("no space left", "disk quota", "file too large", "pytorchstreamwriter failed writing", "unexpected pos")


def in_words(error: Exception, folder: Path) -> Exception:
    """A UserError where the error says that the disk is full or not to be written; else the error itself."""
    if isinstance(error, PilotlineError):
        return error
    if is_full(error):
        return full(folder)
    if isinstance(error, OSError) and error.errno in _READ_ONLY and str(error.filename).startswith(str(folder)):
        return UserError(f"{folder}: cannot be written ({error.strerror}); choose another home with --home")
    return error


def is_full(error: BaseException) -> bool:
    """Whether an error is that of a full disk, or says so."""
    known = isinstance(error, OSError) and error.errno in _FULL
    return known or any(sign in str(error).lower() for sign in _SIGNS)


def full(folder: Path) -> UserError:
    """What a person reads."""
    return UserError(f"{folder}: no space left on the disk; free some or choose another home with --home")
