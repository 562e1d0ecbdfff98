"""An initial model of which a weight would be random, left out or no number is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as tensors
import torch

from components.core.errors import UserError
from components.models.causal_lm.initial import Initial, check_files, load_network, locate, write_pointer
from components.models.reach import INDEX, SINGLE
from tests.fakes.tiny_initial import tiny_initial
from tests.fakes.training_case import tiny_recipe

Q = "model.layers.0.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that loads."""
    return tiny_initial(tmp_path_factory.mktemp("whole") / "model")


def _configured(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _weighed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        found = tensors.load_file(folder / SINGLE)
        change(found)
        tensors.save_file(found, folder / SINGLE, metadata={"format": "pt"})

    return write


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_weighed(lambda found: found.pop(Q)), f"its weights lack {Q};"),
        (_weighed(lambda found: found.pop("model.norm.weight")), "its weights lack model.norm.weight;"),
        (_weighed(lambda found: found.update(extra=torch.ones(2))), "its config has no place for extra;"),
        (_weighed(lambda found: found.update({Q: torch.ones(3, 3)})), f"of another shape than its config says: {Q};"),
        (_weighed(lambda found: found[Q].fill_(float("nan"))), f"{Q} is not finite everywhere"),
        (_weighed(lambda found: found[Q].view(-1)[5:6].fill_(float("inf"))), f"{Q} is not finite everywhere"),
        (_configured(model_type="bert"), "its weights lack bert.* and [0-9]+ more;"),
        (_configured(num_hidden_layers=-1), "no place for model.layers.0.* and 1[0-9] more;"),
        (_configured(num_hidden_layers=1), "no place for model.layers.1"),
        (_configured(num_hidden_layers=3), "its weights lack model.layers.2"),
    ],
)
def test_weights_that_are_not_the_configs_are_one_line(
    whole: Path, tmp_path: Path, change: Callable[[Path], None], says: str
) -> None:
    """A tensor absent, one too many, of another shape or not a number; another architecture or depth."""
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    change(folder)
    for read in (load_network, check_files):  # a rank, and the launcher before there is one
        with pytest.raises(UserError, match=says) as refused:
            read(Initial(folder))
        assert "\n" not in str(refused.value)


def test_preparing_refuses_weights_that_no_rank_would_take(whole: Path, tmp_path: Path) -> None:
    """The launcher's own step says it: before ranks start, and with no weight of the model in memory."""
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    write_pointer(Initial(folder), tmp_path)
    _weighed(lambda found: found[Q].fill_(float("nan")))(folder)
    with pytest.raises(UserError, match="is not finite everywhere"):
        write_pointer(Initial(folder), tmp_path)


def test_a_tied_head_is_no_missing_weight_and_what_loads_is_what_was_written(whole: Path) -> None:
    """The head of tied weights is in no file, and is the embedding; every weight is the file's."""
    network, written = load_network(Initial(whole)), tensors.load_file(whole / SINGLE)
    assert "lm_head.weight" not in written
    assert torch.equal(network.lm_head.weight, written[EMBEDDING])
    assert all(torch.equal(network.get_parameter(name), value) for name, value in written.items())


@pytest.mark.parametrize("place", ["../model/model.safetensors", "/etc/hosts", "absent.safetensors", "config.json", 7])
def test_an_index_that_names_a_file_of_elsewhere_is_refused(whole: Path, tmp_path: Path, place: Any) -> None:
    """Before anything opens that file; the same index naming the directory's own file is taken."""
    folder = Path(shutil.copytree(whole, tmp_path / "sharded"))
    (folder / SINGLE).rename(folder / "model-00001-of-00001.safetensors")
    shards = dict.fromkeys(tensors.load_file(whole / SINGLE), "model-00001-of-00001.safetensors")
    recipe = tiny_recipe(model={"initial": str(folder)})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert load_network(locate(recipe.model)).config.num_hidden_layers == 2
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards | {Q: place}}))
    with pytest.raises(UserError, match=r"no \.safetensors file of that directory") as refused:
        locate(recipe.model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_that_is_none_is_one_line(whole: Path, tmp_path: Path, text: str) -> None:
    """Of any form."""
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    (folder / INDEX).write_text(text)
    with pytest.raises(UserError, match="no index of shards") as refused:
        locate(tiny_recipe(model={"initial": str(folder)}).model)
    assert "\n" not in str(refused.value)
