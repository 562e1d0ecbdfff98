"""What is said of a version: its card, its bill of materials, its input signature, its tags."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pytest

from components.core.digest import file_digest
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.publish import verify
from components.core.records import CheckpointRef, Evidence, Fairness, ModelRef
from components.models.files import check_files
from components.registry import models
from components.registry.card import Part, as_markdown
from components.registry.promote import promote
from components.registry.sbom import bill_of_materials
from pipelines.cli import main
from tests.fakes.fake_tracking import FakeTracking
from tests.fakes.gating import full_evidence
from tests.fakes.judged import (
    GROUP,
    interval,
    judged_rows,
    publish_evidence,
    publish_training_set,
    rollout_report,
    small_recipe,
)
from tests.fakes.registering import (
    contract_verdict,
    publish_signed_model,
    publish_verdicts,
    register_in,
    sign_published,
)

CARD = {
    "purpose": "Sorts complaints by whether relief is likely. Not for deciding about people.",
    "owner": "triage team",
    "contact": "triage@example.test",
    "limits": ["Only English narratives."],
}


class Room:
    """A registered version in a home."""

    def __init__(self, root: Path, **sections: Any) -> None:
        self.root, self.home = root, Home.at(root)
        self.ledger, self.tracking = Ledger(self.home.ledger_url), FakeTracking(root / "models")
        self.recipe = small_recipe(card=CARD, **sections)
        self.run = self.tracking.start("triage", "run", "k", {}, {})
        self.rows = publish_training_set(root / "rows", rows=60, test=judged_rows())
        self.model = publish_signed_model(root / "model", self.rows, run=self.run)
        publish_verdicts(root, self.rows)
        full = full_evidence()
        parts = ("threshold", "operating", "fairness", "robustness", "invalid_rate", "test_window_uses")
        self.evidence = publish_evidence(
            root / "evidence", self.model, self.rows, **{part: getattr(full, part) for part in parts}
        )
        self.version = register_in(root, self.recipe, self.tracking, self.ledger)
        self.papers = root / "versions" / "triage" / "1"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    """One registration for the tests that only read."""
    return Room(tmp_path_factory.mktemp("card"))


def test_the_card_says_what_for_by_whom_and_within_which_limits(room: Room) -> None:
    """Purpose, owner, contact and limits of the recipe; data, features, metrics by slice, digests of the records."""
    for name in ("card.md", "card.html"):
        text = (room.papers / name).read_text()
        for word in (CARD["purpose"], CARD["owner"], CARD["contact"], CARD["limits"][0], GROUP, "rate", "service s"):
            assert str(word).lower() in text.lower().replace("&lt;", "<")
        for digest in (room.model.digest, room.rows.digest, room.rows.snapshot_digest, room.evidence.record_digest):
            assert digest in text
        assert "0.850" in text  # the AUC of the evidence
        assert "selection rate difference" in text
        assert "answers that are no label" in text
        assert "These rows have judged 1 candidate so far" in text


def test_what_the_recipe_does_not_state_shows_as_not_stated(tmp_path: Path) -> None:
    """A card never looks complete by leaving a question out."""
    room = Room(tmp_path)
    bare = small_recipe()
    register_in(tmp_path, bare, room.tracking, room.ledger, "run-2")
    text = (room.root / "versions" / "triage" / "2" / "card.md").read_text()
    assert text.count("not stated") >= 3


class Page(HTMLParser):
    """Collects what a page would load, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_the_page_is_self_contained_and_runs_nothing(room: Room) -> None:
    """No address to load, no script."""
    page = Page()
    page.feed((room.papers / "card.html").read_text())
    assert page.loads == []
    assert "script" not in page.tags
    assert "http" not in (room.papers / "card.html").read_text()


def test_texts_of_a_recipe_cannot_break_the_card(tmp_path: Path) -> None:
    """Markup and table bars in what a person wrote are shown as they are."""
    hostile = "<script>alert(1)</script> | a\n# heading"
    room = Room(tmp_path)
    odd = small_recipe(card=CARD | {"purpose": hostile, "owner": hostile.split("\n", maxsplit=1)[0]})
    register_in(tmp_path, odd, room.tracking, room.ledger, "run-2")
    folder = room.root / "versions" / "triage" / "2"
    page = Page()
    page.feed((folder / "card.html").read_text())
    assert "script" not in page.tags
    markdown = (folder / "card.md").read_text()
    assert "<script>" not in markdown
    assert "\n# heading" not in markdown


def test_the_owner_of_the_contract_is_named_where_the_contract_is_the_one_that_judged(tmp_path: Path) -> None:
    """Read from the standard's team; another file's team is not."""
    contract = tmp_path / "contract.yaml"
    contract.write_text("team: {name: data team, members: [{username: ann, role: owner}, {username: bob, role: dev}]}")
    room = Room(tmp_path, contract={"path": str(contract)})
    assert "data team" not in (room.papers / "card.md").read_text()  # the verdict is about another file
    publish_verdicts(tmp_path, room.rows, contract=contract_verdict(room.rows, contract_digest=file_digest(contract)))
    register_in(tmp_path, room.recipe, room.tracking, room.ledger, "run-2")
    assert "data team, ann" in (tmp_path / "versions" / "triage" / "2" / "card.md").read_text()


