"""The parts of the causal language model family, each against an oracle."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from components.core.errors import IntegrityError, UserError
from components.core.recipe import parse_recipe
from components.models.calibration import Calibration, fit_platt, log_loss, prior_shift, rank_auc
from components.models.causal_lm.buckets import bucket_of, quantile_edges
from components.models.causal_lm.prompt import Renderer
from components.models.causal_lm.tokenizer import special_tokens
from components.models.files import SIGNATURE, check_files, model_digest
from components.models.spec import spec_for
from components.models.text import normalise
from tests.fakes.training_case import prepared_model, rows, tiny_recipe


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights."""
    return prepared_model(tmp_path_factory.mktemp("model"))


def test_dates_amounts_numbers_and_masked_parts_collapse() -> None:
    """What identifies a case, and not its kind, is the same word everywhere."""
    assert normalise("On XX/XX/2023 and 3/14/22 XXXX XXXX paid {$1,250.00} or $7 for 3 items!", 64) == (
        "on date and date xx paid amount large or amount small for number items!"
    )


def test_letters_of_other_alphabets_survive() -> None:
    """The rule is generic: only marks and digits are folded, not languages."""
    assert normalise("Größe Ελλάδα 東京", 64) == "größe ελλάδα 東京"


def test_buckets_put_no_history_in_zero_and_the_rest_by_quantile() -> None:
    """Every known value lies in 1..buckets, in order, with about equally many rows each."""
    values = np.append(np.random.default_rng(0).normal(size=1000), [np.nan] * 10)
    edges = quantile_edges(values, 5)
    found = bucket_of(values, edges)
    assert (found[-10:] == 0).all()
    assert set(found[:-10]) == {1, 2, 3, 4, 5}
    assert np.bincount(found[:-10])[1:].tolist() == [200] * 5
    assert (np.diff(found[:-10][np.argsort(values[:-10])]) >= 0).all()


def test_constant_and_empty_features_have_few_buckets() -> None:
    """Repeated quantiles are one edge, and a feature without history has none."""
    assert quantile_edges(np.full(50, 3.0), 12) == [3.0]
    assert quantile_edges(np.full(50, np.nan), 12) == []
    assert bucket_of(np.array([np.nan, 1.0]), []).tolist() == [0, 1]


def test_special_tokens_refuse_names_that_clash() -> None:
    """A label that is a reserved token, or a feature name with a bracket, is refused in one line."""
    for labels, features in ((("pad", "yes"), ()), (("no", "yes"), ("a>b",)), (("no", "no"), ())):
        with pytest.raises(UserError, match="recipe:"):
            special_tokens(labels, features, 3)


def test_platt_equals_logistic_regression_on_smoothed_targets() -> None:
    """Newton's solution is that of an unpenalised weighted logistic regression on Platt's targets."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=400)
    y = (rng.random(400) < 1 / (1 + np.exp(-(1.7 * z - 2)))).astype(int)
    found = fit_platt(z, y)
    high, low = (y.sum() + 1) / (y.sum() + 2), 1 / (len(y) - y.sum() + 2)
    target = np.where(y == 1, high, low)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.concatenate([z, z])[:, None], np.repeat([1, 0], len(z)), np.concatenate([target, 1 - target])
    )
    assert found.slope == pytest.approx(oracle.coef_[0, 0], abs=1e-4)
    assert found.intercept == pytest.approx(oracle.intercept_[0], abs=1e-4)


def test_calibration_never_turns_the_order_around() -> None:
    """A model that is worse than chance on validation is flattened, not inverted."""
    z = np.linspace(-2, 2, 100)
    found = fit_platt(z, (z < 0).astype(int))
    assert found.slope > 0
    assert found.probability(z).mean() == pytest.approx(0.5, abs=0.01)


def test_rank_auc_and_log_loss_equal_scikit_learn() -> None:
    """Ties included; one class gives NaN, never a number."""
    rng = np.random.default_rng(2)
    scores, labels = rng.integers(0, 20, 300) / 7, rng.integers(0, 2, 300)
    assert rank_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert log_loss(scores, labels) == pytest.approx(sklearn_log_loss(labels, 1 / (1 + np.exp(-scores))), abs=1e-12)
    assert math.isnan(rank_auc(scores, np.zeros(300)))


def test_prior_shift_undoes_balanced_sampling() -> None:
    """At half positives in training, an uninformative score becomes the natural share."""
    assert Calibration(1.0, prior_shift(0.09, 0.5)).probability(np.zeros(1))[0] == pytest.approx(0.09)


def test_scores_equal_a_direct_transformers_computation(model_dir: Path) -> None:
    """Batched, padded scoring is the softmax of one unpadded forward pass a row, calibrated."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    frame = rows(23, 5)
    scorer = spec_for("causal_lm").scorer(model_dir)
    renderer = Renderer.load(model_dir)
    network, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    negative, positive = (tokenizer.convert_tokens_to_ids(token) for token in ("<no>", "<yes>"))
    assert [negative, positive] == renderer.label_token_ids
    expected = []
    for row in frame.to_dict("records"):
        ids = renderer.token_ids({name: row[name] for name in renderer.features}, row["text"])
        with torch.no_grad():
            logprobs = network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        expected.append(renderer.score(float(logprobs[negative]), float(logprobs[positive])))
    assert scorer.score(frame) == pytest.approx(np.array(expected), abs=2e-6)


