"""What passes between steps: frozen records, each naming things by their digests.

Every record is written as `record.json` in the folder that its step publishes, and a copy under
`runs/<run_id>/records/<step>.json` in the home.
"""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from components.core.digest import value_digest
from components.core.errors import IntegrityError

RECORD = "record.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base: JSON round trip and a digest of all fields."""

    @property
    def record_digest(self) -> str:
        """sha256 of the record's canonical JSON."""
        return value_digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))

    def write(self, folder: Path) -> None:
        """Write `record.json` into a (staging) folder."""
        (folder / RECORD).write_text(json.dumps(self.to_dict(), indent=1, sort_keys=True))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild the record; IntegrityError where fields are missing, unknown, or of another type than they name."""
        try:
            return typing.cast(Self, _build(cls, values))
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise IntegrityError(f"not a {cls.__name__} record: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `record.json` of a published folder (does not verify the folder)."""
        try:
            text = (folder / RECORD).read_text(encoding="utf-8")
            values = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        except (OSError, ValueError, RecursionError) as error:
            raise IntegrityError(f"{folder}: no readable {RECORD}; run the step that wrote it again") from error
        try:
            return cls.from_dict(values)
        except IntegrityError as error:
            raise IntegrityError(f"{folder / RECORD}: {error}; run the step that wrote it again") from error


@dataclass(frozen=True, kw_only=True)
class SnapshotRef(Record):
    """An immutable Parquet snapshot (`data.parquet`); times are ISO 8601 UTC, the interval is [since, until).

    contract_id, contract_version, contract_digest: the contract that it was read under and is judged by; "" for none.
    """

    digest: str
    rows: int
    columns: tuple[str, ...]
    time_column: str
    time_min: str
    time_max: str
    source: str
    since: str
    until: str
    inputs: tuple[dict[str, Any], ...] = ()  # lineage: {"uri", "bytes", "sha256"} of what was read
    contract_id: str = ""
    contract_version: str = ""
    contract_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleResult(Record):
    """One rule of a decision: what was looked at, what was seen, what was asked, how it ended.

    `outcome` is pass, fail, insufficient (not enough evidence: never a pass) or info (not part of the decision).
    `observed` and `limit` are numbers or text; None where nothing could be observed.
    """

    rule: str
    outcome: str
    observed: float | str | None
    limit: float | str | None
    subject: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ContractVerdict(Record):
    """The verdict on one snapshot; clean + quarantined = rows. `checks` use subject for the column.

    after_outcome: the columns that the contract declares to be known only after the outcome.
    """

    passed: bool
    contract: str
    version: str
    contract_digest: str
    snapshot_digest: str
    rows: int
    clean: int
    quarantined: int
    engine: str
    checks: tuple[RuleResult, ...]
    clean_digest: str = ""
    reason: str = ""
    after_outcome: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SplitRef(Record):
    """One split of a training set (`<name>.parquet`): rows, positives, digest and time range (ISO 8601 UTC)."""

    name: str
    rows: int
    positives: int
    digest: str
    time_min: str
    time_max: str


@dataclass(frozen=True, kw_only=True)
class TrainingSetRef(Record):
    """Point-in-time correct rows, split by time with an embargo.

    Files: train.parquet, validation.parquet, test.parquet with columns row_id (str), event_timestamp (UTC),
    label (int8, 0 or 1), text (str), one column an entity key, one column a feature (float64, NaN = no history),
    `group:<name>` (bool) for each group of the recipe and `slice:<column>` (str) for each column that it cuts by;
    `online.db`: the online store; `statistics.json`;
    `parity.json`; `request:<name>` (str) for each request input of the recipe. skew: the share of sampled values that
    online reads as of then answer otherwise, None where nobody compared. on_demand: the features that are computed of
    the request alone, by the feature project's on_demand.py, whose digest is on_demand_digest. notes: what a person has
    to know of how the rows came to be known, a line each (a restated source, an export out of order).
    """

    digest: str
    snapshot_digest: str
    clean_digest: str
    feature_repo: str
    feature_service: str
    features: tuple[str, ...]
    entities: tuple[str, ...]
    as_of: str
    embargo_days: int
    splits: tuple[SplitRef, ...]
    skew: float | None = None
    on_demand: tuple[str, ...] = ()
    on_demand_digest: str = ""
    notes: tuple[str, ...] = ()

    def split(self, name: str) -> SplitRef:
        """The split called train, validation or test."""
        return next(split for split in self.splits if split.name == name)


