"""Requests and answers of the scoring service; the schema carries the recipe's entity keys and labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    StringConstraints,
    Tag,
    create_model,
)

from components.core.recipe import Recipe
from components.serving.deciding import Outcome
from components.serving.decision_log.schema import time_of
from components.serving.moments import MOMENT

LARGEST_TEXT = 50_000  # characters
MOST_ITEMS = 64
MOST_TOKENS = 8192
CLOCK_SKEW_SECONDS = 300.0  # that a caller's clock may be off

Text = Annotated[str, StringConstraints(strict=True, max_length=LARGEST_TEXT)]
Short = Annotated[str, StringConstraints(strict=True, max_length=256)]
EntityValue = Annotated[str, StringConstraints(strict=True, max_length=256)] | StrictInt


class Closed(BaseModel):
    """Base of requests: no unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Input(Closed):
    """What is to be decided on, and when it happened (now, if absent); the text is not kept.

    The recipe's request inputs stand beside, each a text, "" if absent.
    """

    text: Text = ""
    event_timestamp: Annotated[str, StringConstraints(strict=True, pattern=MOMENT)] | None = None


class FeatureSeen(BaseModel):
    """A feature as the decision saw it: `as_of` is when it became known, "" where nothing is known."""

    value: float | None
    as_of: str
    fresh: bool


class ModelSeen(BaseModel):
    """The version that answered."""

    name: str
    version: str


class DecisionAnswer(BaseModel):
    """One decision.

    `failure` says what the drawn arm failed with, `seconds` is the time in the service and at the model. `rule` says
    where the score comes from, `review` that a person should look at it.
    """

    decision_id: str
    status: Literal["ok", "fallback", "refused"]
    label: str | None
    score: float | None
    model: ModelSeen | None
    drawn: Literal["stable", "canary"]
    answered_by: Literal["stable", "canary", "baseline", "none"]
    weight: float
    failure: str
    rule: Literal["model", "last_known", "baseline", "none"]
    review: bool
    seconds: dict[Literal["total", "model"], float]
    features: dict[str, FeatureSeen]


class BatchAnswer(BaseModel):
    """Decisions in the order of the items; each has a status of its own."""

    items: list[DecisionAnswer]


class FeedbackAnswer(BaseModel):
    """Feedback is in the log; the same again changes nothing."""

    decision_id: str
    status: Literal["recorded"]


class _Generation(Closed):
    """Keys of OpenAI's requests that are handed on; others are refused, above all those that steer the server."""

    model: Annotated[str, StringConstraints(strict=True, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    n: Annotated[int, Field(ge=1, le=4)] | None = None
    stop: Short | Annotated[list[Short], Field(max_length=4)] | None = None
    stream: bool | None = None
    seed: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    user: Short | None = None


class Completion(_Generation):
    """A text to go on with."""

    prompt: Text


class Message(Closed):
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: Text


class ChatCompletion(_Generation):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=256)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None


def request_models(recipe: Recipe) -> tuple[Any, Any]:
    """Request types of this recipe: its entity keys, request inputs and labels are part of the schema."""
    keys: dict[str, Any] = dict.fromkeys(recipe.features.entities, (EntityValue, ...))
    entities = create_model("Entities", __base__=Closed, **keys)
    given: dict[str, Any] = dict.fromkeys(recipe.features.request, (Text, ""))
    inputs = create_model("Input", __base__=Input, **given)
    one = create_model("DecisionRequest", __base__=Closed, entities=(entities, ...), input=(inputs, inputs()))
    items = Annotated[list[one], Field(min_length=1, max_length=MOST_ITEMS)]  # type: ignore[valid-type]
    batch = create_model("BatchRequest", __base__=Closed, items=(items, ...))
    request = Annotated[
        Annotated[one, Tag("one")] | Annotated[batch, Tag("items")],  # type: ignore[valid-type]
        Discriminator(lambda body: "items" if isinstance(body, dict) and "items" in body else "one"),
    ]
    decision_id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    label: Any = Literal[tuple(recipe.model.labels)]
    told: dict[str, Any] = {
        "decision_id": (decision_id, ...),
        "label": (label, ...),
        "observed_at": (AwareDatetime, ...),
    }
    feedback = create_model("Feedback", __base__=Closed, **told)
    return request, feedback


def observed_wrongly(decision_id: str, observed_at: datetime) -> str:
    """Why a label cannot have been observed then: before its decision, or not yet; "" where it can."""
    now, skew = datetime.now(UTC), timedelta(seconds=CLOCK_SKEW_SECONDS)
    if observed_at > now + skew:
        return "observed_at: is in the future"
    decided = time_of(decision_id)
    if decided is not None and observed_at < datetime.fromisoformat(decided) - skew:
        return "observed_at: is before the decision"
    return ""


def answer_of(outcome: Outcome) -> dict[str, Any]:
    arm = outcome.arm
    return {
        "decision_id": outcome.decision_id,
        "status": outcome.status,
        "label": outcome.answer.label,
        "score": outcome.answer.score,
        "model": {"name": arm.name, "version": arm.version} if arm else None,
        "drawn": outcome.drawn,
        "answered_by": outcome.answered_by,
        "weight": outcome.weight,
        "failure": outcome.failure,
        "rule": outcome.rule,
        "review": outcome.review,
        "seconds": {"total": round(outcome.seconds, 6), "model": round(outcome.answer.seconds, 6)},
        "features": {name: dict(found) for name, found in outcome.features.items()},
    }
