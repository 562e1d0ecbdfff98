"""The guard between features and training: what is sound passes, what leaks is refused with its evidence."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from components.contract.handover import guard_training_set
from components.contract.handover_page import handover_page
from components.contract.standard.contract import load
from components.core.errors import IntegrityError, UserError
from components.core.publish import verify
from components.core.records import HandOver
from components.features.featurise import featurise
from tests.fakes.contract_case import contract_file
from tests.fakes.feature_rows import ROOT, clean_folder, complaint_recipe, complaints, many_complaints
from tests.fakes.handover_case import WORDS, Case, broken, rewrite_record, sound_case


@pytest.fixture
def case() -> Case:
    """Rows in which nothing leaks."""
    return sound_case()


def test_sound_rows_pass(case: Case, tmp_path: Path) -> None:
    """Every rule has a result, none blocks, and the folder is whole."""
    verdict = case.guard(tmp_path)
    assert verdict.passed, verdict.reason
    assert HandOver.read(tmp_path / "handover") == verdict
    verify(tmp_path / "handover")
    assert not verdict.checks
    asked = {rule.rule for rule in verdict.guards}
    assert {"outcomes known before", "known at the event", "known before its row", "rows shared by key"} <= asked
    assert {"feature tells the outcome", "column tells the outcome", "token with one outcome only"} <= asked
    assert {"near-identical text in training", "own row's later value"} <= asked
    assert {rule.outcome for rule in verdict.guards} == {"pass"}


def _leaking_feature(case: Case) -> None:
    noise = np.random.default_rng(1).random(len(case.rows))
    case.rows["shop_rate"] = case.rows["label"] + noise * 0.9
    _as_history(case)


def _value_only_with_relief(case: Case) -> None:
    gone = (case.rows["label"] == 0) | (np.arange(len(case.rows)) % 3 > 0)
    case.rows.loc[gone, "shop_rate"] = np.nan
    _as_history(case)


def _as_history(case: Case) -> None:
    """The history holds what the rows say, so that only what the values tell is at fault."""
    case.history = case.rows[["shop", "event_timestamp", "shop_rate"]].assign(
        created_timestamp=case.rows["event_timestamp"]
    )


def _later_value(case: Case) -> None:
    last = case.history.groupby("shop")["shop_rate"].last()
    case.rows["shop_rate"] = case.rows["shop"].map(last)


def _late_record(case: Case) -> None:
    case.history["created_timestamp"] += timedelta(days=300)


def _marked_text(case: Case) -> None:
    hit = (case.rows["label"] == 1) & (np.arange(len(case.rows)) % 3 == 0)
    case.rows.loc[hit, "text"] = "[REFUNDED] " + case.rows["text"]


def _short_text(case: Case) -> None:
    case.rows.loc[case.rows["label"] == 1, "text"] = case.rows["text"].str.slice(0, 60)


def _revealing_column(case: Case) -> None:
    noise = np.random.default_rng(2).random(len(case.clean)) < 0.02
    case.clean["refund"] = np.where((case.clean["outcome"] == "yes") ^ noise, "12.50", "0.00")


def _column_only_with_relief(case: Case) -> None:
    some = (case.clean["outcome"] == "yes") & (np.arange(len(case.clean)) % 4 == 0)
    case.clean["voucher"] = np.where(some, "V" + case.clean["id"], "")


def _same_key(case: Case) -> None:
    case.rows.loc[case.rows.index[-1], "row_id"] = case.rows["row_id"].iloc[0]


def _copies(case: Case) -> None:
    """Every twentieth test row is a training row with another key, moment and last word."""
    test, train = (case.rows.index[case.split(name)][::20] for name in ("test", "train"))
    for at, source in zip(test, train, strict=False):
        text = case.rows.loc[source, "text"].rpartition(" ")[0]
        case.rows.loc[at, ["text", "shop"]] = [f"{text} otherwise", case.rows.loc[source, "shop"]]
    case.rows["shop_rate"] = case.history["shop_rate"] = 0.3
    case.history["event_timestamp"] = case.history["created_timestamp"] = case.rows["event_timestamp"].min()


def _no_embargo(case: Case) -> None:
    """Training goes on until five days before validation; the delay is twenty."""
    day = (case.rows["event_timestamp"] - case.rows["event_timestamp"].iloc[0]).dt.days
    named = np.select([day < 155, (day >= 160) & (day < 190), day >= 210], ["train", "validation", "test"], "")
    case.rows = case.rows.assign(split=named)[named != ""]


def _own_amount(case: Case) -> None:
    """The feature is a declared outcome column of its own row, which alone does not tell the label."""
    amounts = np.random.default_rng(3).integers(1, 9, len(case.rows)).astype(float)
    case.clean["amount"] = [f"{amount:.2f}" for amount in amounts]
    case.rows["shop_rate"] = amounts
    declared = [{"property": "availability", "value": "after_outcome"}]
    case.properties.append({"name": "amount", "logicalType": "number", "customProperties": declared})
    _as_history(case)


def _entity_of_the_outcome(case: Case) -> None:
    case.recipe["features"]["entities"] = {"shop": "outcome"}


def _text_of_the_outcome(case: Case) -> None:
    case.recipe["model"]["text_column"] = "outcome"


PLANTED: dict[str, tuple[Callable[[Case], None], str, str, str]] = {
    # how it is planted, the rule that tells it, what it is about, words of the reason
    "a feature made of its own outcome": (_leaking_feature, "feature tells the outcome", "shop_rate", "AUC"),
    "a feature that is there with relief only": (
        _value_only_with_relief,
        "value with one outcome only",
        "shop_rate",
        "a value: in",
    ),
    "a feature as known at the end": (_later_value, "known before its row", "shop_rate", "not known of their entity"),
    "a record made long after": (_late_record, "known before its row", "shop_rate", "not known of their entity"),
    "a word of the text": (_marked_text, "token with one outcome only", "words", "a token of 8 characters"),
    "the length of the text": (_short_text, "text length tells the outcome", "words", "AUC"),
    "a column of the source": (_revealing_column, "column tells the outcome", "refund", "declare availability"),
    "a column filled with relief only": (
        _column_only_with_relief,
        "column with one outcome only",
        "voucher",
        "a value",
    ),
    "one key twice": (_same_key, "rows shared by key", "row_id", "1 keys stand in two splits"),
    "copies with another key": (_copies, "near-identical text and entities in training", "test", "for example"),
    "a gap shorter than the delay": (_no_embargo, "outcomes known before", "train, validation", "not known by then"),
    "a declared column as a feature": (_own_amount, "own row's later value", "shop_rate", "'amount' of its own row"),
    "an entity made of the outcome": (_entity_of_the_outcome, "known at the event", "entity shop", "'outcome'"),
    "a text made of the outcome": (_text_of_the_outcome, "known at the event", "text", "'outcome'"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_leak_is_refused_by_name(planted: str, case: Case, tmp_path: Path) -> None:
    """The rule, what it is about and the evidence are in the verdict, its reason and its page."""
    plant, rule, subject, says = PLANTED[planted]
    plant(case)
    verdict = case.guard(tmp_path)
    assert not verdict.passed
    found = broken(verdict)
    assert rule in found, found
    about = [one for one in found[rule] if one.subject == subject]
    assert about
    assert says in about[0].reason
    assert about[0].outcome == "fail"
    assert subject in verdict.reason
    page = handover_page(verdict)
    assert "Training is refused" in page
    assert rule.replace("'", "&#x27;") in page


def test_a_declared_outcome_column_that_feeds_nothing_passes(case: Case, tmp_path: Path) -> None:
    """Declaring the column of the source settles it: histories may use it, the model's inputs may not."""
    _revealing_column(case)
    declared = [{"property": "availability", "value": "after_outcome"}]
    case.properties.append({"name": "refund", "logicalType": "number", "customProperties": declared})
    assert case.guard(tmp_path).passed


