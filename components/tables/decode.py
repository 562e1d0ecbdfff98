"""Bytes to text, with the place of the first byte that does not fit.

The encoding `auto`: a byte order mark names it; else UTF-8 where every byte fits; else cp1252, what spreadsheets on
Windows write, where every byte fits that and nothing before the first misfit was UTF-8 beyond ASCII (such a file is
damaged UTF-8). What was read is kept beside the file's digest.
"""

from __future__ import annotations

import codecs
import difflib
import encodings.aliases
import io
from typing import BinaryIO, NamedTuple

from components.core.errors import UserError

CHUNK_BYTES = 1 << 20
AUTO = "auto"
FALLBACK = "cp1252"
CUT = "unexpected end of data"  # the codec's words for a character that the end of the file cuts
MARKS = (  # byte order marks, longest first
    (codecs.BOM_UTF32_LE, "utf-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32", "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8", "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16-be"),
)


class Decoded:
    """A binary stream read as text; line ends are left as they are.

    Attributes:
        text: the text stream, after a byte order mark.
        encoding: the codec that reads it.
        uri: what error messages call the file.
    """

    def __init__(self, stream: BinaryIO, encoding: str, uri: str) -> None:
        self.uri = uri
        self._stream = stream
        self._declared = "utf-8" if encoding == AUTO else encoding
        self._start, self._codec = _codec(stream, self._declared, uri, encoding == AUTO)
        if encoding == AUTO and self._codec == "utf-8" and self._start == 0:
            misfit = self._misfit("utf-8")
            if misfit and misfit.first and not self._misfit(FALLBACK):
                self._codec = FALLBACK
        self.encoding = self._codec
        stream.seek(self._start)
        self.text = io.TextIOWrapper(stream, encoding=self._codec, errors="strict", newline="")

    def __enter__(self) -> Decoded:
        """The stream; leaving gives the bytes' stream back to its owner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the bytes' stream without closing it."""
        self.text.detach()

    def undecodable(self) -> UserError:
        """The error that says where the first byte stands that does not fit the encoding."""
        hint = "set source.encoding to the file's encoding, for example cp1252 or utf-16"
        place = self._misfit(self._codec)
        if place is None:
            return UserError(f"{self.uri}: is not {self._declared}; {hint}")
        return UserError(
            f"{self.uri}: byte {place.byte} (line {place.line}) is {place.value}, which is not {self._declared}; {hint}"
        )

    def _misfit(self, codec: str) -> _Misfit | None:
        """The first byte that the codec cannot read; None where it reads all."""
        self._stream.seek(self._start)
        decoder = codecs.getincrementaldecoder(codec)("strict")
        offset, line, ascii_only = self._start, 1, True
        while True:
            chunk = self._stream.read(CHUNK_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
                line += text.count("\n")
                ascii_only = ascii_only and text.isascii()
            except UnicodeDecodeError as error:
                before = bytes(error.object[: error.start])
                line += before.count(b"\n")
                value = f"0x{error.object[error.start]:02X}" if error.start < len(error.object) else "the end"
                first = ascii_only and before.isascii() and error.reason != CUT
                return _Misfit(offset - pending + error.start, line, value, first)
            if not chunk:
                return None
            offset += len(chunk)


class _Misfit(NamedTuple):
    """Where a byte stands that does not fit; `first`: all before it was ASCII, and no end cuts it."""

    byte: int
    line: int
    value: str
    first: bool


def _codec(stream: BinaryIO, encoding: str, uri: str, marked: bool) -> tuple[int, str]:
    """Where the text starts, and the codec that reads it; `marked`: a byte order mark may name another."""
    try:
        declared = codecs.lookup(encoding).name
        "".encode(declared)
    except (LookupError, TypeError) as error:
        near = difflib.get_close_matches(encoding.lower(), sorted(encodings.aliases.aliases), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; for example utf-8, cp1252 or utf-16"
        raise UserError(f"source.encoding {encoding!r}: no such text encoding{hint}") from error
    stream.seek(0)
    head = stream.read(4)
    for mark, family, exact in MARKS:
        if head.startswith(mark):
            if not marked and not declared.replace("_", "-").startswith(family):
                raise UserError(
                    f"{uri}: starts with a {family.upper()} byte order mark, but source.encoding is {encoding!r}; "
                    f"set source.encoding={family}"
                )
            return len(mark), exact
    return 0, declared
