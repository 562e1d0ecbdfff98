"""Starting from an initial model, in full and by adapters: what is exported scores as what was trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from components.core.errors import UserError
from components.core.publish import verify
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ModelRef, TrainingSetRef
from components.models.calibration import Calibration
from components.models.causal_lm.prepare import initial_digest, prepare, sized
from components.models.causal_lm.prompt import Renderer
from components.models.causal_lm.task import Task
from components.models.files import files_digest
from components.models.spec import spec_for
from tests.fakes import forked_ranks
from tests.fakes.tiny_initial import tiny_initial
from tests.fakes.training_case import publish_training_set, rows, tiny_recipe


@dataclass
class Case:
    """A training set and an initial model of either kind."""

    root: Path
    source: Path

    def recipe(self, *, tied: bool = True, model: dict[str, Any] | None = None, **training: Any) -> Recipe:
        """A recipe that starts from the tied or the untied model."""
        about = {"initial": str(self.root / f"tied-{tied}"), "text_form": "plain"} | (model or {})
        return tiny_recipe(model=about, training={"learning_rate": 1e-2} | training)

    def task(self, recipe: Recipe, folder: Path) -> Task:
        """The prepared training task."""
        folder.mkdir(parents=True)
        frames = [pd.read_parquet(self.source / f"{name}.parquet") for name in ("train", "validation")]
        prepare(recipe, TrainingSetRef.read(self.source), *frames, folder)
        return Task(recipe, folder)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Made once."""
    root = tmp_path_factory.mktemp("initial")
    for tied in (True, False):
        tiny_initial(root / f"tied-{tied}", tied=tied)
    return Case(root, publish_training_set(root / "set"))


