"""Parquet parts of the decision log: moved, read back, joined, dropped, and never half there."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import fsspec
import pytest

from components.core.errors import IntegrityError, TransientError
from components.serving.decision_log import DecisionLog, find_decision, parts, read_decisions, schema, shadows_after
from components.serving.decision_log.parts import Parts
from components.serving.decision_log.schema import connect, new_id
from tests.fakes.decision_record import record


def filled(path: Path, count: int = 25) -> list[str]:
    """A log of some decisions, each third with a shadow, the first with feedback; returns their ids."""
    ids = [new_id() for _ in range(count)]
    log = DecisionLog(path, "run-1")
    for i, decision_id in enumerate(ids):
        log.decision(**record(decision_id, text=None, score=None if i == 4 else 0.25))
        if i % 3 == 0:
            log.shadow(decision_id=decision_id, version="4", digest="e", ok=1, failure="", score=0.5, seconds=0.1)
    log.feedback(decision_id=ids[0], label="no", observed_at="2026-01-02T00:00:00+00:00").result(5)
    log.close()
    return ids


def move(path: Path, store: str) -> int:
    """Move everything that is there."""
    with closing(connect(path)) as connection:
        return Parts(connection, store).move(settled_seconds=-1.0)


def drop(path: Path, days: int) -> int:
    """Drop what is older."""
    with closing(connect(path)) as connection:
        return Parts(connection, "").drop(days)


def test_moved_rows_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, seals, shadows, feedback and single look-ups are the same from parts as from the active segment."""
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    path = tmp_path / "decisions.db"
    ids = filled(path)
    before = read_decisions(path)
    assert move(path, str(tmp_path / "decisions")) == 4  # 10 + 10 + 5 decisions and the feedback
    assert read_decisions(path) == before
    assert [row["id"] for row in before] == ids
    assert all(row["intact"] for row in before)
    assert find_decision(path, ids[0]) == before[0]
    assert before[0]["feedback_label"] == "no"
    assert shadows_after(path, 0) == []
    with closing(connect(path)) as connection:
        assert connection.execute("select count(*) from decisions").fetchone()[0] == 0
    assert move(path, str(tmp_path / "decisions")) == 0


def test_duckdb_reads_the_parts_beside_later_rows(tmp_path: Path) -> None:
    """Anybody's DuckDB reads them by one glob; rows that came later are still seen by the readers."""
    path = tmp_path / "decisions.db"
    ids = filled(path)
    move(path, str(tmp_path / "decisions"))
    later = filled(path, 3)
    glob = f"{tmp_path}/decisions/decisions/*/*.parquet"
    sql = f"select count(*), count(shadow_score), min(id), avg(score) from read_parquet('{glob}')"
    assert duckdb.sql(sql).fetchone() == (25, 9, min(ids), 0.25)
    told = duckdb.sql(f"select label from read_parquet('{tmp_path}/decisions/feedback/*/*.parquet')").fetchone()
    assert told == ("no",)
    assert [row["id"] for row in read_decisions(path)] == ids + later


def test_feedback_finds_a_decision_in_a_part(tmp_path: Path) -> None:
    """A label that comes late is joined; a stranger's id stays unknown."""
    path = tmp_path / "decisions.db"
    ids = filled(path)
    move(path, str(tmp_path / "decisions"))
    log = DecisionLog(path, "run-2")
    told = {"label": "yes", "observed_at": "2026-01-02T00:00:00+00:00"}
    log.feedback(decision_id=ids[7], **told).result(5)
    with pytest.raises(LookupError):
        log.feedback(decision_id=new_id(), **told).result(5)
    log.close()
    found = find_decision(path, ids[7])
    assert found is not None
    assert found["feedback_label"] == "yes"


