"""One prompt, one signature: training, evaluation and serving render alike, and no step takes another's features."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from components.core.errors import IntegrityError
from components.core.ledger import Ledger
from components.core.publish import publishing
from components.core.records import Evidence, ModelRef, TrainingSetRef
from components.evaluation.evaluate import evaluate
from components.models.causal_lm.prepare import EncodedRows, prepare
from components.models.causal_lm.prompt import Renderer
from components.models.feature_source import FeatureSource
from components.models.files import SIGNATURE, model_digest
from components.registry.given import Folders
from components.registry.register import Place, register
from components.rollout.rollout import preflight
from components.serving.control import ArmState, ServingState, write_state
from components.serving.deciding import Decider
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.judged import (
    FEATURES,
    judged_rows,
    model_ref,
    publish_evidence,
    publish_model,
    publish_training_set,
    small_recipe,
    training_rows,
)
from tests.fakes.rollout_case import make_case
from tests.fakes.serving_case import FixedFeatures, make_shell

OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"feature_service": "s_v2"}, "trained on feature service 's_v2' and cannot be given 's'"),
    ({"features": ["unknown"]}, "reads (unknown in this order|'unknown'), but is given"),
    ({"on_demand_digest": "e" * 64}, "by on-demand code eeeeeeeeeeee, and would be by none"),
]


def sign(model_dir: Path, change: dict[str, Any]) -> None:
    """Change fields of a model's signature."""
    path = model_dir / SIGNATURE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_the_same_rows_are_the_same_tokens_everywhere(tmp_path: Path) -> None:
    """What training encoded, what the evaluation's scorer is handed, and what serving renders row by row."""
    recipe = small_recipe()
    rows = publish_training_set(tmp_path / "set")
    train, validation = training_rows(200, 1), training_rows(80, 2, start=200)
    validation.loc[3, "text"] = "<yes> <ans> \x00 ünïcode " * 30
    (tmp_path / "prepared").mkdir()
    prepare(recipe, rows, train, validation, tmp_path / "prepared")
    encoded = EncodedRows.load(tmp_path / "prepared" / "validation.npz")
    renderer = Renderer.load(tmp_path / "prepared")
    training = [
        renderer.assemble(renderer.feature_token_ids(encoded.buckets[at]), encoded.text(at).tolist())
        for at in range(len(validation))
    ]
    evaluated = renderer.frame_token_ids(validation)
    served = []
    for row in validation.to_dict("records"):
        known = {name: None if math.isnan(row[name]) else row[name] for name in FEATURES}  # as JSON carries it
        served.append(renderer.token_ids(dict(reversed(known.items())), row["text"]))
    assert training == evaluated == served
    signature = renderer.signature
    assert signature["prompt"] == "<s> <rate=BUCKET> <count=BUCKET> TEXT <ans>"
    assert (signature["feature_service"], signature["features"]) == (rows.feature_service, list(FEATURES))
    assert np.unique([len(ids) for ids in served]).max() <= renderer.max_tokens


@pytest.mark.parametrize("change", [{"prompt": "<s> TEXT <rate=BUCKET> <count=BUCKET> <ans>"}, {"text_tokens": 0}])
def test_a_model_of_another_template_is_not_rendered(tmp_path: Path, change: dict[str, Any]) -> None:
    """Both prompts are named."""
    prepare(
        small_recipe(), publish_training_set(tmp_path / "set"), training_rows(200, 1), training_rows(80, 2), tmp_path
    )
    sign(tmp_path, change)
    with pytest.raises(IntegrityError, match=r"trained on the prompt '<s> .* and this code renders '<s> "):
        Renderer.load(tmp_path)


@pytest.mark.parametrize("missing", ["prompt", "feature_service"])
def test_a_signature_without_template_or_service_is_none(tmp_path: Path, missing: str) -> None:
    """A model that does not say how it is asked is not asked."""
    make_shell(tmp_path / "model")
    path = tmp_path / "model" / SIGNATURE
    signature = json.loads(path.read_text())
    del signature[missing]
    path.write_text(json.dumps(signature))
    with pytest.raises(IntegrityError, match=f"'{missing}' is missing"):
        Renderer.load(tmp_path / "model")


@pytest.mark.parametrize(("change", "words"), OTHERS)
@pytest.mark.parametrize("role", ["model", "champion"])
def test_evaluation_refuses(tmp_path: Path, role: str, change: dict[str, Any], words: str) -> None:
    """Candidate or champion, before a row is scored; nothing is published."""
    rows = publish_training_set(tmp_path / "set")
    for name in ("model", "champion"):
        publish_model(tmp_path / name, rows)
    sign_published(tmp_path / role, rows, change)
    with pytest.raises(IntegrityError, match=words) as refused:
        evaluate(
            small_recipe(),
            tmp_path / "set",
            tmp_path / "model",
            tmp_path / "out",
            ("7", tmp_path / "champion" / "model"),
        )
    assert str(refused.value).startswith("champion version 7" if role == "champion" else "model ")
    assert not (tmp_path / "out").exists()


