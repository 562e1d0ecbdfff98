"""The point-in-time join without Feast: types, keys, files, chunks and what is refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.core.errors import TransientError, UserError
from components.features import asof_join, asof_sources, asof_sql
from components.features.asof_join import Limits, join_features
from components.features.asof_sql import History
from tests.fakes.feature_asof_case import at, times

ROOT = Path(__file__).resolve().parents[2]


def _write(path: Path, keys: Any, minutes: list[float], **features: Any) -> str:
    table = {"k": keys, "ts": times([at(minute) for minute in minutes])} | features
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return str(path)


def _history(path: str, *features: str, **more: Any) -> History:
    named: dict[str, Any] = {
        "name": "view",
        "files": asof_sources.parquet_files(path),
        "keys": (("k", "k"),),
        "event": "ts",
        "created": None,
        "features": tuple((name, name) for name in features),
    }
    return History(**named | more)


def _join(rows: pa.Table | str, *histories: History, limits: Limits | None = None) -> pa.Table:
    return pa.concat_tables(join_features(histories, rows, "ts", limits=limits))


def _asked(keys: Any, minutes: list[float]) -> pa.Table:
    return pa.table({"k": keys, "ts": times([at(minute) for minute in minutes])})


def test_every_type_of_feature_comes_through_unchanged(tmp_path: Path) -> None:
    """Texts, whole numbers, booleans, lists, times with and without zone, days, decimals, bytes, structs, and nulls."""
    values: dict[str, pa.Array] = {
        "text": pa.array(["a", None]),
        "small": pa.array([1, None], pa.int8()),
        "yes": pa.array([True, None]),
        "numbers": pa.array([[1.5, None], None], pa.list_(pa.float32())),
        "texts": pa.array([["x", "y"], None]),
        "zoned": times([at(1), None]),
        "clock": times([at(1), None], None),
        "day": pa.array([date(2024, 1, 2), None]),
        "money": pa.array([Decimal("1.10"), None]),
        "raw": pa.array([b"\x00\xff", None]),
        "pair": pa.array([{"a": 1, "b": "z"}, None]),
    }
    path = _write(tmp_path / "t.parquet", [1, 2], [1, 1], **values)
    got = _join(_asked([2, 1, 3], [5, 5, 5]), _history(path, *values))
    for name, column in values.items():
        assert got[name].to_pylist() == [None, column[0].as_py(), None], name
        if name not in ("numbers", "texts", "pair"):  # the name of a list's inner field differs
            assert got[name].type == column.type


def test_chunks_and_histories_that_do_not_fit_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table whether entity rows pass at once or in parts, and histories are kept or read again."""
    draw = np.random.default_rng(1)
    texts = [f"text {number}" for number in range(5000)]
    path = _write(tmp_path / "t.parquet", draw.integers(0, 50, 5000), draw.integers(0, 900, 5000).tolist(), text=texts)
    rows = _asked(draw.integers(0, 55, 3000), draw.integers(0, 1000, 3000).tolist())
    whole = _join(rows, _history(path, "text"))
    monkeypatch.setattr(asof_join, "_CHUNK", (700, 700))
    in_parts = _join(rows, _history(path, "text"))
    monkeypatch.setattr(asof_join._Values, "within", lambda *_: None)
    assert whole.equals(in_parts)
    assert whole.equals(_join(rows, _history(path, "text")))


def test_a_history_beyond_its_share_of_memory_is_not_kept(tmp_path: Path) -> None:
    """What is kept is bounded by the limit, so a history may be larger than memory."""
    path = _write(tmp_path / "t.parquet", list(range(1000)), [1] * 1000, text=["x" * 1000] * 1000)
    with asof_join.engine(Limits()) as connection:
        assert asof_join._Values.within(connection, _history(path, "text"), 10**6) is None
        assert asof_join._Values.within(connection, _history(path, "text"), 2 * 10**6) is not None


