"""A model directory holds nothing that runs when it is loaded."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from components.core.errors import IntegrityError
from components.models.files import SIGNATURE, check_files, model_digest
from components.models.spec import spec_for


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
    "name", ["pytorch_model.bin", "model.pt", "modeling_x.py", "chat_template.jinja", "x.pkl", "a/b.so", "x", ".hidden"]
)
def test_other_kinds_of_files_are_refused(model_dir: Path, name: str) -> None:
    """Pickles, code, templates and unknown files, also in sub-folders."""
    (model_dir / name).parent.mkdir(exist_ok=True)
    (model_dir / name).write_bytes(pickle.dumps(Bomb(model_dir.parent / "exploded")))
    for look in (check_files, model_digest, spec_for("causal_lm").scorer):
        with pytest.raises(IntegrityError, match="not allowed"):
            look(model_dir)
    assert not (model_dir.parent / "exploded").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "nested/deep.json"])
def test_configuration_that_loads_code_is_refused(model_dir: Path, name: str) -> None:
    """`auto_map` and templates are found at any depth."""
    path = model_dir / name
    path.parent.mkdir(exist_ok=True)
    for key in ("auto_map", "chat_template"):
        path.write_text(json.dumps({"a": [{"b": {key: "evil.Model"}}]}))
        with pytest.raises(IntegrityError, match=key):
            check_files(model_dir)


def test_links_out_of_the_directory_are_refused(model_dir: Path) -> None:
    """A link is no file of the model, wherever it points."""
    (model_dir / "extra.json").symlink_to("/etc/hostname")
    with pytest.raises(IntegrityError, match="link"):
        check_files(model_dir)


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
