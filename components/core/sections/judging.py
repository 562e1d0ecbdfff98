"""Recipe sections about evidence: evaluation and gate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from components.core.sections.base import Natural, Section, Share


class Group(Section):
    """A slice for fairness: rows whose `column` contains (or equals) a text."""

    name: Annotated[str, Field(pattern=r"^[^:\n]{1,64}$")]
    column: str
    contains: str = ""
    equals: str = ""


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
