"""Who somebody is, what the recipe lets them do, and the same as access rights of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import PolicyRefusal, UserError
from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from components.core.people import (
    APPROVE,
    PROMOTE,
    ROLL_BACK,
    RUN,
    Person,
    Policy,
    given_reason,
    identify,
    note_start,
    starters,
)
from pipelines.rights import kubernetes_rights, mlflow_rights
from tests.fakes.judged import small_recipe

ROLES = PROJECT_ROOT / "deploy" / "kubernetes" / "roles" / "roles.yaml"
NAMES = st.sampled_from(["ana", "bob", "carol", "dave", "eve"])
LISTS = st.lists(NAMES, unique=True, max_size=3).map(tuple)


def may(policy: Policy, who: str, action: str) -> bool:
    """Whether the policy lets somebody."""
    try:
        policy.allow(who, action)
    except PolicyRefusal:
        return False
    return True


@settings(deadline=None)
@given(runs=LISTS, approves=LISTS, reads=LISTS, who=NAMES)
def test_who_is_not_listed_only_reads(
    runs: tuple[str, ...], approves: tuple[str, ...], reads: tuple[str, ...], who: str
) -> None:
    """Without a name everybody may everything; with one, exactly the role's people may, whatever `reads` says."""
    policy = Policy(runs, approves, reads)
    nobody_named = not (runs or approves or reads)
    assert may(policy, who, RUN) == (nobody_named or who in runs)
    assert may(policy, who, APPROVE) == may(policy, who, PROMOTE) == (nobody_named or who in approves)
    assert may(policy, who, ROLL_BACK) == (nobody_named or who in runs or who in approves)
    assert Policy.from_dict(policy.to_dict()) == policy


@settings(deadline=None)
@given(approves=LISTS, approvers=LISTS, who=NAMES, requesters=LISTS, own=st.booleans())
def test_a_word_counts_from_named_people_who_did_not_start_the_run(
    approves: tuple[str, ...], approvers: tuple[str, ...], who: str, requesters: tuple[str, ...], own: bool
) -> None:
    """Named in approvers and role where both name somebody, and no starter unless the recipe says so."""
    policy = Policy(approves=approves, approvers=approvers, requester_may_approve=own)
    named = (not approves or who in approves) and (not approvers or who in approvers)
    try:
        policy.allow_approval(who, requesters)
        allowed = True
    except PolicyRefusal:
        allowed = False
    assert allowed == (named and (own or who not in requesters))


@pytest.mark.parametrize(
    "sections",
    [
        {"approval": {"required": 1}, "roles": {"runs": ["ci"]}},
        {"approval": {"required": 2, "approvers": ["bob"]}},
        {"approval": {"required": 2, "approvers": ["bob", "eve"]}, "roles": {"approves": ["bob"]}},
        {"approval": {"required": 3}, "roles": {"approves": ["bob", "carol", "bob"]}},
    ],
)
def test_a_recipe_that_nobody_could_approve_is_refused(sections: dict[str, Any]) -> None:
    """Before anything runs, in one line."""
    with pytest.raises(UserError, match=r"approval\.required is"):
        small_recipe(**sections)


@pytest.mark.parametrize("name", ["a b", "a\nb", "", "é", "a/b", "x" * 200])
def test_a_role_names_plain_names(name: str) -> None:
    """Others are refused with the key."""
    with pytest.raises(UserError, match=r"roles\.approves"):
        small_recipe(roles={"approves": [name]})


def test_who_asks_is_a_claim_with_the_operating_systems_user_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """--as before PILOTLINE_USER before the operating system; LOGNAME and USER count for nothing."""
    monkeypatch.setenv("LOGNAME", "mallory")
    monkeypatch.setenv("USER", "mallory")
    monkeypatch.delenv("PILOTLINE_USER", raising=False)
    own = identify()
    assert (own.source, own.name) == ("operating system", own.os_user)
    assert own.name != "mallory"
    monkeypatch.setenv("PILOTLINE_USER", "bob")
    assert identify() == Person("bob", "PILOTLINE_USER", own.os_user)
    assert identify("carol") == Person("carol", "--as", own.os_user)
    for bad in ("a b", "a\nb", "../x"):
        with pytest.raises(UserError, match="person's name"):
            identify(bad)


