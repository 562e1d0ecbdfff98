"""One TOML file describes one run completely; unknown keys are refused with the nearest known key."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.core.digest import value_digest
from components.core.errors import UserError

SECRETS = re.compile(
    r"://[^/@\s:]*:(?P<secret>[^/@\s]+)@"
    r"|[?&](?:[\w.-]*(?:token|secret|password|passwd|signature|api_?key|access_?key)[\w.-]*|sig)=(?P<value>[^&\s]+)",
    re.IGNORECASE,
)
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
RequestName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
NamePattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


class Source(Section):
    """Where rows come from. `uri`: a file, folder or glob, any fsspec URI, a SQLAlchemy URL, or generator://NAME?key=value.

    encoding auto: by its byte order mark, else UTF-8, else cp1252, whichever fits every byte.
    """

    uri: str
    format: Literal["auto", "csv", "jsonl", "parquet", "sql", "generator"] = "auto"
    query: str = ""
    encoding: str = "auto"
    time_column: str
    time_formats: Annotated[tuple[str, ...], Field(min_length=1)] = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S")
    key: Annotated[tuple[str, ...], Field(min_length=1)]
    since: str = ""
    until: str = ""


class Contract(Section):
    """The data contract that the snapshot has to hold; engine auto chooses by row count.

    `training` is the contract of what the feature step hands to training; "" leaves the guards and structure checks.
    """

    path: str
    training: str = ""
    engine: Literal["auto", "great_expectations", "duckdb"] = "auto"


class Features(Section):
    """The Feast repository, its feature service, and which features the model reads.

    `entities` maps a join key to its source column; `model_inputs` are feature names in prompt order;
    an outcome counts as known `label_delay_days` after the event. `request` maps what a request carries beside its
    entities, its text and its time, for on-demand features, to its source column. `as_of`: a day (YYYY-MM-DD), as of
    whose end the training set is made from what was known then ("" = from all). `online` is the online store that
    answers, a path or redis://HOST:PORT/0 ("" = the training set's own); a value older than `ttl_days` (0 = none is)
    is missing as in training (stale = default), refuses the decision (refuse), or is used and flagged (fallback).
    Online reads as of then may differ from the training rows in a share `max_skew` of the sampled values.
    """

    repo: str
    service: str
    entities: dict[str, str]
    model_inputs: tuple[str, ...]
    request: dict[RequestName, str] = {}
    label_delay_days: Natural = 30
    ttl_days: Natural = 0
    as_of: str = ""
    online: str = ""
    stale: Literal["default", "refuse", "fallback"] = "default"
    max_skew: Share = 0.0


class Leakage(Section):
    """What the guards between features and training allow; see components/contract/leakage/rules.py.

    A column or feature alone may separate the outcomes up to `max_auc`, told on `min_positives` rows of either or
    more. A token, or a value that is there or missing, must not cover `min_mark_share` of one outcome's rows and no
    other. The share of held-out texts with a twin in training (Jaccard index `twin_similarity` or more) may exceed the
    one at which training texts recur among themselves by `max_twin_excess`, with equal entities by `max_copy_excess`.
    """

    max_auc: Annotated[float, Field(gt=0.5, le=1.0)] = 0.95
    min_positives: Count = 20
    min_mark_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    twin_similarity: Annotated[float, Field(ge=0.5, le=1.0)] = 0.7
    max_twin_excess: Share = 0.01
    max_copy_excess: Share = 0.005


class Group(Section):
    """A slice for fairness: rows whose `column` contains (or equals) a text."""

    name: Annotated[str, Field(pattern=r"^[^:\n]{1,64}$")]
    column: str
    contains: str = ""
    equals: str = ""


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


class Evaluation(Section):
    """The time-ordered split and what is measured on the test rows."""

    test_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    embargo_days: Natural = 30
    groups: tuple[Group, ...] = ()
    bootstrap: Natural = 500
    baselines: tuple[str, ...] = ("logistic_regression", "text_logistic_regression", "gradient_boosting", "prior")
    seed: int = 0


class BaselineMargin(Section):
    """The candidate's AUC may be below this baseline's by at most `margin`."""

    baseline: str
    margin: float


class Gate(Section):
    """Absolute floors and margins; None switches a rule off. Missing evidence always refuses."""

    min_auc: Share | None = None
    max_ece: Share | None = None
    min_test_positives: Natural = 30
    baselines: tuple[BaselineMargin, ...] = ()
    champion_margin: float | None = 0.03  # lower bound of the paired AUC difference above -margin
    min_group_positives: Natural = 30
    max_group_auc_gap: Share | None = None
    blocking_groups: tuple[str, ...] = ()


class Serving(Section):
    """The engine that answers, and the decision made of its score."""

    engine: Literal["auto", "vllm", "reference"] = "auto"
    threshold: Share = 0.5
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    max_sequences: Count = 16
    kv_cache_gib: Positive = 1.0
    start_timeout_seconds: Positive = 300.0
    request_timeout_seconds: Positive = 10.0
    port: Annotated[int, Field(ge=0, le=65535)] = 0  # of the scoring service on 127.0.0.1; 0 takes a free one


class Rollout(Section):
    """Golden set, shadow, steps of weight and their margins; see the canary verdict's documentation."""

    golden_requests: Count = 64
    golden_tolerance: Positive = 0.001  # absolute difference of a served score and the evaluated one
    shadow_requests: Natural = 200
    steps: Annotated[tuple[int, ...], Field(min_length=1)] = (50,)  # percent of traffic
    min_canary_requests: Count = 100
    requests_per_second: Positive = 30.0
    slo_requests: Count = 150
    slo_p95_ms: Positive = 1000.0
    slo_error_rate: Share = 0.01
    error_margin: Share = 0.05
    latency_ratio: Positive = 2.0
    score_shift: Share = 0.05
    deadline_seconds: Positive = 150.0
    alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    seed: int = 0


