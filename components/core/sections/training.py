"""Recipe sections about the model, how it is trained, and on what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.core.sections.base import Count, NamePattern, Natural, Positive, Section, Share


class Model(Section):
    """The model family, its label, its text and its size."""

    name: Annotated[str, Field(pattern=NamePattern)]
    family: Literal["causal_lm"] = "causal_lm"
    label_column: str
    positive_values: Annotated[tuple[str, ...], Field(min_length=1)]
    labels: tuple[str, str] = ("no", "yes")  # negative, positive
    text_column: str = ""
    text_tokens: Natural = 64
    vocabulary: Count = 1000
    feature_buckets: Count = 12
    hidden_size: Count = 64
    layers: Count = 2
    heads: Count = 2  # head size 32: the smallest that vLLM serves on a CPU
    intermediate_size: Count = 168
    max_positions: Count = 512


class Training(Section):
    """How the model is trained; `ranks` processes, ZeRO stage, and the tiny-LM recipe's settings."""

    backend: Literal["local", "trainjob", "slurm"] = "local"
    ranks: Count = 2
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 400
    batch_size: Count = 32  # global, rows per optimizer step
    learning_rate: Positive = 2e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    warmup_share: Share = 0.05
    final_learning_rate_share: Share = 0.05
    clip_norm: Positive = 1.0
    average_decay: Share = 0.99  # exponential weight averaging
    positive_share: Share = 0.5  # of a batch; 0 = as in the data
    bucket_jitter: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Share = 0.05
    embedding_dropout: Share = 0.1
    feature_dropout: Share = 0.1
    token_dropout: Share = 0.0
    text_dropout: Share = 0.0
    language_model_weight: Annotated[float, Field(ge=0)] = 0.0
    checks: Count = 20  # validation checks, evenly over the steps; best one is kept
    patience: Count = 5
    checkpoint_every_steps: Count = 100
    keep_checkpoints: Count = 2
    timeout_minutes: Positive = 30.0
    seed: int = 0


class Resources(Section):
    """Cluster settings by profile; nothing here changes what is computed."""

    profile: Literal["laptop", "gpu-pool"] = "laptop"
    accelerator: Literal["", "a100", "h100", "h200", "l4"] = ""
    gpus: Natural = 0
    queue: str = ""
