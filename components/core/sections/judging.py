"""Recipe sections about evidence: evaluation and gate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.core.sections.base import Count, Natural, Positive, Section, Share


class Group(Section):
    """A slice for fairness: rows whose `column` contains (or equals) a text."""

    name: Annotated[str, Field(pattern=r"^[^:\n]{1,64}$")]
    column: str
    contains: str = ""
    equals: str = ""


class Evaluation(Section):
    """The time-ordered split and what is measured on the test rows.

    slices: columns of the source (at most 8) whose values are slices of their own; values beyond the 20 most frequent
    are one slice together. intersections: pairs of groups' names. min_slice_rows, min_slice_positives: a slice with
    fewer rows, positives or negatives is insufficient. robustness_rows, drift_rows, memorisation_rows, latency_rows:
    size of the seeded sample of each check, 0 = not asked. price_per_hour: of one scoring machine, for the cost of
    1,000 rows.
    """

    test_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    embargo_days: Natural = 30
    groups: tuple[Group, ...] = ()
    slices: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    intersections: Annotated[tuple[tuple[str, str], ...], Field(max_length=16)] = ()
    min_slice_rows: Count = 100
    min_slice_positives: Count = 10
    bootstrap: Annotated[int, Field(ge=0, le=20_000)] = 2_000
    baselines: tuple[str, ...] = (
        "logistic_regression",
        "feature_logistic_regression",
        "text_logistic_regression",
        "gradient_boosting",
        "prior",
    )
    robustness_rows: Annotated[int, Field(ge=0, le=100_000)] = 200
    drift_rows: Annotated[int, Field(ge=0, le=1_000_000)] = 500
    memorisation_rows: Annotated[int, Field(ge=0, le=100_000)] = 300
    latency_rows: Annotated[int, Field(ge=0, le=10_000)] = 50
    price_per_hour: Positive | None = None
    seed: int = 0


class BaselineMargin(Section):
    """The candidate's metric may be below this baseline's by at most `margin`; a negative one asks for more."""

    baseline: str
    margin: Annotated[float, Field(ge=-1.0, le=1.0)]
    metric: Literal["auc", "average_precision"] = "auc"


Floor = Literal["auc", "average_precision", "precision", "recall", "accuracy"]
Ceiling = Literal["log_loss", "brier", "ece", "fpr"]
Difference = Literal[
    "selection_rate_difference",
    "recall_difference",
    "fpr_difference",
    "equalized_odds_difference",
    "auc_difference",
    "ece_difference",
]


class Gate(Section):
    """Absolute limits and margins; None switches a rule off, which shows in the table. Missing evidence refuses.

    A signature by a trusted key, the contract's verdict, the leakage guard's, and evidence that was made under this
    recipe's evaluation are always asked for. floors, ceilings: by metric, those at the operating point too.
    champion_margin: the lower bound of the paired AUC difference has to be above -margin; min_champion_power: of that
    comparison. blocking_groups: groups, "A & B", columns of evaluation.slices or one "COLUMN=VALUE" (compared with all
    rows) that decide, with min_group_positives positives and negatives in each slice: max_group_auc_gap in either
    direction, max_differences by measure; others are shown. A column decides only where each of its values is large
    enough. max_mean_shift, max_flip_rate: by change of the input, see Evidence.robustness. max_offline_p95_ms,
    max_offline_cpu_p95_ms: of one row alone in the evaluator, by the clock on the wall, which waits for whatever else
    the machine does, and in CPU time of all threads, which does not. max_window_uses: how many candidates may be judged
    on the same test rows, with this one.
    """

    min_auc: Share | None = None
    max_ece: Share | None = None
    floors: dict[Floor, Share] = Field(default_factory=dict)
    ceilings: dict[Ceiling, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    min_test_positives: Natural = 30
    baselines: tuple[BaselineMargin, ...] = ()
    champion_margin: Annotated[float, Field(ge=-1.0, le=1.0)] | None = 0.03
    min_champion_power: Share | None = None
    min_group_positives: Natural = 30
    max_group_auc_gap: Share | None = None
    max_differences: dict[Difference, Share] = Field(default_factory=dict)
    blocking_groups: tuple[str, ...] = ()
    max_skew: Share | None = None
    max_invalid_rate: Share | None = None
    max_mean_shift: dict[str, Share] = Field(default_factory=dict)
    max_flip_rate: dict[str, Share] = Field(default_factory=dict)
    max_offline_p95_ms: Positive | None = None
    max_offline_cpu_p95_ms: Positive | None = None
    max_completion_difference: Share | None = None
    max_membership_auc: Share | None = None
    max_personal_data: Natural | None = None
    max_window_uses: Count | None = None