def test_rows_of_several_files_count_in_the_order_of_the_files(tmp_path: Path) -> None:
    """Of two rows that tie the one in the last file wins; a column that an older file lacks is null there."""
    folder = tmp_path / "history"
    _write(folder / "b.parquet", [1], [1], n=[2], new=[20])
    _write(folder / "deep" / "c.parquet", [2], [1], n=[3], new=[30])
    _write(folder / "a.parquet", [1, 3], [1, 1], n=[1, 9])
    _write(folder / "_temporary" / "z.parquet", [1], [1], n=[99])
    got = _join(_asked([1, 2, 3], [5, 5, 5]), _history(str(folder), "n", "new"))
    assert got["n"].to_pylist() == [2, 3, 9]
    assert got["new"].to_pylist() == [20, 30, None]
    globbed = _join(_asked([1, 2], [5, 5]), _history(str(folder / "*.parquet"), "n"))
    assert globbed["n"].to_pylist() == [2, None]


def test_a_path_is_a_path_and_no_pattern(tmp_path: Path) -> None:
    """A file called a[1].parquet is read, and not a1.parquet beside it; quotes are no SQL."""
    for name, value in [("a[1].parquet", 1), ("a1.parquet", 2), ("it's*.parquet", 3), ("it's not.parquet", 4)]:
        _write(tmp_path / name, [7], [1], n=[value])
    got = [
        _join(_asked([7], [5]), _history(str(tmp_path / name), "n"))["n"][0].as_py()
        for name in ("a[1].parquet", "it's*.parquet")
    ]
    assert got == [1, 3]


def test_a_remote_source_is_read_through_fsspec(tmp_path: Path) -> None:
    """A URL goes to fsspec's file system of its scheme."""
    path = "memory://asof/history/t.parquet"
    with fsspec.open(path, "wb") as stream:
        stream.write(Path(_write(tmp_path / "t.parquet", [1], [1], n=[5])).read_bytes())
    filesystem = asof_sources.remote_filesystem(path, "", None)
    for url in (path, "memory://asof/history"):
        history = _history(str(tmp_path / "t.parquet"), "n", files=asof_sources.parquet_files(url, filesystem))
        assert _join(_asked([1], [5]), history, limits=Limits(filesystems=(filesystem,)))["n"].to_pylist() == [5]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, None, 3], pa.int32()),
        pa.array([1, None, 3], pa.float64()),
        pa.array([1, None, 3], pa.uint8()),
        pa.array([Decimal(1), None, Decimal(3)]),
    ],
)
def test_keys_of_other_widths_are_the_same_keys(tmp_path: Path, keys: pa.Array) -> None:
    """pandas makes floats of whole numbers with gaps; they still match the history's whole numbers."""
    path = _write(tmp_path / "t.parquet", pa.array([1, None, 2], pa.int64()), [1, 1, 1], n=[10, 0, 20])
    assert _join(_asked(keys, [5, 5, 5]), _history(path, "n"))["n"].to_pylist() == [10, None, None]


def test_large_keys_are_never_rounded_into_each_other(tmp_path: Path) -> None:
    """2^53 + 1 is not 2^53, and a float that cannot tell them apart is refused."""
    big = 2**53
    path = _write(tmp_path / "t.parquet", [big, big + 1], [1, 1], n=[0, 1])
    assert _join(_asked([big + 1, big], [5, 5]), _history(path, "n"))["n"].to_pylist() == [1, 0]
    with pytest.raises(UserError, match="'k' holds fractions, or numbers beyond 9,007"):
        _join(_asked([float(big * 4)], [5]), _history(path, "n"))


def test_categories_and_columns_of_nothing_are_keys_too(tmp_path: Path) -> None:
    """A categorical key compares by its text; a key column of nulls matches nothing."""
    path = _write(tmp_path / "t.parquet", ["x", "y"], [1, 1], n=[1, 2])
    assert _join(_asked(pa.array(["y", "z"]).dictionary_encode(), [5, 5]), _history(path, "n"))["n"].to_pylist() == [
        2,
        None,
    ]
    assert _join(_asked(pa.nulls(2), [5, 5]), _history(path, "n"))["n"].to_pylist() == [None, None]


