"""What `compare` calls breaking, additive or wording, and what the version numbers have to say to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.contract.evolution.changes import Release
from components.contract.evolution.compare import compare
from components.contract.evolution.strictness import implies
from components.contract.evolution.versions import Version
from components.contract.standard.rules import Rule
from components.core.errors import UserError
from tests.fakes.contract_versions import BASE, Edit, column, columns, difference, edited, write


def rename_table(document: dict[str, Any]) -> None:
    """Another name, in the elements of service levels too."""
    document["schema"][0]["name"] = "purchases"
    for level in document["slaProperties"][:2]:
        level["element"] = "purchases.day"


# ruff: noqa: E501 - a table reads better with a case a line
BREAKING: list[tuple[str, str, Edit]] = [
    ("column_removed", "schema.orders.properties.items", lambda d: columns(d).pop(3)),
    ("column_renamed", "schema.orders.properties.status", lambda d: column(d, "status").update(name="order_status")),
    ("column_renamed", "schema.orders.properties.status", lambda d: column(d, "status").update(name="phase")),
    ("type_changed", "schema.orders.properties.day.logicalType", lambda d: column(d, "day").update(logicalType="timestamp", physicalType="TIMESTAMP", logicalTypeOptions={})),
    ("physical_type_changed", "schema.orders.properties.day.physicalType", lambda d: column(d, "day").update(physicalType="TEXT")),
    ("required_column_added", "schema.orders.properties.price", lambda d: columns(d).append({"name": "price", "required": True})),
    ("required_added", "schema.orders.properties.items.required", lambda d: column(d, "items").update(required=True)),
    ("required_removed", "schema.orders.properties.day.required", lambda d: column(d, "day").pop("required")),
    ("unique_added", "schema.orders.properties.note.unique", lambda d: column(d, "note").update(unique=True)),
    ("key_changed", "schema.orders.primaryKey", lambda d: column(d, "day").update(primaryKey=True, primaryKeyPosition=2)),
    ("enum_member_removed", "schema.orders.properties.status.enum", lambda d: column(d, "status")["enum"].pop()),
    ("enum_added", "schema.orders.properties.note.enum", lambda d: column(d, "note").update(enum=[{"value": "ok"}])),
    ("enum_removed", "schema.orders.properties.status.enum", lambda d: column(d, "status").pop("enum")),
    ("range_tightened", "schema.orders.properties.items", lambda d: column(d, "items")["logicalTypeOptions"].update(maximum=9)),
    ("range_tightened", "schema.orders.properties.day", lambda d: column(d, "day")["logicalTypeOptions"].update(minimum="2021-01-01")),
    ("length_tightened", "schema.orders.properties.note", lambda d: column(d, "note")["logicalTypeOptions"].update(maxLength=40)),
    ("pattern_changed", "schema.orders.properties.number", lambda d: column(d, "number")["logicalTypeOptions"].update(pattern="^[0-9]{5}$")),
    ("format_changed", "schema.orders.properties.day", lambda d: column(d, "day")["logicalTypeOptions"].update(format="MM/dd/yy")),
    ("format_changed", "schema.orders.properties.day", lambda d: column(d, "day")["logicalTypeOptions"].update(format="[yyyy-MM-dd][MM/dd/yy]")),
    ("limit_tightened", "schema.orders.properties.status.quality", lambda d: column(d, "status")["quality"][0].update(mustBeLessThan=10)),
    ("limit_tightened", "schema.orders.quality.enough", lambda d: d["schema"][0]["quality"][0].update(mustBeGreaterOrEqualTo=20)),
    ("row_count_removed", "schema.orders.quality.enough", lambda d: d["schema"][0].pop("quality")),
    ("severity_raised", "schema.orders.properties.note", lambda d: column(d, "note").pop("customProperties")),
    ("severity_lowered", "schema.orders.properties.note", lambda d: column(d, "note")["customProperties"][0].update(value="info")),
    ("quarantine_cap_lowered", "schema.orders.customProperties", lambda d: d["schema"][0]["customProperties"][0].update(value=1)),
    ("sla_loosened", "slaProperties.latency:orders.day", lambda d: d["slaProperties"][0].update(value=3)),
    ("sla_loosened", "slaProperties.retention:orders.day", lambda d: d["slaProperties"][1].update(value=30, unit="d")),
    ("sla_loosened", "slaProperties.retention:orders.day", lambda d: d["slaProperties"][1].update(value=4)),
    ("sla_loosened", "slaProperties.availability", lambda d: d["slaProperties"][2].update(value=99)),
    ("sla_tightened", "slaProperties.latency:orders.day", lambda d: d["slaProperties"][0].update(value=1)),
    ("sla_changed", "slaProperties.availability", lambda d: d["slaProperties"][2].update(unit="nines")),
    ("sla_removed", "slaProperties.retention:orders.day", lambda d: d["slaProperties"].pop(1)),
    ("tag_removed", "schema.orders.properties.note.tags.pii", lambda d: column(d, "note").pop("tags")),
    ("status_changed", "status", lambda d: d.update(status="retired")),
    ("table_renamed", "schema.orders.name", rename_table),
    ("contract_id_changed", "id", lambda d: d.update(id="purchases")),
]  # fmt: skip
ADDITIVE: list[tuple[str, Edit]] = [
    ("column_added", lambda d: columns(d).append({"name": "price", "logicalType": "number"})),
    ("enum_member_added", lambda d: column(d, "status")["enum"].append({"value": "held"})),
    ("range_widened", lambda d: column(d, "items")["logicalTypeOptions"].update(maximum=999)),
    ("length_widened", lambda d: column(d, "note")["logicalTypeOptions"].pop("minLength")),
    ("pattern_widened", lambda d: column(d, "number")["logicalTypeOptions"].update(pattern="^[0-9A-F]{6,8}$")),
    ("limit_loosened", lambda d: column(d, "status")["quality"][0].update(mustBeLessThan=30)),
    ("sla_tightened", lambda d: d["slaProperties"][2].update(value=99.9)),
    ("quarantine_cap_raised", lambda d: d["schema"][0]["customProperties"][0].update(value=9)),
    ("tag_added", lambda d: column(d, "items").update(tags=["protected"])),
    ("status_changed", lambda d: d.update(status="deprecated")),
]
WORDING: list[tuple[str, Edit]] = [
    ("wording", lambda d: d["description"].update(purpose="To be read.")),
    ("wording", lambda d: column(d, "status").update(description="How far the order is.")),
    ("wording", lambda d: column(d, "status")["enum"][0].update(description="Not sent.")),
    ("wording", lambda d: d.update(name="All orders", domain="sales")),
    ("wording", lambda d: column(d, "items").update(tags=["countable"])),
    ("restated", lambda d: d["slaProperties"][0].update(value=48, unit="h")),
    ("restated", lambda d: column(d, "number").pop("required")),
]


@pytest.mark.parametrize(("kind", "path", "edit"), BREAKING, ids=[f"{case[0]}-{case[1]}" for case in BREAKING])
def test_what_breaks_somebody_needs_a_new_major_version(kind: str, path: str, edit: Edit, tmp_path: Path) -> None:
    """The change is found by kind and place with a sentence; it is refused under 1.5.0 and accepted under 2.0.0."""
    minor, major = (difference(tmp_path, edited(edit, version)) for version in ("1.5.0", "2.0.0"))
    found = [one for one in minor.changes if one.kind == kind]
    assert [one.path for one in found if one.path.startswith(path)], minor.changes
    assert all(one.breaking and one.text.endswith(".") for one in found)
    assert (minor.breaking, minor.major_raised, minor.accepted) == (True, False, False)
    assert found[0].path in minor.refusal
    assert (major.breaking, major.major_raised, major.accepted, major.refusal) == (True, True, True, "")


@pytest.mark.parametrize(("kind", "edit"), ADDITIVE, ids=[case[0] for case in ADDITIVE])
def test_what_only_adds_needs_a_minor_version(kind: str, edit: Edit, tmp_path: Path) -> None:
    """Compatible; under a patch version it is accepted with a warning, under a minor version without one."""
    patch, minor = (difference(tmp_path, edited(edit, version)) for version in ("1.4.3", "1.5.0"))
    assert [one.kind for one in minor.changes] == [kind]
    assert (minor.breaking, minor.accepted, minor.needed, minor.warning) == (False, True, "minor", "")
    assert patch.accepted
    assert "raise the minor version" in patch.warning


@pytest.mark.parametrize(("kind", "edit"), WORDING)
def test_other_words_need_a_patch_version(kind: str, edit: Edit, tmp_path: Path) -> None:
    """Words, owners, and another way to write the same rule."""
    found = difference(tmp_path, edited(edit, "1.4.3"))
    assert {one.kind for one in found.changes} == {kind}
    assert (found.breaking, found.needed, found.warning) == (False, "patch", "")


def test_order_of_lists_and_a_comment_are_no_change(tmp_path: Path) -> None:
    """The same contract with its columns, values and service levels in another order."""

    def turned(document: dict) -> None:
        columns(document).reverse()
        column(document, "status")["enum"].reverse()
        document["slaProperties"].reverse()

    assert difference(tmp_path, edited(turned)).changes == ()
    assert difference(tmp_path, BASE).changes == ()


def test_a_rename_is_named_and_its_other_changes_are_seen(tmp_path: Path) -> None:
    """The likely new name is told, and what else changed about that column is told under it."""

    def renamed(document: dict) -> None:
        column(document, "status")["enum"].pop()
        column(document, "status").update(name="state", synonyms=["status"])

    found = {one.kind: one for one in difference(tmp_path, edited(renamed, "1.5.0")).changes}
    assert (found["column_renamed"].old, found["column_renamed"].new) == ("status", "state")
    assert "'lost'" in found["enum_member_removed"].text
    assert "column_removed" not in found


def test_a_version_that_went_back_or_stayed_is_a_fault_of_its_own(tmp_path: Path) -> None:
    """Also where the change alone would be harmless; equal files have no fault."""
    edit = WORDING[0][1]
    back, same = (difference(tmp_path, edited(edit, version)) for version in ("1.4.1", "1.4.2"))
    assert [one.kind for one in back.changes if one.breaking] == ["version_went_back"]
    assert not back.accepted
    assert "version_not_raised" in [one.kind for one in same.changes]
    assert same.accepted
    assert same.warning


def test_a_version_that_is_not_semantic_is_bad_input(tmp_path: Path) -> None:
    """The file is named."""
    path = write(tmp_path / "new.yaml", edited(lambda d: None, "spring"))
    with pytest.raises(UserError, match=r"new\.yaml: version 'spring'"):
        Release.read(path)


def test_versions_are_ordered_as_semver_orders_them() -> None:
    """The specification's own example, and what each step raises."""
    order = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    order += ["1.0.0-rc.1", "1.0.0", "1.0.1", "1.1.0", "2.0.0", "10.0.0"]
    versions = [Version.parse(text, "here") for text in order]
    mixed = versions[::2] + versions[1::2]
    assert sorted(mixed, key=lambda version: version.order) == versions
    old = Version.parse("1.4.2", "here")
    raised = {
        text: Version.parse(text, "here").raised_from(old) for text in ("1.4.3", "1.5.0", "2.0.0", "1.4.2", "1.3.9")
    }
    assert list(raised.values()) == ["patch", "minor", "major", "none", "none"]


