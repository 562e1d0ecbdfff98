"""What engines read in place is what the library of tables reads: typed Parquet, CSV, files brought over in batches."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.contract.engines import batch, csv_in_place
from components.contract.engines.batch import source_batch
from components.core.errors import UserError
from components.tables.read import read_files
from components.tables.spool import spool

COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def _integer(kind: pa.DataType) -> st.SearchStrategy[int]:
    signed = pa.types.is_signed_integer(kind)
    bits = kind.bit_width
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)


def _moments(unit: str) -> st.SearchStrategy[dt.datetime]:
    step = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    return MOMENTS.map(lambda moment: moment.replace(microsecond=moment.microsecond // step * step))


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "large text": (pa.large_string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "", "é"])),
    "truth": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "double": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "clock": (pa.time64("us"), st.times()),
    "bytes": (pa.binary(), TEXTS.map(str.encode)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=2)),
    "nanoseconds": (pa.timestamp("ns"), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
    "elsewhere": (pa.timestamp("us", "Europe/Berlin"), st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2030, 1, 1))),
    **{str(kind): (kind, _integer(kind)) for kind in INTEGERS},
    **{
        f"moment {unit} {zone}": (pa.timestamp(unit, zone), _moments(unit))
        for unit in ("s", "ms", "us")
        for zone in (None, "UTC")
    },
    **{
        f"decimal {digits} {scale}": (
            pa.decimal128(digits, scale),
            st.integers(-(10**digits) + 1, 10**digits - 1).map(
                lambda number, scale=scale: decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=60))
            ),
        )
        for digits, scale in ((5, 2), (18, 0), (38, 10), (9, 9))
    },
}
IN_PLACE = {
    name for name in COLUMNS if name not in ("clock", "bytes", "list", "nanoseconds", "elsewhere", "decimal 9 9")
}


@st.composite
def typed_tables(draw: st.DrawFn) -> pa.Table:
    """A table of some of the columns, with nulls."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(0, 4))
    columns = {}
    for name in names:
        kind, values = COLUMNS[name]
        cells = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(cells, kind)
    return pa.table(columns)


@settings(max_examples=120, **COMMON)
@given(table=typed_tables())
def test_typed_parquet_is_read_as_the_same_text(table: pa.Table) -> None:
    """Every type, in place where its text in SQL is the same, gives the cells that `read_files` gives."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "typed.parquet"
        pq.write_table(table, path, row_group_size=2)
        try:
            wanted = read_files(str(path)).table
        except (UserError, ValueError):  # a day beyond year 9999 in another zone has no text
            return
        found = source_batch(str(path), Path(name))
        assert found.table().to_pydict() == wanted.to_pydict()
        assert (found.path == path) is (set(table.column_names) <= IN_PLACE)
        assert found.rows == table.num_rows
        some = table.column_names[-1:]
        assert found.table(some).to_pydict() == wanted.select(some).to_pydict()


LETTERS = ["a", "b", " ", "é", "\t", "😀", "-", "#", "'", "\\", ",", '"', "\n", "\r\n", "\r"]
FIELD = st.lists(st.sampled_from(LETTERS), max_size=4).map("".join)


@st.composite
def csv_bytes(draw: st.DrawFn) -> bytes:
    """Bytes that are CSV, or nearly: well quoted or not, ragged at times, with either line end."""
    width = draw(st.integers(2, 3))
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n"]))
    lines = [",".join(f"h{number}" for number in range(width))]
    for _ in range(draw(st.integers(0, 4))):
        count = width + draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]))
        fields = []
        for text in draw(st.lists(FIELD, min_size=count, max_size=count)):
            quoting = draw(st.sampled_from(["quoted", "quoted", "plain", "plain", "raw"]))
            if quoting == "quoted":
                fields.append('"' + text.replace('"', '""') + '"')
            else:
                fields.append(
                    "".join(letter for letter in text if letter not in '",\r\n') if quoting == "plain" else text
                )
        lines.append(",".join(fields))
    whole = end.join(lines) + draw(st.sampled_from([end, end, ""]))
    data = whole.encode()
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


def read_by_tables(path: Path) -> list[dict[str, str | None]] | None:
    """The rows as the library of tables reads them; None where it refuses."""
    try:
        return read_files(str(path), encoding="utf-8").table.to_pylist()
    except UserError:
        return None


def in_place(path: Path, chunk: int) -> list[dict[str, str | None]] | None:
    """The rows as DuckDB reads them in place; None where the file may have two meanings."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as scratch:
        patch.setattr(csv_in_place, "CHUNK_BYTES", chunk)
        patch.setattr(batch, "CSV_IN_PLACE_BYTES", 0)
        patch.setattr(batch, "spool", lambda *_, **__: pytest.fail("left to the library"))
        try:
            found = source_batch(str(path), Path(scratch))
        except pytest.fail.Exception:
            return None
    rows = found.table().to_pylist()
    assert (found.kind, found.rows) == ("csv", len(rows))
    return rows