def test_everybody_who_started_or_resumed_a_run_is_kept_with_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once; where nobody is noted, whoever asks now."""
    for name in ("ana", "bob", "ana"):
        note_start(home, "run-1", Person(name, "--as", "root"))
    assert starters(home, "run-1") == ("ana", "bob")
    monkeypatch.setenv("PILOTLINE_USER", "pod")
    assert starters(home, "run-2") == ("pod",)


def manifests(path: Path = ROLES) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def test_the_roles_are_valid_kubernetes_and_least_rights() -> None:
    """Core schemas hold; nobody may everything; only approvers and readers reach a Secret, each one of its own."""
    found = manifests()
    for document in found:
        kubernetes_validate.validate(document, "1.31", strict=True)
    roles = {item["metadata"]["name"]: item["rules"] for item in found if item["kind"] == "Role"}
    assert set(roles) == {"pilotline-runs", "pilotline-approves", "pilotline-reads"}
    assert "*" not in yaml.safe_dump(roles)
    secrets = {
        name: [rule["resourceNames"] for rule in rules if "secrets" in rule["resources"]]
        for name, rules in roles.items()
    }
    assert secrets == {
        "pilotline-runs": [],
        "pilotline-approves": [["pilotline-ledger-approves"]],
        "pilotline-reads": [["pilotline-ledger-reads"]],
    }
    starts = {
        name
        for name, rules in roles.items()
        for rule in rules
        if "runs" in rule["resources"] and "create" in rule["verbs"]
    }
    assert starts == {"pilotline-runs"}
    reading = {verb for rule in roles["pilotline-reads"] for verb in rule["verbs"]}
    assert reading == {"get", "list", "watch"}


def test_the_recipes_names_become_bindings_and_permissions() -> None:
    """Users and service accounts; each with the most that a role of theirs gives; valid Kubernetes."""
    account = "system:serviceaccount:ci:retrain"
    recipe = small_recipe(roles={"runs": ["ana", account], "approves": ["bob"], "reads": ["ana", "dave"]})
    bound = kubernetes_rights(recipe)
    for document in bound:
        kubernetes_validate.validate(document, "1.31", strict=True)
    known = {item["metadata"]["name"] for item in manifests() if item["kind"] == "Role"}
    assert {item["roleRef"]["name"] for item in bound} <= known
    assert {"kind": "ServiceAccount", "namespace": "ci", "name": "retrain"} in bound[0]["subjects"]
    assert {item["username"]: item["permission"] for item in mlflow_rights(recipe)} == {
        "ana": "EDIT", "bob": "EDIT", "dave": "READ", account: "EDIT",
    }  # fmt: skip
    assert kubernetes_rights(small_recipe()) == mlflow_rights(small_recipe()) == []


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x00", "\x7f", "\u202e", "\u2066", "\ufeff", "\udcff", "\x9b"])
def test_a_reason_holds_nothing_that_is_shown_as_something_else(odd: str) -> None:
    """A terminal's commands, text that runs backwards, bytes that were no text: bad input that names what it is."""
    with pytest.raises(UserError, match="is not shown as it is written") as refused:
        given_reason(f"fine {odd} said bob")
    assert str(refused.value).isprintable()


def test_a_reason_is_one_line_of_any_language() -> None:
    """White space is folded, also line ends; joiners are part of Persian and of emoji."""
    assert given_reason(" too\n slow\t\u2028today\x1f") == "too slow today"
    kept = "\u0645\u06cc\u200c\u0634\u0648\u062f \u2013 gr\u00f6\u00dfer \U0001f468\u200d\U0001f469"
    assert given_reason(kept) == kept
    for empty in ("", " \n\t "):
        with pytest.raises(UserError, match="say why"):
            given_reason(empty)
