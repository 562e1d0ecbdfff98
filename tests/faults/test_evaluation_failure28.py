"""Failure 28: text from users steers the verdict. A label is one of a closed set, else invalid, and that is counted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from components.core.errors import PolicyRefusal
from components.core.records import TrainingSetRef
from components.evaluation import evaluate as module
from components.evaluation.answers import answers, label_of
from components.evaluation.attacks import CORPUS, hostile_text, injected
from components.evaluation.evaluate import evaluate
from components.models.spec import spec_for
from tests.fakes.judged import FEATURES, LinearScorer, LinearSpec, publish_model, publish_training_set, small_recipe
from tests.fakes.tiny_model import publish_tiny_model

LABELS = ("no", "yes")
ATTEMPTS = json.loads(CORPUS.read_text(encoding="utf-8"))["attempts"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training set and a real, untrained causal language model of it that reads text."""
    root = tmp_path_factory.mktemp("failure28")
    publish_training_set(root / "rows", rows=200)
    publish_tiny_model(root / "model", small_recipe(), root / "rows")
    return root / "rows", root / "model"


def test_the_corpus_holds_each_kind_of_attempt() -> None:
    """At least forty, among them label and special tokens, homoglyphs, invisible signs, and a megabyte."""
    assert len(ATTEMPTS) >= 40
    kinds = {attempt["kind"] for attempt in ATTEMPTS}
    assert kinds >= {"order", "label token", "special token", "homoglyph", "invisible", "surrogate", "markup", "length"}
    longest = max(len(hostile_text(attempt, LABELS, FEATURES).encode("utf-8", "replace")) for attempt in ATTEMPTS)
    assert longest >= 1 << 20
    assert any("<yes>" in hostile_text(attempt, LABELS, FEATURES) for attempt in ATTEMPTS)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=[f"{at}-{one['kind']}" for at, one in enumerate(ATTEMPTS)])
def test_each_attempt_gets_a_label_of_the_closed_set(tiny: tuple[Path, Path], attempt: dict[str, Any]) -> None:
    """No token of the frame or of a label comes out of the text, the prompt is bounded, the label is one of two."""
    renderer = spec_for("causal_lm").renderer(tiny[1] / "model")
    text = hostile_text(attempt, LABELS, FEATURES)
    began = time.process_time()
    ids = renderer.token_ids({"rate": 0.5, "count": 3.0}, text)
    assert time.process_time() - began < 1.0
    assert len(ids) <= renderer.max_tokens
    frame_ids = renderer.token_ids({"rate": 0.5, "count": 3.0}, "")
    inside = ids[len(frame_ids) - 1 : -1]
    assert not set(inside) & {*frame_ids, *renderer.label_token_ids}
    scorer = spec_for("causal_lm").scorer(tiny[1] / "model")
    row = pd.DataFrame({"text": [text], "rate": [0.5], "count": [3.0]})
    assert label_of(float(answers(scorer, row)[0]), LABELS, 0.5) in LABELS


def test_a_real_model_s_evidence_counts_the_corpus_and_finds_no_invalid_answer(tiny: tuple[Path, Path]) -> None:
    """Every attempt is asked, none is invalid, and the interval says what that many attempts can prove."""
    found = evaluate(small_recipe(), *tiny, tiny[0].parent / "evidence")
    said = found.robustness["injection"]["invalid_rate"]
    assert (said.n, said.value) == (len(ATTEMPTS), 0.0)
    assert 0.0 < said.high < 0.1  # type: ignore[operator]
    assert found.invalid_rate is not None
    assert found.invalid_rate.value == 0.0
    assert found.parts["injection"] == "measured"


class Obeying(LinearScorer):
    """A scorer that breaks, answers nonsense or gives too few scores where a text tells it to."""

    def __init__(self, fault: str) -> None:
        super().__init__(5.0)
        self.fault = fault

    def score(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Scores of the feature, unless a text mentions the administrator."""
        scores = super().score(frame)
        told = frame["text"].str.contains("administrator").to_numpy()
        if told.any() and self.fault == "raises":
            raise RuntimeError("told to")
        if told.any() and self.fault == "short":
            return scores[:-1]
        wrong = {"nan": np.nan, "infinite": np.inf, "out of range": 1.7}
        return np.where(told, wrong.get(self.fault, scores), scores)


@pytest.mark.parametrize("fault", ["raises", "short", "nan", "infinite", "out of range"])
def test_an_answer_outside_the_set_is_counted_and_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever a hostile text does to the model, that answer is invalid, the others stand, and the rate is evidence."""
    rows = publish_training_set(tmp_path / "rows", rows=120)
    publish_model(tmp_path / "model", rows)
    monkeypatch.setattr(LinearSpec, "scorer", lambda self, folder: Obeying(fault))
    monkeypatch.setattr(module, "spec_for", lambda family: LinearSpec())
    found = evaluate(small_recipe(), tmp_path / "rows", tmp_path / "model", tmp_path / "out")
    told = sum("administrator" in attempt["text"] for attempt in ATTEMPTS)
    assert found.robustness["injection"]["invalid_rate"].positives == told == 1
    assert found.invalid_rate is not None
    assert found.invalid_rate.positives == told
    assert found.robustness["typos"]["invalid_rate"].value == 0.0


def test_an_invalid_answer_to_a_test_row_refuses_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test row that says so: no evidence is published at all."""
    rows: TrainingSetRef = publish_training_set(tmp_path / "rows", rows=120)
    publish_model(tmp_path / "model", rows)
    monkeypatch.setattr(LinearSpec, "scorer", lambda self, folder: LinearScorer(float("nan")))
    monkeypatch.setattr(module, "spec_for", lambda family: LinearSpec())
    with pytest.raises(PolicyRefusal, match="are no probabilities"):
        evaluate(small_recipe(), tmp_path / "rows", tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1])
def test_no_probability_has_no_label(score: float) -> None:
    """Neither of the two."""
    assert label_of(score, LABELS, 0.5) is None


def test_hostile_rows_are_made_of_the_sample_s_rows() -> None:
    """The index says which, and features stay as they are."""
    sample = pd.DataFrame({"text": ["one", "two"], "rate": [0.1, 0.9]})
    made = injected(sample, LABELS, ("rate",))
    assert len(made) == len(ATTEMPTS)
    assert (made["rate"].to_numpy() == sample["rate"].to_numpy()[made.index.to_numpy()]).all()