@settings(max_examples=400, **COMMON)
@given(data=csv_bytes(), chunk=st.integers(1, 9))
def test_csv_in_place_is_read_as_the_library_reads_it(data: bytes, chunk: int) -> None:
    """Where the scan takes a file, DuckDB gives the library's rows, wherever the scan's chunks end."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.csv"
        path.write_bytes(data)
        found = in_place(path, chunk)
        assert found is None or found == read_by_tables(path)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_scan_takes_what_writers_write(quoting: Any, tmp_path: Path) -> None:
    """Fields with separators, quotes and line feeds, quoted as the standard says, are read in place."""
    rows = [["id", "text"], ["1", 'a "b", c'], ["2", "line\n\nline"], ["3", ""], ["4", "é😀"], ["5", '"']]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=quoting).writerows(rows)
    path = tmp_path / "rows.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    header = ",".join(rows[0]) if quoting == csv.QUOTE_MINIMAL else ""
    found = in_place(path, 1 << 20)
    assert (found is None) is not header  # a quoted header is left to the library
    assert found is None or [list(row.values()) for row in found] == rows[1:]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text + "x\n",
        lambda text: text + "1,2,\n",
        lambda text: text + "\n1,2\n",
        lambda text: text + '1,"2\n',
        lambda text: text + '1,"2"x\n',
        lambda text: text + '1,a"b"\n',
        lambda text: text + "1,\0\n",
    ],
)
def test_the_scan_leaves_what_may_have_two_meanings(change: Callable[[str], str], tmp_path: Path) -> None:
    """Other line ends, marks, ragged rows, stray quotes and blank lines are the library's to read or to refuse."""
    path = tmp_path / "rows.csv"
    path.write_text(change("id,text\n1,2\n"), encoding="utf-8", newline="")
    assert csv_in_place.plain_header(path) == ()


def test_a_large_csv_is_taken_in_place_and_a_small_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size decides; the rows are the same."""
    path = tmp_path / "rows.csv"
    path.write_text("id,text\n" + "".join(f"{number},t{number}\n" for number in range(50)))
    small = source_batch(str(path), tmp_path)
    monkeypatch.setattr(batch, "CSV_IN_PLACE_BYTES", 10)
    large = source_batch(str(path), tmp_path)
    assert (small.kind, large.kind) == ("parquet", "csv")
    assert small.table().to_pylist() == large.table().to_pylist()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the text of its refusal."""
    try:
        return call()
    except UserError as error:
        return str(error)


@settings(max_examples=60, **COMMON)
@given(data=csv_bytes())
def test_spooling_is_reading(data: bytes) -> None:
    """A file brought over in batches has the rows, the lineage and the errors of `read_files`."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.csv"
        path.write_bytes(data)
        wanted = outcome(lambda: read_files(str(path)))
        inputs = outcome(lambda: spool(str(path), Path(name) / "rows.parquet"))
        if isinstance(wanted, str):
            assert inputs == wanted
            return
        assert inputs == wanted.inputs
        assert pq.read_table(Path(name) / "rows.parquet").to_pydict() == wanted.table.to_pydict()
