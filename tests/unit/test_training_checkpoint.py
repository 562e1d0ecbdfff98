"""Checkpoints as folders: whole or absent, damage found whatever it is, and no start over in silence."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.digest import file_digest
from components.core.errors import IntegrityError, UserError
from components.core.records import CheckpointRef
from components.training.checkpoints import (
    Found,
    _share,
    check,
    checkpoint_folder,
    clear_leftovers,
    newest_whole,
    point_to,
    pointed_step,
    prune,
    publish_checkpoint,
    saved_steps,
    set_aside,
)
from components.training.job import Job
from components.training.saving import Saver
from components.training.staging import Copier, MemoryStaging, write
from components.training.universal import is_other_shape, refuse_impossible
from tests.fakes.training_case import tiny_recipe

KEY = "k" * 64


def checkpoint(folder: Path, step: int, key: str = KEY, ranks: int = 2) -> Path:
    """A published checkpoint with two files of its own; the pointer names it."""
    staging = folder / f".step-{step:06d}.1.staging"
    (staging / "engine").mkdir(parents=True)
    (staging / "engine" / "shard-0").write_bytes(bytes([step % 251]) * 1000)
    (staging / "averages").write_bytes(b"average of %d" % step)
    CheckpointRef(digest=key, step=step, world_size=ranks, zero_stage=1, recipe_digest="r").write(staging)
    files = {
        path.relative_to(staging).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in staging.rglob("*")
        if path.is_file()
    }
    publish_checkpoint(staging, checkpoint_folder(folder, step), files, {"key": key, "step": step})
    point_to(folder, step)
    return checkpoint_folder(folder, step)


def _flip(folder: Path) -> None:
    data = bytearray((folder / "engine" / "shard-0").read_bytes())
    data[500] ^= 1
    (folder / "engine" / "shard-0").write_bytes(bytes(data))


def _truncate(folder: Path) -> None:
    (folder / "engine" / "shard-0").write_bytes((folder / "engine" / "shard-0").read_bytes()[:-1])


def _lose_file(folder: Path) -> None:
    (folder / "averages").unlink()


def _lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _add_file(folder: Path) -> None:
    (folder / "engine" / "more.pt").write_bytes(b"x")


def _link(folder: Path) -> None:
    moved = folder.parent / "moved"
    (folder / "averages").rename(moved)
    (folder / "averages").symlink_to(moved)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _garble_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"files": [1, 2], "digest": 3}')


def _about(value: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"about": 0}).replace('"about": 0', value))

    damage.__name__ = value[:20]
    return damage


def _key_in_about_alone(folder: Path) -> None:
    """Another job's checkpoint whose manifest was edited to name this job."""
    _other_recipe(folder)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace("o" * 64, KEY))


