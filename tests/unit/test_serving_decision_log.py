"""The decision log on its own."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import TransientError, UserError
from components.core.processes import wait_until
from components.serving.decision_log import (
    ConflictingFeedbackError,
    DecisionLog,
    UnknownDecisionError,
    find_decision,
    kept_text,
    read_decisions,
    schema,
    shadows_after,
    writer,
)

SHA_OF_HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def record(number: int, **changes: Any) -> dict[str, Any]:
    """A decision's values."""
    return {
        "id": f"{number:032x}",
        "status": "ok",
        "failure": "",
        "drawn": "stable",
        "weight": 0.5,
        "answered_by": "stable",
        "version": "3",
        "digest": "d",
        "label": "yes",
        "score": 0.75,
        "threshold": 0.5,
        "prompt_digest": "p",
        "seconds": 0.01,
        "model_seconds": 0.005,
        "entities": {"shop": "a"},
        "features": {"count": {"value": 1.0, "as_of": "", "fresh": True}},
    } | changes


def test_every_record_queued_before_close_is_read_back_in_order(tmp_path: Path) -> None:
    """Closing flushes; more records than one batch keep their order and their values."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    for number in range(1200):
        log.decision(**record(number))
    log.close()
    found = read_decisions(tmp_path / "d.db", "run-1")
    assert [row["id"] for row in found] == [f"{number:032x}" for number in range(1200)]
    assert found[0]["entities"] == {"shop": "a"}
    assert found[0]["features"]["count"]["value"] == 1.0
    assert not read_decisions(tmp_path / "d.db", "run-2")


def test_a_decision_joins_its_shadow_and_its_feedback(tmp_path: Path) -> None:
    """One look-up by id gives the whole story."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    log.decision(**record(1))
    log.shadow(decision_id=record(1)["id"], version="4", digest="e", ok=1, failure="", score=0.5, seconds=0.1)
    log.feedback(decision_id=record(1)["id"], label="no", observed_at="2026-01-02T00:00:00+00:00").result(5)
    log.close()
    found = find_decision(tmp_path / "d.db", record(1)["id"])
    assert found is not None
    assert (found["shadow_score"], found["shadow_version"], found["feedback_label"]) == (0.5, "4", "no")
    assert find_decision(tmp_path / "d.db", "0" * 32) is None
    assert [row["decision_id"] for row in shadows_after(tmp_path / "d.db", 0)] == [record(1)["id"]]


def test_feedback_is_idempotent_and_neither_overwritten_nor_taken_for_unknown_decisions(tmp_path: Path) -> None:
    """The same label again is fine, another is a conflict, a stranger's id is unknown; order in the queue is kept."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    told = {"decision_id": record(1)["id"], "label": "no", "observed_at": "2026-01-02T00:00:00+00:00"}
    log.decision(**record(1))
    first, again = log.feedback(**told), log.feedback(**told)
    other, stranger = log.feedback(**told | {"label": "yes"}), log.feedback(**told | {"decision_id": "f" * 32})
    assert first.result(5) is None
    assert again.result(5) is None
    with pytest.raises(ConflictingFeedbackError):
        other.result(5)
    with pytest.raises(UnknownDecisionError):
        stranger.result(5)
    log.close()


def test_a_disk_that_refuses_makes_the_log_unhealthy_and_fails_who_waits(tmp_path: Path) -> None:
    """Nothing pretends to be written."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    with sqlite3.connect(tmp_path / "d.db") as other:
        other.execute("DROP TABLE decisions")
    failing = log.feedback(decision_id="0" * 32, label="no", observed_at="x")
    with pytest.raises(TransientError, match="decision log"):
        failing.result(5)
    assert not log.healthy
    log.close()


