"""A tiny from-scratch model directory, a recipe and a scoring service with fixed features, for serving's tests."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.recipe import Recipe, parse_recipe
from components.models.feature_source import FeatureSource

if TYPE_CHECKING:
    from components.core.protocols import Served
    from components.serving.stack import LocalStack

FEATURES = ("count", "rate")
LABELS = ("no", "yes")
WORDS = tuple(re.findall(r"\w+", "my card was charged twice and the bank did not answer a dispute about late fees"))


def tiny_recipe(**sections: Mapping[str, Any]) -> Recipe:
    """A recipe about nothing in particular; `sections` replace keys of its sections."""
    values: dict[str, dict[str, Any] | str] = {
        "name": "tiny",
        "source": {"uri": "x.csv", "time_column": "t", "key": ["id"]},
        "contract": {"path": "c.yaml"},
        "features": {"repo": "f", "service": "s", "entities": {"shop": "Shop"}, "model_inputs": list(FEATURES)},
        "model": {"name": "tiny", "label_column": "y", "positive_values": ["1"], "labels": list(LABELS)},
        "serving": {"request_timeout_seconds": 6.0, "start_timeout_seconds": 120.0},
    }
    for section, changes in sections.items():
        found = values.get(section, {})
        assert isinstance(found, dict)
        values[section] = found | dict(changes)
    return parse_recipe(dict(values))


def make_model(folder: Path, seed: int = 0) -> Path:
    """An exported model directory of the causal_lm family with random weights: head size 32, two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_shell(folder)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def make_shell(folder: Path, note: str = "") -> Path:
    """A model directory that renders prompts and has a digest, but whose weights are none; needs no torch."""
    import numpy as np
    from safetensors.numpy import save_file

    from components.models.causal_lm.prompt import template
    from components.models.causal_lm.tokenizer import label_token, save_tokenizer, special_tokens, train_tokenizer
    from components.models.files import SIGNATURE

    folder.mkdir(parents=True)
    tokenizer = train_tokenizer([" ".join(WORDS)] * 20, 120, special_tokens(LABELS, FEATURES, 4))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 168,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(tokenizer, folder, 128)
    signature = {
        "family": "causal_lm",
        "labels": list(LABELS),
        "label_token_ids": [tokenizer.token_to_id(label_token(label)) for label in LABELS],
        "features": list(FEATURES),
        "feature_service": "s",
        "bucket_edges": {"count": [1.0, 10.0, 100.0], "rate": [0.1, 0.2, 0.5]},
        "text_tokens": 32,
        "prompt": template(FEATURES, 32),
        "note": note,
        "calibration": {"slope": 0.5, "intercept": 0.0},
        "training_set_digest": "",
        "recipe_digest": "",
    }
    (folder / SIGNATURE).write_text(json.dumps(signature))
    save_file({"nothing": np.zeros(1, dtype=np.float32)}, str(folder / "model.safetensors"))
    return folder


def open_fake(root: Path, faults: Mapping[str, str] | None = None, **sections: Mapping[str, Any]) -> LocalStack:
    """A serving stack on fake model servers, with the scoring service and Envoy real; not entered yet."""
    from components.core.home import Home
    from components.serving.engines import Choice
    from components.serving.stack import LocalStack
    from tests.fakes.fake_model_server import FakeEngine

    return LocalStack(
        recipe=tiny_recipe(**sections),
        home=Home.at(root / "home"),
        run_id="run-1",
        training_set=root,
        service_module="tests.fakes.serving_case",
        choice=Choice(FakeEngine(dict(faults or {})), "fake"),
    )


def start_arm(stack: LocalStack, folder: Path, arm: str, version: str) -> Served:
    """Start an arm on a shell model of its own."""
    from components.models.files import model_digest

    model = folder / f"model-{version}"
    if not model.exists():
        make_shell(model, note=version)
    return stack.start(arm, model, version, model_digest(model))


def expected_score(model: Path, row: Mapping[str, Any]) -> float:
    """What a fake model server makes of a row."""
    from components.models.spec import spec_for
    from tests.fakes.fake_model_server import fake_logprobs

    renderer = spec_for("causal_lm").renderer(model)
    found = fake_logprobs(renderer.token_ids(row["features"], row["text"]), renderer.label_token_ids)
    return renderer.score(*(found[token] for token in renderer.label_token_ids))


def fixed_features(entities: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Features that depend on the shop alone; an unknown shop has no history."""
    shop = entities["shop"]
    if not shop.startswith("shop-"):
        return {name: {"value": None, "as_of": "", "fresh": False} for name in FEATURES}
    number = float(len(shop) + sum(map(ord, shop)) % 50)
    values = {"count": number, "rate": number / 100}
    about = {"as_of": "2026-01-01T00:00:00+00:00", "fresh": True}
    return {name: {"value": value, **about} for name, value in values.items()}


class FixedFeatures:
    """`fixed_features` as the scoring service wants them; the shop "shop-broken" makes the store fail."""

    source = FeatureSource("s", FEATURES)

    def read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Values for one row of entities."""
        if entities["shop"] == "shop-broken":
            raise RuntimeError("the store is gone")
        return fixed_features(entities)


def rows(count: int, words: int = 8) -> list[dict[str, Any]]:
    """Rows as `decide` and `score_arm` want them."""
    found = []
    for i in range(count):
        entities = {"shop": f"shop-{i % 37}"}
        features = {name: about["value"] for name, about in fixed_features(entities).items()}
        text = " ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(words))
        found.append({"entities": entities, "text": text, "features": features})
    return found


def main() -> int:
    """`python -m tests.fakes.serving_case --config FILE`: the scoring service with fixed features."""
    from components.serving.scoring_service import ServiceConfig, serve

    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    serve(ServiceConfig.read(parser.parse_args().config), FixedFeatures())
    return 0


if __name__ == "__main__":
    sys.exit(main())
