"""Schedules, checkpoints and refusals of the training room; no ranks are started here."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.publish import publishing
from components.core.records import TrainingSetRef
from components.training.disk import in_words
from components.training.job import Job, training_key
from components.training.schedule import average_weight, is_check, is_logged, learning_rate, rows_of_step
from components.training.train import _alone, train
from tests.fakes.training_case import publish_training_set, rows, tiny_recipe


def test_rows_of_a_step_depend_on_seed_and_step_alone() -> None:
    """Asked again, and in any order, a step draws the same rows; half of them positive."""
    labels = np.arange(100) % 10 == 0
    training = tiny_recipe(training={"batch_size": 16}).training
    drawn = {step: rows_of_step(labels, training, step) for step in range(20)}
    for step in reversed(range(20)):
        assert (rows_of_step(labels, training, step) == drawn[step]).all()
        assert labels[drawn[step]].sum() == 8
    assert len({tuple(found) for found in drawn.values()}) == 20
    natural = tiny_recipe(training={"positive_share": 0.0, "batch_size": 64}).training
    share = np.mean([labels[rows_of_step(labels, natural, step)].mean() for step in range(50)])
    assert share == pytest.approx(0.1, abs=0.02)


def test_learning_rate_warms_up_and_ends_low() -> None:
    """It rises over the warm-up share, then only falls, to the final share."""
    training = tiny_recipe(training={"steps": 100, "learning_rate": 1.0, "warmup_share": 0.1}).training
    rates = [learning_rate(training, step) for step in range(100)]
    assert all(a < b for a, b in pairwise(rates[:10]))
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[0] == pytest.approx(0.1, abs=0.01)
    assert rates[-1] == pytest.approx(0.05, abs=0.01)


def test_checks_are_even_and_include_the_end() -> None:
    """As many checks as asked for, the last after the last step, also when there are fewer steps than checks."""
    for steps, checks in ((100, 20), (7, 3), (5, 20), (1, 1)):
        training = tiny_recipe(training={"steps": steps, "checks": checks}).training
        at = [done for done in range(1, steps + 1) if is_check(training, done)]
        assert len(at) == min(steps, checks)
        assert at[-1] == steps
        assert is_logged(training, steps)


def test_averaging_starts_with_the_newest_weights() -> None:
    """Random weights of the start are forgotten at once; later the recipe's decay holds."""
    training = tiny_recipe(training={"average_decay": 0.9}).training
    assert average_weight(training, 0) == 1.0
    assert average_weight(training, 10_000) == pytest.approx(0.1)


def test_key_changes_with_all_that_changes_weights_and_with_nothing_else(tmp_path: Path) -> None:
    """Seed, size, data and inputs are in the key; time limits, checkpoint rhythm and the job's shape are not."""
    ref = TrainingSetRef.read(publish_training_set(tmp_path / "set"))
    key = training_key(tiny_recipe(), ref)
    for change in ({"training": {"seed": 1}}, {"training": {"batch_size": 16}}, {"model": {"hidden_size": 32}}):
        assert training_key(tiny_recipe(**change), ref) != key
    other = TrainingSetRef.from_dict(ref.to_dict() | {"digest": "f" * 64})
    assert training_key(tiny_recipe(), other) != key
    rhythm = {"timeout_minutes": 1.0, "checkpoint_every_steps": 3, "keep_checkpoints": 9, "on_nan": "skip"}
    for same in (rhythm, {"ranks": 4}, {"zero_stage": 2}, {"accumulation": 2}, {"ranks": 1, "zero_stage": 3}):
        assert training_key(tiny_recipe(training=same), ref) == key


def test_a_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    """Checkpoints of another recipe are never continued by accident."""
    Job(tmp_path, "a" * 64, tiny_recipe()).write()
    Job(tmp_path, "a" * 64, tiny_recipe()).write()
    with pytest.raises(UserError, match="another recipe or training set"):
        Job(tmp_path, "b" * 64, tiny_recipe()).write()
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(IntegrityError, match="not a training job"):
        Job(tmp_path, "a" * 64, tiny_recipe()).write()


