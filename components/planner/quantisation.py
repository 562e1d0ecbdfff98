"""Weight formats: bytes a parameter with scales, and what of a model each format leaves in 16 bit."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from components.core.errors import UserError
from components.planner.architecture import Architecture

GIB = 2.0**30
WIDE = 2.0  # bytes of a 16-bit parameter
MXFP4_TILE = 256  # hidden sizes are padded to this in the kernels that multiply MXFP4 experts


@dataclass(frozen=True)
class WeightFormat:
    """A format of stored weights.

    `bytes_per_param` holds for quantised matrices, group scales and zero points included; `keeps_embeddings` says that
    embeddings and output head stay in 16 bit; `experts_only` that of a mixture only the routed experts are quantised.
    `vllm` is the value of vLLM's --quantization ("" = read from the checkpoint or not quantised).
    """

    name: str
    bytes_per_param: float
    keeps_embeddings: bool
    vllm: str
    why: str
    experts_only: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def is_quantised(self) -> bool:
        """Whether a parameter takes less than 16 bits."""
        return self.bytes_per_param < WIDE


FORMATS = {
    fmt.name: fmt
    for fmt in (
        WeightFormat("bf16", 2.0, False, "", "16 bit", aliases=("bfloat16", "fp16", "float16", "half", "16bit")),
        WeightFormat("fp32", 4.0, False, "", "32 bit", aliases=("float32", "float")),
        WeightFormat("fp8", 1.0 + 4.0 / 128**2, True, "fp8", "one scale a block of 128 x 128", aliases=("w8a8",)),
        WeightFormat("int8", 1.0 + 2.0 / 4096, True, "", "8 bit, one scale an output channel", aliases=("w8a16",)),
        WeightFormat(
            "int4", 0.5 + 2.5 / 128, True, "", "scale and zero point a group of 128", aliases=("awq", "gptq", "w4a16")
        ),
        WeightFormat(
            "bnb4", 0.5 + 0.127 / 8, True, "", "NF4, doubly quantised scales (QLoRA, arXiv:2305.14314)",
            aliases=("nf4", "bitsandbytes", "bnb"),
        ),
        WeightFormat("mxfp4", 0.5 + 1.0 / 32, True, "", "4 bit, one 8-bit exponent a block of 32", experts_only=True),
        WeightFormat("nvfp4", 0.5 + 1.0 / 16, True, "", "4 bit, one fp8 scale a block of 16", aliases=("fp4",)),
        WeightFormat("q8_0", 1.0 + 2.0 / 32, False, "", "GGUF: 8 bit, one scale a block of 32", aliases=("gguf",)),
    )
}  # fmt: skip
KV_BYTES = {
    "auto": 2.0, "bf16": 2.0, "fp16": 2.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0, "fp32": 4.0,
}  # fmt: skip


def weight_format(name: str) -> WeightFormat:
    """The format of a name or one of its other names; UserError with the nearest name where unknown."""
    key = name.strip().lower()
    for fmt in FORMATS.values():
        if key == fmt.name or key in fmt.aliases:
            return fmt
    parts = set(re.split(r"[^a-z0-9]+", key))
    named = {fmt.name: fmt for fmt in FORMATS.values() if parts & {fmt.name, *fmt.aliases}}
    if len(named) == 1:  # "gptq-int4", "awq_marlin", "bnb-4bit"
        return next(iter(named.values()))
    known = [word for fmt in FORMATS.values() for word in (fmt.name, *fmt.aliases)]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"weights {name!r}: no such format{hint} (known: {', '.join(FORMATS)})")


def weight_gib(model: Architecture, fmt: WeightFormat, tp: int = 1, pp: int = 1) -> float:
    """GiB of weights on the fullest GPU of a tensor- and pipeline-parallel replica.

    Layers are split over `tp` and dealt to `pp` stages; the fullest stage has the most layers and, where the model
    does not fit one stage, one of the two embedding matrices beside them. Latent attention's down projections are kept
    whole on every GPU, and the up projections a second time in 16 bit for decoding.
    """
    layers = math.ceil(model.layers / pp)
    blocks = _block_bytes(model, fmt) * layers / model.layers
    outer = _embedding_bytes(model, fmt)
    if pp > 1 and not model.tied_embeddings:
        outer /= 2
    return ((blocks + outer) / tp + _latent_bytes(model, fmt, tp, layers)) / GIB


def _block_bytes(model: Architecture, fmt: WeightFormat) -> float:
    blocks = max(model.params - model.embedding_params, 0.0)
    if not (fmt.experts_only and model.is_moe):
        return blocks * fmt.bytes_per_param
    padding = math.ceil(model.hidden / MXFP4_TILE) * MXFP4_TILE / model.hidden
    return model.expert_params * fmt.bytes_per_param * padding + (blocks - model.expert_params) * WIDE


def _embedding_bytes(model: Architecture, fmt: WeightFormat) -> float:
    embeddings = min(model.embedding_params, model.params)
    return embeddings * (WIDE if fmt.keeps_embeddings else fmt.bytes_per_param)


def _latent_bytes(model: Architecture, fmt: WeightFormat, tp: int, layers: int) -> float:
    if not model.kv_latent:
        return 0.0
    down = model.hidden * (model.q_latent + model.kv_latent + model.rope_dim)
    up = model.heads / tp * model.kv_latent * (model.head_dim + model.value_dim)
    return layers * (down * fmt.bytes_per_param * (1 - 1 / tp) + up * WIDE)
