"""Versions as LoRA adapters on a shared base: one vLLM server, each version's own scores, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.protocols import GoldenRow
from components.models.files import model_digest
from components.models.spec import spec_for
from components.serving.adapters import check_adapter
from components.serving.engines import Choice, choose
from components.serving.reference import ReferenceEngine
from components.serving.reference_model import LoadedModel
from components.serving.scoring import ARM_HEADER, label_logprobs, scoring_request
from components.serving.stack import LocalStack
from tests.fakes.serving_case import make_model, rows, tiny_recipe

RANK, ALPHA = 8, 16
MODULES = [f"model.layers.{layer}.self_attn.{kind}_proj" for layer in range(2) for kind in "qkvo"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with room for prompts of several cache blocks."""
    folder = make_model(tmp_path_factory.mktemp("base") / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    return folder


def version(base: Path, folder: Path, seed: int) -> Path:
    """An adapter and the merged model beside it, as training leaves them; W + alpha / r B A by hand."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, folder / "model")
    draws, merged = torch.Generator().manual_seed(seed), load_file(base / "model.safetensors")
    low_rank: dict[str, Any] = {}
    for module in MODULES:
        out, into = merged[f"{module}.weight"].shape
        down, up = torch.randn(RANK, into, generator=draws) * 0.3, torch.randn(out, RANK, generator=draws) * 0.3
        merged[f"{module}.weight"] += ALPHA / RANK * up @ down
        low_rank[f"base_model.model.{module}.lora_A.weight"] = down
        low_rank[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(merged, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    (folder / "adapter").mkdir()
    save_file(low_rank, folder / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none",
              "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "base_model_name_or_path": ""}  # fmt: skip
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    return folder


def wrong_weight(folder: Path) -> None:
    """One number of one adapter matrix."""
    from safetensors.torch import load_file, save_file

    found = load_file(folder / "adapter" / "adapter_model.safetensors")
    found[f"base_model.model.{MODULES[3]}.lora_B.weight"][0, 0] += 0.01
    save_file(found, folder / "adapter" / "adapter_model.safetensors")


def new_tokens(folder: Path) -> None:
    """As training with new tokens writes it."""
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"trainable_token_indices": {"embed_tokens": [5]}}))


@pytest.mark.parametrize(("spoil", "error", "said"), [
    (wrong_weight, IntegrityError, "layers.0.self_attn.o_proj"), (new_tokens, UserError, "trainable_token_indices"),
    (lambda folder: shutil.rmtree(folder / "adapter"), UserError, "no LoRA adapter"),
    (lambda folder: (folder / "adapter" / "adapter_model.bin").touch(), IntegrityError, "no file of an adapter"),
])  # fmt: skip
def test_only_a_base_and_adapter_that_are_the_registered_model_are_served(
    base: Path, tmp_path: Path, spoil: Callable[[Path], None], error: type[Exception], said: str
) -> None:
    """Compared with the merged weights, tensor by tensor: another base, another adapter, rows of new tokens."""
    made = version(base, tmp_path / "v1", 1)
    assert check_adapter(base, made / "adapter", made / "model") == RANK
    with pytest.raises(IntegrityError):
        check_adapter(make_model(tmp_path / "other", seed=7), made / "adapter", made / "model")
    spoil(made)
    with pytest.raises(error, match=said):
        check_adapter(base, made / "adapter", made / "model")


def opened(base: Path, place: Path, choice: Choice) -> LocalStack:
    """A stack whose versions are adapters."""
    return LocalStack(
        recipe=tiny_recipe(serving={"adapter_base": str(base)}), home=Home.at(place / "home"), run_id="run-1",
        training_set=place, service_module="tests.fakes.serving_case", choice=choice,
    )  # fmt: skip


def test_an_engine_that_serves_whole_models_refuses_adapters_in_one_line(base: Path, tmp_path: Path) -> None:
    """Before anything is started for it; and no version is served as an adapter without a registered score."""
    made = version(base, tmp_path / "v1", 1) / "model"
    golden = GoldenRow({"count": 1.0, "rate": 0.1}, "my card", 0.5, 0.01)
    with opened(base, tmp_path, Choice(ReferenceEngine(), "asked for")) as stack:
        with pytest.raises(UserError, match=r"reference engine serves whole models only; use vllm"):
            stack.start("stable", made, "1", model_digest(made), golden)
        with pytest.raises(UserError, match="no registered score"):
            stack.start("stable", made, "1", model_digest(made))
        assert not stack.alive("stable")


@pytest.mark.vllm
@pytest.mark.full
def test_two_adapters_on_one_server_each_give_their_own_scores_also_from_its_prefix_cache(
    base: Path, tmp_path: Path
) -> None:
    """The same prompt of several cache blocks, both orders, twice: what transformers computes of each merged model."""
    dirs = {arm: version(base, tmp_path / arm, seed) / "model" for seed, arm in enumerate(("stable", "canary"), 1)}
    renderer = spec_for("causal_lm").renderer(dirs["stable"])
    labels, row = renderer.label_token_ids, rows(1)[0]
    prompt = [3 + i * 7 % 90 for i in range(400)]  # a block of the CPU's cache is 128 tokens
    models = {arm: LoadedModel.load(folder, "float32", 512, 1) for arm, folder in dirs.items()}

    def own(arm: str, ids: list[int]) -> tuple[float, ...]:
        (step,) = models[arm].generate(ids, 1, 0.0, 0, labels)
        return tuple(value for _, value in step.asked)

    with opened(base, tmp_path, choose("vllm")) as stack:
        served = {}
        for number, arm in enumerate(dirs, 1):
            score = renderer.score(*own(arm, renderer.token_ids(row["features"], row["text"])))
            golden = GoldenRow(row["features"], row["text"], score, 0.001)
            served[arm] = stack.start(arm, dirs[arm], str(number), model_digest(dirs[arm]), golden)
        assert served["stable"].pid == served["canary"].pid
        assert served["canary"].digest[:12] in served["canary"].served_name
        for arm in ("stable", "canary", "canary", "stable") * 2:
            asked = scoring_request(served[arm].served_name, prompt, labels)
            url = f"{stack.router_url}/v1/completions"
            answer = httpx.post(url, json=asked, headers={ARM_HEADER: arm}, timeout=60).json()
            assert label_logprobs(answer, served[arm].served_name, labels) == pytest.approx(own(arm, prompt), abs=1e-4)
        told = httpx.get(f"{served['stable'].url}/metrics").text.splitlines()
        hits = [float(line.rpartition(" ")[2]) for line in told if line.startswith("vllm:prefix_cache_hits_total")]
        assert sum(hits) >= 6 * 256, "the repetitions came from the cache"
        stack.set_weight(50)
        assert {d.status for d in stack.decide(rows(20), 20.0)} == {"ok"}
        stack.stop("canary")
        assert stack.alive("stable")
        assert stack.score_arm("stable", [row])[0] is not None
