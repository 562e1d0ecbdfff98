"""SQL in a contract reads the batch and nothing else: refused when loaded, and stopped by a locked connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from components.contract.engines.sql_rules import Limits, checked_query, lock, run_query
from components.contract.standard.rules import Column, Rule
from components.contract.standard.yaml_file import Node
from components.core.errors import UserError

COLUMNS = (Column("a", logical_type="integer"), Column("b c"), Column("d", logical_type="date"), Column("user"))
ATTACKS = (
    "DROP TABLE t",
    "DELETE FROM t",
    "INSERT INTO t SELECT * FROM t",
    "UPDATE t SET a = 1",
    "CREATE TABLE x AS SELECT * FROM t",
    "CREATE MACRO m() AS 1",
    "SELECT count(*) FROM t; DROP TABLE t",
    "SELECT count(*) FROM t; SELECT count(*) FROM t",
    "COPY t TO '{file}'",
    "COPY (SELECT * FROM t) TO '{file}' (FORMAT csv)",
    "EXPORT DATABASE '{folder}'",
    "ATTACH '{file}' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "CALL duckdb_settings()",
    "PREPARE p AS SELECT 1",
    "EXPLAIN ANALYZE SELECT count(*) FROM t",
    "BEGIN TRANSACTION",
    "CHECKPOINT",
    "VACUUM",
    "DESCRIBE t",
    "SHOW ALL TABLES",
    "SUMMARIZE t",
    "SELECT count(*) FROM '{file}'",
    'SELECT count(*) FROM "{file}"',
    "SELECT count(*) FROM read_csv('{file}')",
    "SELECT count(*) FROM read_csv_auto('{file}')",
    "SELECT count(*) FROM read_parquet('{file}')",
    "SELECT count(*) FROM read_json('{file}')",
    "SELECT count(*) FROM read_text('{file}')",
    "SELECT count(*) FROM read_blob('{file}')",
    "SELECT count(*) FROM glob('{folder}/*')",
    "SELECT count(*) FROM sniff_csv('{file}')",
    "SELECT count(*) FROM parquet_metadata('{file}')",
    "SELECT count(*) FROM sqlite_scan('{file}', 't')",
    "SELECT count(*) FROM 'https://example.org/x.csv'",
    "SELECT count(*) FROM 's3://bucket/x.parquet'",
    "SELECT count(*) FROM t WHERE a IN (SELECT 1 FROM '{file}')",
    "SELECT count(*) FROM t JOIN '{file}' f ON true",
    "SELECT (SELECT count(*) FROM read_text('{file}')) FROM t LIMIT 1",
    "WITH x AS (SELECT * FROM '{file}') SELECT count(*) FROM x, t",
    'WITH "{file}" AS (SELECT * FROM "{file}") SELECT count(*) FROM "{file}", t',
    "SELECT count(*) FROM t, (WITH other AS (SELECT 1) SELECT * FROM other), other",
    "SELECT count(*) FROM t UNION ALL SELECT count(*) FROM other",
    "SELECT count(*) FROM t ORDER BY (SELECT count(*) FROM other)",
    "SELECT count(*) FROM t LIMIT (SELECT count(*) FROM other)",
    "SELECT count(*) FILTER ((SELECT count(*) FROM other) > 0) FROM t",
    "SELECT sum(a) OVER (ORDER BY (SELECT count(*) FROM other)) FROM t LIMIT 1",
    "SELECT count(*) FROM other",
    "SELECT count(*) FROM memory.main.other",
    "SELECT count(*) FROM main.t",
    "SELECT count(*) FROM information_schema.tables, t",
    "SELECT count(*) FROM duckdb_settings(), t",
    "SELECT count(*) FROM duckdb_secrets(), t",
    "SELECT count(*) FROM sqlite_master, t",
    "SELECT count(*) FROM pg_catalog.pg_tables, t",
    "SELECT count(*) FROM query('SELECT 1'), t",
    "SELECT count(*) FROM query_table('t')",
    "SELECT count(*) FROM range(1000000000000), t",
    "SELECT length(getenv('HOME')) FROM t LIMIT 1",
    "SELECT length(main.getenv('HOME')) FROM t LIMIT 1",
    "SELECT length('HOME'.getenv()) FROM t LIMIT 1",
    "SELECT length(list_transform(['HOME'], x -> getenv(x))[1]) FROM t LIMIT 1",
    "SELECT count(current_setting('threads')) FROM t",
    "SELECT count(getvariable('x')) FROM t",
    "SELECT nextval('s') FROM t",
    "SELECT sum(random()) FROM t",
    "SELECT count(*) FROM t WHERE d > current_date",
    "SELECT count(*) FROM t WHERE d > now()",
    "SELECT count(current_user) FROM t",
    "SELECT count(version()) FROM t",
    "SELECT sum(length(repeat('x', 1000000000))) FROM t",
    "SELECT count(*) FROM t TABLESAMPLE 10%",
    "SELECT count(*) FROM t USING SAMPLE 3 ROWS",
    "WITH RECURSIVE u(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM u) SELECT count(*) FROM u, t",
    "SELECT $1 FROM t",
    "SELECT count(*) FROM t WHERE a = ?",
    "SELECT 1",
    'SELECT max("b c") FROM t',
    "SELECT a, a FROM t",
    "SELECT count(zz) FROM t",
    "SELEC 1",
    "/* */",
    "",
)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection with the batch, another table, and a file beside."""
    (tmp_path / "secret.csv").write_text("x\nsecret\n")
    connection = duckdb.connect(":memory:", config={"memory_limit": "128MB", "threads": 1})
    connection.execute(
        "CREATE TABLE t AS SELECT i AS a, 'x' || i AS \"b c\", DATE '2025-01-01' AS d FROM range(1000) r(i)"
    )
    connection.execute("CREATE TABLE other AS SELECT 1 AS x")
    lock(connection)
    yield connection
    connection.close()


