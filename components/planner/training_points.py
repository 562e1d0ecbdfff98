"""Published training runs: what ran how, with which peak and speed; facts/training_points.csv, each with its source."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError
from components.planner.architecture import Architecture
from components.planner.gpus import Gpu, gpu_for
from components.planner.memory import predict_memory
from components.planner.models import model_named
from components.planner.throughput import unpredictable
from components.planner.training_constants import FACTS
from components.planner.training_run import METHODS, TrainingRun

TABLE = FACTS / "training_points.csv"
NEEDED = {
    "seq_len": "sequence length not stated",
    "micro_batch": "micro-batch not stated",
    "gpus": "number of GPUs not stated",
    "zero_stage": "strategy not stated",
}
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "experts_per_token")
DEFAULT_CHECKPOINTING = {"megatron": "none"}  # what a framework does where a row does not say; others recompute all


@dataclass(frozen=True)
class Point:
    """One published run. `run` is None where the row does not state enough, and `missing` says what."""

    number: int
    source: str
    model: str
    ran: bool
    run: TrainingRun | None
    missing: str
    peak_gib: float | None
    counter: str
    tokens_per_second: float | None

    def without(self, purpose: str) -> str | None:
        """Why the point does not count for `memory`, `speed` or `fit` (feasibility); None where it counts."""
        if self.run is None:
            return self.missing
        if purpose == "fit":
            return self._contradiction()
        if purpose == "memory":
            return "no peak reported" if self.peak_gib is None else self._contradiction()
        if self.tokens_per_second is None:
            return "no tokens/s reported"
        if not self.ran:
            return "it did not run"
        return unpredictable(self.run) if self.run.gpu.is_known else "GPU not named"

    def _contradiction(self) -> str | None:
        assert self.run is not None
        if self.peak_gib is None or not self.ran:
            return None
        parts = predict_memory(self.run).parts
        states = parts["weights"] + parts["gradients"] + parts["optimizer"]
        if self.run.method == "full" and states > 1.5 * self.peak_gib:
            return "another optimizer than the stated one: its states alone exceed the reported peak"
        return None


def read_points(table: Path = TABLE) -> list[Point]:
    """The points of a table in our layout."""
    with table.open(newline="") as stream:
        return points_of(csv.DictReader(stream))


def points_of(rows: Iterable[Mapping[str, str]]) -> list[Point]:
    """Points from rows in our layout; published_rows.training_rows brings other rows into it."""
    return [_point(number, row) for number, row in enumerate(rows)]


def _point(number: int, row: Mapping[str, str]) -> Point:
    run, missing = None, ""
    try:
        run = _run(row)
    except UserError as error:
        missing = str(error)
    return Point(
        number=number,
        source=row["source"],
        model=row["model"],
        ran=row["ran"] == "1",
        run=run,
        missing=missing,
        peak_gib=float(row["peak_gib"]) if row["peak_gib"] else None,
        counter=row["counter"],
        tokens_per_second=float(row["tokens_s_gpu"]) if row["tokens_s_gpu"] else None,
    )


def _run(row: Mapping[str, str]) -> TrainingRun:
    for column, reason in NEEDED.items():
        if not row[column]:
            raise UserError(reason)
    if row["method"] not in METHODS:
        raise UserError(f"method {row['method']!r} is unknown")
    gpus, cut = int(row["gpus"]), int(row["tp"] or 1) * int(row["pp"] or 1)
    if gpus % (cut * int(row["cp"] or 1)):
        raise UserError("tensor, pipeline and context parallel do not divide the GPUs")
    framework = row["framework"]
    return TrainingRun(
        architecture=_architecture(row),
        gpu=_gpu(row),
        gpus=gpus,
        seq=int(row["seq_len"]),
        micro_batch=int(row["micro_batch"]),
        gpus_per_node=int(row["gpus_per_node"] or 8),
        accumulation=int(row["accumulation"] or 1),
        zero_stage=int(row["zero_stage"]),
        offload=row["offload"] or "none",
        **{name: int(row[name] or 1) for name in ("tp", "pp", "cp", "ep", "virtual_stages")},
        method=row["method"],
        lora_rank=int(row["lora_rank"] or 16),
        lora_targets=row["lora_targets"] or "all",
        train_embeddings=row["train_embeddings"] == "1",
        checkpointing=row["checkpointing"] or DEFAULT_CHECKPOINTING.get(framework, "full"),
        precision=row["precision"],
        optimizer=row["optimizer"] or "adamw",
        framework=framework,
    )


def _architecture(row: Mapping[str, str]) -> Architecture:
    """The public model of that name, else one from the row's own numbers."""
    name = row.get("name") or row["model"]
    if row.get("hybrid"):
        raise UserError("not attention in every layer: outside the closed form")
    for known in (row["model"], name):
        try:
            return model_named(known)
        except UserError:
            continue
    shape = {field: float(row[field]) for field in SHAPE if row.get(field)}
    params = float(row["params_b"]) * 1e9 if row.get("params_b") else None
    try:
        return Architecture.from_numbers(name, params=params, **shape)
    except UserError:
        raise UserError("the model's architecture is not published, or it is no plain transformer") from None


def _gpu(row: Mapping[str, str]) -> Gpu:
    memory = float(row["memory_gib"]) if row["memory_gib"] else None
    return gpu_for(row["gpu"] or None, memory)
