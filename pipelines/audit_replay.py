"""Score a logged decision again with the kept model, and compare."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from components.core.digest import value_digest
from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.recipe import Rollout
from components.models.files import model_digest, read_signature
from components.models.spec import spec_for
from pipelines.audit_facts import Facts, read_facts

SAME, DIFFERS, NOT_REPLAYABLE = "same", "differs", "not replayable"


@dataclass(frozen=True)
class Replay:
    """How a decision came out when it was scored again."""

    state: str
    reason: str
    logged: float | None = None
    again: float | None = None
    tolerance: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def replay(home: Home, decision_id: str) -> Replay:
    """Score the stored inputs again.

    The inputs are the decision's only where they render the prompt whose digest was logged. The score may differ by
    `rollout.golden_tolerance`, the difference of engines that a rollout allows.

    Raises:
        UserError: no such decision.
        IntegrityError: the kept text or features are not those that were answered, or the model is not there as it was.
    """
    facts = read_facts(home, decision_id)
    row = facts.decision
    if not row["version"] or row["score"] is None:
        return Replay(NOT_REPLAYABLE, f"no model answered ({row['failure']})")
    if row["forgotten"]:
        return Replay(NOT_REPLAYABLE, "text and features are encrypted, and the subject's key is not here: forgotten")
    model_dir = home.models / row["digest"] / "model"
    if model_digest(model_dir) != row["digest"]:
        raise IntegrityError(f"replay: {model_dir} does not hold the bytes of digest {row['digest'][:12]}")
    spec = spec_for(str(read_signature(model_dir)["family"]))
    renderer = spec.renderer(model_dir)
    features = {name: found["value"] for name, found in row["features"].items()}
    text = row["text"] if row["text"] is not None else ""
    if value_digest(renderer.token_ids(features, text)) != row["prompt_digest"]:
        if row["text"] is None:
            return Replay(NOT_REPLAYABLE, "the text was not kept (serving.keep_text was none or hash)")
        if row["masked"]:
            return Replay(NOT_REPLAYABLE, f"{row['masked']} finds of personal data were masked in the kept text")
        raise IntegrityError("replay: the kept text and features do not render the prompt that was answered")
    again = float(spec.scorer(model_dir).score(_frame(features, text))[0])
    tolerance = _tolerance(facts)
    close = abs(again - row["score"]) <= tolerance
    label = renderer.label(again, row["threshold"])
    said = f"score {again:.6f}, logged {row['score']:.6f}; label {label}, logged {row['label']}"
    return Replay(SAME if close else DIFFERS, said, row["score"], again, tolerance)


def _frame(features: dict[str, Any], text: str) -> Any:
    """One row with the training set's columns."""
    import pandas as pd

    values = {name: [float("nan") if value is None else float(value)] for name, value in features.items()}
    return pd.DataFrame(values | {"text": [text]})


def _tolerance(facts: Facts) -> float:
    path = facts.home.run(facts.decision["run_id"]) / "recipe.json"
    try:
        return float(json.loads(path.read_text())["rollout"]["golden_tolerance"])
    except (OSError, ValueError, KeyError):
        return Rollout().golden_tolerance