def sign_published(folder: Path, rows: TrainingSetRef, change: dict[str, Any]) -> None:
    """A published model folder with another signature, whole and with the right digests."""
    inner = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    with publishing(folder) as staging:
        (staging / "model").mkdir()
        for name, content in inner.items():
            (staging / "model" / name).write_bytes(content)
        sign(staging / "model", change)
        model_ref(model_digest(staging / "model"), rows).write(staging)


def test_evaluation_refuses_another_order(tmp_path: Path) -> None:
    """The recipe's model_inputs the other way round: both orders are named."""
    rows = publish_training_set(tmp_path / "set")
    publish_model(tmp_path / "model", rows)
    turned = small_recipe(features={"model_inputs": list(reversed(FEATURES))})
    with pytest.raises(IntegrityError, match="reads rate, count in this order, but is given count, rate"):
        evaluate(turned, tmp_path / "set", tmp_path / "model", tmp_path / "out")


@pytest.mark.parametrize(("change", "words"), OTHERS)
def test_registration_refuses(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """No version, no ledger entry."""
    rows = publish_training_set(tmp_path / "set", test=judged_rows())
    publish_model(tmp_path / "model", rows)
    sign_published(tmp_path / "model", rows, change)
    publish_evidence(tmp_path / "evidence", ModelRef.read(tmp_path / "model"), rows)
    tracking, folders = FakeTracking(tmp_path / "models"), [tmp_path / name for name in ("model", "set", "evidence")]
    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        with pytest.raises(IntegrityError, match=words):
            place = Place(tracking, ledger, tmp_path / "kept")
            register(small_recipe(), Folders(*folders), tmp_path / "out", place, "run-1", "code")
        assert ledger.entries("candidate") == []
    assert tracking.versions("triage") == []


@pytest.mark.parametrize(("change", "words"), OTHERS)
@pytest.mark.parametrize("role", ["candidate", "stable"])
def test_the_rollout_refuses_before_a_replica_starts(
    tmp_path: Path, role: str, change: dict[str, Any], words: str
) -> None:
    """The version's digest is right; what it reads is not what would be served."""
    case = make_case(tmp_path)
    model_dir = case.model_dirs[role]
    assert model_dir is not None
    sign(model_dir, change)
    digest = model_digest(model_dir)
    if role == "candidate":
        evidence = replace(Evidence.read(case.evidence), model_digest=digest)
        with publishing(tmp_path / "evidence") as folder:
            evidence.write(folder)
            (folder / "predictions.parquet").write_bytes(b"")
        case = case.with_version(digest=digest, evidence_digest=evidence.record_digest)
    else:
        case = case.with_version(champion_digest=digest)
    with pytest.raises(IntegrityError, match=words) as refused:
        preflight(case.recipe, case.version, case.training_set, tmp_path / "evidence", case.model_dirs)
    assert str(refused.value).startswith(f"the {role} version: ")


@pytest.mark.parametrize(("change", "words"), OTHERS)
def test_the_scoring_service_takes_no_state_with_such_an_arm(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """The state in force stays; why the new one is not in force shows."""
    make_shell(tmp_path / "good")
    make_shell(tmp_path / "bad")
    service: dict[str, Any] = {}
    if "features" in change:  # a prompt that fits the signature, of features that are not served
        service["source"] = FeatureSource("s", ("count",))
        words = "reads 'rate', but is given count only"
    else:
        sign(tmp_path / "bad", change)
    features = FixedFeatures()
    decider = Decider(
        None,  # type: ignore[arg-type] # nothing is asked
        features, None, tmp_path / "state.json", seed="0", timeout_seconds=1.0,  # type: ignore[arg-type]
    )  # fmt: skip

    def state(name: str, generation: int) -> None:
        arm = ArmState("triage", name, model_digest(tmp_path / name), str(tmp_path / name), "causal_lm", name, 0.5)
        write_state(tmp_path / "state.json", ServingState(generation=generation, arms={"stable": arm}))

    state("good", 1)
    asyncio.run(decider.refresh())
    assert (decider.state_error, decider.in_force.state.generation) == ("", 1)
    features.source = service.get("source", features.source)  # type: ignore[misc]
    state("bad", 2)
    asyncio.run(decider.refresh())
    assert "stable version bad: " in decider.state_error
    assert pd.Series([decider.state_error]).str.contains(words).all()
    assert decider.in_force.state.generation == 1
