"""Bad input gets one line that says what, where and what to do; nothing half-written is left."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.core.errors import IntegrityError, PilotlineError, TransientError, UserError
from components.core.processes import free_port
from components.ingestion.ingest import ingest
from components.tables import locate
from pipelines.generators import GENERATORS
from tests.fakes.ingestion_case import recipe_for, write_csv

GOOD = "id,day,text\n1,2025-01-01,a\n"


def refused(tmp_path: Path, uri: str | Path, error: type[PilotlineError] = UserError, **about: Any) -> str:
    """The one line that ingesting gives; checks that no output and no staging folder is left."""
    with pytest.raises(error) as raised:
        ingest(recipe_for(uri, **about), tmp_path / "out", GENERATORS)
    assert type(raised.value) is error
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
    line = str(raised.value)
    assert "\n" not in line.strip()
    return line


def _text(content: str | bytes, name: str = "a.csv") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def _folder(**files: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for name, content in files.items():
            (folder / "many").mkdir(exist_ok=True)
            (folder / "many" / name.replace("_", ".")).write_text(content)
        return folder / "many"

    return make


def _twice(folder: Path) -> Path:
    table = pa.table([pa.array(["1"]), pa.array(["2025-01-01"]), pa.array(["x"])], names=["id", "day", "day"])
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


CASES: dict[str, tuple[Callable[[Path], Path | str], tuple[str, ...]]] = {
    "missing file": (lambda folder: folder / "none.csv", ("none.csv", "no such file", "source.uri")),
    "empty file": (_text(""), ("a.csv", "empty")),
    "blank file": (_text("\n\n"), ("a.csv", "no header")),
    "folder without data": (_folder(readme_md="x"), ("many", "no data file", ".csv")),
    "glob without match": (lambda folder: folder / "*.csv", ("*.csv", "no file matches")),
    "cut in a quoted field": (
        _text('id,day,text\n1,2025-01-01,"a\nb"\n2,2025-01-02,"cut\noff'),
        ("a.csv", "line 4", "quoted", "cut off"),
    ),
    "cut in a row": (_text(GOOD + "2,2025-01"), ("line 3", "2 fields", "header has 3")),
    "too many fields": (_text(GOOD + "2,2025-01-02,b,c\n"), ("line 3", "4 fields", "quotes")),
    "text after a closing quote": (_text('id,day,text\n1,2025-01-01,"a"b\n'), ("line 2", "not valid CSV")),
    "no known encoding": (
        _text(b"id,day,text\n1,2025-01-01,caf\x81\n"),
        ("byte 28", "line 2", "0x81", "not utf-8", "source.encoding"),
    ),
    "damaged utf-8": (
        _text("id,day,text\n1,2025-01-01,é\n2,2025-01-02,".encode() + b"\xe9\n"),
        ("line 3", "0xE9", "not utf-8", "source.encoding"),
    ),
    "utf-8 cut in a character": (_text("id,day,text\n1,2025-01-01,é".encode()[:-1]), ("0xC3", "not utf-8")),
    "utf-16 without mark": (_text(GOOD.encode("utf-16-le")), ("zero bytes", "source.encoding=utf-16")),
    "duplicate column": (_text("id,day,day\n1,2025-01-01,a\n"), ("'day'", "2 times", "rename")),
    "duplicate Parquet column": (_twice, ("a.parquet", "'day'", "more than once")),
    "missing time column": (_text("id,days,text\n1,2025-01-01,a\n"), ("'day'", "did you mean 'days'", "time_column")),
    "unreadable dates": (
        _text(GOOD + "2,13/40/25,b\n3,,c\n4,soon,d\n"),
        ("'day'", "3 of 4", "'13/40/25'", "''", "%Y-%m-%d", "source.time_formats"),
    ),
    "no Parquet file": (_text("PAR1 and no more", "a.parquet"), ("a.parquet", "not a whole Parquet file")),
    "cut gzip": (_text(gzip.compress(GOOD.encode() * 99)[:40], "a.csv.gz"), ("a.csv.gz", "gzip", "cut off")),
    "JSON array": (_text('[{"id": 1}]', "a.jsonl"), ("line 1", "no JSON object", "array")),
    "cut JSON line": (_text('{"id": 1}\n{"id": 2, "da', "a.jsonl"), ("line 2", "no JSON object")),
    "JSON key twice": (_text('{"id": 1, "id": 2}', "a.jsonl"), ("line 1", "'id'", "twice")),
    "lone surrogate": (_text('{"id": "\\ud800"}', "a.jsonl"), ("line 1", "no JSON object")),
    "no JSON line": (_text("\n", "a.jsonl"), ("a.jsonl", "no JSON object")),
    "unknown format": (_text(GOOD, "a.data"), ("a.data", "format", "source.format")),
    "files of two layouts": (
        _folder(a_csv=GOOD, b_csv="id,day,other\n1,2025-01-01,a\n"),
        ("b.csv", "lacks 'text'", "has 'other'", "a.csv"),
    ),
    "empty file in a folder": (_folder(a_csv=GOOD, b_csv=""), ("b.csv", "empty")),
    "unknown generator": (lambda _: "generator://complaint", ("'complaint'", "did you mean 'complaints'")),
    "unknown parameter": (lambda _: "generator://complaints?row=5", ("'row'", "did you mean 'rows'")),
    "parameter that is no number": (lambda _: "generator://complaints?rows=many", ("rows='many'", "number")),
    "parameter given twice": (lambda _: "generator://complaints?rows=5&rows=6", ("'rows'", "twice")),
    "parameter out of range": (lambda _: "generator://complaints?poison=7", ("poison=7", "0 to 1")),
    "unknown protocol": (lambda _: "s4://bucket/a.csv", ("s4", "not known", "s3")),
    "package of a protocol absent": (lambda _: "abfs://box/a.csv", ("abfs", "package", "absent")),
    "nothing behind a URI": (lambda _: "memory://nowhere/a.csv", ("memory://nowhere/a.csv", "no file")),
    "unset variable": (lambda _: "https://${PILOTLINE_NOT_SET}@host/a.csv", ("PILOTLINE_NOT_SET", "not set")),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line(name: str, tmp_path: Path) -> None:
    """Exit 2 with the file, the place and the way out."""
    make, named = CASES[name]
    line = refused(tmp_path, make(tmp_path))
    assert [part for part in named if part not in line] == [], line


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({"encoding": "utf-88"}, ("utf-88", "no such text encoding", "utf")),
        ({"encoding": "base64"}, ("base64", "no such text encoding")),
        ({"since": "2025-02-01", "until": "2025-01-01"}, ("source.since", "not before")),
        ({"until": "yesterday"}, ("source.until='yesterday'", "YYYY-MM-DD")),
        ({"query": "SELECT 1"}, ("source.query", "no database")),
    ],
)
def test_settings_that_do_not_fit(about: dict[str, Any], named: tuple[str, ...], tmp_path: Path) -> None:
    """A setting of the source is refused by its name."""
    line = refused(tmp_path, write_csv(tmp_path / "a.csv"), **about)
    assert [part for part in named if part not in line] == [], line


def test_a_header_without_rows_is_left_to_the_contract(tmp_path: Path) -> None:
    """No row is no error of ingestion: the snapshot has none, and no time range."""
    path = write_csv(tmp_path / "a.csv", [])
    ref = ingest(recipe_for(path), tmp_path / "out")
    assert (ref.rows, ref.time_min, ref.time_max) == (0, "", "")
    assert ref.columns == ("id", "day", "text")


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A SQLite database with one table."""
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("CREATE TABLE rows (id TEXT, day TEXT)")
        connection.execute("INSERT INTO rows VALUES ('1', '2025-01-01')")
    connection.close()
    return f"sqlite:///{tmp_path / 'rows.db'}"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM row", ("no such table: row", "source.query")),
        ("SELEC 1", ("SELEC 1", "single SELECT")),
        ("SELECT FROM WHERE", ("syntax error", "source.query")),
        ("", ("source.query is empty",)),
        ("SELECT 1; DROP TABLE rows", ("single SELECT",)),
        ("DELETE FROM rows", ("single SELECT",)),
        ("WITH x AS (SELECT 1) DELETE FROM rows", ("query fails",)),
        ("SELECT id, id FROM rows", ("'id'", "more than once", "AS")),
        ("SELECT x'ff' AS id, day FROM rows", ("'id'", "cast")),
    ],
)
def test_bad_queries(query: str, named: tuple[str, ...], database: str, tmp_path: Path) -> None:
    """SQL that is wrong, or would write, is refused; the table is left as it was."""
    line = refused(tmp_path, database, query=query)
    assert [part for part in named if part not in line] == [], line
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    connection.close()


