"""Published vLLM start-ups: what is predicted for each, the constants fitted from them, and how well it holds.

Every figure is taken with the row's own source left out of the fit. Logs whose repository is not recorded count as one
source for each model and card, so that no log predicts itself.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.gpus import Gpu, gpu_for
from components.planner.kv_cache import kv_element_bytes
from components.planner.models import model_named
from components.planner.quantisation import weight_format
from components.planner.serving_memory import GpuMemory, Setup, gpu_memory, usable_gib
from components.planner.serving_runtime import (
    CONSTANTS,
    UTILISATION,
    Limits,
    RuntimeConstants,
    activation_gib,
    uncertainty_gib,
)

TABLE = Path(__file__).parent / "facts" / "serve_points.csv"
UNRECORDED = "unrecorded log"
SMALLEST = 1000  # tokens: below, the printed number says "nothing left" and its relative error nothing
COVERAGE = 0.85  # asked of the band on the rows of the fit, so that it covers 80 % outside of it


@dataclass(frozen=True)
class ServePoint:
    """One start-up: the setup, how it ended ("ran", "no cache", "context too long") and what was printed."""

    name: str
    source: str
    setup: Setup
    max_model_len: int | None
    outcome: str
    kv_tokens: int | None
    activations_gib: float | None
    outside_torch_gib: float | None
    cuda_graphs_gib: float | None
    plain_batch: bool = True


@dataclass(frozen=True)
class Judged:
    """A row with its prediction, made without its source."""

    point: ServePoint
    memory: GpuMemory

    @property
    def error(self) -> float | None:
        """Relative error of the KV-cache tokens."""
        seen = self.point.kv_tokens
        return None if seen is None or seen < SMALLEST else self.memory.kv_tokens / seen - 1.0

    @property
    def covered(self) -> bool:
        """Whether the band of the tokens holds the printed number."""
        low, high = self.memory.kv_tokens_band
        return low <= (self.point.kv_tokens or 0) <= high

    @property
    def called_feasible(self) -> bool:
        """Whether the context fits the predicted cache."""
        return self.memory.kv_tokens >= (self.point.max_model_len or 1)


def read_points(path: Path = TABLE) -> tuple[list[ServePoint], dict[str, str]]:
    """Rows that state what a prediction needs, and name → reason of those that do not."""
    with path.open(newline="") as stream:
        return points_of(csv.DictReader(stream))


def points_of(rows: Iterable[Mapping[str, str]]) -> tuple[list[ServePoint], dict[str, str]]:
    """The same of rows in our layout; published_rows.serving_rows brings other rows into it."""
    points, left_out = [], {}
    for number, row in enumerate(rows, start=2):
        name = f"line {number}: {row['model']}"
        try:
            if reason := _lacking(row):
                left_out[name] = reason
            else:
                points.append(_point(name, row))
        except UserError as error:
            left_out[name] = str(error)
    return points, left_out


def judge(points: Sequence[ServePoint], own: Sequence[ServePoint] | None = None) -> list[Judged]:
    """Predict each row from constants fitted to the rows of other sources, of `own` where rows come from elsewhere."""
    known = points if own is None else own
    fits = {source: fit([p for p in known if p.source != source]) for source in {p.source for p in points}}
    return [Judged(point, gpu_memory(point.setup, fits[point.source])) for point in points]


def figures(judged: Sequence[Judged]) -> dict[str, float]:
    """The figures that the planner is judged by; not a number where no row tells one."""
    errors = [abs(row.error) for row in judged if row.error is not None]
    ran = [row.called_feasible for row in judged if row.point.outcome == "ran"]
    failed = [not row.called_feasible for row in judged if row.point.outcome != "ran"]
    covered = [row.covered for row in judged if row.error is not None]
    return {
        "rows": len(judged),
        "kv_rows": len(errors),
        "kv_tokens_median_error": statistics.median(errors) if errors else math.nan,
        "kv_tokens_p90_error": sorted(errors)[math.ceil(0.9 * len(errors)) - 1] if errors else math.nan,
        "ran_called_feasible": _share(ran),
        "ran_rows": len(ran),
        "failed_called_infeasible": _share(failed),
        "failed_rows": len(failed),
        "band_coverage": _share(covered),
    }


def _share(of: Sequence[bool]) -> float:
    """The share of what holds; not a number where there is nothing to count."""
    return statistics.mean(of) if of else math.nan


def fit(points: Sequence[ServePoint]) -> RuntimeConstants:
    """Medians of what start-up logs print of each part, then the width of the band."""
    constants = RuntimeConstants(
        bytes_per_logit=_median(points, _bytes_per_logit, CONSTANTS.bytes_per_logit),
        outside_torch_gib=_median(points, lambda p: _outside(p, parallel=False), CONSTANTS.outside_torch_gib),
        outside_torch_parallel_gib=_median(
            points, lambda p: _outside(p, parallel=True), CONSTANTS.outside_torch_parallel_gib
        ),
        graph_gib_per_layer=_median(points, _graph_gib_per_layer, CONSTANTS.graph_gib_per_layer),
    )
    scores = sorted(score for point in points if (score := _score(point, constants)) is not None)
    rank = min(math.ceil(COVERAGE * (len(scores) + 1)), len(scores)) - 1
    return RuntimeConstants(**{**vars(constants), "band": scores[rank] if scores else CONSTANTS.band})


def _lacking(row: Mapping[str, str]) -> str:
    """Why a row cannot be judged, "" where it can."""
    if "shared GPU" in row["remark"]:
        return "other processes hold memory of the same GPU"
    if "hybrid cache" in row["remark"]:
        return "hybrid sliding-window cache with shared layers: outside the closed form"
    if "another engine" in row["remark"]:
        return "another engine than vLLM"
    if not row["layers"] and not _named(row):
        return "the model's shape is not stated"
    for column in ("memory_gib", "utilisation", "tp"):
        if not row[column]:
            return f"{column} is not stated"
    if row["outcome"] == "ran" and not row["kv_tokens"] and not row["kv_cache_gib"]:
        return "ran, but no size of the KV cache is stated"
    return ""


def _point(name: str, row: Mapping[str, str]) -> ServePoint:
    memory = float(row["memory_gib"])
    gpu = _gpu(row["gpu"], memory)
    kv_element_bytes(row.get("kv_dtype") or "auto")  # an unknown type leaves the row out
    model = _model(row)
    setup = Setup(
        model=model,
        gpu=gpu,
        weights=weight_format(row["weights"]),
        memory_gib=usable_gib(gpu, memory),
        tp=int(row["tp"]),
        pp=int(row["pp"] or 1),
        kv_dtype=row.get("kv_dtype") or "auto",
        utilisation=float(row["utilisation"] or UTILISATION),
        max_num_seqs=_whole(row["max_num_seqs"]),
        max_num_batched_tokens=_whole(row["max_batched_tokens"]),
    )
    seen, cache = _whole(row["kv_tokens"]), _real(row["kv_cache_gib"])
    if seen is None and cache is not None:
        seen = max(int(cache * 2**30 / gpu_memory(setup).kv_bytes_per_token), 0)
    source = row["source"] if row["source"] != UNRECORDED else f"log of {row['architecture']} on {memory:g} GiB"
    return ServePoint(
        name, source, setup, _whole(row["max_model_len"]), row["outcome"], seen,
        _real(row["activations_gib"]), _real(row["outside_torch_gib"]), _real(row["cuda_graphs_gib"]),
        plain_batch=not {"multimodal", "batch set by a trainer"} & set(row["remark"].split("|")),
    )  # fmt: skip


def _gpu(name: str, memory_gib: float) -> Gpu:
    return gpu_for(name or None, memory_gib)


def _named(row: Mapping[str, str]) -> Architecture | None:
    """The public model of the row, None where it is none."""
    for key in (row["architecture"], row["architecture"].replace("-vl", ""), row["model"]):
        try:
            return model_named(key)
        except UserError:
            continue
    return None


def _model(row: Mapping[str, str]) -> Architecture:
    """The public model of the row with the row's own number of parameters (a vision tower adds to it)."""
    params = float(row["params_b"]) * 1e9 if row["params_b"] else None
    if named := _named(row):
        return named if params is None else named.with_params(params)
    fields = ("layers", "hidden", "heads", "kv_heads", "head_dim", "kv_latent")
    return Architecture.from_numbers(row["model"], params=params, **{name: _real(row[name]) for name in fields})


