"""Recipe sections about data: source, contract, features, leakage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.core.sections.base import Count, Natural, RequestName, Section, Share


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
    An export that changes or lacks more than `restated_share` of the rows of the one before it is a restated source:
    its rows count as known from their events (restated = anew), its changes are corrections known from then on
    (follow), or it is refused (refuse).
    """

    repo: str
    service: str
    entities: dict[str, str]
    model_inputs: tuple[str, ...]
    request: dict[RequestName, str] = Field(default_factory=dict)
    label_delay_days: Natural = 30
    ttl_days: Natural = 0
    as_of: str = ""
    online: str = ""
    stale: Literal["default", "refuse", "fallback"] = "default"
    max_skew: Share = 0.0
    restated: Literal["anew", "follow", "refuse"] = "anew"
    restated_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1


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
