"""A model directory holds nothing that runs when it is loaded."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from components.core.errors import IntegrityError
from components.models.files import SIGNATURE, check_files, model_digest
from components.models.spec import spec_for
from tests.fakes.weights import weights


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that passes: empty weights, a configuration and a signature."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / SIGNATURE).write_text("{}")
    check_files(folder)
    return folder


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "modeling_x.py", "chat_template.jinja", "x.pkl", "x", ".hidden", "x.JSON"]
)
def test_failure26_other_kinds_of_files_are_refused_and_nothing_runs(model_dir: Path, name: str) -> None:
    """Pickles, code, templates and unknown files; the payload would leave a mark."""
    (model_dir / name).write_bytes(pickle.dumps(Bomb(model_dir.parent / "exploded")))
    for look in (check_files, model_digest, spec_for("causal_lm").scorer):
        with pytest.raises(IntegrityError, match="not allowed"):
            look(model_dir)
    assert not (model_dir.parent / "exploded").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_failure26_configuration_that_loads_code_is_refused(model_dir: Path, name: str) -> None:
    """`auto_map` and templates are found at any depth."""
    path = model_dir / name
    for key in ("auto_map", "chat_template"):
        path.write_text(json.dumps({"a": [{"b": {key: "evil.Model"}}]}))
        with pytest.raises(IntegrityError, match=key):
            check_files(model_dir)


@pytest.mark.parametrize("content", ["pickle", "zip", "python"])
def test_failure26_a_payload_under_an_allowed_name_is_refused(model_dir: Path, content: str) -> None:
    """What is called .safetensors has to be safetensors; the payload would leave a mark."""
    mark = model_dir.parent / "exploded"
    path = model_dir / "model.safetensors"
    if content == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))
    else:
        code = f"import os; os.mkdir({str(mark)!r})".encode()
        path.write_bytes(pickle.dumps(Bomb(mark)) if content == "pickle" else code)
    for look in (check_files, model_digest, spec_for("causal_lm").scorer):
        with pytest.raises(IntegrityError, match="safetensors"):
            look(model_dir)
    assert not mark.exists()


def headed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A weight file with this header, claiming a length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def tensor(start: int, end: int) -> dict[str, object]:
    """A header's entry."""
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no safetensors"),
        (headed(b"{}", length=2**63), "claims"),
        (headed(b"{}", length=0), "claims"),
        (headed(b"{}", length=3), "claims"),
        (headed(b"[]"), "no JSON object"),
        (headed(b"{" * 50_000), "not readable JSON"),
        (headed(b"{}", b"PK\x03\x04 and a program behind the weights"), "tensors take 0 bytes"),
        (headed(json.dumps({"a": tensor(0, 4)}).encode(), b"123"), "tensors take 4 bytes"),
        (headed(json.dumps({"a": tensor(0, 2), "b": tensor(3, 4)}).encode(), b"1234"), "gap or overlap"),
        (headed(json.dumps({"a": tensor(0, 3), "b": tensor(2, 4)}).encode(), b"1234"), "gap or overlap"),
        (headed(json.dumps({"a": tensor(2, 0)}).encode(), b"12"), "gap or overlap"),
        (headed(json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [-1, 1]}}).encode()), "no tensor"),
        (headed(json.dumps({"a": 3}).encode()), "no tensor"),
        (headed(b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "a": 1}'), "not readable JSON"),
    ],
)
def test_weights_with_an_absurd_header_are_refused(model_dir: Path, content: bytes, why: str) -> None:
    """Before a loader takes memory or reads what no tensor names."""
    (model_dir / "model.safetensors").write_bytes(content)
    with pytest.raises(IntegrityError, match=why):
        check_files(model_dir)


def test_weights_as_the_library_writes_them_are_accepted(model_dir: Path) -> None:
    """Several tensors, an empty one, and metadata."""
    import numpy as np
    from safetensors.numpy import save_file

    tensors = {"a": np.ones((3, 5), np.float32), "b": np.zeros(0, np.float32), "c": np.ones(7, np.int8)}
    save_file(tensors, str(model_dir / "model.safetensors"), metadata={"format": "pt"})
    assert len(check_files(model_dir)) == 3


