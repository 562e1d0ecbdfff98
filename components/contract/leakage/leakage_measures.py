"""What DuckDB sees of a training set and the clean rows behind it, read in place: counts for the leakage rules.

The only module of the guards that imports DuckDB. Queries name columns of the data, so every name is quoted.
"""

# ruff: noqa: S608 - the queries are ours; names and values of the data are quoted by _name and _text
from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from components.contract.leakage.near_text import Texts
from components.contract.leakage.rules import Counts, Mark

SPLITS = ("train", "validation", "test")
WORD = r"[\p{L}\p{N}]+"
MARKS = r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]+"
LONGEST = 20_000  # characters of a text that are looked at
TOKEN_ROWS = 200_000  # rows whose tokens are counted, drawn by their key
ASKED = 20_000  # texts of a split that are looked up in training, drawn by their key
PIECE = 20_000  # training texts compared at a time
COMMON = 5  # values of an outcome column that a feature is held against


@dataclass(frozen=True)
class Shared:
    """A key that stands more than once: in two splits, or twice in one."""

    within: int
    between: int
    examples: tuple[str, ...]


class Measures:
    """A connection to the three splits (`splits`) and the clean rows (`clean`, with row_id, outcome and half)."""

    def __init__(
        self, training_set: Path, clean: Path, key: Sequence[str], label: str, positive: Sequence[str]
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="pilotline-guard-")  # where DuckDB spills
        self._link = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": False, "temp_directory": self._scratch.name}
        )
        self._link.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        parts = [
            f"SELECT {number}::TINYINT AS pilotline_split, * FROM {_file(training_set / f'{name}.parquet')}"
            for number, name in enumerate(SPLITS)
        ]
        self._link.execute(f"CREATE VIEW splits AS {' UNION ALL BY NAME '.join(parts)}")
        wanted = ", ".join(_text(value) for value in positive)
        own = f"{_row_id(key)} AS pilotline_row, {_name(label)} IN ({wanted}) AS pilotline_outcome"
        source = f"read_parquet({_text(str(clean))}, file_row_number = true)"
        self._link.execute(
            f"CREATE VIEW clean AS SELECT * EXCLUDE (file_row_number), {own}, "
            f"(file_row_number % 2)::TINYINT AS pilotline_half FROM {source}"
        )

    def __enter__(self) -> Measures:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()
        self._scratch.cleanup()

    def outcomes(self, split: int | None = None) -> tuple[int, int]:
        """Positive and negative rows of a split, or of all."""
        return self._pair(f"SELECT {_OUTCOMES} FROM splits {_of(split)}")

    def by_value(self, feature: str, split: int | None = None) -> Counts:
        """Rows of a numeric column of the splits by value, NaN and null left out."""
        column = _name(feature)
        where = f"{_of(split) or 'WHERE true'} AND {column} IS NOT NULL AND NOT isnan({column})"
        return self._counts(f"SELECT {column}::DOUBLE, {_OUTCOMES} FROM splits {where} GROUP BY 1")

    def has_value(self, feature: str) -> Mark:
        """Rows of the splits with a value in a numeric column."""
        column = _name(feature)
        return Mark(
            "a value",
            *self._pair(f"SELECT {_OUTCOMES} FROM splits WHERE {column} IS NOT NULL AND NOT isnan({column})"),
        )

    def text_length(self) -> Counts:
        """Rows by the length of their text in characters."""
        return self._counts(f"SELECT length(text)::DOUBLE, {_OUTCOMES} FROM splits GROUP BY 1")

    def tokens(self, share: float) -> tuple[list[Mark], tuple[int, int]]:
        """Words and runs of signs that stand in `share` of an outcome's rows or more, and the rows looked at."""
        every = max(1, -(-sum(self.outcomes()) // TOKEN_ROWS))
        drawn = f"SELECT row_id, label, text FROM splits WHERE hash(row_id) % {every} = 0"
        rows = self._pair(f"SELECT {_OUTCOMES} FROM ({drawn})")
        least = max(1, int(share * min(rows)))
        found = self._link.execute(
            f"""SELECT token, {_OUTCOMES}, min(row_id), max(row_id) FROM (
                SELECT row_id, label,
                unnest(list_distinct(regexp_extract_all(lower(left(text, {LONGEST})), {_text(MARKS)}))) AS token
                FROM ({drawn})) GROUP BY token HAVING count(*) >= {least} ORDER BY token"""
        ).fetchall()
        return [Mark(repr(one[0]), one[1], one[2], tuple(dict.fromkeys(one[3:]))) for one in found], rows

    def columns(self) -> list[str]:
        """Columns of the clean rows."""
        names = self._link.execute("DESCRIBE clean").fetchall()
        return [row[0] for row in names if not row[0].startswith("pilotline_")]

    def clean_outcomes(self) -> tuple[int, int]:
        """Positive and negative clean rows."""
        return self._pair(f"SELECT {_CLEAN_OUTCOMES} FROM clean")

    def column_has_value(self, column: str, missing: Sequence[str]) -> Mark:
        """Clean rows with a value in a column."""
        return Mark("a value", *self._pair(f"SELECT {_CLEAN_OUTCOMES} FROM clean WHERE {_present(column, missing)}"))

    def column_numbers(self, column: str, missing: Sequence[str]) -> Counts | None:
        """Clean rows by the number in a text column; None where under 95 % of its values read as one."""
        present = _present(column, missing)
        number = f"try_cast({_name(column)} AS DOUBLE)"
        read = self._row(f"SELECT count(*), count({number}) FILTER (isfinite({number})) FROM clean WHERE {present}")
        if not read[0] or read[1] < 0.95 * read[0]:
            return None
        where = f"{present} AND {number} IS NOT NULL AND isfinite({number})"
        return self._counts(f"SELECT {number}, {_CLEAN_OUTCOMES} FROM clean WHERE {where} GROUP BY 1")

    def column_categories(self, column: str, missing: Sequence[str]) -> np.ndarray:
        """Clean rows by value, half and outcome, shape (values, 2, 2); values of single rows are one, the first."""
        halves = [
            f"count(*) FILTER (pilotline_half = {half} AND pilotline_outcome = {outcome})"
            for half in (0, 1)
            for outcome in ("false", "true")
        ]
        sums = ", ".join(f"sum(c{number})::BIGINT" for number in range(4))
        names = ", ".join(f"{half} AS c{number}" for number, half in enumerate(halves))
        groups = f"SELECT {names} FROM clean WHERE {_present(column, missing)} GROUP BY hash({_name(column)})"
        query = f"""WITH groups AS ({groups})
            SELECT {", ".join(f"coalesce({one}, 0)" for one in sums.split(", "))} FROM groups WHERE c0+c1+c2+c3 = 1
            UNION ALL SELECT c0, c1, c2, c3 FROM groups WHERE c0+c1+c2+c3 > 1"""
        return np.array(self._link.execute(query).fetchall(), dtype=np.int64).reshape(-1, 2, 2)

    def own_value(self, feature: str, column: str, missing: Sequence[str]) -> tuple[int, int]:
        """Rows whose column of the same row is a number other than its commonest, and how many equal the feature."""
        number, seen = f"try_cast(c.{_name(column)} AS DOUBLE)", f"s.{_name(feature)}"
        return self._pair(
            f"""WITH pairs AS (
                SELECT {number} AS number, {seen} AS seen FROM splits s JOIN clean c ON c.pilotline_row = s.row_id
                WHERE {_present(column, missing, "c.")} AND NOT isnan({seen}) AND {number} IS NOT NULL)
            SELECT count(*), count(*) FILTER (abs(seen - number) <= 1e-9 * greatest(1, abs(number)))
            FROM pairs WHERE number <> (SELECT mode(number) FROM pairs)"""
        )

    def own_category(self, feature: str, column: str, missing: Sequence[str]) -> list[tuple[str, Counts]]:
        """For the commonest values of a column, rows by the feature's value: with this value of the column, or not."""
        present = _present(column, missing)
        common = self._link.execute(
            f"SELECT {_name(column)} FROM clean WHERE {present} GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {COMMON}"
        ).fetchall()
        joined = f"splits s JOIN clean c ON c.pilotline_row = s.row_id WHERE NOT isnan(s.{_name(feature)})"
        found = []
        for (value,) in common:
            same = f"c.{_name(column)} IS NOT DISTINCT FROM {_text(value)}"
            sums = f"count(*) FILTER ({same}), count(*) FILTER (NOT {same})"
            found.append((value, self._counts(f"SELECT s.{_name(feature)}, {sums} FROM {joined} GROUP BY 1")))
        return found

    def shared_keys(self) -> Shared:
        """Keys that stand more than once among the splits."""
        query = """SELECT count(*) FILTER (parts = 1), count(*) FILTER (parts > 1), min(row_id), max(row_id) FROM (
            SELECT row_id, count(DISTINCT pilotline_split) AS parts FROM splits GROUP BY row_id HAVING count(*) > 1)"""
        within, between, *examples = self._row(query)
        return Shared(within, between, tuple(dict.fromkeys(one for one in examples if one is not None)))

    def drawn_texts(self, split: int, keys: Sequence[str]) -> tuple[Texts, list[str]]:
        """Up to ASKED texts of a split, told apart by these columns, and the keys of their rows."""
        tail = f"WHERE pilotline_split = {split} ORDER BY hash(row_id), row_id LIMIT {ASKED}"
        table = self._link.execute(_text_query(keys, tail)).to_arrow_table()
        return _texts(table), table["row_id"].to_pylist()

    def training_texts(self, keys: Sequence[str]) -> Iterator[Texts]:
        """All training texts, in pieces."""
        with closing(self._link.cursor()) as cursor:
            reader = cursor.execute(_text_query(keys, "WHERE pilotline_split = 0")).to_arrow_reader(PIECE)
            for batch in reader:
                yield _texts(pa.Table.from_batches([batch]))

    def training_moments(self) -> np.ndarray:
        """When the training rows happened, in seconds, in order."""
        query = "SELECT epoch(event_timestamp)::BIGINT AS moment FROM splits WHERE pilotline_split = 0 ORDER BY moment"
        return np.asarray(self._link.execute(query).fetchnumpy()["moment"], dtype=np.int64)

    def row_ids(self, numbers: Sequence[int]) -> dict[int, str]:
        """Keys of training rows by the numbers that `Texts` gives them."""
        if not numbers:
            return {}
        wanted = ", ".join(str(int(number)) for number in numbers)
        query = f"SELECT {_NUMBER}, row_id FROM splits WHERE pilotline_split = 0 AND {_NUMBER} IN ({wanted})"
        return dict(self._link.execute(query).fetchall())

    def known_later(self, table: Path, keys: Sequence[str], feature: str) -> tuple[int, int]:
        """Rows with a value, and those whose value was not known of their entity when they happened."""
        column, joined = _name(feature), ", ".join(_name(key) for key in keys)
        return self._pair(
            f"""WITH known AS (
                SELECT {joined}, {column}, min(greatest(event_timestamp, created_timestamp)) AS first
                FROM {_file(table)} WHERE {column} IS NOT NULL GROUP BY ALL)
            SELECT count(*), count(*) FILTER (known.first IS NULL OR known.first > s.event_timestamp)
            FROM splits s LEFT JOIN known USING ({joined}, {column})
            WHERE s.{column} IS NOT NULL AND NOT isnan(s.{column})"""
        )

    def history_columns(self, table: Path) -> list[str]:
        """Columns of a history table."""
        return [row[0] for row in self._link.execute(f"DESCRIBE SELECT * FROM {_file(table)}").fetchall()]

    def _counts(self, query: str) -> Counts:
        table = self._link.execute(query).fetchnumpy()
        scores, positives, negatives = (np.asarray(column) for column in table.values())
        return Counts(scores.astype(float), positives.astype(np.int64), negatives.astype(np.int64))

    def _row(self, query: str) -> tuple[Any, ...]:
        row = self._link.execute(query).fetchone()
        assert row is not None
        return tuple(row)

    def _pair(self, query: str) -> tuple[int, int]:
        first, second = self._row(query)
        return int(first), int(second)


_OUTCOMES = "count(*) FILTER (label = 1), count(*) FILTER (label = 0)"
_CLEAN_OUTCOMES = "count(*) FILTER (pilotline_outcome), count(*) FILTER (NOT pilotline_outcome)"
_NUMBER = "(hash(row_id) >> 1)::BIGINT"


def _text_query(keys: Sequence[str], tail: str) -> str:
    key = f"hash({', '.join(_name(name) for name in keys)})" if keys else "0::UBIGINT"
    words = f"list_transform(regexp_extract_all(lower(left(text, {LONGEST})), {_text(WORD)}), w -> hash(w))"
    named = f"{_NUMBER} AS number, {key} AS key, {words} AS words, epoch(event_timestamp)::BIGINT AS moment"
    return f"SELECT row_id, {named} FROM splits {tail}"


def _texts(table: pa.Table) -> Texts:
    words = table["words"].combine_chunks()
    offsets = np.asarray(words.offsets, dtype=np.int64)
    flat = np.asarray(words.values)[offsets[0] : offsets[-1]]
    return Texts(
        flat.astype(np.uint64),
        offsets[1:] - offsets[0],
        np.asarray(table["number"], dtype=np.int64),
        np.asarray(table["key"], dtype=np.uint64),
        np.asarray(table["moment"], dtype=np.int64),
    )


def _row_id(key: Sequence[str]) -> str:
    """The key of a clean row as the training set writes it: several columns joined by | with escapes."""
    if len(key) == 1:
        return _name(key[0])
    parts = [f"replace(replace({_name(name)}, '\\', '\\\\'), '|', '\\|')" for name in key]
    return " || '|' || ".join(parts)


def _of(split: int | None) -> str:
    return "" if split is None else f"WHERE pilotline_split = {split}"


def _present(column: str, missing: Sequence[str], table: str = "") -> str:
    name = f"{table}{_name(column)}"
    texts = ", ".join(_text(text) for text in dict.fromkeys(("", *missing)))
    return f"({name} IS NOT NULL AND {name} NOT IN ({texts}))"


def _file(path: Path) -> str:
    return f"read_parquet({_text(str(path))})"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