def test_personal_text_is_not_shown(case: Case, tmp_path: Path) -> None:
    """The mark is told by its length; the text's column is tagged pii."""
    _marked_text(case)
    verdict = case.guard(tmp_path)
    assert not verdict.passed
    assert "refunded" not in str(verdict.to_dict()).lower()


def test_texts_that_recur_everywhere_are_no_copies(tmp_path: Path) -> None:
    """With a handful of templates nearly every test text stands in training, as training texts do among themselves."""
    case = sound_case()
    templates = [" ".join(WORDS[at : at + 12]) for at in range(0, 60, 5)]
    case.rows["text"] = [templates[at % len(templates)] for at in range(len(case.rows))]
    verdict = case.guard(tmp_path)
    assert verdict.passed, verdict.reason
    told = next(rule for rule in verdict.guards if rule.rule == "near-identical text in training")
    assert "100.0 %" in told.reason


@pytest.mark.parametrize(
    ("count", "limits", "rule"),
    [
        (300, {"min_positives": 200}, "feature tells the outcome"),
        (300, {"min_positives": 200}, "token with one outcome only"),
    ],
)
def test_too_few_rows_to_tell_are_no_pass(count: int, limits: dict[str, int], rule: str, tmp_path: Path) -> None:
    """Insufficient blocks, and says how many rows are needed."""
    verdict = sound_case(count, leakage=limits).guard(tmp_path)
    assert not verdict.passed
    assert broken(verdict)[rule][0].outcome == "insufficient"
    assert "200 are needed" in broken(verdict)[rule][0].reason