class Monitoring(Section):
    """When decisions and feedback ask for a retraining."""

    max_psi: Positive = 0.2
    min_rows: Count = 500


class Resources(Section):
    """Cluster settings by profile; nothing here changes what is computed."""

    profile: Literal["laptop", "gpu-pool"] = "laptop"
    accelerator: Literal["", "a100", "h100", "h200", "l4"] = ""
    gpus: Natural = 0
    queue: str = ""


class Recipe(Section):
    """The whole run."""

    name: Annotated[str, Field(pattern=NamePattern)]
    source: Source
    contract: Contract
    features: Features
    model: Model
    leakage: Leakage = Leakage()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    serving: Serving = Serving()
    rollout: Rollout = Rollout()
    monitoring: Monitoring = Monitoring()
    resources: Resources = Resources()

    @property
    def digest(self) -> str:
        """sha256 of the resolved recipe."""
        return value_digest(self.model_dump(mode="json"))

    def to_json(self) -> str:
        """The resolved recipe as canonical JSON, for pipeline parameters."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply `path.to.key=value` overrides (values in TOML syntax, else taken as text).

    Raises:
        UserError: the file is absent or not TOML, a key is unknown or a value does not fit; one line with the key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"recipe {path}: no such file; see `pilotline run --help` for the recipes shipped") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {path}: cannot be read ({error}); give a UTF-8 TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {path}: not valid TOML ({error}); mend that line") from error
    for override in overrides:
        _apply(values, override)
    return parse_recipe(values, where=f"recipe {path.name}")


def parse_recipe(values: dict[str, Any] | str, where: str = "recipe") -> Recipe:
    """Build a recipe from plain values or from `Recipe.to_json`; UserError as in `load_recipe`."""
    try:
        if isinstance(values, str):
            values = json.loads(values)
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error)}") from error
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from error
    _check_together(recipe, where)
    return recipe


def _refuse_secrets(uri: str, key: str, where: str) -> None:
    """A recipe is stored, compiled and shown: a password or token in it would be everywhere. Never echoes it."""
    literal = [found for found in SECRETS.finditer(uri) if not (found["secret"] or found["value"]).startswith("${")]
    if literal:
        raise UserError(
            f"{where}: {key} holds a password or token in clear text; write ${{NAME}} in its place, which is "
            "filled from the environment when it is used"
        )


def _apply(values: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    parts = key.strip().split(".")
    if not sep or not all(parts) or "\n" in text:
        raise UserError(f"--set {override!r}: write it as path.to.key=value, for example training.steps=200")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if not isinstance(value, (bool, int, float, str, list, dict)):  # a TOML date stays the text that was typed
        value = text
    table = values
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: {part} is a value, not a section")
    table[parts[-1]] = value


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}{_nearest(first['loc'])}{more}"
    if first["type"] == "missing":
        return f"key {where!r} is missing; add it{more}"
    return f"{where}: {first['msg']}, got {str(first.get('input'))[:60]!r}{more}"


def _nearest(loc: tuple[int | str, ...]) -> str:
    known = list(Recipe.model_fields)
    section = Recipe.model_fields.get(str(loc[0])) if len(loc) > 1 else None
    if section is not None and isinstance(section.annotation, type) and issubclass(section.annotation, Section):
        known = list(section.annotation.model_fields)
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"


def _check_together(recipe: Recipe, where: str) -> None:
    """Rules that span keys."""
    training, evaluation = recipe.training, recipe.evaluation
    _refuse_secrets(recipe.source.uri, "source.uri", where)
    _refuse_secrets(recipe.features.online, "features.online", where)
    if taken := [name for name in ("text", "event_timestamp") if name in recipe.features.request]:
        raise UserError(f"{where}: features.request: every request carries {taken[0]!r}; leave it out")
    if recipe.model.labels[0] == recipe.model.labels[1]:
        raise UserError(f"{where}: model.labels are the same word twice; the two answers need different ones")
    if list(recipe.rollout.steps) != sorted(set(recipe.rollout.steps)):
        raise UserError(f"{where}: rollout.steps have to rise, got {list(recipe.rollout.steps)}")
    if training.batch_size % training.ranks:
        raise UserError(
            f"{where}: training.batch_size {training.batch_size} is not a multiple of training.ranks {training.ranks}"
        )
    if evaluation.test_share + evaluation.validation_share >= 0.9:
        raise UserError(f"{where}: evaluation.test_share and validation_share leave under a tenth for training")
    if recipe.model.hidden_size % recipe.model.heads:
        raise UserError(f"{where}: model.hidden_size must be a multiple of model.heads")
    if any(not 0 < step <= 100 for step in recipe.rollout.steps):
        raise UserError(f"{where}: rollout.steps are percentages between 1 and 100, got {list(recipe.rollout.steps)}")
    unknown = set(recipe.gate.blocking_groups) - {group.name for group in evaluation.groups}
    if unknown:
        raise UserError(f"{where}: gate.blocking_groups names {min(unknown)!r}, which is no evaluation group")
    unknown = {margin.baseline for margin in recipe.gate.baselines} - set(evaluation.baselines)
    if unknown:
        raise UserError(f"{where}: gate.baselines names {min(unknown)!r}, which evaluation.baselines does not run")
