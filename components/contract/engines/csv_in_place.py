"""Whether DuckDB reads a CSV file exactly as `tables.delimited` does, found by one scan of its bytes and one count.

The scan asks for RFC 4180 to the letter: UTF-8, line feeds, quotes that stand at the ends of a field, no blank line,
and as many separators as the records need. DuckDB's count refuses records of another size (but for one empty field too
many, which the number of separators tells). Such a file has one meaning; of any other the two may think differently.
"""

from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path

import numpy as np

CHUNK_BYTES = 8 << 20
HEADER_BYTES = 1 << 20
LINE_FEED, QUOTE, COMMA = 10, 34, 44
ENDS = (LINE_FEED, QUOTE, COMMA)


def plain_header(path: Path) -> tuple[str, ...]:
    """The header of a CSV file that has one meaning; () where it may have two, or is empty, or has one column."""
    with path.open("rb") as stream:
        header = _header(stream.read(HEADER_BYTES))
        if len(header) < 2:
            return ()
        stream.seek(0)
        scan = _Scan()
        while chunk := stream.read(CHUNK_BYTES):
            if not scan.goes_on(chunk):
                return ()
        return header if scan.ends_well(len(header)) else ()


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

    def __init__(self) -> None:
        self.commas = self.records = 0  # outside of quoted fields
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._quoted = False  # inside a quoted field
        self._before = LINE_FEED  # the byte before
        self._open = False  # the last byte closes a field or is half of a doubled quote

    def goes_on(self, chunk: bytes) -> bool:
        """Whether the chunk keeps to the rules."""
        if b"\r" in chunk or b"\0" in chunk:
            return False
        try:
            self._decoder.decode(chunk)
        except UnicodeDecodeError:
            return False
        data = np.frombuffer(chunk, np.uint8)
        ends, commas = data == LINE_FEED, data == COMMA
        fine = True
        if self._quoted or self._open or b'"' in chunk:
            fine, inside = self._plain_quotes(data)
            ends, commas = ends & ~inside, commas & ~inside
        blank = bool((ends[1:] & ends[:-1]).any()) or (bool(ends[0]) and self._before == LINE_FEED)
        self.commas += int(np.count_nonzero(commas))
        self.records += int(np.count_nonzero(ends))
        self._before = int(data[-1])
        return fine and not blank

    def _plain_quotes(self, data: np.ndarray) -> tuple[bool, np.ndarray]:
        """Whether opening quotes follow, and closing ones precede, a comma, a line end or a quote.

        Also which bytes (n,) are inside a quoted field. Quotes open and close in turns; a doubled one does both.
        """
        at = np.flatnonzero(data == QUOTE)
        opening, closing = (at[1::2], at[::2]) if self._quoted else (at[::2], at[1::2])
        turns = np.diff(at, prepend=0, append=len(data))  # bytes before the first quote, then from quote to quote
        inside = np.repeat((np.arange(len(turns)) + self._quoted) % 2 == 1, turns)
        left_open = self._open and data[0] not in ENDS
        before = np.where(opening > 0, data[opening - 1], self._before)
        self._open = bool(len(closing) and closing[-1] == len(data) - 1)
        after = data[closing[:-1] + 1 if self._open else closing + 1]
        self._quoted = bool(inside[-1])
        return bool(not left_open and np.isin(before, ENDS).all() and np.isin(after, ENDS).all()), inside

    def ends_well(self, fields: int) -> bool:
        """Whether the file ends outside of quotes, in whole text, with the separators that its records need."""
        if self._quoted or self._decoder.getstate()[0]:
            return False
        records = self.records + (self._before != LINE_FEED)
        return self.commas == records * (fields - 1)
