"""Evaluation of small models on small training sets."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kfp import dsl
from sklearn.metrics import roc_auc_score

from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import publishing, verify
from components.core.records import Evidence, TrainingSetRef
from components.evaluation import evaluate as module
from components.evaluation.baselines import score_baselines
from components.evaluation.component import evaluate as evaluate_step
from components.evaluation.evaluate import evaluate, read_predictions
from components.evaluation.opponent import find_champion
from components.evaluation.page import notes, page
from components.evaluation.windows import WindowsInHome
from components.models.signing import SignatureError, public_key_at
from components.models.trusted import keys_at
from components.registry.trust import pin_first, trust, withdraw
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    FEATURES,
    GROUP,
    LinearSpec,
    publish_handover,
    publish_model,
    publish_training_set,
    small_recipe,
    training_rows,
)
from tests.fakes.registering import public_key, publish_signed_model
from tests.fakes.weights import weights

ALL = ("prior", "logistic_regression", "feature_logistic_regression", "text_logistic_regression", "gradient_boosting")
RECIPE = small_recipe()


@pytest.fixture(autouse=True)
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spec_for", lambda family: LinearSpec())


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, TrainingSetRef]:
    """A training set and a model of it."""
    rows = publish_training_set(tmp_path / "rows")
    publish_model(tmp_path / "model", rows)
    return tmp_path / "rows", tmp_path / "model", rows


def test_evidence_says_what_scikit_learn_says_of_the_same_scores(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Metrics, slices, counts and predictions agree with each other and with an independent computation."""
    rows, model, ref = made
    found = evaluate(small_recipe(evaluation={"baselines": list(ALL)}), rows, model, rows.parent / "out")
    verify(rows.parent / "out")
    assert Evidence.read(rows.parent / "out") == found
    test, said = pd.read_parquet(rows / "test.parquet"), read_predictions(rows.parent / "out")
    assert said["row_id"].tolist() == test["row_id"].tolist()
    assert said["champion_score"].isna().all()
    assert (found.rows, found.positives) == (len(test), int(test["label"].sum()))
    assert found.test_digest == ref.split("test").digest
    assert found.metrics["auc"].value == pytest.approx(roc_auc_score(test["label"], said["score"]))
    inside = test[f"group:{GROUP}"].to_numpy()
    expected = roc_auc_score(test["label"][inside], said["score"][inside])
    assert found.slices[GROUP]["auc"].value == pytest.approx(expected)
    assert found.slices[GROUP]["auc"].n + found.slices[f"{GROUP}:others"]["auc"].n == found.rows
    assert set(found.baselines) == set(ALL)
    assert found.baselines["prior"]["auc"].value == pytest.approx(0.5)
    assert found.champion_version == ""
    assert found.champion == {}
    assert len(found.curves["calibration"]) == 10