def test_a_rule_or_fact_of_an_unknown_kind_breaks_when_it_changes(tmp_path: Path) -> None:
    """A kind of rule that nobody told the comparison of is never taken for harmless."""
    old = Release.read(write(tmp_path / "a.yaml", BASE))
    new = Release.read(write(tmp_path / "b.yaml", edited(lambda d: None, "1.5.0")))
    rule = Rule("new", "telepathy", ("note",), "schema[0].properties[4].quality[0]", limit=old.contract.rules[0].limit)
    sides = [
        replace(side, contract=replace(side.contract, rules=(*side.contract.rules, replace(rule, query=query))))
        for side, query in ((old, "one"), (new, "two"))
    ]
    assert [one.kind for one in compare(*sides).changes] == ["rule_changed"]
    assert compare(*sides).breaking
    assert implies(rule, rule)
    assert not implies(rule, replace(rule, query="two"))


def test_an_unknown_extension_breaks_when_it_changes(tmp_path: Path) -> None:
    """A custom property that is not ours may mean anything."""

    def extended(document: dict) -> None:
        column(document, "note")["customProperties"].append({"property": "mood", "value": "blue"})

    found = difference(tmp_path, edited(extended, "1.5.0"))
    assert [one.kind for one in found.changes] == ["unknown_changed"]
    assert found.breaking


