"""What is kept of a subject is readable with its key only, and not at all after the key is destroyed."""

from __future__ import annotations

import base64
import secrets
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from components.core.errors import UserError
from components.core.home import Home
from components.core.people import identify
from components.core.recipe import parse_recipe
from components.serving.decision_log import DecisionLog, Keeping, find_decision, read_decisions, writer
from components.serving.decision_log import keys as keys_module
from components.serving.decision_log.keys import KEYS, MASTER, MASTER_VARIABLE, SubjectKeys
from components.serving.decision_log.parts import Parts
from components.serving.decision_log.schema import connect, new_id
from pipelines.decisions import forget
from tests.fakes.decision_record import record
from tests.fakes.serving_case import tiny_recipe

TEXT = "my card 4539 1488 0343 6467 was charged twice"


def logged(folder: Path, shops: list[str], keep: str = "encrypted") -> list[str]:
    """Decisions of some shops under their keys."""
    keys = SubjectKeys.at(folder)
    log = DecisionLog(folder / "decisions.db", "run-1", Keeping(keep, "shop", keys))
    ids = [new_id() for _ in shops]
    for decision_id, shop in zip(ids, shops, strict=True):
        log.decision(**record(decision_id, entities={"shop": shop}, text=TEXT))
    log.close()
    keys.close()
    return ids


def test_kept_data_is_read_back_with_the_key_and_found_nowhere_in_the_clear(tmp_path: Path) -> None:
    """Text, features and the subject itself are in no file as they are."""
    ids = logged(tmp_path, ["shop-secret-1", "shop-secret-2", "shop-secret-1"])
    rows = read_decisions(tmp_path / "decisions.db")
    assert [row["id"] for row in rows] == ids
    assert [row["entities"]["shop"] for row in rows] == ["shop-secret-1", "shop-secret-2", "shop-secret-1"]
    assert {row["text"] for row in rows} == {TEXT}
    assert all(row["intact"] and not row["forgotten"] for row in rows)
    assert rows[0]["features"]["count"]["value"] == 12.0
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for clear in (b"shop-secret", b"4539", b'"value"', b"charged"):
            assert clear not in content, (path, clear)


def test_forgetting_one_subject_leaves_the_others_and_every_digest(tmp_path: Path) -> None:
    """Seals and digests stay, the content is gone for good, also from the bytes of the key file."""
    logged(tmp_path, ["shop-1", "shop-2"])
    before = read_decisions(tmp_path / "decisions.db")
    with sqlite3.connect(tmp_path / KEYS) as connection:
        wrapped = [row[0] for row in connection.execute("select wrapped from keys")]
    keys = SubjectKeys.at(tmp_path)
    assert keys.forget("shop-1", "asked for") == 1
    assert keys.forget("shop-1", "asked for") == 0
    keys.close()
    content = (tmp_path / KEYS).read_bytes()
    assert sum(key in content for key in wrapped) == 1
    gone, stays = read_decisions(tmp_path / "decisions.db")
    assert (gone["forgotten"], gone["intact"], gone["text"], gone["entities"], gone["features"]) == (
        True, True, None, {}, {},
    )  # fmt: skip
    assert (gone["text_digest"], gone["prompt_digest"]) == (before[0]["text_digest"], before[0]["prompt_digest"])
    assert stays == before[1]


def test_a_destroyed_key_is_not_used_by_a_process_that_had_it(tmp_path: Path) -> None:
    """A running service that cached the key makes a new one for the next decision."""
    service, person = SubjectKeys.at(tmp_path), SubjectKeys.at(tmp_path)
    first = service.seal("shop-1", b"one", "a")
    assert service.open(first, "a") == b"one"
    person.forget("shop-1", "asked for")
    assert service.open(first, "a") is None
    second = service.seal("shop-1", b"two", "b")
    assert second.split(":")[0] != first.split(":")[0]
    assert person.open(second, "b") == b"two"


@pytest.mark.parametrize("change", ["cipher", "id"])
def test_a_cipher_of_another_decision_or_altered_is_not_opened(tmp_path: Path, change: str) -> None:
    """A cipher belongs to its decision, and its bytes are authentic."""
    (one, other) = logged(tmp_path, ["shop-1", "shop-1"])
    with sqlite3.connect(tmp_path / "decisions.db") as connection:
        if change == "cipher":
            connection.execute("update decisions set cipher = substr(cipher, 1, length(cipher) - 6) || 'AAAAA='")
        else:
            taken = connection.execute("select cipher from decisions where id = ?", (other,)).fetchone()[0]
            connection.execute("update decisions set cipher = ? where id = ?", (taken, one))
    found = find_decision(tmp_path / "decisions.db", one)
    assert found is not None
    assert (found["intact"], found["forgotten"], found["text"]) == (False, True, None)