def test_no_rows_and_no_history_keep_their_columns(tmp_path: Path) -> None:
    """Zero entity rows, from Arrow or SQL, and a history without rows give typed columns."""
    path = _write(tmp_path / "t.parquet", pa.array([], pa.int64()), [], n=pa.array([], pa.int32()))
    got = _join(_asked([1], [5]), _history(path, "n"))
    assert (got["n"].to_pylist(), got["n"].type) == ([None], pa.int32())
    for rows in (_asked(pa.array([], pa.int64()), []), "SELECT 1 AS k, TIMESTAMP '2024-01-01' AS ts WHERE false"):
        got = _join(rows, _history(path, "n"))
        assert (len(got), got.column_names) == (0, ["k", "ts", "n"])


def test_a_ttl_beyond_the_calendar_does_not_overflow(tmp_path: Path) -> None:
    """The longest timedelta there is means for ever."""
    path = _write(tmp_path / "t.parquet", [1], [1], n=[5])
    assert _join(_asked([1], [5]), _history(path, "n", ttl=timedelta.max))["n"].to_pylist() == [5]


def test_the_order_of_sql_rows_is_kept(tmp_path: Path) -> None:
    """ORDER BY in the caller's SELECT decides, and relative paths begin at the repository."""
    _write(tmp_path / "t.parquet", [1, 2, 3], [1, 1, 1], n=[10, 20, 30])
    _write(tmp_path / "rows.parquet", [1, 2, 3], [5, 5, 5])
    limits = Limits(repo=str(tmp_path))
    got = _join(
        "SELECT * FROM 'rows.parquet' ORDER BY k DESC", _history(str(tmp_path / "t.parquet"), "n"), limits=limits
    )
    assert got["n"].to_pylist() == [30, 20, 10]


def test_a_source_that_changes_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of the old file are never used on the new one."""
    path = _write(tmp_path / "t.parquet", [1, 2], [1, 1], n=[10, 20])
    monkeypatch.setattr(asof_join, "_CHUNK", (1, 1))
    monkeypatch.setattr(asof_join._Values, "within", lambda *_: None)
    tables = join_features([_history(path, "n")], _asked([1, 2], [5, 5]), "ts")
    assert next(tables)["n"].to_pylist() == [10]
    _write(tmp_path / "t.parquet", [2, 1, 1], [1, 1, 2], n=[20, 10, 11])
    with pytest.raises(TransientError, match="written to while it was read"):
        next(tables)


def test_nested_loops_are_never_chosen() -> None:
    """Rows from Arrow are estimated as one, for which DuckDB would compare every pair: seconds become minutes."""
    history = History("view", (), (("k", "k"),), "ts", None, ())
    with asof_join.engine(Limits()) as connection:
        connection.execute("CREATE TABLE steps0 AS SELECT 1 AS key0, 1::BIGINT AS since, 1 AS position")
        asked = pa.table({"row": [0], "moment": [1], "key0": [1]})
        connection.register("asked", asked)
        plan = connection.execute(f"EXPLAIN {asof_sql.match(history, 'asked', 'steps0')}").fetchall()[0][1]
    assert "ASOF_JOIN" in plan
    assert "LOOP" not in plan


def test_nothing_spilled_is_left(tmp_path: Path) -> None:
    """The scratch folder is empty after a join, also after one that failed."""
    path = _write(tmp_path / "t.parquet", [1], [1], n=[5])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    _join(_asked([1], [5]), _history(path, "n"), limits=Limits(scratch=str(scratch)))
    with pytest.raises(UserError):
        _join(_asked(["x"], [5]), _history(path, "n"), limits=Limits(scratch=str(scratch)))
    assert list(scratch.iterdir()) == []


def test_the_join_knows_no_feast() -> None:
    """It can be tested and measured without Feast's six seconds."""
    code = "import sys, components.features.asof_join; sys.exit(any(name in sys.modules for name in ('feast', 'ibis')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