def test_score_without_usable_probabilities_is_refused(model_dir: Path) -> None:
    """NaN from a server never becomes a score."""
    renderer = Renderer.load(model_dir)
    with pytest.raises(IntegrityError):
        renderer.score(math.nan, -1.0)
    with pytest.raises(IntegrityError):
        renderer.score(-math.inf, -math.inf)
    assert renderer.score(-math.inf, -0.1) == pytest.approx(1.0)
    assert [renderer.label(0.5, 0.5), renderer.label(0.49, 0.5)] == ["yes", "no"]


def test_a_missing_feature_is_refused_and_none_is_no_history(model_dir: Path) -> None:
    """A misspelt feature must not pass as no history."""
    renderer = Renderer.load(model_dir)
    with pytest.raises(UserError, match="'share' is missing"):
        renderer.token_ids({"visits": 1.0}, "x")
    with pytest.raises(UserError, match="not a number"):
        renderer.token_ids({"visits": "many", "share": 1.0}, "x")  # type: ignore[dict-item]
    none = renderer.token_ids({"visits": None, "share": math.nan}, "x")
    assert none[1:3] == renderer.first_bucket_ids.tolist()


def test_rendering_needs_neither_torch_nor_transformers(model_dir: Path) -> None:
    """The scoring service renders without loading an engine."""
    code = (
        "import sys; from pathlib import Path; from components.models.spec import spec_for;"
        f"r = spec_for('causal_lm').renderer(Path({str(model_dir)!r}));"
        "r.token_ids({'visits': 1.0, 'share': None}, 'a'); r.score(-1.0, -2.0);"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_unknown_family_names_the_known_ones() -> None:
    """One line says what exists."""
    with pytest.raises(UserError, match="known are causal_lm"):
        spec_for("tabular")


def test_digest_names_every_byte_of_the_model(model_dir: Path, tmp_path: Path) -> None:
    """Any changed byte or file name changes the digest."""
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model_dir, copy)
    digest = model_digest(copy)
    assert digest == model_digest(model_dir)
    for path in check_files(copy):
        if path.suffix == ".safetensors":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(bytes(data))
    assert model_digest(copy) != digest


def test_signature_and_tokenizer_have_to_fit(model_dir: Path, tmp_path: Path) -> None:
    """Label ids, bucket edges or tokens that do not belong together are refused at load."""
    import shutil

    changes = (
        {"label_token_ids": [1, 2]},
        {"bucket_edges": {"visits": [2.0, 1.0], "share": []}},
        {"features": ["visits", "share", "more"], "bucket_edges": {"visits": [], "share": [], "more": []}},
        {"labels": ["no", "maybe"]},
    )
    for i, change in enumerate(changes):
        copy = tmp_path / str(i)
        shutil.copytree(model_dir, copy)
        signature = json.loads((copy / SIGNATURE).read_text())
        (copy / SIGNATURE).write_text(json.dumps(signature | change))
        with pytest.raises(IntegrityError):
            Renderer.load(copy)


def test_what_changes_no_weight_changes_no_digest(model_dir: Path, tmp_path: Path) -> None:
    """How often a job may start again, and how a model is served, do not name another model; its seed does."""
    recipes = {
        "same": tiny_recipe(training={"restarts": 7}),
        "served": parse_recipe(tiny_recipe().model_dump(mode="json") | {"serving": {"threshold": 0.75}}),
        "seeded": tiny_recipe(training={"seed": 99}),
    }
    found = {}
    for name, recipe in recipes.items():
        (tmp_path / name).mkdir()
        found[name] = model_digest(prepared_model(tmp_path / name, recipe))
    assert found["same"] == found["served"] == model_digest(model_dir)
    assert found["seeded"] != found["same"]


def test_preparation_is_a_pure_function_of_the_rows(model_dir: Path, tmp_path: Path) -> None:
    """Another process with another hash seed makes the same vocabulary, edges, weights: the same digest."""
    code = (
        "from pathlib import Path; from tests.fakes.training_case import prepared_model;"
        "from components.models.files import model_digest;"
        f"print(model_digest(prepared_model(Path({str(tmp_path)!r}))))"
    )
    env = {"PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parents[2])}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split()[-1] == model_digest(model_dir)


def test_prompt_that_does_not_fit_the_network_is_refused(tmp_path: Path) -> None:
    """The recipe's text length has to fit its number of positions."""
    with pytest.raises(UserError, match=r"lower model\.text_tokens"):
        prepared_model(tmp_path, tiny_recipe(model={"text_tokens": 64}))


def test_frames_without_a_column_are_refused(model_dir: Path) -> None:
    """A frame of another layout says which column is missing."""
    with pytest.raises(UserError, match="'share'"):
        Renderer.load(model_dir).frame_token_ids(pd.DataFrame({"visits": [1.0], "text": ["a"]}))