def _check(query: str) -> str:
    return checked_query(Node(query, "c.yaml", "quality[0].query"), "t", COLUMNS, COLUMNS[0])


def _rule(query: str) -> Rule:
    return Rule("q", "sql", (), "x", engine="duckdb", query=query)


@pytest.mark.parametrize("attack", ATTACKS)
def test_anything_but_one_number_from_the_batch_is_refused(attack: str, tmp_path: Path) -> None:
    """One line with the place, before anything runs; nothing is written."""
    text = attack.replace("{file}", str(tmp_path / "secret.csv")).replace("{folder}", str(tmp_path))
    (tmp_path / "secret.csv").write_text("x\n1\n")
    with pytest.raises(UserError, match=r"^contract c\.yaml: quality\[0\]\.query: ") as raised:
        _check(text)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize("attack", [text for text in ATTACKS if "{f" in text and not text.startswith('WITH "')])
def test_a_locked_connection_stops_what_reaches_for_files(
    attack: str, locked: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """The second fence alone: the same attacks, run without the check, read and write nothing."""
    before = (tmp_path / "secret.csv").read_bytes()
    text = attack.replace("{file}", str(tmp_path / "secret.csv")).replace("{folder}", str(tmp_path))
    seen = run_query(locked, _rule(text))
    assert seen.error, seen
    assert (tmp_path / "secret.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


@pytest.mark.parametrize(
    "text",
    [
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/x.db' AS x",
    ],
)
def test_a_locked_connection_stays_locked(text: str, locked: duckdb.DuckDBPyConnection) -> None:
    """No setting can be changed back and nothing be loaded."""
    assert run_query(locked, _rule(text)).error


def test_a_locked_connection_reads_the_batch_in_place_and_no_file_beside_it(tmp_path: Path) -> None:
    """Only the paths that are named stay readable."""
    duckdb.execute(f"COPY (SELECT 7 AS a) TO '{tmp_path / 'batch.parquet'}'")
    duckdb.execute(f"COPY (SELECT 8 AS a) TO '{tmp_path / 'other.parquet'}'")
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{tmp_path / 'batch.parquet'}')")
        lock(connection, [tmp_path / "batch.parquet"])
        assert run_query(connection, _rule("SELECT a FROM t")).value == 7
        assert run_query(connection, _rule(f"SELECT a FROM read_parquet('{tmp_path / 'other.parquet'}')")).error
        assert run_query(connection, _rule(f"SELECT a FROM read_parquet('{tmp_path}/*.parquet')")).error


def test_variables_of_the_process_are_no_tables(locked: duckdb.DuckDBPyConnection) -> None:
    """DuckDB reads Python's data frames by their variable's name; a locked connection does not."""
    pd = pytest.importorskip("pandas")
    secret_frame = pd.DataFrame({"x": [1]})
    assert len(secret_frame) == 1
    assert run_query(locked, _rule("SELECT count(*) FROM secret_frame")).error


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT count(*) FROM {object} WHERE {property} >= 990", 10),
        ("select max({column}) - min({field}) from ${table};", 999),
        ('SELECT count(DISTINCT "b c") FROM "{object}"', 1000),
        ("WITH small AS (SELECT a FROM T WHERE a < 5) SELECT count(*) FROM small", 5),
        ("SELECT count(*) FROM t x JOIN t y ON x.a = y.a + 1", 999),
        ("SELECT avg(a) FROM t WHERE d < DATE '2025-01-01' + INTERVAL 1 DAY", 499.5),
        ("SELECT count(*) = 1000 FROM t", 1),
        ("FROM t SELECT count(*) FILTER (regexp_matches(\"b c\", '^x1'))", 111),
        ("SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY d ORDER BY a) AS r FROM t) WHERE r > 900", 100),
        ("SELECT count(*) FROM t -- all of it", 1000),
    ],
)
def test_honest_queries_run(query: str, value: float, locked: duckdb.DuckDBPyConnection) -> None:
    """Placeholders, joins of the batch with itself, named queries, windows and plain functions."""
    seen = run_query(locked, _rule(_check(query)))
    assert (seen.value, seen.error) == (value, "")