def _learn(task: Task, network: Any, steps: int = 6) -> None:
    import torch

    objective = task.objective(network)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-2)
    for step in range(steps):
        objective(task.batches(np.arange(32), step, [slice(0, 32)])[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    network.eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("label_tokens", ["new", "own"])
def test_an_export_scores_as_the_trained_network(
    case: Case, tmp_path: Path, tied: bool, tuning: str, label_tokens: str
) -> None:
    """Tied and untied embeddings, new and own label tokens: transformers loads the directory with equal log odds."""
    recipe = case.recipe(tied=tied, model={"label_tokens": label_tokens}, tuning=tuning)
    task = case.task(recipe, tmp_path / "prepared")
    network = task.network()
    before = task.validation_log_odds(network, np.arange(40))
    _learn(task, network)
    trained = task.validation_log_odds(network, np.arange(40))
    assert np.abs(trained - before).max() > 1e-2
    task.export_adapter(network, tmp_path / "adapter")
    task.export(network, Calibration(1.0, 0.0), tmp_path / "model")
    frame = pd.read_parquet(case.source / "validation.parquet").iloc[:40]
    assert spec_for("causal_lm").scorer(tmp_path / "model").log_odds(frame) == pytest.approx(trained, abs=2e-6)  # type: ignore[attr-defined]
    assert (tmp_path / "adapter").is_dir() == (tuning == "lora")


@pytest.mark.parametrize("tied", [True, False])
def test_an_unmerged_adapter_scores_as_the_merged_model(case: Case, tmp_path: Path, tied: bool) -> None:
    """peft puts the adapter onto the bare initial model, and the rows of new tokens come with it."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    recipe = case.recipe(tied=tied, tuning="lora")
    task = case.task(recipe, tmp_path / "prepared")
    network = task.network()
    _learn(task, network)
    trained = task.validation_log_odds(network, np.arange(20))
    task.export_adapter(network, tmp_path / "adapter")
    assert {path.suffix for path in (tmp_path / "adapter").iterdir()} == {".json", ".safetensors"}
    bare = AutoModelForCausalLM.from_pretrained(recipe.model.initial, dtype=torch.float32)
    bare.resize_token_embeddings(max(task.renderer.new_token_ids) + 1, mean_resizing=False)
    joined = PeftModel.from_pretrained(bare, str(tmp_path / "adapter")).eval()
    renderer, frame = task.renderer, pd.read_parquet(case.source / "validation.parquet").iloc[:20]
    found = []
    for ids in renderer.frame_token_ids(frame):
        with torch.no_grad():
            logits = joined(torch.tensor([ids])).logits[0, -1]
        negative, positive = renderer.label_token_ids
        found.append(float(logits[positive] - logits[negative]))
    assert np.array(found) == pytest.approx(trained, abs=5e-6)


def test_adapters_train_no_weight_of_the_initial_model(case: Case, tmp_path: Path) -> None:
    """But for the rows of new tokens every weight of the initial model is bit-equal in the export."""
    from safetensors.numpy import load_file

    recipe = case.recipe(tied=False, tuning="lora", lora_targets=["q_proj"])
    task = case.task(recipe, tmp_path / "prepared")
    network = task.network()
    _learn(task, network)
    task.export(network, Calibration(1.0, 0.0), tmp_path / "model")
    before = load_file(Path(recipe.model.initial) / "model.safetensors")
    after = load_file(tmp_path / "model" / "model.safetensors")
    assert set(before) == set(after)
    old = before["model.embed_tokens.weight"].shape[0]
    for name, weight in before.items():
        same = np.array_equal(weight, after[name][:old] if "embed" in name or "lm_head" in name else after[name])
        assert same == ("q_proj" not in name), name


def test_new_tokens_are_single_and_text_cannot_spell_them(case: Case, tmp_path: Path) -> None:
    """Labels and buckets have ids of their own behind the initial vocabulary; a label spelt in a text is plain text."""
    task = case.task(case.recipe(), tmp_path / "prepared")
    renderer = task.renderer
    assert renderer.new_token_ids == sorted(set(renderer.new_token_ids))
    assert set(renderer.label_token_ids) <= set(renderer.new_token_ids)
    ids = renderer.token_ids({"visits": 1.0, "share": None}, "a <yes> b")
    assert not set(ids[3:-1]) & set(renderer.new_token_ids)
    assert Renderer.load(tmp_path / "prepared").token_ids({"visits": 1.0, "share": None}, "a <yes> b") == ids


@pytest.mark.parametrize(
    ("model", "training", "says"),
    [
        ({"labels": ("no", "perhaps"), "label_tokens": "own"}, {}, "'perhaps' is . tokens"),
        ({"initial": "nowhere/at all"}, {}, "no such directory"),
        ({"initial": "package://llm_nothing/x.gguf"}, {}, "package 'llm_nothing' is not installed"),
        ({"initial": "/nowhere/x.gguf"}, {}, "no such file"),
        ({"text_tokens": 126}, {}, "initial model's positions 128"),
        ({}, {"tuning": "lora", "lora_targets": ["query"]}, "it has down_proj"),
    ],
)
def test_an_initial_model_that_does_not_fit_is_one_line(
    case: Case, tmp_path: Path, model: dict[str, Any], training: dict[str, Any], says: str
) -> None:
    """Labels of several tokens, absent models, prompts too long, modules that are not there."""
    with pytest.raises(UserError, match=says) as refused:
        case.task(case.recipe(model=model, **training), tmp_path / "prepared").network()
    assert "\n" not in str(refused.value)


def test_pickled_weights_are_not_read(case: Case, tmp_path: Path) -> None:
    """A directory that holds a pickle in place of safetensors is refused before anything opens it."""
    (tmp_path / "config.json").write_text((case.root / "tied-True" / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="pickled weights are not read"):
        initial_digest(tiny_recipe(model={"initial": str(tmp_path)}))


def test_the_initial_model_is_part_of_what_names_a_job(case: Case) -> None:
    """Other bytes under the same path are another job; sizes for the memory check are the initial model's."""
    recipe = case.recipe()
    digest = initial_digest(recipe)
    config = case.root / "tied-True" / "config.json"
    text = config.read_text()
    config.write_text(text + " ")
    assert initial_digest(recipe) != digest
    config.write_text(text)
    assert initial_digest(recipe) == digest
    assert (sized(recipe).model.hidden_size, sized(recipe).model.max_positions) == (32, 128)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_lora_through_the_whole_step_on_two_ranks(case: Case, tmp_path: Path, stage: int) -> None:
    """Two ranks train adapters with checkpoints; the record names the adapter, and the merged model scores."""
    recipe = case.recipe(tuning="lora", activation_checkpointing=True, accumulation=2, zero_stage=stage)
    (tmp_path / "set").symlink_to(case.source)
    found = forked_ranks.run(tmp_path, recipe.to_json())
    assert isinstance(found, ModelRef), found
    verify(tmp_path / "out")
    assert ModelRef.read(tmp_path / "out").adapter_digest == files_digest(tmp_path / "out" / "adapter") != ""
    assert found.metrics["trained_parameters"] < found.parameters / 3
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == recipe.model.initial
    scores = spec_for("causal_lm").scorer(tmp_path / "out" / "model").score(rows(20, 7))
    assert ((scores > 0) & (scores < 1)).all()
    losses = [point["loss"] for point in found.curve if "loss" in point]
    assert losses[-1] < losses[0]


def test_adapters_without_an_initial_model_are_refused() -> None:
    """There is nothing to adapt."""
    with pytest.raises(UserError, match=r"model\.initial"):
        parse_recipe(json.loads(tiny_recipe().to_json()) | {"training": {"tuning": "lora"}})