def test_texts_that_count_as_missing_cut_both_ways(tmp_path: Path) -> None:
    """More missing texts can break the share of missing values, fewer can break the list of values."""

    def missing(*texts: str) -> Edit:
        return lambda d: column(d, "status")["quality"][0].update(arguments={"missingValues": list(texts)})

    assert difference(tmp_path, edited(missing("", "?", "lost"), "1.5.0")).breaking
    assert difference(tmp_path, edited(missing(""), "1.5.0")).breaking


def test_json_has_what_programs_rely_on(tmp_path: Path) -> None:
    """The names of design/interface.md, in JSON values."""
    shown = difference(tmp_path, edited(BREAKING[0][2], "1.5.0")).to_dict()
    assert {"breaking", "major_raised", "changes"} <= set(shown)
    assert {"path", "kind", "breaking", "old", "new", "text"} <= set(shown["changes"][0])


def _query(text: str) -> Edit:
    rule = {"id": "few-odd", "type": "sql", "query": text, "mustBeLessThan": 5}
    return lambda document: document["schema"][0]["quality"].append(rule)


QUERY = "SELECT count(*) FROM orders WHERE status = 'not  sent' AND items>3"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("SELECT count(*)\n  FROM orders\n\tWHERE status = 'not  sent' AND items>3\n", True),
        ("SELECT count( * ) FROM orders WHERE status='not  sent' AND items > 3", True),
        (QUERY.replace("not  sent", "not sent"), False),
        (QUERY.replace("AND", "-- AND", 1), False),
        (QUERY.replace("items>3", "items>=3"), False),
        (QUERY.replace("items>3", "items>3.0"), False),
        (QUERY.replace("status =", "note ="), False),
    ],
)
def test_white_space_of_a_query_is_no_change(text: str, same: bool, tmp_path: Path) -> None:
    """Outside of quotes it says nothing; within, and where a comment begins or ends, it does."""
    found = difference(tmp_path, edited(_query(text)), edited(_query(QUERY)))
    assert (found.changes == ()) is same


def test_white_space_that_ends_a_comment_is_a_change(tmp_path: Path) -> None:
    """On one line the comment takes the condition with it."""
    one, other = ("SELECT count(*) FROM orders -- all" + gap + "WHERE items > 3" for gap in ("\n", " "))
    assert difference(tmp_path, edited(_query(other)), edited(_query(one))).changes


@pytest.mark.parametrize("tag", ["PII", "Pii"])
def test_the_case_of_a_tag_is_wording(tag: str, tmp_path: Path) -> None:
    """A column stays masked: nothing is removed, and dropping the tag in any case breaks."""
    upper = edited(lambda d: column(d, "note").update(tags=[tag]), "1.4.3")
    assert {one.kind for one in difference(tmp_path, upper).changes} == {"wording"}
    dropped = difference(tmp_path, edited(lambda d: column(d, "note").pop("tags"), "1.5.0"), upper)
    assert [one.kind for one in dropped.changes if one.breaking] == ["tag_removed"]