def test_a_feature_without_history_needs_a_declaration(case: Case, tmp_path: Path) -> None:
    """Nothing shows when its value was known, unless the training contract says that it is known at the event."""
    case.history = case.history.rename(columns={"shop_rate": "another"})
    verdict = case.guard(tmp_path / "a")
    assert broken(verdict)["known before its row"][0].outcome == "insufficient"
    case.recipe["contract"] = {"training": str(_training_contract(tmp_path, availability="at_event"))}
    verdict = case.guard(tmp_path / "b")
    assert verdict.passed, verdict.reason


def test_a_feature_of_the_request_is_known_where_its_inputs_are(case: Case, tmp_path: Path) -> None:
    """It has no history and needs none; an input that is known only after the outcome is refused."""
    case.history = case.history.rename(columns={"shop_rate": "another"})
    case.on_demand = ("shop_rate",)
    case.recipe["features"] |= {"request": {"said": "words"}}
    verdict = case.guard(tmp_path / "a")
    assert verdict.passed, verdict.reason
    told = [rule for rule in verdict.guards if rule.rule == "known before its row"]
    assert [(rule.outcome, rule.observed) for rule in told] == [("info", "of the request")]
    case.recipe["features"] |= {"request": {"said": "outcome"}}
    late = broken(case.guard(tmp_path / "b"))["known at the event"]
    assert [(rule.subject, rule.outcome) for rule in late] == [("request input said", "fail")]


def _training_contract(folder: Path, maximum: float = 1.0, availability: str = "", severity: str = "error") -> Path:
    more = [{"property": "ruleSeverity", "value": severity}]
    more += [{"property": "availability", "value": availability}] if availability else []
    missing = {"metric": "missingValues", "arguments": {"missingValues": [None, "", "nan"]}, "mustBeLessThan": 60}
    properties = [
        {"name": "row_id", "logicalType": "string", "required": True, "unique": True},
        {"name": "event_timestamp", "logicalType": "timestamp", "required": True},
        {"name": "label", "logicalType": "integer", "required": True, "enum": [{"value": 0}, {"value": 1}]},
        {
            "name": "shop_rate",
            "logicalType": "number",
            "logicalTypeOptions": {"minimum": 0, "maximum": maximum},
            "quality": [missing | {"unit": "percent"}],
            "customProperties": more,
        },
        {"name": "group:shop a", "logicalType": "boolean", "required": True},
    ]
    return contract_file(folder / f"training-{maximum}-{availability}-{severity}.yaml", properties)


@pytest.mark.parametrize("severity", ["error", "warning"])
def test_the_training_contract_is_checked_on_each_split(case: Case, severity: str, tmp_path: Path) -> None:
    """Typed columns hold their contract; a broken range refuses by split, column and count, as a warning too."""
    case.recipe["contract"] = {"training": str(_training_contract(tmp_path))}
    held = case.guard(tmp_path / "held")
    assert held.passed, held.reason
    assert {rule.subject.partition(":")[0] for rule in held.checks} >= {"train", "validation", "test"}
    tight = _training_contract(tmp_path, maximum=0.05, severity=severity)
    case.recipe["contract"] = {"training": str(tight)}
    refused = case.guard(tmp_path / "refused")
    assert not refused.passed
    assert "train" in refused.reason
    assert any(rule.subject == "train: shop_rate" and "broken by" in rule.reason for rule in refused.checks)
    assert refused.contract_digest != held.contract_digest


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda rows: rows.assign(label=1), "both outcomes, 0 and 1"),
        (lambda rows: rows.assign(label=rows["label"] * 2), "both outcomes, 0 and 1"),
        (lambda rows: rows.drop(columns=["shop_rate"]), "columns and types"),
        (lambda rows: rows.rename(columns={"group:shop a": "group:other"}), "columns and types"),
        (lambda rows: rows.assign(row_id=""), "key, time and label are there"),
    ],
)
def test_rows_of_another_shape_are_refused(
    change: Callable[[pd.DataFrame], pd.DataFrame], rule: str, case: Case, tmp_path: Path
) -> None:
    """Structure is asked of every training set, with or without a contract of its own."""
    case.rows = change(case.rows)
    verdict = case.guard(tmp_path)
    assert not verdict.passed
    assert rule in broken(verdict)