def test_the_master_key_is_the_owners_alone_and_another_one_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode 600; a home copied without it, or with another, tells nothing of the subjects."""
    (decision_id,) = logged(tmp_path, ["shop-1"])
    assert (tmp_path / MASTER).stat().st_mode & 0o777 == 0o600
    (tmp_path / MASTER).rename(tmp_path / "elsewhere")
    found = find_decision(tmp_path / "decisions.db", decision_id)
    assert found is not None
    assert (found["forgotten"], found["intact"]) == (True, True)
    monkeypatch.setenv(MASTER_VARIABLE, base64.b64encode(secrets.token_bytes(32)).decode())
    with pytest.raises(UserError, match="master key is not the one"):
        find_decision(tmp_path / "decisions.db", decision_id)
    monkeypatch.setenv(MASTER_VARIABLE, "c2hvcnQ=")
    with pytest.raises(UserError, match="32 bytes"):
        find_decision(tmp_path / "decisions.db", decision_id)


@pytest.mark.parametrize("keep", ["none", "hash"])
def test_features_are_under_the_key_whatever_is_kept_of_the_text(tmp_path: Path, keep: str) -> None:
    """A subject that is named can be forgotten, without its text being kept."""
    (decision_id,) = logged(tmp_path, ["shop-1"], keep)
    found = find_decision(tmp_path / "decisions.db", decision_id)
    assert found is not None
    assert (found["text"], found["entities"]) == (None, {"shop": "shop-1"})
    with sqlite3.connect(tmp_path / "decisions.db") as connection:
        assert connection.execute("select entities, features, text from decisions").fetchall() == [("{}", "{}", None)]


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        ({"keep_text": "encrypted"}, "needs serving.subject"),
        ({"subject": "person"}, "no entity"),
        ({"subject": "shop", "keep_text": "plain"}, "cannot be forgotten"),
        ({"log_store": "s3://key:word@bucket/x"}, "clear text"),
    ],
)
def test_a_policy_that_could_not_be_kept_is_refused(serving: dict[str, str], said: str) -> None:
    """Found in the recipe, before anything is served."""
    with pytest.raises(UserError, match=said):
        tiny_recipe(serving=serving)
    assert parse_recipe(tiny_recipe(serving={"subject": "shop", "keep_text": "encrypted"}).to_json())


def test_retention_deletes_the_keys_of_subjects_of_whom_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key lives as long as a row that it opens: in the segment or in a part, whoever used it since."""
    past = (datetime.now(UTC) - timedelta(days=9)).isoformat(timespec="microseconds")
    with monkeypatch.context() as then:
        then.setattr(writer, "now", lambda: past)
        then.setattr(keys_module, "now", lambda: past)
        logged(tmp_path, ["gone", "gone-from-a-part", "came-back"])
    path = tmp_path / "decisions.db"
    with closing(connect(path)) as connection:
        parts = Parts(connection, str(tmp_path / "decisions"))
        assert parts.move() == 1
        assert parts.drop(30) == 0
        assert len(readable(path)) == 3, "younger than what is deleted"
        logged(tmp_path, ["came-back", "new"])
        assert parts.drop(8) == 1
    assert readable(path) == ["came-back", "new"]
    with sqlite3.connect(tmp_path / KEYS) as kept:
        assert kept.execute("select count(*) from keys").fetchone()[0] == 2
        assert kept.execute("select count(*) from forgotten").fetchone()[0] == 0


def test_keys_of_an_earlier_version_count_as_used_today(tmp_path: Path) -> None:
    """A key file without the day of the last use is read and written on, and nothing of it is deleted for its lack."""
    ids = logged(tmp_path, ["shop-1"])
    with sqlite3.connect(tmp_path / KEYS) as connection:
        connection.execute("alter table keys drop column used")
    with closing(connect(tmp_path / "decisions.db")) as connection:
        Parts(connection, str(tmp_path / "decisions")).drop(1)
    found = find_decision(tmp_path / "decisions.db", ids[0])
    assert found is not None
    assert found["text"] == TEXT


def readable(path: Path) -> list[str]:
    """The shops of the decisions that can be read."""
    return [row["entities"]["shop"] for row in read_decisions(path) if not row["forgotten"]]


@pytest.mark.parametrize("earlier", [False, True])
def test_no_subject_is_said_to_be_unknown_under_another_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """Forgetting and writing are refused without the right one, and nothing is made in its place."""
    (decision_id,) = logged(tmp_path, ["shop-1"])
    if earlier:  # a file of before the check value was kept
        with sqlite3.connect(tmp_path / KEYS) as connection:
            connection.execute("delete from master")
    (tmp_path / MASTER).rename(tmp_path / "elsewhere")
    home, who = Home.at(tmp_path), identify("eve")
    with pytest.raises(UserError, match=r"gone, and .* was made with it"):
        forget(home, "shop-1", "asked for", who)
    assert not (tmp_path / MASTER).exists()
    with monkeypatch.context() as other:
        other.setenv(MASTER_VARIABLE, base64.b64encode(secrets.token_bytes(32)).decode())
        with pytest.raises(UserError, match="not the one that they were made with"):
            forget(home, "shop-1", "asked for", who)
    (tmp_path / "elsewhere").rename(tmp_path / MASTER)
    assert forget(home, "shop-1", "asked for", who)["keys"] == 1
    found = find_decision(tmp_path / "decisions.db", decision_id)
    assert found is not None
    assert found["forgotten"]