@dataclass(frozen=True, kw_only=True)
class HandOver(Record):
    """The verdict on a training set before anything is learned from it.

    `checks` are those of the training contract, subject `<split>: <column>` ("" and none where the recipe names no
    contract); `guards` what is asked of every training set: its structure, and that no outcome leaks.
    """

    passed: bool
    training_set_digest: str
    snapshot_digest: str
    contract: str
    version: str
    contract_digest: str
    engine: str
    rows: int
    guards: tuple[RuleResult, ...]
    checks: tuple[RuleResult, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointRef(Record):
    """A published checkpoint: the global step it holds and the shape of the job that wrote it."""

    digest: str
    step: int
    world_size: int
    zero_stage: int
    recipe_digest: str


@dataclass(frozen=True, kw_only=True)
class ModelRef(Record):
    """An exported model directory (`model/`, Hugging Face layout, safetensors) and how it came to be.

    A model that was adapted has its adapter, unmerged, in `adapter/` beside it: `adapter_digest` is of those files.

    `digest` is the tree digest of `model/`: what is trained is what is evaluated, registered and served.
    `curve` holds {"step", "loss", "lr", ...} and validation points; `mlflow_run_id` the tracking run.
    """

    digest: str
    family: str
    parameters: int
    training_set_digest: str
    recipe_digest: str
    steps: int
    world_size: int
    zero_stage: int
    checkpoint: CheckpointRef | None
    mlflow_run_id: str
    labels: tuple[str, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    curve: tuple[dict[str, float], ...] = ()
    resumed_from_step: int = 0
    adapter_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Interval(Record):
    """A point estimate with a 95 % interval; `n` rows, `positives` positive rows behind it."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    positives: int = 0


@dataclass(frozen=True, kw_only=True)
class Fairness(Record):
    """One attribute: the largest less the smallest value over its slices, for each measure, with intervals.

    state: measured or insufficient (then `reason` says why and there are no differences). compared: the slices that
    were; left_out: those that are too small to say anything of, which are not thereby fair.
    differences: selection_rate_, recall_, fpr_, equalized_odds_, auc_ and ece_difference.
    """

    state: str
    reason: str = ""
    compared: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    differences: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evidence(Record):
    """What the untouched test rows say. `predictions.parquet` beside it: row_id, label, score, (champion_score).

    parts: part of the evaluation → measured, not asked, or insufficient with the reason; an empty field of a part that
    is not `measured` means nothing. Intervals come of `resamples` bootstrap resamples of the test rows.
    metrics: auc, average_precision, log_loss, brier, ece → Interval. operating: precision, recall, fpr, selection_rate,
    accuracy where a score from `threshold` on is positive; confusion [[tn, fp], [fn, tp]] there.
    baselines: name → {metric → Interval}. champion: the same metrics of the champion on the same rows, and the
    paired difference "auc_difference".
    slices: NAME and NAME:others of a group, "A & B" of two, COLUMN=VALUE → {metric → Interval}, those of `metrics` and
    of `operating`; slice_states: measured or insufficient. fairness: by group or column.
    curves: roc [[fpr, tpr]...], precision_recall [[recall, precision]...], calibration [[mean score, rate, n]...].
    robustness: change of the input → mean_shift, p95_shift, flip_rate, invalid_rate; invalid_rate: share of all answers
    that are no member of the closed set of labels. drift: column or "score" → psi of test against training, noise (the
    psi that equal distributions would show at these sizes), new_share (rows of unseen categories), rows.
    latency_ms: offline_p50 and offline_p95 of one row at a time in the evaluator, offline_cpu_p95 of its CPU time, and
    rows; no latency of serving.
    cost_per_thousand: of scoring 1,000 rows at the recipe's price per hour, in its currency.
    memorisation: of training texts under the language-model head; personal_data: finds in the model's files by kind.
    test_window_uses: how many candidates have been judged on these test rows, up to and with this one; 0 = not counted.
    evaluation_digest: of the recipe's evaluation section and threshold under which it was made; "" in old records.
    """

    model_digest: str
    training_set_digest: str
    test_digest: str
    rows: int
    positives: int
    metrics: dict[str, Interval]
    baselines: dict[str, dict[str, Interval]]
    slices: dict[str, dict[str, Interval]]
    champion_version: str = ""
    champion: dict[str, Interval] = field(default_factory=dict)
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    resamples: int = 0
    threshold: float | None = None
    operating: dict[str, Interval] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)
    slice_states: dict[str, str] = field(default_factory=dict)
    fairness: dict[str, Fairness] = field(default_factory=dict)
    robustness: dict[str, dict[str, Interval]] = field(default_factory=dict)
    invalid_rate: Interval | None = None
    drift: dict[str, dict[str, float]] = field(default_factory=dict)
    latency_ms: dict[str, float] = field(default_factory=dict)
    cost_per_thousand: float | None = None
    memorisation: dict[str, Interval] = field(default_factory=dict)
    personal_data: dict[str, int] = field(default_factory=dict)
    test_window_uses: int = 0
    snapshot_digest: str = ""
    contract_digest: str = ""
    handover_digest: str = ""
    environment_digest: str = ""
    evaluation_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelVersionRef(Record):
    """A registered version, the gate's table, and the champion it was judged against ("" where there was none)."""

    name: str
    version: str
    digest: str
    gate_passed: bool
    gate: tuple[RuleResult, ...]
    champion_version: str
    champion_digest: str
    evidence_digest: str
    mlflow_run_id: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RolloutEvent(Record):
    """One entry of the rollout's timeline; `seconds` since its start, weight of the canary in percent."""

    seconds: float
    stage: str
    weight: int
    text: str
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class RolloutReport(Record):
    """How a candidate met traffic. `outcome`: passed, rolled_back or inconclusive."""

    outcome: str
    reason: str
    engine: str
    candidate_version: str
    candidate_digest: str
    stable_version: str
    stable_digest: str
    rules: tuple[RuleResult, ...]
    timeline: tuple[RolloutEvent, ...]
    requests: int
    failed_requests: int
    latency_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PromotionRef(Record):
    """The end of the promotion transaction; `ledger_seq` is its entry.

    `outcome`: promoted, awaiting_approval, or how the rollout ended where it did not pass.
    """

    outcome: str
    reason: str
    name: str
    version: str
    digest: str
    previous_version: str
    ledger_seq: int
    ledger_hash: str = ""  # of that entry: kept outside of the ledger, it shows an end that was cut off


def _build(kind: Any, value: Any, at: str = "") -> Any:
    """Rebuild nested dataclasses and tuples from plain JSON values, each of the type that its field names.

    Raises:
        TypeError: a value is of another type, or a number that is not finite; `at` is where.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, value, at)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, value, at)
    if origin in (tuple, list):
        _expect(isinstance(value, (list, tuple)), "a list", at)
        return origin(_build(inner[0], item, f"{at}[{number}]") for number, item in enumerate(value))
    if origin is dict:
        _expect(isinstance(value, dict) and all(isinstance(key, str) for key in value), "an object", at)
        return {key: _build(inner[1], item, _under(at, key)) for key, item in value.items()}
    _expect(_is_plain(kind, value), NAMED.get(kind, str(kind)), at)
    return value


NAMED = {str: "a text", bool: "true or false", int: "a whole number", float: "a finite number", type(None): "nothing"}


def _record(kind: type, value: Any, at: str) -> Any:
    _expect(isinstance(value, dict), f"an object ({kind.__name__})", at)
    hints = typing.get_type_hints(kind)
    if unknown := sorted(str(name) for name in set(value) - {f.name for f in fields(kind)}):
        raise TypeError(f"{_under(at, unknown[0])}: unknown field")
    return kind(**{name: _build(hints[name], item, _under(at, name)) for name, item in value.items()})


def _one_of(options: tuple[Any, ...], value: Any, at: str) -> Any:
    """The first type of a union that fits."""
    refused: TypeError | None = None
    for option in options:
        try:
            return _build(option, value, at)
        except TypeError as error:
            refused = refused or error
    raise refused or TypeError(at)


def _is_plain(kind: Any, value: Any) -> bool:
    """Whether a JSON value is of a plain type; true is no number, and a number is finite."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _expect(holds: bool, what: str, at: str) -> None:
    if not holds:
        raise TypeError(f"{at or 'the record'}: is not {what}")


def _under(at: str, key: str) -> str:
    return f"{at}.{ascii(key)[1:-1][:80]}".lstrip(".")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a key is there twice, of which two readers may take two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