def test_a_database_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """SQLite would make an empty database; ingestion does not."""
    line = refused(tmp_path, f"sqlite:///{tmp_path / 'none.db'}", query="SELECT 1")
    assert "no such file" in line
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg"])
def test_a_host_that_does_not_answer_is_tried_again_and_then_given_up(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded attempts, then an error that says that trying again can help; no password in it."""
    monkeypatch.setattr(locate, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("PILOTLINE_TEST_PASSWORD", "planted-secret")
    uri = scheme + "://me:${PILOTLINE_TEST_PASSWORD}@" + f"127.0.0.1:{free_port()}/rows.csv"
    query = {"query": "SELECT 1"} if scheme.startswith("postgresql") else {}
    line = refused(tmp_path, uri, TransientError, **query)
    assert "3 attempts" in line
    assert "planted-secret" not in line


def test_a_source_that_changed_is_not_taken_for_the_expected_one(tmp_path: Path) -> None:
    """Another content than the expected digest breaks integrity, and nothing is published."""
    path = write_csv(tmp_path / "a.csv")
    digest = ingest(recipe_for(path), tmp_path / "first").digest
    write_csv(path, [("9", "2025-01-09", "new")])
    with pytest.raises(IntegrityError, match="has changed"):
        ingest(recipe_for(path), tmp_path / "out", expected_digest=digest, store=tmp_path / "store")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "store").exists()


def test_a_file_that_changes_under_the_reader_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer at work gives an error, not a mixture."""
    from components.tables import delimited, read

    path = write_csv(tmp_path / "a.csv")
    whole = delimited.read

    def slow(*arguments: Any) -> pa.Table:
        table = whole(*arguments)
        with path.open("a") as stream:
            stream.write("4,2025-01-04,more\r\n")
        return table

    monkeypatch.setattr(read.delimited, "read", slow)
    assert "changed while it was read" in refused(tmp_path, path, TransientError)
