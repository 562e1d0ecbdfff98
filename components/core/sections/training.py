"""Recipe sections about the model, how it is trained, and on what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from components.core.sections.base import (
    ClusterName,
    Count,
    NamePattern,
    Natural,
    NodeLabel,
    Positive,
    Section,
    Share,
)


class Model(Section):
    """The model family, its label, its text and its size.

    `initial` names the weights to start from: "" for random ones of the size below, a directory in Hugging Face's
    layout, a name on its hub (with `revision`), a GGUF file, or `package://NAME/FILE` for a file of an installed
    Python package. Then sizes and vocabulary are those of the initial model, and the size keys below are not read.
    `label_tokens`: "new" adds a token a label; "own" takes the tokenizer's own, one token each. `text_form`:
    "normalised" folds case, dates and numbers; "plain" leaves text as it is, for models that know written language.
    """

    name: Annotated[str, Field(pattern=NamePattern)]
    family: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")] = "causal_lm"
    initial: Annotated[str, Field(max_length=1024, pattern=r"^[^\n\r\x00]*$")] = ""
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{0,128}$")] = ""
    label_tokens: Literal["new", "own"] = "new"
    text_form: Literal["normalised", "plain"] = "normalised"
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
    """How the model is trained; `ranks` processes, ZeRO stage, and the tiny-LM recipe's settings.

    A step's `batch_size` rows are micro-batches of batch_size / (ranks x accumulation) rows. `precision` auto is bf16
    on a GPU and fp32 on a CPU. `tuning` lora trains adapters of `lora_rank` at modules named `lora_targets`, with the
    rows of new tokens. `peak_tflops` of one rank's device is what model FLOP utilisation is told against; 0 takes the
    GPU's published one, and on a CPU leaves the utilisation unknown. `average_decay` 0 averages no weights.

    A rank that shows no progress for `stall_minutes` is taken for hung. A gang that died starts again at most
    `restarts` times without a new checkpoint between, after `restart_wait_seconds`, doubled each time. A loss that
    is no number, or above `spike_factor` times the running median (0 = not looked at), is handled as `on_nan` says:
    "skip" leaves the step's batch out, "rollback" goes back to the last checkpoint and leaves it out from there, at
    most `max_skips` times in a run; "stop" ends the run.
    """

    backend: Literal["local", "trainjob", "slurm"] = "local"
    ranks: Count = 2
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 400
    batch_size: Count = 32  # global, rows per optimizer step
    accumulation: Count = 1  # micro-batches a rank and optimizer step
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    activation_checkpointing: bool = False
    offload_optimizer: Literal["none", "cpu"] = "none"
    offload_parameters: Literal["none", "cpu"] = "none"
    tuning: Literal["full", "lora"] = "full"
    lora_rank: Annotated[int, Field(ge=1, le=1024)] = 8
    lora_alpha: Positive = 16.0
    lora_targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "k_proj", "v_proj", "o_proj")
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    peak_tflops: Annotated[float, Field(ge=0, le=1e6)] = 0.0
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
    validation_rows: Natural = 0  # rows that are checked and calibrated on, drawn with the seed; 0 = all
    patience: Count = 5
    checkpoint_every_steps: Count = 100
    checkpoint_every_minutes: Annotated[float, Field(ge=0)] = 0.0  # 0 = by steps alone
    checkpoint_in_background: bool = True  # copied to memory, written and published while training goes on
    keep_checkpoints: Count = 2
    timeout_minutes: Positive = 30.0
    stall_minutes: Annotated[float, Field(gt=0, le=1440)] = 10.0
    grace_seconds: Annotated[float, Field(ge=1, le=28)] = 25.0  # torchrun ends ranks 30 s after SIGTERM
    restarts: Annotated[int, Field(ge=0, le=1000)] = 2
    restart_wait_seconds: Annotated[float, Field(ge=0, le=600)] = 1.0
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    spike_factor: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    max_skips: Annotated[int, Field(ge=0, le=100_000)] = 10
    seed: int = 0


class Resources(Section):
    """Where training and the steps run, and on what; nothing here changes what is computed.

    GPUs are asked of a pool (a100, h100, h200, l4, or one of `pools`) where the profile is gpu-pool or a pool or a
    number of GPUs is named; else ranks run on CPUs.
    """

    profile: Literal["laptop", "gpu-pool"] = "laptop"
    accelerator: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?)?$")] = ""  # name of the pool
    gpus: Annotated[int, Field(ge=0, le=64)] = 0  # of one node; 0 = one a rank of the node
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1  # training.ranks is spread evenly over them
    queue: Annotated[str, Field(pattern=ClusterName)] = ""  # Kueue's queue, or Slurm's partition
    priority: Annotated[str, Field(pattern=ClusterName)] = ""  # Kueue's priority class, or Slurm's QOS
    topology: Annotated[str, Field(pattern=NodeLabel)] = ""  # label of the nodes among which ranks are to lie close
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:@-]{0,500}$")] = ""  # of a TrainJob; empty: Pilotline's own
    namespace: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")] = ""  # of TrainJobs
    pools: str = ""  # a TOML file with pools of another cluster, or with other settings of the known ones
    pool: dict[str, Any] = Field(default_factory=dict)  # single settings of the chosen pool, see backends/pools.toml