def test_a_card_that_is_asked_for_shows_the_promotion_that_followed(tmp_path: Path, capsys: Any) -> None:
    """Approvals and promotions come from the ledger; the published card stays as it was; -o writes a page."""
    room = Room(tmp_path)
    before = models.card(room.home, "triage", "1")
    assert "None when the version was registered" in before
    promote(room.version, rollout_report(room.version), room.ledger, room.tracking, "run-1", reason="canary held")
    after = models.card(room.home, "triage", "1")
    assert "promoted | run run-1 | canary held" in after
    assert (room.papers / "card.md").read_text() == before
    where = tmp_path / "shown" / "card.html"
    assert main(["models", "card", "triage", "1", "-o", str(where), "--home", str(tmp_path)]) == 0
    assert "canary held" in where.read_text()
    assert main(["models", "card", "triage", "1", "--home", str(tmp_path), "--format", "md", "--json"]) == 0
    assert "canary held" in json.loads(capsys.readouterr().out.splitlines()[-1])["card"]
    assert main(["models", "card", "triage", "9", "--home", str(tmp_path)]) == 2
    assert "no card of version" in capsys.readouterr().err


def test_a_card_that_cannot_be_written_is_one_line_and_leaves_nothing(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Onto a folder, no file's name, under a file, and a disk that is full while it is written."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)

    def asked(out: str) -> str:
        assert main(["models", "card", "triage", "1", "--home", str(room.home.root), "-o", out]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert sorted(tmp_path.rglob("*")) == before
        return str(line)

    for out in ("folder", "folder/", ".", "/", "file/card.md"):
        assert "cannot be written" in asked(out)
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "No space left" in asked("card.md")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "%2e%2e", "a\nb", ".x", "tri\u0430ge"])
def test_failure27_a_name_or_version_that_is_no_plain_one_finds_no_card(room: Room, name: str) -> None:
    """Nothing outside of the versions folder is read."""
    with pytest.raises(UserError):
        models.card(room.home, name, "1")
    with pytest.raises(UserError):
        models.card(room.home, "triage", name)


def test_every_digest_is_on_the_version(tmp_path: Path) -> None:
    """Model, snapshot, contract, guard, training set, test rows, recipe, code, checkpoint, environment, evidence."""
    room = Room(tmp_path)
    checkpoint = CheckpointRef(digest="d" * 64, step=3, world_size=2, zero_stage=1, recipe_digest="r" * 64)
    _with_checkpoint(room, checkpoint)
    room.recipe = small_recipe(card=CARD | {"owner": "others"})
    register_in(tmp_path, room.recipe, room.tracking, room.ledger, "run-2")
    tags = room.tracking.versions("triage")[-1]["tags"]
    expected = {
        "digest": room.model.digest,
        "snapshot_digest": room.rows.snapshot_digest,
        "contract_digest": "k" * 64,
        "training_set_digest": room.rows.digest,
        "test_digest": room.rows.split("test").digest,
        "recipe_digest": room.recipe.digest,
        "code_version": "code1",
        "checkpoint_digest": "d" * 64,
        "evidence_digest": room.evidence.record_digest,
        "feature_service": "s",
        "label_token_ids": "[1, 2]",
        "labels": '["no", "yes"]',
        "features": '["rate", "count"]',
    }
    assert {name: tags.get(f"pilotline.{name}") for name in expected} == expected
    assert re.fullmatch(r"[0-9a-f]{64}", tags["pilotline.handover_digest"])
    assert tags["pilotline.environment_digest"] == file_digest(Path("requirements.lock"))


def _with_checkpoint(room: Room, checkpoint: CheckpointRef) -> None:
    from components.core.publish import MANIFEST

    folder = room.root / "model"
    record = replace(ModelRef.read(folder), checkpoint=checkpoint)
    record.write(folder)
    (folder / MANIFEST).unlink()
    sign_published(folder)


def test_the_input_signature_names_features_text_and_answer(room: Room) -> None:
    """Features may be missing, the text may not; kept beside the model, not inside."""
    said = json.loads((room.root / "models" / room.model.digest / "MLmodel").read_text())["schema"]
    assert [(item["name"], item["type"], item["required"]) for item in said["inputs"]] == [
        ("rate", "double", False),
        ("count", "double", False),
        ("text", "string", True),
    ]
    assert [item["name"] for item in said["outputs"]] == ["score"]