def test_numbers_of_another_record_are_refused(case: Case, tmp_path: Path) -> None:
    """The record's counts and its moment are held against the rows."""
    clean, rows = case.publish(tmp_path)
    from components.core.records import TrainingSetRef

    record = TrainingSetRef.read(rows)
    first = record.splits[0]
    wrong = type(first)(**(first.to_dict() | {"positives": first.positives + 1}))
    rewrite_record(tmp_path, splits=(wrong, *record.splits[1:]))
    verdict = guard_training_set(case.parsed(tmp_path), clean, rows, tmp_path / "handover")
    assert "rows as recorded" in broken(verdict)
    rewrite_record(tmp_path, splits=record.splits, as_of=record.splits[-1].time_max)
    verdict = guard_training_set(case.parsed(tmp_path), clean, rows, tmp_path / "handover")
    assert "outcomes known when made" in broken(verdict)


def test_damage_and_foreign_rows_are_no_verdict(case: Case, tmp_path: Path) -> None:
    """Changed bytes, or clean rows of another run, end as broken integrity with nothing published."""
    clean, rows = case.publish(tmp_path / "a")
    other, _ = sound_case(400, seed=5).publish(tmp_path / "b")
    recipe = case.parsed(tmp_path / "a")
    with pytest.raises(IntegrityError, match="not made of the rows"):
        guard_training_set(recipe, other, rows, tmp_path / "handover")
    (rows / "test.parquet").write_bytes((rows / "test.parquet").read_bytes() + b"x")
    with pytest.raises(IntegrityError, match=r"test\.parquet"):
        guard_training_set(recipe, clean, rows, tmp_path / "handover")
    assert not (tmp_path / "handover").exists()


def test_an_unknown_availability_is_bad_input(case: Case, tmp_path: Path) -> None:
    """A word that means nothing is not taken for the safe one."""
    case.properties[2]["customProperties"] = [{"property": "availability", "value": "later"}]
    with pytest.raises(UserError, match="availability"):
        case.guard(tmp_path)


def test_what_the_feature_step_makes_passes(tmp_path: Path) -> None:
    """Feast's join, split and record hold every rule; the shipped contract names just the columns handed on."""
    frame = complaints(many_complaints(2600))
    draw = random.Random(4)
    frame["Consumer complaint narrative"] = [" ".join(draw.choices(WORDS, k=20)) for _ in range(len(frame))]
    recipe = complaint_recipe(contract={"path": str(ROOT / "data_contracts" / "complaints.odcs.yaml")})
    clean = clean_folder(tmp_path / "clean", frame)
    _with_digest(clean)
    featurise(recipe, clean, tmp_path / "rows")
    verdict = guard_training_set(recipe, clean, tmp_path / "rows", tmp_path / "handover")
    assert verdict.passed, verdict.reason
    shipped = load(ROOT / "data_contracts" / "complaints_training.odcs.yaml")
    names = {column.name for column in shipped.columns} - {"group:Servicemember"}
    assert names == set(pq.read_schema(tmp_path / "rows" / "train.parquet").names)


def _with_digest(clean: Path) -> None:
    """Publish the folder anew with the digest that validate would name."""
    from dataclasses import replace

    from components.core.digest import file_digest
    from components.core.publish import publishing
    from components.core.records import ContractVerdict

    content, verdict = (clean / "clean.parquet").read_bytes(), ContractVerdict.read(clean)
    with publishing(clean) as staging:
        (staging / "clean.parquet").write_bytes(content)
        replace(verdict, clean_digest=file_digest(staging / "clean.parquet")).write(staging)
