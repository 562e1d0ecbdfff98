"""History tables: a project's SQL sees the rows and nothing else, and cannot look ahead."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from components.core.errors import UserError
from components.features.history import write_history
from components.features.repository import View
from tests.fakes.feature_rows import complaint_recipe, complaints, many_complaints, seen_by_sql

VIEW = View("past", "past", ("company",), ("number",))
CUT = pd.Timestamp("2023-05-01", tz="UTC")
GOOD = """
SELECT "Company" AS company, known_timestamp AS event_timestamp, known_timestamp AS created_timestamp,
       sum(sum(label)) OVER (PARTITION BY "Company" ORDER BY known_timestamp) AS number
FROM rows GROUP BY "Company", known_timestamp
"""


def _run(folder: Path, sql: str, **features: object) -> pd.DataFrame:
    repo = folder / "repo"
    repo.mkdir()
    (repo / "past.sql").write_text(sql)
    recipe = complaint_recipe(features=features)
    write_history(repo, [VIEW], seen_by_sql(complaints(many_complaints(400)), recipe), folder / "out", [CUT])
    return pq.read_table(folder / "out" / "past.parquet").to_pandas()


def test_a_table_is_sorted_and_ends_when_everything_is_known(tmp_path: Path) -> None:
    """Sorted by key and time; the last row is known at the last day plus the delay."""
    table = _run(tmp_path, GOOD)
    assert table.equals(table.sort_values(["company", "event_timestamp"]).reset_index(drop=True))
    last = pd.Timestamp("2023-01-01", tz="UTC") + pd.Timedelta(days=max(row[0] for row in many_complaints(400)) + 30)
    assert table["event_timestamp"].max() == last


def test_records_made_after_the_end_are_left_out(tmp_path: Path) -> None:
    """A record that was made only later is not known at the end of the rows."""
    late = GOOD.replace("known_timestamp AS created", "known_timestamp + INTERVAL 1 YEAR AS created")
    assert _run(tmp_path, late).empty


@pytest.mark.parametrize(
    "sql",
    [
        GOOD.replace(
            "known_timestamp AS event", "CAST(known_timestamp - INTERVAL 30 DAY AS TIMESTAMP) AS event"
        ).replace("known_timestamp AS created", "known_timestamp - INTERVAL 30 DAY AS created"),
        GOOD.replace(" ORDER BY known_timestamp", ""),
        GOOD.replace(
            'sum(sum(label)) OVER (PARTITION BY "Company" ORDER BY known_timestamp)', "(SELECT avg(label) FROM rows)"
        ),
        GOOD.replace("sum(label)", "count(*) FILTER (\"Company response to consumer\" LIKE '%relief%')").replace(
            "known_timestamp", "rows.event_timestamp"
        ),
        GOOD.replace("FROM rows", "FROM rows, (SELECT max(event_timestamp) AS newest FROM rows)").replace(
            "sum(label)", "sum(date_diff('day', rows.event_timestamp, newest))"
        ),
    ],
    ids=["known too early", "whole history", "overall average", "raw label column", "newest row"],
)
def test_looking_ahead_is_refused(tmp_path: Path, sql: str) -> None:
    """A value that later rows change is found by making the table as it was, whatever the SQL's form."""
    with pytest.raises(UserError, match=r"past\.sql: looks ahead"):
        _run(tmp_path, sql)
    assert not (tmp_path / "out" / "past.parquet").exists()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nonsense", "past.sql: Binder Error"),
        ("SELEC 1", "past.sql: Parser Error"),
        (GOOD.replace("AS number", "AS other"), "returns no column 'number'"),
        (GOOD.replace("known_timestamp AS created_timestamp", "1 AS x"), "returns no column 'created_timestamp'"),
        (GOOD.replace('"Company" AS company,', "1 AS company,"), "join key 'company' is int32, not text"),
        (GOOD.replace("sum(sum(label))", 'max(max("State"))'), "features numbers"),
        (GOOD + " UNION ALL " + GOOD, "rows repeat a key and moment"),
        (GOOD.replace('"Company" AS company', "nullif(\"Company\", 'Company 1') AS company"), "rows have no company"),
        ("SELECT * FROM read_csv('/etc/passwd')", r"reads read_csv\(\), and there is nothing but rows"),
        ("SELECT * FROM '/etc/passwd'", r"reads '/etc/passwd', and there is nothing but rows"),
        ("COPY rows TO 'stolen.csv'", "past.sql: holds COPY; write one SELECT over rows"),
        ("INSTALL httpfs", "past.sql: holds LOAD; write one SELECT over rows"),
        ("ATTACH 'other.db'", "past.sql: holds ATTACH"),
        ("SET threads = 1; " + GOOD, "past.sql: holds SET and SELECT"),
        (GOOD.replace("FROM rows", "FROM pilotline_clean"), "reads 'pilotline_clean', and there is nothing but rows"),
        (GOOD.replace("FROM rows", "FROM query_table('pilotline_clean') AS rows"), r"reads query_table\(\)"),
        (GOOD.replace("FROM rows", "FROM memory.main.pilotline_clean AS rows"), "reads 'memory.main.pilotline_clean'"),
        (
            "WITH pilotline_clean AS (SELECT * FROM pilotline_clean) "
            + GOOD.replace("FROM rows", "FROM pilotline_clean AS rows"),
            "past.sql: ",
        ),
        ("SELECT * FROM duckdb_views()", r"reads duckdb_views\(\)"),
        ("SELECT * FROM (SHOW ALL TABLES)", "reads SHOW or DESCRIBE"),
    ],
)
def test_bad_sql_is_refused_in_one_line(tmp_path: Path, sql: str, words: str) -> None:
    """The file and what is wrong with it; SQL reaches no file and no network."""
    with pytest.raises(UserError, match=words) as refused:
        _run(tmp_path, sql)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The SQL file that features.py asks for is not there."""
    seen = seen_by_sql(complaints(many_complaints(5)), complaint_recipe())
    with pytest.raises(UserError, match=r"past\.sql: cannot be read"):
        write_history(tmp_path, [VIEW], seen, tmp_path / "out", [])


def test_sql_reads_the_recipe_s_values(tmp_path: Path) -> None:
    """The delay and the time formats are variables, and a row never knows itself even with no delay."""
    sql = GOOD.replace(
        'sum(sum(label)) OVER (PARTITION BY "Company" ORDER BY known_timestamp)',
        "getvariable('label_delay_days') + len(getvariable('time_formats')) * 100",
    )
    assert set(_run(tmp_path, sql, label_delay_days=9)["number"]) == {209.0}
