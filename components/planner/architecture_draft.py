"""From the numbers at hand to all numbers of a model: what follows, what is assumed, what contradicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.core.errors import UserError

WHOLE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
FIELDS = {
    *WHOLE, "params", "gated", "tied_embeddings", "experts", "experts_per_token", "expert_ffn", "shared_experts",
    "dense_layers", "q_latent", "kv_latent", "rope_dim", "value_dim", "sliding_window", "max_context",
}  # fmt: skip
LARGEST = {"params": 1e15, "layers": 1e4}
SPREAD = 0.10  # by how much a stated number of parameters may differ from the one that the shape gives,
WIDEST_DENSE = 12.0  # times the hidden size; Gemma's dense blocks are eight times as wide
EXACT = 0.003  # by how much a count may differ to be taken for exact; small parts are left out of it
LOOSE = 0.35  # and where parts of the shape were assumed
USUAL = (  # parameters, name, layers, hidden, heads, KV heads of public models
    (0.124e9, "gpt2", 12, 768, 12, 12),
    (0.354e9, "gpt2-medium", 24, 1024, 16, 16),
    (0.494e9, "qwen2.5-0.5b", 24, 896, 14, 2),
    (1.236e9, "llama-3.2-1b", 16, 2048, 32, 8),
    (1.544e9, "qwen2.5-1.5b", 28, 1536, 12, 2),
    (3.213e9, "llama-3.2-3b", 28, 3072, 24, 8),
    (6.738e9, "llama-2-7b", 32, 4096, 32, 32),
    (8.03e9, "llama-3-8b", 32, 4096, 32, 8),
    (13.016e9, "llama-2-13b", 40, 5120, 40, 40),
    (14.77e9, "qwen2.5-14b", 48, 5120, 40, 8),
    (32.76e9, "qwen2.5-32b", 64, 5120, 40, 8),
    (41.3e9, "falcon-40b", 60, 8192, 128, 8),
    (70.55e9, "llama-3-70b", 80, 8192, 64, 8),
    (174.6e9, "gpt-3", 96, 12288, 96, 96),
    (405.85e9, "llama-3.1-405b", 126, 16384, 128, 8),
)


@dataclass(frozen=True)
class Assumption:
    """A number that was not given, the value used instead, and why that value."""

    field: str
    value: float | str
    reason: str

    def __str__(self) -> str:
        return f"{self.field} not given: {self.shown} assumed ({self.reason})"

    @property
    def shown(self) -> str:
        """The value for a person: whole numbers without a fraction, thousands apart."""
        plain = isinstance(self.value, str | bool)
        return str(self.value) if plain else f"{self.value:,.10g}"


class Draft:
    """Numbers on their way to an architecture."""

    def __init__(self, name: str, given: Mapping[str, Any], assumed: Sequence[Assumption] = ()) -> None:
        unknown = sorted(set(given) - FIELDS)
        if unknown:
            raise UserError(f"{name}: {unknown[0]!r} is no number of a model")
        self.name = name
        self.given = {key: value for key, value in given.items() if value is not None}
        self.assumed = list(assumed)
        for key, value in self.given.items():
            if key not in ("gated", "tied_embeddings"):
                self.given[key] = _number(name, key, value, whole=key != "params")

    def finish(self) -> dict[str, Any]:
        """All numbers; UserError where they are too few, impossible or contradicting."""
        g = self.given
        params = g.get("params")
        if params is None and ("layers" not in g or "hidden" not in g):
            raise UserError(f"{self.name}: give the number of parameters, or at least layers and hidden size")
        if params is not None and params < 1000:
            raise UserError(f"{self.name}: params is {params:g}; write the number itself, such as 13e9")
        self._attention(params)
        self._outer(params)
        self._experts(params)
        self._ffn(params)
        if params is None:
            g["params"] = counted(self._shape())
            self._assume("params", g["params"], "counted from the shape")
        self._agree(params)
        return g

    def _assume(self, key: str, value: Any, reason: str) -> None:
        self.given[key] = value
        self.assumed.append(Assumption(key, value, reason))

    def _attention(self, params: float | None) -> None:
        g = self.given
        if "layers" not in g or "hidden" not in g:
            self._grid(float(params or 0.0))
        hidden = g["hidden"]
        if "heads" not in g:
            width = g.get("head_dim") or (128 if hidden % 128 == 0 and hidden >= 1024 else 64)
            self._assume("heads", max(1, hidden // width), f"heads of {width}")
            g.setdefault("head_dim", min(width, hidden))
        heads = g["heads"]
        if "head_dim" not in g:
            if hidden % heads:
                raise UserError(f"{self.name}: {heads} heads do not divide a hidden size of {hidden}; give head_dim")
            g["head_dim"] = hidden // heads
        if g.get("kv_latent"):
            g["kv_heads"] = heads
            for key, value in (("rope_dim", 64), ("value_dim", g["head_dim"])):
                if key not in g:
                    self._assume(key, value, "usual for latent attention")
        if "kv_heads" not in g:
            group = 8 if heads % 8 == 0 and heads > 8 else heads
            why = "most models since 2023 share keys among groups of heads" if group != heads else "as many as heads"
            self._assume("kv_heads", group, why)
        if heads % g["kv_heads"]:
            raise UserError(f"{self.name}: {g['kv_heads']} KV heads do not divide {heads} heads")

    def _grid(self, params: float) -> None:
        """Depth and width: those of the nearest public model, else hidden is about 128 layers and P = 12·L·h²."""
        g = self.given
        near = min(USUAL, key=lambda row: abs(math.log(params / row[0])))
        if not {"layers", "hidden", "heads", "kv_heads", "head_dim"} & set(g) and 0.75 < params / near[0] < 1.35:
            for key, value in zip(("layers", "hidden", "heads", "kv_heads"), near[2:], strict=True):
                self._assume(key, value, f"as {near[1]}, a public model of about this size")
        elif "hidden" in g:
            self._assume("layers", max(1, round(params / (12.0 * g["hidden"] ** 2))), "from parameters and width")
        else:
            if "layers" not in g:
                depth = max(2, round((params / (12.0 * 128.0**2)) ** (1 / 3)))
                self._assume("layers", depth, "usual depth for this many parameters")
            exact = math.sqrt(params / (12.0 * g["layers"]))
            step = 1024 if exact >= 2048 else 128 if exact >= 512 else 64
            self._assume("hidden", max(step, round(exact / step) * step), "usual width for this many parameters")

    def _outer(self, params: float | None) -> None:
        g = self.given
        if "vocab" not in g:
            room = 0.25 * params / g["hidden"] if params else 128_256
            vocab = 128_256 if room >= 128_256 else 32_000 if room >= 32_000 else max(256, int(room))
            self._assume("vocab", vocab, "a large vocabulary, so that logits are not underrated")
        if "gated" not in g and "ffn" not in g and params is not None and g.get("experts", 0) <= 1:
            self._plain(params)
        if "gated" not in g:
            ratio = g["ffn"] / g["hidden"] if "ffn" in g else 0.0
            self._assume(
                "gated", ratio != 4.0, "SwiGLU" if ratio != 4.0 else "a block of four times the width is plain"
            )
        if "tied_embeddings" not in g:
            tied = g["vocab"] * g["hidden"] > 0.12 * params if params else False
            self._assume("tied_embeddings", tied, "small models tie them" if tied else "large models do not tie them")

    def _plain(self, params: float) -> None:
        """Blocks of exactly four times the width, which is what the parameters then leave, have no gate."""
        g = self.given
        for tied in [g["tied_embeddings"]] if "tied_embeddings" in g else [True, False]:
            shape = self._shape() | {"gated": False, "tied_embeddings": tied, "ffn": 4 * g["hidden"]}
            if abs(counted(shape) / params - 1) < EXACT:
                self._assume("gated", False, "the parameters are those of plain blocks of four times the width")
                self._assume("ffn", 4 * g["hidden"], "the same")
                if "tied_embeddings" not in g:
                    self._assume("tied_embeddings", tied, "the same")
                return

    def _unstated_mixture(self, params: float) -> None:
        """More parameters than a dense block of this width ever has are those of experts."""
        g = self.given
        width = (params - counted(self._shape() | {"ffn": 0})) / (3 * g["hidden"] * g["layers"])
        if width <= WIDEST_DENSE * g["hidden"]:
            return
        why = "a mixture: more parameters than a dense model of this depth and width has"
        self._assume("experts", max(8, 2 ** round(math.log2(2 * width / g["hidden"]))), why)

    def _experts(self, params: float | None) -> None:
        g = self.given
        if params is not None and not {"experts", "ffn"} & set(g):
            self._unstated_mixture(params)
        if g.get("experts", 0) <= 1:
            for key in ("experts", "experts_per_token", "expert_ffn", "shared_experts", "dense_layers"):
                g.pop(key, None)
            return
        if "experts_per_token" not in g:
            self._assume("experts_per_token", 2 if g["experts"] <= 16 else 8, "usual for this many experts")
        if g["experts_per_token"] > g["experts"]:
            raise UserError(f"{self.name}: {g['experts_per_token']} experts a token of only {g['experts']}")
        if g.get("dense_layers", 0) >= g["layers"]:
            raise UserError(f"{self.name}: {g['dense_layers']} dense layers leave none of {g['layers']} for experts")

    def _ffn(self, params: float | None) -> None:
        """Widths of feed-forward blocks that were not given follow from the number of parameters."""
        g = self.given
        moe = g.get("experts", 0) > 1
        if moe and "expert_ffn" in g:
            g.setdefault("ffn", g["expert_ffn"])
        if "ffn" in g and (not moe or "expert_ffn" in g):
            return
        missing = "expert_ffn" if moe else "ffn"
        if params is None:
            if moe:
                raise UserError(f"{self.name}: give the number of parameters or the width of an expert (expert_ffn)")
            width = 4 * g["hidden"] if not g["gated"] else _round_up(8 * g["hidden"] / 3, 128)
            self._assume("ffn", width, "8/3 of the hidden size" if g["gated"] else "four times the hidden size")
            return
        rest = params - counted(self._shape() | {"ffn": 0, "expert_ffn": 0} | ({"ffn": g["ffn"]} if "ffn" in g else {}))
        blocks = (
            (g["layers"] - g.get("dense_layers", 0)) * (g["experts"] + g.get("shared_experts", 0))
            if moe
            else g["layers"]
        )
        width = round(rest / ((3 if g["gated"] else 2) * g["hidden"] * blocks))
        if width <= 0:
            raise UserError(
                f"{self.name}: {params:.4g} parameters contradict {g['layers']} layers of width {g['hidden']}"
                f" and a vocabulary of {g['vocab']}"
            )
        self._assume(missing, width, "what is left of the parameters")
        g.setdefault("ffn", width)

    def _shape(self) -> dict[str, Any]:
        return dict(self.given)

    def _agree(self, params: float | None) -> None:
        if params is None:
            return
        ours = counted(self._shape())
        spread = LOOSE if self.assumed else SPREAD
        if abs(ours - params) > spread * params:
            raise UserError(
                f"{self.name}: the shape has {ours:.4g} parameters, but {params:.4g} are stated; leave one of them out"
            )


def counted(shape: Mapping[str, Any]) -> float:
    """Parameters of a shape: embeddings, attention and feed-forward matrices; norms and biases are left out."""
    h, layers, heads, width = shape["hidden"], shape["layers"], shape["heads"], shape["head_dim"]
    matrices = 3 if shape["gated"] else 2
    if latent := shape.get("kv_latent"):
        rope, value, q_latent = shape["rope_dim"], shape["value_dim"], shape.get("q_latent", 0)
        query = (h * q_latent + q_latent * heads * (width + rope)) if q_latent else h * heads * (width + rope)
        attention = query + h * (latent + rope) + latent * heads * (width + value) + heads * value * h
    else:
        attention = 2 * h * heads * width + 2 * h * shape["kv_heads"] * width
    dense = layers
    sparse = 0
    if shape.get("experts", 0) > 1:
        dense = shape.get("dense_layers", 0)
        sparse = (layers - dense) * (shape["experts"] + shape.get("shared_experts", 0)) * shape["expert_ffn"]
    blocks = matrices * h * (dense * shape.get("ffn", 0) + sparse)
    embeddings = shape["vocab"] * h * (1 if shape["tied_embeddings"] else 2)
    return float(layers * attention + blocks + embeddings)


def _number(name: str, key: str, value: Any, whole: bool) -> float | int:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name}: {key} is {value!r}; a number is needed") from None
    if not math.isfinite(number) or number < 0 or (whole and number != int(number)):
        raise UserError(f"{name}: {key} is {value!r}; a {'whole ' if whole else ''}number above 0 is needed")
    if number == 0 and (key in WHOLE or key == "params"):
        raise UserError(f"{name}: {key} is 0; a number above 0 is needed")
    if number > LARGEST.get(key, 1e9):
        raise UserError(f"{name}: {key} is {number:g}; no model has more than {LARGEST.get(key, 1e9):g}")
    return int(number) if whole else number


def _round_up(value: float, step: int) -> int:
    return math.ceil(value / step) * step
