"""Whether DuckDB reads a CSV file exactly as `tables.delimited` does, found by one scan of its bytes.

The scan asks for RFC 4180 to the letter: UTF-8, line feeds, quotes that stand at the ends of a field, the same number
of fields in every record, no blank line. Such a file has one meaning; of any other the two may think differently.
"""

from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path

import numpy as np

CHUNK_BYTES = 16 << 20
HEADER_BYTES = 1 << 20
LINE_FEED, QUOTE, COMMA = 10, 34, 44


def plain_header(path: Path) -> tuple[str, ...]:
    """The header of a CSV file that has one meaning; () where it may have two, or is empty, or has one column."""
    with path.open("rb") as stream:
        header = _header(stream.read(HEADER_BYTES))
        if len(header) < 2:
            return ()
        stream.seek(0)
        scan = _Scan(len(header))
        while chunk := stream.read(CHUNK_BYTES):
            if not scan.goes_on(chunk):
                return ()
        return header if scan.ends_well() else ()


def _header(head: bytes) -> tuple[str, ...]:
    """The first record's fields where it is whole, plain and names each column once."""
    line, end, _ = head.partition(b"\n")
    if not end or b'"' in line or line.startswith(codecs.BOM_UTF8):
        return ()
    try:
        names = next(csv.reader(io.StringIO(line.decode("utf-8"), newline="")), [])
    except UnicodeDecodeError:
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()


class _Scan:
    """Goes over a file's bytes once, remembering what a chunk needs of the one before."""

    def __init__(self, fields: int) -> None:
        self._fields = fields
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._quoted = False  # inside a quoted field
        self._before = LINE_FEED  # the byte before
        self._open = False  # the last byte closes a field or is half of a doubled quote
        self._commas = self._records = 0

    def goes_on(self, chunk: bytes) -> bool:
        """Whether the chunk keeps to the rules."""
        if b"\r" in chunk or b"\0" in chunk:
            return False
        try:
            self._decoder.decode(chunk)
        except UnicodeDecodeError:
            return False
        data = np.frombuffer(chunk, np.uint8)
        quotes = data == QUOTE
        # after byte i: inside a quoted field or not; a doubled quote leaves and enters again
        inside = np.logical_xor.accumulate(quotes) ^ self._quoted if quotes.any() else None
        plain = self._plain_quotes(data, quotes, inside)
        outside = slice(None) if inside is None and not self._quoted else None
        ends = data == LINE_FEED
        commas = data == COMMA
        if outside is None:
            kept = ~inside if inside is not None else np.zeros(len(data), bool)
            ends, commas = ends & kept, commas & kept
        at = np.flatnonzero(ends)
        blank = (np.diff(at) == 1).any() or bool(len(at) and at[0] == 0 and self._before == LINE_FEED)
        self._commas += int(np.count_nonzero(commas))
        self._records += len(at)
        if inside is not None:
            self._quoted = bool(inside[-1])
        self._before = int(data[-1])
        return plain and not blank

    def _plain_quotes(self, data: np.ndarray, quotes: np.ndarray, inside: np.ndarray | None) -> bool:
        """Whether opening quotes follow, and closing ones precede, a comma, a line end or a quote."""
        if self._open and data[0] not in (COMMA, LINE_FEED, QUOTE):
            return False
        self._open = False
        if inside is None:
            return True
        at = np.flatnonzero(quotes)
        opening, closing = at[inside[at]], at[~inside[at]]
        before = np.where(opening > 0, data[opening - 1], self._before)
        self._open = bool(len(closing) and closing[-1] == len(data) - 1)
        after = data[closing[:-1] + 1 if self._open else closing + 1]
        return bool(_ends_field(before).all() and _ends_field(after).all())

    def ends_well(self) -> bool:
        """Whether the file ends outside of quotes, in whole text, with as many fields as its records need."""
        if self._quoted or self._decoder.getstate()[0]:
            return False
        records = self._records + (self._before != LINE_FEED)
        return self._commas == records * (self._fields - 1)


def _ends_field(values: np.ndarray) -> np.ndarray:
    return (values == COMMA) | (values == LINE_FEED) | (values == QUOTE)
