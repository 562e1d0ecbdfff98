"""Bytes to text, with the place of the first byte that does not fit."""

from __future__ import annotations

import codecs
import difflib
import encodings.aliases
import io
from typing import BinaryIO

from components.core.errors import UserError

CHUNK_BYTES = 1 << 20
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
        uri: what error messages call the file.
    """

    def __init__(self, stream: BinaryIO, encoding: str, uri: str) -> None:
        self.uri = uri
        self._stream = stream
        self._declared = encoding
        self._start, self._codec = _codec(stream, encoding, uri)
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
        self._stream.seek(self._start)
        decoder = codecs.getincrementaldecoder(self._codec)("strict")
        offset, lines = self._start, 1
        while True:
            chunk = self._stream.read(CHUNK_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                lines += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                lines += error.object[: error.start].count(b"\n")
                place = offset - pending + error.start
                value = f"0x{error.object[error.start]:02X}" if error.start < len(error.object) else "the end"
                return UserError(
                    f"{self.uri}: byte {place} (line {lines}) is {value}, which is not {self._declared}; "
                    "set source.encoding to the file's encoding, for example cp1252 or utf-16"
                )
            if not chunk:
                return UserError(f"{self.uri}: is not {self._declared}; set source.encoding to the file's encoding")
            offset += len(chunk)


def _codec(stream: BinaryIO, encoding: str, uri: str) -> tuple[int, str]:
    """Where the text starts, and the codec that reads it."""
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
            if not declared.replace("_", "-").startswith(family):
                raise UserError(
                    f"{uri}: starts with a {family.upper()} byte order mark, but source.encoding is {encoding!r}; "
                    f"set source.encoding={family}"
                )
            return len(mark), exact
    return 0, declared