def _bytes_per_logit(point: ServePoint) -> float | None:
    """From a printed peak that can be the sampler's: text only, one GPU, vLLM's own batch, no larger layer."""
    setup = point.setup
    if point.activations_gib is None or setup.tp > 1 or not point.plain_batch:
        return None
    limits = setup.limits
    if activation_gib(setup.model, limits, 1) > activation_gib(
        setup.model, Limits(0, limits.max_num_batched_tokens), 1
    ):
        hidden = 2.0 * limits.max_num_batched_tokens * setup.model.hidden
        return (point.activations_gib * 2**30 - hidden) / (limits.max_num_seqs * setup.model.vocab)
    return None


def _outside(point: ServePoint, parallel: bool) -> float | None:
    return point.outside_torch_gib if (point.setup.tp * point.setup.pp > 1) == parallel else None


def _graph_gib_per_layer(point: ServePoint) -> float | None:
    return point.cuda_graphs_gib / point.setup.model.layers if point.cuda_graphs_gib else None


def _score(point: ServePoint, constants: RuntimeConstants) -> float | None:
    """How far the printed cache lies from the predicted one, in units of what may be wrong."""
    if point.kv_tokens is None or point.kv_tokens < SMALLEST:
        return None
    memory = gpu_memory(point.setup, constants)
    seen = point.kv_tokens * memory.kv_bytes_per_token / 2**30
    quantised = point.setup.weights.is_quantised
    unit = uncertainty_gib(memory.weights_gib, quantised, memory.activations_gib, memory.outside_torch_gib)
    return abs(memory.kv_cache_gib - seen) / unit


def _median(points: Sequence[ServePoint], of: Callable[[ServePoint], float | None], otherwise: float) -> float:
    """The median over sources of each source's median, so that a server logged many times counts once."""
    by_source: dict[str, list[float]] = {}
    for point in points:
        if (value := of(point)) is not None:
            by_source.setdefault(point.source, []).append(value)
    return statistics.median(map(statistics.median, by_source.values())) if by_source else otherwise


def _real(text: str) -> float | None:
    return float(text) if text else None


def _whole(text: str) -> int | None:
    return int(float(text)) if text else None