def test_the_same_inputs_give_the_same_evidence(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Nothing random is left but the clock: with a clock that stands, a resumed run hands over the same digest."""
    rows, model, _ = made
    first, second = (
        evaluate(small_recipe(), rows, model, rows.parent / name, clock=lambda: 0.0, cpu_clock=lambda: 0.0)
        for name in ("one", "two")
    )
    assert first.record_digest == second.record_digest


def test_baselines_learn_what_there_is_to_learn() -> None:
    """Text and features together beat either alone, and all beat the prior."""
    train, test = training_rows(3000, 1), training_rows(2000, 2)
    scores = score_baselines(ALL, train, test, FEATURES, str.lower)
    auc = {name: roc_auc_score(test["label"], score) for name, score in scores.items()}
    assert auc["logistic_regression"] > max(auc["feature_logistic_regression"], auc["text_logistic_regression"]) + 0.01
    assert min(auc["feature_logistic_regression"], auc["gradient_boosting"]) > 0.75
    assert auc["text_logistic_regression"] > 0.6
    assert scores["prior"][0] == pytest.approx(train["label"].mean())


def test_a_baseline_without_inputs_is_left_out() -> None:
    """No text or no features: what cannot be trained is not there, and the rest runs on what there is."""
    train, test = training_rows(200, 1).assign(text=""), training_rows(50, 2).assign(text=None)
    assert set(score_baselines(ALL, train, test, FEATURES, str.lower)) == set(ALL) - {"text_logistic_regression"}
    train, test = training_rows(200, 1), training_rows(50, 2)
    bare = score_baselines(ALL, train, test, (), str.lower)
    assert set(bare) == {"prior", "logistic_regression", "text_logistic_regression"}
    empty = train.assign(rate=np.nan)
    assert "logistic_regression" in score_baselines(ALL, empty, test, FEATURES, str.lower)


def test_unknown_baselines_and_one_label_are_refused() -> None:
    """The name and what there is to choose from; a training split of one label cannot be learnt from."""
    train, test = training_rows(100, 1), training_rows(50, 2)
    with pytest.raises(UserError, match="'forest' is not known; choose from"):
        score_baselines(("forest",), train, test, FEATURES, str.lower)
    with pytest.raises(PolicyRefusal, match="one label"):
        score_baselines(("prior",), train.assign(label=0), test, FEATURES, str.lower)


def test_the_champion_is_scored_on_the_same_rows(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """A champion that ranks the other way round loses, and the paired difference says by how much."""
    rows, model, ref = made
    publish_model(rows.parent / "champion", ref, weight=-5.0)
    champion = ("3", rows.parent / "champion" / "model")
    found = evaluate(small_recipe(), rows, model, rows.parent / "out", champion)
    said = read_predictions(rows.parent / "out")
    assert found.champion_version == "3"
    theirs = roc_auc_score(said["label"], said["champion_score"])
    assert found.champion["auc"].value == pytest.approx(theirs)
    difference = found.champion["auc_difference"]
    assert difference.value == pytest.approx((found.metrics["auc"].value or 0) - theirs)
    assert difference.low is not None
    assert difference.low > 0


def test_a_champion_that_cannot_score_these_rows_leaves_no_comparison(
    made: tuple[Path, Path, TrainingSetRef],
) -> None:
    """The version is named and the comparison is empty, which the gate refuses."""
    rows, model, ref = made
    publish_model(rows.parent / "champion", ref, weight=float("nan"))
    found = evaluate(small_recipe(), rows, model, rows.parent / "out", ("3", rows.parent / "champion" / "model"))
    assert (found.champion_version, found.champion) == ("3", {})
    assert read_predictions(rows.parent / "out")["champion_score"].isna().all()


def test_scores_that_are_no_probabilities_refuse_and_leave_nothing(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """A model that says NaN has no evidence."""
    rows, _, ref = made
    publish_model(rows.parent / "broken", ref, weight=float("nan"))
    with pytest.raises(PolicyRefusal, match="test scores are no probabilities"):
        evaluate(small_recipe(), rows, rows.parent / "broken", rows.parent / "out")
    assert not (rows.parent / "out").exists()


@pytest.mark.parametrize("name", ["rows/test.parquet", "model/model/model.safetensors", "model/model/pilotline.json"])
def test_a_swapped_byte_is_refused(made: tuple[Path, Path, TrainingSetRef], name: str) -> None:
    """Training set and model are checked before they are used."""
    rows, model, _ = made
    path = rows.parent / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError):
        evaluate(small_recipe(), rows, model, rows.parent / "out")


def test_a_model_of_other_rows_is_refused(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Evidence is about a model and the rows that it was held out from."""
    rows, model, _ = made
    publish_training_set(rows.parent / "other", seed=9)
    with pytest.raises(IntegrityError, match="was trained on training set"):
        evaluate(small_recipe(), rows.parent / "other", model, rows.parent / "out")


def test_a_test_row_that_was_learnt_from_is_refused(tmp_path: Path) -> None:
    """Untouched means untouched: a row id in two splits stops the evaluation."""
    train = training_rows(100, 0)
    test = pd.concat([training_rows(50, 1, start=500), train.tail(1)])
    rows = publish_training_set(tmp_path / "rows", train=train, test=test)
    publish_model(tmp_path / "model", rows)
    with pytest.raises(IntegrityError, match="also a training row"):
        evaluate(small_recipe(), tmp_path / "rows", tmp_path / "model", tmp_path / "out")


def test_no_test_rows_are_no_evidence(tmp_path: Path) -> None:
    """An empty split refuses instead of giving empty metrics."""
    rows = publish_training_set(tmp_path / "rows", test=training_rows(0, 1))
    publish_model(tmp_path / "model", rows)
    with pytest.raises(PolicyRefusal, match="no rows"):
        evaluate(small_recipe(), tmp_path / "rows", tmp_path / "model", tmp_path / "out")


def test_the_page_is_self_contained_and_escaped(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """No outside reference, no markup from data; notes hold the same numbers."""
    rows, model, _ = made
    test = training_rows(150, 2, start=600).rename(columns={f"group:{GROUP}": "group:<b>x</b>"})
    shutil.rmtree(rows)
    ref = publish_training_set(rows, test=test)
    publish_model(model, ref)
    found = evaluate(small_recipe(), rows, model, rows.parent / "out")
    shown = page(found, small_recipe())
    assert "http" not in shown
    assert "<script" not in shown
    assert "<b>x</b>" not in shown
    assert "&lt;b&gt;x&lt;/b&gt;" in shown
    for title in (
        "ROC curve",
        "Precision and recall",
        "Reliability",
        "ROC AUC by slice",
        "Mean change",
        "Drift of test",
    ):
        assert f'aria-label="{title}' in shown
    for said in ("equalised odds", "one row alone in the evaluator", "not measured", "closed set of labels"):
        assert said in shown.lower()
    auc = f"{found.metrics['auc'].value:.3f}"
    assert auc in shown
    assert auc in notes(found, small_recipe())


def test_the_champion_is_found_by_its_alias_and_checked(tmp_path: Path) -> None:
    """Alias to source directory, by digest; a damaged or unlisted champion is no comparator."""
    rows = publish_training_set(tmp_path / "rows", rows=30)
    model = publish_model(tmp_path / "models" / "kept", rows)
    tracking = FakeTracking(tmp_path / "models")
    assert find_champion("triage", tracking) is None
    folder = tmp_path / "models" / "kept" / "model"
    version = tracking.ensure_version("triage", model.digest, folder, "", {})
    assert find_champion("triage", tracking) is None
    tracking.set_alias("triage", "champion", version)
    assert find_champion("triage", tracking) == (version, folder.resolve())
    (folder / "model.safetensors").write_bytes(weights("other"))
    with pytest.raises(IntegrityError, match="champion triage version 1"):
        find_champion("triage", tracking)
    tracking._versions["triage"].clear()
    with pytest.raises(TransientError, match="not listed"):
        find_champion("triage", tracking)


def test_the_hand_over_of_these_rows_has_to_have_let_them_pass(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Its digest becomes evidence; another set's, one that refused, and a damaged one are no hand-over."""
    rows, model, ref = made
    place = rows.parent
    passed = publish_handover(place / "passed", ref)
    found = evaluate(small_recipe(), rows, model, place / "out", handover=place / "passed", contract_digest="c" * 64)
    assert found.handover_digest == passed.record_digest
    assert (found.contract_digest, found.snapshot_digest) == ("c" * 64, ref.snapshot_digest)
    assert len(found.environment_digest) == 64
    publish_handover(place / "other", ref, training_set_digest="0" * 64)
    with pytest.raises(IntegrityError, match="hand-over of training set 000000000000"):
        evaluate(small_recipe(), rows, model, place / "out", handover=place / "other")
    publish_handover(place / "refused", ref, passed=False, reason="feature x: leaks")
    with pytest.raises(PolicyRefusal, match=r"did not let training set .* pass: feature x: leaks"):
        evaluate(small_recipe(), rows, model, place / "out", handover=place / "refused")
    record = place / "passed" / "record.json"
    record.write_text(record.read_text().replace("true", "true "))
    with pytest.raises(IntegrityError, match="bytes differ"):
        evaluate(small_recipe(), rows, model, place / "out", handover=place / "passed")


def test_each_candidate_on_the_same_rows_is_counted_once(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """The first look, the second candidate's, and the first repeated: 1, 2, 1; also where scoring then refuses."""
    rows, model, ref = made
    place, windows = rows.parent, WindowsInHome(rows.parent / "windows")
    publish_model(place / "second", ref, weight=4.0)
    uses = [
        evaluate(small_recipe(), rows, folder, place / "out", windows=windows).test_window_uses
        for folder in (model, place / "second", model)
    ]
    assert uses == [1, 2, 1]
    publish_model(place / "broken", ref, weight=float("nan"))
    with pytest.raises(PolicyRefusal):
        evaluate(small_recipe(), rows, place / "broken", place / "out", windows=windows)
    publish_model(place / "third", ref, weight=3.0)
    assert evaluate(small_recipe(), rows, place / "third", place / "out", windows=windows).test_window_uses == 4


def test_every_part_is_measured_or_says_why_not(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Nothing is silently absent: what was not asked, and what could not be told, is named with its reason."""
    rows, model, _ = made
    asked = {"price_per_hour": 3.6, "bootstrap": 40, "min_slice_rows": 5, "min_slice_positives": 2}
    ticks, busy = iter(range(10_000)), iter(range(10_000))
    full = evaluate(
        small_recipe(evaluation=asked),
        rows,
        model,
        rows.parent / "full",
        clock=lambda: float(next(ticks)),
        cpu_clock=lambda: 0.25 * next(busy),
    )
    said = full.parts
    named = {"metrics", "operating", "baselines", "slices", "robustness", "injection", "drift", "latency", "cost"}
    assert {name for name in named if said[name] != "measured"} == set()
    assert said["champion"] == "not asked: there is none yet"
    assert said["memorisation"].startswith("insufficient: no language-model head")
    assert full.latency_ms == {"offline_p50": 1000.0, "offline_p95": 1000.0, "offline_cpu_p95": 250.0, "rows": 50.0}
    assert full.cost_per_thousand == pytest.approx(3.6 / 3600 * 1000 / full.rows)
    assert sum(sum(row) for row in full.confusion) == full.rows
    off = {"robustness_rows": 0, "drift_rows": 0, "memorisation_rows": 0, "latency_rows": 0, "baselines": []}
    bare = evaluate(small_recipe(evaluation=off), rows, model, rows.parent / "bare")
    silent = ("robustness", "injection", "drift", "memorisation", "latency", "cost", "baselines")
    assert {bare.parts[name] for name in silent} == {"not asked"}
    assert (bare.robustness, bare.invalid_rate, bare.drift, bare.latency_ms) == ({}, None, {}, {})
    small = evaluate(small_recipe(evaluation={"min_slice_rows": 1000}), rows, model, rows.parent / "small")
    assert small.parts["slices"].startswith(f"insufficient: too few rows or positives: {GROUP}, {GROUP}:others")
    assert small.fairness[GROUP].state == "insufficient"


def test_a_model_whose_signature_does_not_hold_is_not_evaluated(made: tuple[Path, Path, TrainingSetRef]) -> None:
    """Bytes that were swapped with record and manifest sealed anew; a missing signature is the gate's to refuse."""
    rows, model, ref = made
    publish_signed_model(model, ref)
    signature = (model / "model.sig").read_bytes()
    out, keys = rows.parent / "out", (public_key(),)
    assert evaluate(small_recipe(), rows, model, out, public_keys=keys).rows > 0
    publish_model(model, ref, weight=4.0)
    assert evaluate(small_recipe(), rows, model, out, public_keys=keys).rows > 0
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(shutil.copytree(model, Path(scratch) / "kept"))
        with publishing(model) as staging:
            shutil.copytree(kept, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
            (staging / "model.sig").write_bytes(signature)
    with pytest.raises(IntegrityError, match="sign"):
        evaluate(small_recipe(), rows, model, out, public_keys=keys)


def test_a_model_signed_by_an_earlier_key_is_evaluated_while_that_key_counts(
    made: tuple[Path, Path, TrainingSetRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the step itself: keys change while a model waits, and the ledger says which count."""
    rows, model, ref = made
    publish_signed_model(model, ref)
    publish_handover(tmp_path / "handover", ref)
    monkeypatch.setattr("components.evaluation.opponent.champion_of", lambda step: None)
    home = Home.at(tmp_path / "home")
    assert keys_at(home, {}) == [public_key_at(home, {})]  # nothing is pinned yet

    def step(run_id: str) -> float:
        given = {"training_set": rows, "model": model, "handover": tmp_path / "handover"}
        artifacts = {name: dsl.Artifact(uri=str(place)) for name, place in given.items()}
        for name, kind in {"evidence": dsl.Artifact, "page": dsl.HTML, "notes": dsl.Markdown}.items():
            artifacts[name] = kind(uri=str(tmp_path / run_id / name))
        (tmp_path / run_id).mkdir()
        shown = {"metrics": dsl.Metrics(), "roc": dsl.ClassificationMetrics()}
        for name, artifact in shown.items():
            artifact.uri = str(tmp_path / run_id / name)
        return float(evaluate_step.python_func(str(home.root), run_id, RECIPE.to_json(), "code", **artifacts, **shown))

    with closing(Ledger(home.ledger_url)) as ledger:
        pin_first(ledger, public_key())
        trust(ledger, public_key_at(home, {}), "the yearly change")
        assert step("run-1") > 0.5
        withdraw(ledger, public_key(), "lost")
    with pytest.raises(SignatureError, match="trusted is"):
        step("run-2")