def test_failure27_links_out_of_the_directory_are_refused(model_dir: Path) -> None:
    """A link is no file of the model, wherever it points, and neither is a linked directory."""
    (model_dir / "extra.json").symlink_to("/etc/hostname")
    with pytest.raises(IntegrityError, match="link"):
        check_files(model_dir)
    (model_dir.parent / "linked").symlink_to(model_dir)
    (model_dir / "extra.json").unlink()
    with pytest.raises(IntegrityError, match="no model directory"):
        check_files(model_dir.parent / "linked")


def test_failure27_a_hard_link_is_refused(model_dir: Path) -> None:
    """Whoever holds the other name changes the bytes after they were checked."""
    os.link(model_dir / "config.json", model_dir.parent / "other-name")
    with pytest.raises(IntegrityError, match="hard link"):
        check_files(model_dir)
    (model_dir.parent / "other-name").unlink()
    check_files(model_dir)


def test_a_pipe_is_refused_without_waiting_for_it(model_dir: Path) -> None:
    """Opening it would block for ever."""
    os.mkfifo(model_dir / "pipe.json")
    with pytest.raises(IntegrityError, match="kind of file not allowed"):
        check_files(model_dir)


@pytest.mark.parametrize("inner", ["nested", "..."])
def test_failure27_folders_inside_are_refused(model_dir: Path, inner: str) -> None:
    """Also empty ones: a loader that walks finds more than was looked at."""
    (model_dir / inner).mkdir()
    with pytest.raises(IntegrityError, match="is a folder"):
        check_files(model_dir)


@pytest.mark.parametrize(
    "name", ["a\nb.json", "%2e%2e.json", ".json", "a b.json", "..json", "c\u043enfig.json", "a\\b.json", "a\u202e.json"]
)
def test_failure27_unusual_names_are_refused_in_one_line(model_dir: Path, name: str) -> None:
    """Newlines, percent, leading dots, look-alikes, backslashes, marks of direction."""
    (model_dir / name).write_text("{}")
    with pytest.raises(IntegrityError, match="not allowed in a model directory") as refused:
        check_files(model_dir)
    assert str(refused.value).isascii()
    assert "\n" not in str(refused.value)


def test_more_files_than_a_model_has_are_refused(model_dir: Path) -> None:
    """A bound on what is looked at."""
    for number in range(1001):
        (model_dir / f"{number}.json").touch()
    with pytest.raises(IntegrityError, match="at most 1000"):
        check_files(model_dir)


def test_one_other_byte_is_another_digest(model_dir: Path) -> None:
    """Of any file, and a file's name counts too."""
    (model_dir / "model.safetensors").write_bytes(weights("ab"))
    first = model_digest(model_dir)
    (model_dir / "model.safetensors").write_bytes(weights("ac"))
    second = model_digest(model_dir)
    (model_dir / "config.json").rename(model_dir / "generation_config.json")
    assert len({first, second, model_digest(model_dir)}) == 3


def test_unreadable_or_absent_parts_are_refused(model_dir: Path) -> None:
    """Broken JSON, deep JSON, no weights, no directory."""
    for text in ("{", "[" * 100_000):
        (model_dir / "config.json").write_text(text)
        with pytest.raises(IntegrityError, match=r"config\.json"):
            check_files(model_dir)
    (model_dir / "config.json").write_text("{}")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(IntegrityError, match="safetensors"):
        check_files(model_dir)
    with pytest.raises(IntegrityError, match="no model directory"):
        check_files(model_dir / "nowhere")


POINTING = [
    ("tokenizer_config.json", {"vocab_file": "../../secret"}),
    ("tokenizer_config.json", {"merges_file": "vocab.txt"}),  # plain, and not there
    ("tokenizer_config.json", {"a": [{"tokenizer_files": ["config.json", "/etc/passwd"]}]}),
    ("tokenizer_config.json", {"name_or_path": "..\\evil"}),
    ("tokenizer_config.json", {"name_or_path": "~/evil"}),
    ("config.json", {"_name_or_path": "/srv/evil"}),
    ("config.json", {"anything": "https://example.org/evil"}),
    ("config.json", {"text_config": {"backbone": "a/../../evil"}}),
    ("config.json", {"base_model_name_or_path": "evil"}),
    ("config.json", {"adapter_path": "evil"}),
    ("config.json", {"code_revision": "evil"}),
    ("generation_config.json", {"custom_generate": "evil/repository"}),
    ("special_tokens_map.json", {"source_url": "evil"}),
    ("pilotline.json", {"calibration_file": "C:\\evil"}),
]


