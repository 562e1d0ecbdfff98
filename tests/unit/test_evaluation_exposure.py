"""What the language-model head says of texts, against a plain computation one text at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from components.models.causal_lm import exposure
from components.models.spec import ModelSpec, spec_for
from tests.fakes.judged import publish_training_set, small_recipe, training_rows
from tests.fakes.tiny_model import publish_tiny_model


def test_traces_are_those_of_each_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean log probability and most likely tokens of the text only; order kept; the same in batches of any size."""
    import torch

    publish_training_set(tmp_path / "rows", rows=120)
    publish_tiny_model(tmp_path / "model", small_recipe(), tmp_path / "rows")
    spec = spec_for("causal_lm")
    scorer = spec.scorer(tmp_path / "model" / "model")
    frame = training_rows(30, 5).assign(text=lambda rows: [text[: 4 * at] for at, text in enumerate(rows["text"])])
    found = spec.text_traces(scorer, frame)
    assert found is not None
    prompts = scorer.renderer.frame_token_ids(frame)  # type: ignore[attr-defined]
    first = 1 + len(scorer.renderer.features)  # type: ignore[attr-defined]
    lengths = set()
    for prompt, (likely, best) in zip(prompts, found, strict=True):
        with torch.inference_mode():
            logits = scorer.network(input_ids=torch.tensor([prompt])).logits[0].double()  # type: ignore[attr-defined]
        known = torch.log_softmax(logits, 1)
        places = range(first, len(prompt) - 1)
        expected = [float(known[at - 1, prompt[at]]) for at in places]
        assert likely == pytest.approx(np.mean(expected), abs=1e-4) if expected else np.isnan(likely)
        assert best.tolist() == [int(logits[at - 1].argmax()) == prompt[at] for at in places]
        lengths.add(len(best))
    assert len(lengths) > 3
    monkeypatch.setattr(exposure, "MOST_LOGITS", 1)
    again = spec.text_traces(scorer, frame)
    assert again is not None
    assert [likely for likely, _ in again] == pytest.approx([likely for likely, _ in found], abs=1e-5, nan_ok=True)


def test_a_family_without_a_language_model_head_has_no_traces() -> None:
    """A package of a family that has no such module: nothing is measured, and nothing breaks."""
    assert ModelSpec("other", "components.core").text_traces(None, training_rows(3, 1)) is None  # type: ignore[arg-type]
