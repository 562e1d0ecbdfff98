"""Recipe sections about evidence: evaluation and gate."""

from __future__ import annotations

from typing import Annotated

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
    are not looked at. intersections: pairs of groups' names. min_slice_rows, min_slice_positives: a slice with fewer
    rows, positives or negatives is insufficient. robustness_rows, drift_rows, memorisation_rows, latency_rows: size of
    the seeded sample of each check, 0 = not asked. price_per_hour: of one scoring machine, for the cost of 1,000 rows.
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
    drift_rows: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000
    memorisation_rows: Annotated[int, Field(ge=0, le=100_000)] = 300
    latency_rows: Annotated[int, Field(ge=0, le=10_000)] = 50
    price_per_hour: Positive | None = None
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