@pytest.mark.parametrize(
    ("change", "split", "says"),
    [
        ({}, {"label": 0}, "all 160 rows of the train split are 'no'"),
        ({}, {"label": 1}, "all 160 rows of the train split are 'yes'"),
        ({"model": {"text_tokens": 200}}, {}, "lower model.text_tokens"),
        ({"model": {"labels": ("no", "n o")}}, {}, "cannot name a token"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, change: dict[str, dict[str, object]], split: dict[str, object], says: str
) -> None:
    """What cannot be trained is refused before ranks start, with nothing published."""
    frames = {name: rows(160 // (i + 1), i) for i, name in enumerate(("train", "validation", "test"))}
    frames["train"] = frames["train"].assign(**{name: np.int8(value) for name, value in split.items()})  # type: ignore[call-overload]
    source = publish_training_set(tmp_path / "set", frames)
    with pytest.raises(UserError, match=says) as refused:
        train(tiny_recipe(**change), source, tmp_path / "out", tmp_path / "ck", None, "r", tmp_path / "log")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "ck").glob("*/prepared"))
    assert not list((tmp_path / "ck").glob("*/.*.staging"))


def test_empty_splits_and_unknown_features_are_refused(tmp_path: Path) -> None:
    """No rows is not a model; a feature that was not featurised is named."""
    empty = publish_training_set(tmp_path / "e", {"train": rows(0, 0), "validation": rows(9, 1), "test": rows(9, 2)})
    with pytest.raises(UserError, match="train split has no rows"):
        train(tiny_recipe(), empty, tmp_path / "out", tmp_path / "ck", None, "r", tmp_path / "log")
    source = publish_training_set(tmp_path / "set")
    values = json.loads(tiny_recipe().to_json())
    values["features"]["model_inputs"] = ["visits", "shaer"]
    from components.core.recipe import parse_recipe

    with pytest.raises(UserError, match="'shaer'"):
        train(parse_recipe(values), source, tmp_path / "out", tmp_path / "ck", None, "r", tmp_path / "log")


def test_a_training_set_with_other_bytes_is_refused(tmp_path: Path) -> None:
    """Bytes and record have to agree, also where someone sealed the folder anew."""
    source = publish_training_set(tmp_path / "set")
    content = {path.name: path.read_bytes() for path in source.iterdir()}
    with publishing(source) as staging:
        for name, data in content.items():
            if name != "manifest.json":
                (staging / name).write_bytes(data)
        rows(50, 9).to_parquet(staging / "train.parquet")
    with pytest.raises(IntegrityError, match="not the split that the record names"):
        train(tiny_recipe(), source, tmp_path / "out", tmp_path / "ck", None, "r", tmp_path / "log")
    (source / "train.parquet").write_bytes(b"x")
    with pytest.raises(IntegrityError, match="bytes differ"):
        train(tiny_recipe(), source, tmp_path / "out", tmp_path / "ck", None, "r", tmp_path / "log")


def test_one_job_has_one_launcher(tmp_path: Path) -> None:
    """A second launcher of the same job waits a bounded time and then says so."""
    with (
        _alone(tmp_path),
        pytest.raises(TransientError, match="another run trains this very job"),
        _alone(tmp_path, seconds=0.3),
    ):
        pass


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    """Whichever library met it: the system's error, torch's and the tokenizer's become one UserError."""
    full = [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:1] . PytorchStreamWriter failed writing file data/0"),
        Exception("File too large (os error 27)"),
    ]
    for error in full:
        assert isinstance(in_words(error, tmp_path), UserError)
    other = ValueError("x")
    assert in_words(other, tmp_path) is other
    known = TransientError("no space left")
    assert in_words(known, tmp_path) is known


def test_preparing_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """Files that may not grow stand for a full disk: one line, exit code 2, nothing half-written."""
    source = publish_training_set(tmp_path / "set")
    code = (
        "import resource, sys; from pathlib import Path; from components.training.train import train;"
        "from components.core.errors import PilotlineError; from tests.fakes.training_case import tiny_recipe;"
        f"root = Path({str(tmp_path)!r}); resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        f"try: train(tiny_recipe(), Path({str(source)!r}), root / 'out', root / 'ck', None, 'r', root / 'log')\n"
        "except PilotlineError as error: print(error); sys.exit(error.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == UserError.exit_code, done.stderr
    assert "no space left" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "ck").glob("*/prepared"))
    assert not list((tmp_path / "ck").glob("*/.prepared.staging"))


def test_errors_that_ranks_leave_keep_their_kind(tmp_path: Path) -> None:
    """The launcher reads in words what a rank met."""
    job = Job(tmp_path, "k", tiny_recipe())
    job.note_error(0, UserError("training diverged"))
    job.note_error(1, ValueError("two\nlines"))
    assert job.errors() == [
        {"kind": "bad_input", "error": "training diverged"},
        {"kind": "failed", "error": "ValueError: two lines"},
    ]
    job.clear_errors()
    assert not job.errors()
