"""A registered version as MLflow itself shows it: input signature, tags, files of its run."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.models.files import model_digest
from components.registry import models
from components.registry.register import Place, register
from components.tracking.mlflow_tracking import Tracking
from tests.fakes.judged import judged_rows, publish_evidence, publish_training_set, small_recipe
from tests.fakes.registering import folders, public_key, publish_signed_model, publish_verdicts


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with one registered version in a real MLflow."""
    root = tmp_path_factory.mktemp("mlflow")
    home = Home.at(root)
    tracking = Tracking.at(home)
    run = tracking.start("triage", "run", "k", {}, {})
    rows = publish_training_set(root / "rows", rows=60, test=judged_rows())
    model = publish_signed_model(root / "model", rows, run=run)
    publish_verdicts(root, rows)
    publish_evidence(root / "evidence", model, rows)
    with closing(Ledger(home.ledger_url)) as ledger:
        place = Place(tracking, ledger, home.models, public_key())
        assert register(small_recipe(), folders(root), root / "out", place, "run-1", "code").gate_passed
    return home


def test_mlflow_reads_the_input_signature_of_the_version(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own call, from the version's address: columns, types, and which may be missing."""
    import mlflow
    from mlflow.models import get_model_info

    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", home.mlflow_uri)
    monkeypatch.setattr(mlflow.tracking._model_registry.utils, "_registry_uri", home.mlflow_uri)
    signature = get_model_info("models:/triage/1").signature
    assert [(str(column.type), column.name, column.required) for column in signature.inputs] == [
        ("DataType.double", "rate", False),
        ("DataType.double", "count", False),
        ("DataType.string", "text", True),
    ]
    assert signature.outputs.input_names() == ["score"]


def test_the_adapter_still_names_the_model_directory(home: Home) -> None:
    """What is scored and served is the directory with the digest, not the folder around it."""
    (item,) = Tracking.at(home).versions("triage")
    assert model_digest(Path(item["source"])) == item["digest"]
    assert Path(item["source"]) == home.models / item["digest"] / "model"


def test_card_and_bill_of_materials_are_files_of_the_run(home: Home) -> None:
    """A person finds them in MLflow's own page."""
    (item,) = Tracking.at(home).versions("triage")
    found = Tracking.at(home)._client.list_artifacts(item["run_id"], "triage-v1")
    names = {Path(file.path).name for file in found}
    assert {"card.html", "card.md", "sbom.cdx.json", "evidence.json", "record.json"} <= names


def test_verify_names_what_does_not_hold(home: Home) -> None:
    """Whole: what was checked, as plain values. Another file beside the model: refused."""
    said = models.verify(home, "triage", "1")
    json.dumps(said)
    assert any(text.startswith("signed by key") for text in said["checks"])
    place = home.models / said["digest"] / "model" / "extra.json"
    place.write_text("{}")
    with pytest.raises(IntegrityError):
        models.verify(home, "triage", "1")
    place.unlink()
    models.verify(home, "triage", "1")


def test_the_aliases_of_an_unknown_model_are_not_called_repaired(home: Home) -> None:
    """One that has versions and no champion is fine as it is; of a name that nobody registered it says so."""
    assert models.repair(home, "triage") == {"name": "triage", "champion": None}
    with pytest.raises(UserError, match="no version is registered"):
        models.repair(home, "nosuch")
    # A run that resumes before it registered anything asks too, and goes on.
    assert models.sync(home, "nosuch") == {"name": "nosuch", "champion": None}