@pytest.mark.parametrize(("name", "values"), POINTING)
def test_failure27_a_value_that_names_a_file_of_elsewhere_is_refused(
    model_dir: Path, name: str, values: dict[str, object]
) -> None:
    """What is signed are the directory's files: a loader has to be sent to no other."""
    (model_dir / name).write_text(json.dumps(values))
    with pytest.raises(IntegrityError, match=name) as refused:
        check_files(model_dir)
    assert "\n" not in str(refused.value)


def test_names_texts_and_tokens_that_look_like_places_are_accepted(model_dir: Path) -> None:
    """A vocabulary holds any word, a prompt any text, and a configuration the name of what it came of."""
    (model_dir / "vocab.json").write_text(json.dumps({"/": 0, "..": 1, "vocab_file": 2, "auto_map": 3}))
    (model_dir / "tokenizer_config.json").write_text(json.dumps({"unk_token": "/", "vocab_file": "vocab.json"}))
    (model_dir / "config.json").write_text(json.dumps({"_name_or_path": "some/model-135M", "use": "a/b"}))
    (model_dir / SIGNATURE).write_text(json.dumps({"prompt": "See https://example.org/../x \\ {text}"}))
    assert len(check_files(model_dir)) == 5


@pytest.mark.parametrize("text", ['{"auto_map": {"a": "b"}, "auto_map": {}}', '{"a": [{"b": 1, "b": 1}]}'])
def test_a_key_that_is_there_twice_is_refused(model_dir: Path, text: str) -> None:
    """Of two values one reader takes the first and another the last."""
    (model_dir / "config.json").write_text(text)
    with pytest.raises(IntegrityError, match="config"):
        check_files(model_dir)


@pytest.mark.parametrize(
    "name", ["x.txt", "x.json", "evil.safetensors", "adapter_config.json", "pytorch_model.bin.index.json", "README.txt"]
)
def test_only_names_that_a_models_files_have_are_accepted(model_dir: Path, name: str) -> None:
    """A file that no loader asks for is either forgotten or meant for a loader that is not ours."""
    (model_dir / name).write_bytes(weights("a") if name.endswith(".safetensors") else b"{}")
    with pytest.raises(IntegrityError, match="not allowed"):
        check_files(model_dir)


def sharded(folder: Path, weight_map: object, shards: tuple[str, ...]) -> None:
    """Shards with an index instead of one weight file."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    for number, name in enumerate(shards):
        (folder / name).write_bytes(weights(str(number)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards_of_the_index_are_accepted(model_dir: Path) -> None:
    """As transformers writes a large model."""
    sharded(model_dir, {"a": FIRST, "b": SECOND, "c": FIRST}, (FIRST, SECOND))
    assert len(check_files(model_dir)) == 5


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": FIRST, "b": "../../evil/model.safetensors"},
        {"a": FIRST, "b": "/srv/evil.safetensors"},
        {"a": FIRST, "b": "config.json"},
        {"a": FIRST, "b": "model-00003-of-00002.safetensors"},
        {"a": FIRST},  # the second shard is there and nobody names it
        {"a": FIRST, "b": 3},
        {},
        [],
        None,
    ],
)
def test_failure27_an_index_names_every_shard_of_the_directory_and_no_other_file(
    model_dir: Path, weight_map: object
) -> None:
    """A loader opens what the index says, wherever it lies."""
    sharded(model_dir, weight_map, (FIRST, SECOND))
    with pytest.raises(IntegrityError, match=r"index\.json"):
        check_files(model_dir)


def test_weights_that_can_be_read_in_two_ways_are_refused(model_dir: Path) -> None:
    """One loader takes the single file, another the index."""
    sharded(model_dir, {"a": FIRST, "b": SECOND}, (FIRST, SECOND))
    (model_dir / "model.safetensors").write_bytes(weights("a"))
    with pytest.raises(IntegrityError, match="one or the other"):
        check_files(model_dir)
    (model_dir / "model.safetensors").unlink()
    (model_dir / "model.safetensors.index.json").unlink()
    with pytest.raises(IntegrityError, match="no model"):
        check_files(model_dir)