def test_a_move_cut_short_at_any_place_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file, and between the file and the transaction that notes it."""
    for place in ("before", "after"):
        path = tmp_path / place / "decisions.db"
        ids = filled(path)
        put = parts._put

        def cut(url: str, content: bytes, place: str = place, put: object = put) -> None:
            if place == "after":
                put(url, content)  # type: ignore[operator]
            raise TransientError("cut")

        monkeypatch.setattr(parts, "_put", cut)
        with pytest.raises(TransientError):
            move(path, str(tmp_path / place / "decisions"))
        assert [row["id"] for row in read_decisions(path)] == ids
        monkeypatch.setattr(parts, "_put", put)
        later = filled(path, 2)
        move(path, str(tmp_path / place / "decisions"))
        assert [row["id"] for row in read_decisions(path)] == ids + later
        names = sorted((tmp_path / place / "decisions" / "decisions").rglob("*.parquet"))
        assert duckdb.sql(f"select count(*) from read_parquet({[str(n) for n in names]})").fetchone() == (27,)


def test_what_is_too_old_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and rows older than the recipe's days go, younger ones stay."""
    path = tmp_path / "decisions.db"
    filled(path)
    assert drop(path, 1) == 0
    past = (datetime.now(UTC) - timedelta(days=9)).isoformat(timespec="microseconds")
    with closing(connect(path)) as connection:
        connection.execute("update decisions set time = ? where seq <= 10", (past,))
    assert move(path, str(tmp_path / "decisions")) == 3  # two days of decisions, one of feedback
    assert drop(path, 8) == 1
    assert len(read_decisions(path)) == 15
    assert len(list((tmp_path / "decisions").rglob("*.parquet"))) == 2


def test_a_part_that_was_altered_or_is_gone_is_named(tmp_path: Path) -> None:
    """Nobody reads bytes that the log did not write."""
    path = tmp_path / "decisions.db"
    filled(path)
    move(path, str(tmp_path / "decisions"))
    part = next((tmp_path / "decisions" / "decisions").rglob("*.parquet"))
    content = part.read_bytes()
    part.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(IntegrityError, match=r"\.parquet: not the bytes"):
        read_decisions(path)
    part.unlink()
    with pytest.raises(IntegrityError, match="gone"):
        read_decisions(path)


def test_two_processes_of_one_home_do_not_move_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one writes a part the other leaves the rows alone; afterwards each row is there once."""
    path = tmp_path / "decisions.db"
    ids = filled(path)
    put, seen = parts._put, []

    def meanwhile(url: str, content: bytes) -> None:
        seen.append(move(path, str(tmp_path / "decisions")))
        put(url, content)

    monkeypatch.setattr(parts, "_put", meanwhile)
    assert move(path, str(tmp_path / "decisions")) == 2
    assert seen == [0, 0]
    assert [row["id"] for row in read_decisions(path)] == ids


def test_parts_lie_on_any_fsspec_store(tmp_path: Path) -> None:
    """An object store has no rename: the part is put in one request."""
    path = tmp_path / "decisions.db"
    ids = filled(path)
    store = f"memory://decision-log-{os.getpid()}"
    move(path, store)
    assert [row["id"] for row in read_decisions(path)] == ids
    assert len(fsspec.filesystem("memory").find(store)) == 2


def test_the_log_moves_settled_rows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open, beside the writing; what cannot be moved stays and the log goes on."""
    monkeypatch.setattr(Parts.move, "__defaults__", (-1.0,))
    path = tmp_path / "decisions.db"
    (tmp_path / "file").write_text("in the way")
    log = DecisionLog(path, "run-1", store=str(tmp_path / "file" / "x"), part_seconds=0.05)
    log.decision(**record(new_id()))
    log.close()
    assert log.healthy is False  # closed
    assert (log.error, len(read_decisions(path))) == ("", 1)
    log = DecisionLog(path, "run-1", store=str(tmp_path / "parts"), part_seconds=0.05)
    for _ in range(100):
        if list((tmp_path / "parts").rglob("*.parquet")):
            break
        closing_wait = log._closing.wait(0.05)
        assert not closing_wait
    log.close()
    assert list((tmp_path / "parts").rglob("*.parquet"))
    assert len(read_decisions(path)) == 1


def test_ids_tell_their_time() -> None:
    """Version 7 of RFC 9562: sorted by time; another id tells none."""
    ids = [new_id() for _ in range(200)]
    assert len(set(ids)) == 200
    told = schema.time_of(ids[0])
    assert told is not None
    assert abs((datetime.now(UTC) - datetime.fromisoformat(told)).total_seconds()) < 5
    assert all(found[12] == "7" and found[16] in "89ab" for found in ids)
    assert schema.time_of("f" * 32) is None
    assert schema.time_of("") is None
