"""What the planner knows of a model: its shape, and which of its numbers were assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from components.planner.architecture_config import numbers_of
from components.planner.architecture_draft import Assumption, Draft

__all__ = ["Architecture", "Assumption"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer.

    `ffn` is the width of a dense feed-forward block (gate and up have it each where `gated`); of a mixture,
    `expert_ffn` is the width of one expert, and the first `dense_layers` layers have no experts. `kv_heads` of
    multi-head latent attention equals `heads`; what it caches a token and layer is `kv_latent + rope_dim` wide.
    """

    name: str
    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    q_latent: int = 0
    kv_latent: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    sliding_window: int | None = None
    max_context: int | None = None
    assumed: tuple[Assumption, ...] = field(default=())

    @property
    def attention(self) -> str:
        """mha, gqa (one KV head included) or mla."""
        if self.kv_latent:
            return "mla"
        return "mha" if self.kv_heads == self.heads else "gqa"

    @property
    def is_moe(self) -> bool:
        """Whether tokens choose experts."""
        return self.experts > 1

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.head_dim + (self.rope_dim if self.kv_latent else 0))

    @property
    def kv_width(self) -> int:
        """Width of all keys and values together, as the attention kernel sees them."""
        if self.kv_latent:
            return self.heads * (self.head_dim + self.rope_dim + self.value_dim)
        return 2 * self.kv_heads * self.head_dim

    @property
    def active_ffn(self) -> int:
        """Feed-forward width that one token passes in a layer, averaged over layers."""
        if not self.is_moe:
            return self.ffn
        expert = (self.experts_per_token + self.shared_experts) * self.expert_ffn
        return round((self.dense_layers * self.ffn + (self.layers - self.dense_layers) * expert) / self.layers)

    @property
    def embedding_params(self) -> float:
        """Parameters of the embeddings (input and output)."""
        return float(self.vocab * self.hidden * (1 if self.tied_embeddings else 2))

    @property
    def layer_params(self) -> float:
        """Parameters of one layer, averaged over layers."""
        return max(self.params - self.embedding_params, 0.0) / self.layers

    @property
    def expert_params(self) -> float:
        """Parameters of all routed experts of all layers (0 of a dense model)."""
        if not self.is_moe:
            return 0.0
        per_layer = self.experts * (3 if self.gated else 2) * self.hidden * self.expert_ffn
        return float(min(per_layer * (self.layers - self.dense_layers), self.params - self.embedding_params))

    @property
    def active_params(self) -> float:
        """Parameters that one token passes."""
        idle = 1.0 - self.experts_per_token / self.experts if self.is_moe else 0.0
        return self.params - idle * self.expert_params

    @classmethod
    def from_numbers(cls, name: str = "model", **given: Any) -> Architecture:
        """An architecture from the numbers at hand; the others follow from them or are assumed, and listed.

        Args:
            name: for messages.
            given: any of the fields above; None counts as not given. At least `params`, or `layers` and `hidden`.

        Raises:
            UserError: too little, impossible or contradicting numbers.
        """
        return _made(cls, Draft(name, given))

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], name: str = "config.json", params: float | None = None
    ) -> Architecture:
        """An architecture from a Hugging Face config.json.

        Args:
            config: the parsed file; a multimodal model's `text_config` is read.
            name: for messages.
            params: number of parameters, where it is known better than from the shape.
        """
        numbers, assumed = numbers_of(config, name)
        return _made(cls, Draft(name, numbers | {"params": params}, assumed))

    def with_params(self, params: float) -> Architecture:
        """The same shape with another number of parameters."""
        return replace(self, params=params)


def _made(cls: type[Architecture], draft: Draft) -> Architecture:
    numbers = draft.finish()
    return cls(name=draft.name, assumed=tuple(draft.assumed), **numbers)