def _change_digest(folder: Path) -> None:
    """The file and its line in the manifest changed together, the digest of the whole not."""
    _flip(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["engine/shard-0"]["sha256"] = file_digest(folder / "engine" / "shard-0")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _other_recipe(folder: Path) -> None:
    shutil.rmtree(folder)
    checkpoint(folder.parent, int(folder.name[5:]), key="o" * 64)


def _other_step(folder: Path) -> None:
    other = checkpoint(folder.parent, 99)
    shutil.rmtree(folder)
    other.rename(folder)


DAMAGES = [
    _flip,
    _truncate,
    _lose_file,
    _lose_manifest,
    _add_file,
    _link,
    _empty,
    _garble_manifest,
    _change_digest,
    _other_recipe,
    _other_step,
    _key_in_about_alone,
    _about('"about": null'),
    _about('"about": []'),
    _about('"about": {"key": [1]}'),
    _about('"about": {"key": NaN}'),
    _about('"about": {}, "digest": 7'),
    _about('"about": {}, "files": {"x": {"bytes": 1e999, "sha256": "0"}}'),
    _about('"about": ' + "[" * 200_000 + "]" * 200_000),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_each_damage_is_found_and_the_checkpoint_before_is_used_loudly(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Whatever happened to the newest one: the one before it verifies, and both facts are said."""
    for step in (5, 10):
        checkpoint(tmp_path, step)
    damage(checkpoint_folder(tmp_path, 10))
    said: list[str] = []
    found = newest_whole(tmp_path, KEY, said.append)
    assert found is not None
    assert found.ref.step == 5
    assert "checkpoint of step 10 is damaged and not used" in said[0]
    assert "older checkpoint of step 5" in said[-1]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_with_none_left_it_stops_and_names_the_folder(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """One line that says what to do; never the first step in silence."""
    damage(checkpoint(tmp_path, 10))
    with pytest.raises(IntegrityError, match="remove the folder to train from the first step") as stopped:
        newest_whole(tmp_path, KEY, lambda text: None)
    assert str(tmp_path) in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_a_folder_that_lost_its_checkpoints_is_told_from_one_that_never_had_any(tmp_path: Path) -> None:
    """The pointer remembers what was published; without either there is nothing to resume."""
    assert newest_whole(tmp_path, KEY, pytest.fail) is None
    shutil.rmtree(checkpoint(tmp_path, 10))
    with pytest.raises(IntegrityError, match="step 10 was published here and is gone"):
        newest_whole(tmp_path, KEY, pytest.fail)


@pytest.mark.parametrize("text", ['{"st', '{"step": 1e999}', "[]", "", '{"step": "10"}', "[" * 200_000, "\x00"])
def test_an_unreadable_pointer_and_no_checkpoint_is_no_fresh_start(tmp_path: Path, text: str) -> None:
    """The pointer is written with the first checkpoint: where one is, however garbled, there was a checkpoint."""
    shutil.rmtree(checkpoint(tmp_path, 10))
    (tmp_path / "newest.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"newest\.json: cannot be read.*remove the folder"):
        newest_whole(tmp_path, KEY, pytest.fail)


def test_a_missing_an_old_and_a_garbled_pointer_do_not_matter(tmp_path: Path) -> None:
    """The folders speak for themselves: killed between rename and pointer, the newest is still found."""
    for step in (5, 10):
        checkpoint(tmp_path, step)
    pointer = tmp_path / "newest.json"
    for text in ('{"step": 5}', "{", "[]", '{"step": 1e999}', None):
        pointer.unlink() if text is None else pointer.write_text(text)
        found = newest_whole(tmp_path, KEY, pytest.fail)
        assert found is not None
        assert found.ref.step == 10


def test_the_newest_being_gone_is_said(tmp_path: Path) -> None:
    """Someone removed the newest folder: the one before is used, and that is said."""
    for step in (5, 10):
        checkpoint(tmp_path, step)
    shutil.rmtree(checkpoint_folder(tmp_path, 10))
    said: list[str] = []
    found = newest_whole(tmp_path, KEY, said.append)
    assert found is not None
    assert said == ["WARNING: resuming from the older checkpoint of step 5, as [10] cannot be used"]


def test_ranks_that_share_the_reading_find_what_one_alone_finds(tmp_path: Path) -> None:
    """A flipped byte is found by exactly the rank whose share it is in."""
    folder = checkpoint(tmp_path, 10)
    _flip(folder)
    found = []
    for part in range(3):
        try:
            check(folder, 10, KEY, part, 3)
        except IntegrityError:
            found.append(part)
    assert len(found) == 1


@pytest.mark.parametrize(("here", "tells"), [(0, False), (1, True)])
def test_the_rank_that_read_the_damaged_file_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: int, tells: bool
) -> None:
    """Rank 0 read other files and found nothing: the reason comes from the rank that has it, once."""
    averages = checkpoint(tmp_path, 10) / "averages"
    averages.write_bytes(averages.read_bytes().swapcase())  # in the share of the second of two
    monkeypatch.setenv("LOCAL_RANK", str(here))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    said: list[str] = []
    saver = object.__new__(Saver)
    saver._job, saver._any_says = Job(tmp_path, KEY, tiny_recipe()), said.append
    saver._training, saver.beat = saver._job.recipe.training, SimpleNamespace(show=lambda: None)  # type: ignore[assignment]
    saver._engine = SimpleNamespace(rank=here, ranks=2, refuse_foreign=lambda files: None)  # type: ignore[assignment]
    monkeypatch.setattr(saver, "_seen_steps", lambda: [10])
    monkeypatch.setattr(saver, "_everyone", lambda mine: np.array([1.0, 0.0 if here == 0 else mine]))
    assert saver._agree_on_newest() == (None, [10])
    assert len(said) == tells
    assert all("averages: bytes differ from the manifest" in line for line in said)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**12), max_size=30), st.integers(1, 9))
def test_shares_cover_every_file_once_and_are_even(sizes: list[int], parts: int) -> None:
    """No file is left out or read twice, and no share is heavier than the mean by more than the largest file."""
    files = {f"f{i}": {"bytes": size} for i, size in enumerate(sizes)}
    shares = [_share(files, part, parts) for part in range(parts)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    heaviest = max(sum(files[name]["bytes"] for name in share) for share in shares)
    assert heaviest <= sum(sizes) / parts + max(sizes, default=0)


def test_pruning_keeps_the_newest_complete_ones(tmp_path: Path) -> None:
    """A newer one that is cut short does not push out a good one."""
    for step in (1, 2, 3, 4, 5):
        checkpoint(tmp_path, step)
    _truncate(checkpoint_folder(tmp_path, 5))
    assert prune(tmp_path, 2) == [1, 2]
    assert saved_steps(tmp_path) == [3, 4, 5]
    assert saved_steps(tmp_path / "nowhere") == []


def test_damaged_ones_set_aside_count_no_more_and_leftovers_go(tmp_path: Path) -> None:
    """They stay for a look and are never taken for checkpoints; a killed save's folder is removed."""
    for step in (5, 10):
        checkpoint(tmp_path, step)
    (tmp_path / ".step-000015.7.staging").mkdir()
    set_aside(tmp_path, [10])
    clear_leftovers(tmp_path)
    assert saved_steps(tmp_path) == [5]
    assert [path.name for path in tmp_path.glob(".*")] == [".damaged-step-000010"]


def test_publishing_a_step_again_replaces_it_whole(tmp_path: Path) -> None:
    """After a fall back the same step is reached again."""
    checkpoint(tmp_path, 5)
    _flip(checkpoint_folder(tmp_path, 5))
    checkpoint(tmp_path, 5)
    check(checkpoint_folder(tmp_path, 5), 5, KEY)
    assert pointed_step(tmp_path) == 5
    assert not list(tmp_path.glob(".*"))


def test_which_shapes_are_converted_and_which_refused() -> None:
    """At stage 0 any number of ranks reads the same files; stages 1 and 2 share a form; 0 and 3 have their own."""

    def ref(ranks: int, stage: int) -> CheckpointRef:
        return CheckpointRef(digest="d", step=1, world_size=ranks, zero_stage=stage, recipe_digest="r")

    assert not is_other_shape(ref(2, 1), 2, 1)
    assert not is_other_shape(ref(2, 0), 5, 0)
    assert is_other_shape(ref(2, 1), 1, 1)
    assert is_other_shape(ref(2, 1), 2, 2)
    for before in range(4):
        for after in range(4):
            found = Found(Path("job/step-000001"), ref(2, before), "d")
            if {before, after} <= {1, 2} or before == after:
                refuse_impossible(found, 1, after)
            else:
                with pytest.raises(UserError, match=r"set training\.zero_stage to"):
                    refuse_impossible(found, 1, after)


def test_a_copy_in_memory_is_of_the_moment_and_its_buffers_are_used_again() -> None:
    """Later steps do not change what was copied; the second save of the same file takes no new memory."""
    live = torch.arange(6.0).reshape(2, 3)
    state = {"a": live, "b": [live[1], (live.t(), 7)], "c": {"d": torch.tensor(3)}}
    buffers: dict[tuple[str, int], torch.Tensor] = {}
    copied = Copier(buffers, "x").copied(state)
    live.mul_(10)
    assert copied["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copied["b"][0].tolist() == [3, 4, 5]
    assert copied["b"][1][0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copied["b"][1][1] == 7
    places = {place: buffer.data_ptr() for place, buffer in buffers.items()}
    again = Copier(buffers, "x").copied(state)
    assert again["a"].tolist() == live.tolist()
    assert {place: buffer.data_ptr() for place, buffer in buffers.items()} == places


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 4), min_size=0, max_size=3), max_size=5), st.integers(0, 2**32))
def test_what_is_written_is_what_is_digested_and_reads_back(shapes: list[list[int]], seed: int) -> None:
    """The digest taken while writing is the file's own; the tensors come back equal."""
    torch.manual_seed(seed)
    state = {"tensors": [torch.randn(shape) for shape in shapes], "step": 7}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        entry = write(path, state)
        assert entry == {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        back = MemoryStaging(_no_more).load(str(path))
    assert back["step"] == 7
    assert all(torch.equal(a, b) for a, b in zip(back["tensors"], state["tensors"], strict=True))


def _no_more() -> object:
    return torch.serialization.safe_globals([])


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit('ran')",)


def test_a_checkpoint_file_that_would_run_code_is_not_built(tmp_path: Path) -> None:
    """Only tensors, containers and the engine's own types are read, also from a file whose digest matches."""
    torch.save({"x": _Evil()}, tmp_path / "evil.pt")
    with pytest.raises(IntegrityError, match=r"evil\.pt: holds more than tensors"):
        MemoryStaging(_no_more).load(str(tmp_path / "evil.pt"))