def test_the_papers_lie_in_the_home_in_the_output_and_in_the_tracking_run(room: Room) -> None:
    """The same bytes in all three; the evidence among them reads as the evidence."""
    verify(room.papers)
    for path in (room.papers / name for name in verify(room.papers)["files"]):
        assert (room.root / "out" / path.name).read_bytes() == path.read_bytes()
        assert room.tracking.runs[room.run]["files"][f"triage-v1/{path.name}"] == path.read_bytes()
    assert Evidence.from_dict(json.loads((room.papers / "evidence.json").read_text())) == room.evidence


def test_a_damaged_card_is_refused(tmp_path: Path) -> None:
    """It is evidence: one changed word is named."""
    room = Room(tmp_path)
    path = room.papers / "card.json"
    path.write_text(path.read_text().replace("triage team", "somebody"))
    with pytest.raises(IntegrityError, match=r"card\.json"):
        models.card(room.home, "triage", "1")


# The bill of materials


def materials(room: Room) -> dict[str, Any]:
    """The registered one."""
    found: dict[str, Any] = json.loads((room.papers / "sbom.cdx.json").read_text())
    return found


def test_the_bill_of_materials_is_valid_cyclonedx(room: Room) -> None:
    """By the standard's own schema, strictly; and the check refuses what is none."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    judge = JsonStrictValidator(SchemaVersion.V1_6)
    text = (room.papers / "sbom.cdx.json").read_text()
    assert judge.validate_str(text) is None
    assert judge.validate_str(text.replace('"machine-learning-model"', '"magic"')) is not None


def test_it_names_the_model_with_a_hash_of_every_file(room: Room) -> None:
    """The subject is the version; its files are those of the model directory, with their sha256."""
    subject = materials(room)["metadata"]["component"]
    assert (subject["type"], subject["name"], subject["version"]) == ("machine-learning-model", "triage", "1")
    listed = {part["name"]: part["hashes"][0]["content"] for part in subject["components"]}
    assert listed == {path.name: file_digest(path) for path in check_files(room.root / "model" / "model")}
    about = {item["name"]: item["value"] for item in subject["properties"]}
    assert about["pilotline:model"] == room.model.digest
    assert about["pilotline:snapshot"] == room.rows.snapshot_digest


def test_it_names_the_training_set_and_the_packages_that_are_installed(room: Room) -> None:
    """The training set as data with its digest; packages with the version that imports see, and their licences."""
    parts = materials(room)["components"]
    (rows,) = [part for part in parts if part["type"] == "data"]
    assert rows["hashes"] == [{"alg": "SHA-256", "content": room.rows.digest}]
    packages = {part["name"]: part for part in parts if part["type"] == "library"}
    for name in ("numpy", "torch", "mlflow", "safetensors", "model-signing"):
        assert packages[name]["version"] == installed(name)
        assert packages[name]["purl"] == f"pkg:pypi/{name}@{installed(name).replace('+', '%2B')}"
    assert any("licenses" in part for part in packages.values())
    assert json.dumps(packages["safetensors"]["licenses"]).count("Apache") >= 1


def test_the_same_inputs_give_the_same_document_and_other_ones_another(room: Room) -> None:
    """No time and no chance in it; another digest is another serial number."""
    about = ("triage", "1", room.root / "model" / "model")
    digests = {"model": "a" * 64, "training_set": "b" * 64}
    first, again = (bill_of_materials(*about, digests, 3, ["x"]) for _ in range(2))
    assert first == again
    assert "timestamp" not in json.loads(first)["metadata"]
    other = json.loads(bill_of_materials(*about, digests | {"code": "c"}, 3, ["x"]))
    assert other["serialNumber"] != json.loads(first)["serialNumber"]


def test_a_group_that_was_too_small_shows_as_insufficient_on_the_card(tmp_path: Path) -> None:
    """Never as fair."""
    room = Room(tmp_path)
    hidden = Fairness(state="insufficient", reason="3 positives")
    publish_evidence(
        tmp_path / "evidence", room.model, room.rows, fairness={GROUP: hidden}, operating={"recall": interval(None)}
    )
    register_in(tmp_path, room.recipe, room.tracking, room.ledger, "run-2")
    text = (tmp_path / "versions" / "triage" / "2" / "card.md").read_text()
    assert "insufficient: 3 positives" in text


def test_markdown_shows_what_was_written_and_makes_nothing_of_it() -> None:
    """Links, images, emphasis, code and headings in a value stay text; numbers stay as they are."""
    hostile = "# [click](javascript:x) ![i](u) **bold** `code` <b> a|b &amp; snake_case"
    text = as_markdown("t", [Part("Purpose", (hostile,), ("what",), ((hostile,), ("-0.5 [0.1, 0.2]",)))])
    for mark in ("[click]", "![", "**", " `code`", "<b>", " a|b"):
        assert mark not in text
    assert "\\#" in text
    assert "&amp;amp; snake_case" in text
    assert "| -0.5 \\[0.1, 0.2\\] |" in text
