"""Records, digests and atomic publishing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.core.digest import canonical_json, file_digest
from components.core.errors import IntegrityError, UserError
from components.core.home import Home, safe_name
from components.core.publish import publishing, verify, write_atomic
from components.core.records import Evidence, Interval, ModelRef, RuleResult, SnapshotRef

SNAPSHOT = SnapshotRef(
    digest="d", rows=1, columns=("a", "b"), time_column="a", time_min="", time_max="", source="s", since="", until=""
)


def test_a_record_survives_its_json_form() -> None:
    """Nested records, tuples and optional numbers come back equal, with the same digest."""
    evidence = Evidence(
        model_digest="m",
        training_set_digest="t",
        test_digest="x",
        rows=3,
        positives=1,
        metrics={"auc": Interval(value=0.5, low=None, high=0.9, n=3, positives=1)},
        baselines={"prior": {"auc": Interval(value=None, low=None, high=None, n=3)}},
        slices={},
        curves={"roc": [[0.0, 0.0], [1.0, 1.0]]},
    )
    again = Evidence.from_dict(json.loads(json.dumps(evidence.to_dict())))
    assert again == evidence
    assert again.record_digest == evidence.record_digest


@pytest.mark.parametrize("field", list(SNAPSHOT.to_dict()))
def test_a_changed_field_changes_the_digest(field: str) -> None:
    """No field is left out of a record's digest."""
    values = SNAPSHOT.to_dict()
    values[field] = values[field] + 1 if isinstance(values[field], int) else [*values[field], "z"]
    if isinstance(SNAPSHOT.to_dict()[field], str):
        values[field] = "other"
    if field == "inputs":
        values[field] = [{"uri": "u"}]
    assert SnapshotRef.from_dict(values).record_digest != SNAPSHOT.record_digest


@pytest.mark.parametrize("values", [{}, {"digest": "d"}, SNAPSHOT.to_dict() | {"extra": 1}])
def test_a_record_with_missing_or_unknown_fields_is_refused(values: dict[str, object]) -> None:
    """A file that is not the record it claims to be is an integrity error."""
    with pytest.raises(IntegrityError):
        SnapshotRef.from_dict(values)


def test_nan_never_gets_into_a_record_file() -> None:
    """NaN is no evidence: it cannot be written as a number."""
    with pytest.raises(ValueError, match="Out of range"):
        RuleResult(rule="r", outcome="pass", observed=float("nan"), limit=1.0).to_dict()


def test_an_optional_nested_record_may_be_absent() -> None:
    """None stays None for an optional record."""
    model = ModelRef(
        digest="d",
        family="f",
        parameters=1,
        training_set_digest="t",
        recipe_digest="r",
        steps=1,
        world_size=1,
        zero_stage=0,
        checkpoint=None,
        mlflow_run_id="",
        labels=("no", "yes"),
    )
    assert ModelRef.from_dict(model.to_dict()) == model


@given(st.binary(max_size=5000))
def test_file_digest_is_sha256(content: bytes) -> None:
    """The digest equals hashlib's over the whole content."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f")
        path.write_bytes(content)
        assert file_digest(path) == hashlib.sha256(content).hexdigest()


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_canonical_json_ignores_order(values: dict[str, object]) -> None:
    """The same mapping in another order has the same text."""
    assert canonical_json(dict(reversed(list(values.items())))) == canonical_json(values)


def test_a_published_folder_verifies_and_replaces_the_old_one(tmp_path: Path) -> None:
    """Publishing again replaces the folder as a whole."""
    for text in ("one", "two"):
        with publishing(tmp_path / "out") as staging:
            (staging / text).write_text(text)
    assert sorted(verify(tmp_path / "out")["files"]) == ["two"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_while_publishing_leaves_the_old_folder(tmp_path: Path) -> None:
    """Half an output is no output."""
    with publishing(tmp_path / "out") as staging:
        (staging / "a").write_text("a")
    with pytest.raises(RuntimeError), publishing(tmp_path / "out") as staging:
        (staging / "b").write_text("b")
        raise RuntimeError
    assert sorted(verify(tmp_path / "out")["files"]) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "add", "link", "manifest"])
def test_every_damage_to_a_published_folder_is_seen(tmp_path: Path, damage: str) -> None:
    """A reader refuses a folder in which anything was changed."""
    out = tmp_path / "out"
    with publishing(out) as staging:
        (staging / "a").write_bytes(b"abc")
    if damage == "flip":
        (out / "a").write_bytes(b"abd")
    elif damage == "truncate":
        (out / "a").write_bytes(b"ab")
    elif damage == "remove":
        (out / "a").unlink()
    elif damage == "add":
        (out / "b").write_bytes(b"")
    elif damage == "link":
        (out / "b").symlink_to(out / "a")
    else:
        (out / "manifest.json").write_text('{"files": {}, "digest": ""}')
    with pytest.raises(IntegrityError):
        verify(out)


def test_a_process_killed_while_publishing_leaves_nothing_that_verifies(tmp_path: Path) -> None:
    """SIGKILL before the rename leaves no output, and the next try succeeds."""
    code = (
        "import os, sys, signal; from pathlib import Path; from components.core.publish import publishing\n"
        "with publishing(Path(sys.argv[1])) as s:\n (s/'a').write_text('a'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert not (tmp_path / "out").exists()
    with publishing(tmp_path / "out") as staging:
        assert list(staging.iterdir()) == []


def test_write_atomic_leaves_only_the_file(tmp_path: Path) -> None:
    """No temporary file stays."""
    write_atomic(tmp_path / "x" / "f", "text")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["f"]


def test_a_home_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    """One line that names the home."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not writable"):
        Home.at(tmp_path / "file" / "home")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\nb", "%2e%2e", ".x", "a" * 200, "é"])
def test_names_that_could_escape_are_refused(name: str) -> None:
    """Run ids and model names are plain file names."""
    with pytest.raises(UserError):
        safe_name(name, "name")


def test_the_home_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$PILOTLINE_HOME is used where no home is given."""
    monkeypatch.setenv("PILOTLINE_HOME", str(tmp_path / "h"))
    assert Home.at().root == tmp_path / "h"
    assert os.access(tmp_path / "h", os.W_OK)