def test_a_full_queue_refuses_instead_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request's time is never spent on the disk."""
    monkeypatch.setattr(writer, "QUEUE_LIMIT", 3)
    log = DecisionLog(tmp_path / "d.db", "run-1")
    blocker = sqlite3.connect(tmp_path / "d.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientError, match="waiting for the disk"):
        for number in range(1000):
            log.decision(**record(number))
    assert not log.healthy
    blocker.execute("ROLLBACK")
    blocker.close()
    log.close()


def test_no_log_and_no_place_for_one_are_said_in_a_line(tmp_path: Path) -> None:
    """Reading a home without decisions, and a path that cannot hold a file."""
    with pytest.raises(UserError, match="no decisions"):
        read_decisions(tmp_path / "d.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(UserError, match="cannot be opened"):
        DecisionLog(tmp_path / "folder.db", "r")


@pytest.mark.parametrize(
    ("keep", "text", "digest"),
    [("none", None, ""), ("hash", None, SHA_OF_HELLO), ("plain", "hello", SHA_OF_HELLO)],
)
def test_of_the_text_is_kept_what_the_recipe_says(keep: str, text: str | None, digest: str) -> None:
    """Nothing, its sha256, or all of it."""
    assert kept_text("hello", keep) == {"text": text, "text_digest": digest, "masked": 0}
    assert kept_text("\ud800", keep)["text"] is None


@pytest.mark.parametrize(
    ("text", "kept", "masked"),
    [
        ("write to ana.b+c@mail.example.org, please", "write to [email], please", 1),
        ("call (555) 010-4477 or +1 555-010-4478", "call [phone] or [phone]", 2),
        ("card 4539 1488 0343 6467, ssn 078-05-1120", "card [card], ssn [social_security]", 2),
        ("order 4539 1488 0343 6468 of 2026-01-31, 12.50 USD", None, 0),  # no valid check digit, a day, an amount
    ],
)
def test_personal_data_in_a_kept_text_is_masked(text: str, kept: str | None, masked: int) -> None:
    """E-mail addresses, phones, cards and social security numbers; the digest is that of the text as it came."""
    found = kept_text(text, "plain")
    assert (found["text"], found["masked"]) == (kept or text, masked)
    assert found["text_digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_a_queue_full_of_text_refuses_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is in bytes as well as in records, and is free again when the disk took them."""
    monkeypatch.setattr(writer, "QUEUE_BYTES", 1000)
    log = DecisionLog(tmp_path / "d.db", "run-1")
    blocker = sqlite3.connect(tmp_path / "d.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    log.decision(**record(1, text="x" * 600))
    with pytest.raises(TransientError, match="waiting for the disk"):
        log.decision(**record(2, text="x" * 600))
    blocker.execute("ROLLBACK")
    blocker.close()
    deadline = time.monotonic() + 10
    while log._bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    log.decision(**record(3, text="x" * 600))
    log.close()
    assert [row["id"] for row in read_decisions(tmp_path / "d.db")] == [record(1)["id"], record(3)["id"]]


@pytest.mark.parametrize(
    "change",
    ["score=0.76", "version='4'", "features='{}'", "answered_by='canary'", "label='no'", "time='2020'", "seal=''"],
)
def test_a_decision_that_was_altered_later_shows(tmp_path: Path, change: str) -> None:
    """Its seal covers all that is written of it; whole numbers and no numbers are read back as they were sealed."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    log.decision(**record(1, text="hello", model="triage", weight=0, threshold=None))
    log.decision(**record(2, score=float("nan")))
    log.close()
    assert [row["intact"] for row in read_decisions(tmp_path / "d.db")] == [True, True]
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute(f"update decisions set {change} where seq=1")
    assert [row["intact"] for row in read_decisions(tmp_path / "d.db")] == [False, True]


def test_a_log_of_an_earlier_version_is_read_and_written_on(tmp_path: Path) -> None:
    """Its rows have no seal and say so; new ones have."""
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.executescript(schema.SCHEMA)
        for name in schema.ADDED:
            connection.execute(f"alter table decisions drop column {name}")
        old = record(1) | {"time": "2026-01-01", "run_id": "run-0", "entities": "{}", "features": "{}"}
        connection.execute(
            f"insert into decisions ({', '.join(old)}) values ({', '.join('?' * len(old))})", list(old.values())
        )
    log = DecisionLog(tmp_path / "d.db", "run-1")
    log.decision(**record(2))
    log.close()
    assert [row["intact"] for row in read_decisions(tmp_path / "d.db")] == [False, True]


def test_a_disk_that_takes_records_again_gets_all_that_were_answered_meanwhile(tmp_path: Path) -> None:
    """The batch is kept and tried again, the log says so meanwhile, and is healthy afterwards."""
    path = tmp_path / "d.db"
    log = DecisionLog(path, "run-1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("ALTER TABLE decisions RENAME TO away")
        for number in range(30):
            log.decision(**record(number))
        assert wait_until(lambda: not log.healthy and "no such table" in log.error, 10.0, every=0.01)
        other.execute("ALTER TABLE away RENAME TO decisions")
    assert wait_until(lambda: log.healthy, 20.0, every=0.01)
    log.close()
    assert [row["id"] for row in read_decisions(path)] == [record(number)["id"] for number in range(30)]


def test_a_record_that_no_disk_would_take_holds_up_no_other(tmp_path: Path) -> None:
    """One that is no JSON, and one whose id is there already, are set aside."""
    log = DecisionLog(tmp_path / "d.db", "run-1")
    log.decision(**record(1))
    log.decision(**record(2) | {"entities": {"shop": {1, 2}}})
    log.decision(**record(1) | {"label": "no"})
    log.decision(**record(3))
    log.close()
    assert not log.error
    found = read_decisions(tmp_path / "d.db")
    assert [row["id"] for row in found] == [record(1)["id"], record(3)["id"]]
    assert found[0]["label"] == record(1)["label"]


def test_a_disk_that_is_behind_shows_before_more_than_a_second_could_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late while another holds the file, not late when it is written."""
    monkeypatch.setattr(writer, "LATE_SECONDS", 0.2)
    path = tmp_path / "d.db"
    log = DecisionLog(path, "run-1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not log.late
        log.decision(**record(1))
        assert wait_until(lambda: log.late, 10.0, every=0.01)
        other.execute("ROLLBACK")
    assert wait_until(lambda: not log.late, 20.0, every=0.01)
    log.close()
    assert len(read_decisions(path)) == 1


def test_a_file_that_was_deleted_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes on being written where nobody can find it."""
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.0)
    path = tmp_path / "d.db"
    log = DecisionLog(path, "run-1")
    for each in tmp_path.glob("d.db*"):
        each.unlink()
    log.decision(**record(1))
    log.close()
    assert [row["id"] for row in read_decisions(path)] == [record(1)["id"]]
