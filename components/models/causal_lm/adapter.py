"""Low-rank adapters through peft (Hu et al., 2021, "LoRA"), the embedding rows of new tokens trained beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.recipe import Model, Training
from components.models.causal_lm.prompt import Renderer


def adapted(network: Any, training: Training, renderer: Renderer) -> Any:
    """The network with adapters; all else but the rows of the signature's new tokens is frozen.

    Adapters have no dropout of their own: its draws would depend on ranks and micro-batches.

    Raises:
        UserError: no module of the network has such a name.
    """
    from peft import LoraConfig, get_peft_model

    rows = sorted(renderer.new_token_ids)
    layers = [network.get_input_embeddings(), network.get_output_embeddings()]
    tied = layers[0].weight is layers[1].weight
    names = {name.rpartition(".")[2] for name, module in network.named_modules() if any(module is x for x in layers)}
    if tied:
        names = {name.rpartition(".")[2] for name, module in network.named_modules() if module is layers[0]}
    config = LoraConfig(
        r=training.lora_rank,
        lora_alpha=training.lora_alpha,
        target_modules=list(training.lora_targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        trainable_token_indices=dict.fromkeys(sorted(names), rows) if rows else None,
    )
    try:
        return get_peft_model(network, config)
    except ValueError as error:
        raise UserError(
            f"training.lora_targets {list(training.lora_targets)}: the model has no such modules; it has "
            f"{', '.join(sorted({name.rpartition('.')[2] for name, _ in _linear(network)}))}"
        ) from error


def is_adapted(network: Any) -> bool:
    """True for what `adapted` gave."""
    return hasattr(network, "merge_and_unload")


def save_adapter(network: Any, model: Model, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`; no card, no path of this machine."""
    network.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)
    for path in folder.iterdir():
        if path.suffix not in {".json", ".safetensors"}:
            path.unlink()
    config = folder / "adapter_config.json"
    values = json.loads(config.read_text()) | {
        "base_model_name_or_path": model.initial,
        "revision": model.revision or None,
    }
    config.write_text(json.dumps(values, indent=1, sort_keys=True))
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)


def _linear(network: Any) -> list[tuple[str, Any]]:
    from torch import nn

    return [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