def test_a_column_that_is_named_like_a_value_of_the_session_is_a_column() -> None:
    """`user` is declared, `current_user` is not."""
    assert _check('SELECT count(user) FROM t WHERE "user" IS NULL')


def test_a_runaway_query_is_interrupted_and_fails(locked: duckdb.DuckDBPyConnection) -> None:
    """It ends soon after its time, and the connection answers the next one."""
    query = _check("SELECT count(*) FROM t w, t x, t y, t z WHERE w.a + x.a + y.a + z.a = 5")
    begun = time.monotonic()
    seen = run_query(locked, _rule(query), Limits(seconds=0.5))
    assert "interrupted" in seen.error
    assert time.monotonic() - begun < 10
    assert run_query(locked, _rule(_check("SELECT count(*) FROM t"))).value == 1000


def test_a_query_that_needs_too_much_memory_fails(locked: duckdb.DuckDBPyConnection) -> None:
    """Doubling a text thirty times ends at the memory limit."""
    steps = ["s0 AS (SELECT 'x' AS s FROM t LIMIT 1)"]
    steps += [f"s{n} AS (SELECT s || s AS s FROM s{n - 1})" for n in range(1, 34)]
    seen = run_query(locked, _rule(_check(f"WITH {', '.join(steps)} SELECT length(s) FROM s33")))
    assert "Memory" in seen.error


@pytest.mark.parametrize(
    "query",
    ["SELECT a FROM t", "SELECT a FROM t WHERE a < 0", "SELECT max(a) FROM t WHERE a < 0", "SELECT 1.0 / 0 FROM t"],
)
def test_no_single_number_is_a_failed_rule(query: str, locked: duckdb.DuckDBPyConnection) -> None:
    """Many rows, none, null and infinity."""
    assert run_query(locked, _rule(query)).error


@pytest.mark.parametrize(
    "query",
    [
        "WITH t AS (SELECT 0 AS n) SELECT n FROM t",
        "WITH T AS (SELECT count(*) AS n FROM t) SELECT n FROM T",
        'WITH "t" AS MATERIALIZED (SELECT 0 AS n) SELECT n FROM t',
        "SELECT (WITH t AS (SELECT 0 AS n) SELECT n FROM t)",
        "SELECT count(*) FROM (WITH t AS (SELECT 0 AS n) SELECT n FROM t)",
        "WITH x AS (SELECT 1 AS one) , t AS (SELECT one FROM x) SELECT count(*) FROM t",
        "WITH x AS (SELECT a FROM t) SELECT 0",
        "WITH x AS MATERIALIZED (SELECT a FROM t) SELECT 0",
        "WITH x AS (SELECT a FROM t), y AS (SELECT 0 AS n) SELECT n FROM y",
        "SELECT count(*) FROM (SELECT 1) t",
    ],
)
def test_a_query_that_hides_the_batch_or_leaves_it_unread_is_refused(query: str) -> None:
    """A named query called like the batch, or one that reads it and is read by nobody."""
    with pytest.raises(UserError, match=r"hides the batch|does not read the batch"):
        _check(query)


@pytest.mark.parametrize(
    "query",
    [
        "WITH x AS (SELECT a FROM t), y AS (SELECT a FROM x) SELECT count(*) FROM y",
        "WITH x AS MATERIALIZED (SELECT a FROM t) SELECT count(*) FROM x",
        "SELECT (SELECT count(*) FROM t)",
    ],
)
def test_a_query_that_reads_the_batch_through_others_is_read(query: str) -> None:
    """Named queries and subqueries carry it."""
    assert _check(query)
