"""The verbs of `pilotline models`: plain values in and out, each on a home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, UserError
from components.core.home import Home, safe_name
from components.core.ledger import Anchor, Ledger
from components.core.people import Person, Policy
from components.core.publish import verify as verify_folder
from components.core.recipe import Recipe
from components.core.records import PromotionRef
from components.models.signing import SIGNATURE_FILE, key_id, read_public_key, verify_signature
from components.registry import approvals, by_hand, policies
from components.registry import history as story
from components.registry.aliases import CHAMPION, anchors, check_chain, follow
from components.registry.card import as_html, as_markdown, read_card, with_approvals
from components.registry.champions import CANDIDATE, PROMOTION, champion
from components.registry.decision_signature import check_decision, decisions, told_signature
from components.registry.policies import changes
from components.registry.ports import ModelRegistry
from components.registry.sayings import said_of
from components.registry.store import MODEL, check_kept, papers
from components.registry.trust import trust as trust_key
from components.registry.trust import trusted_keys
from components.registry.trust import withdraw as withdraw_key


def list_versions(home: Home) -> list[dict[str, Any]]:
    """Every registered version of every model: name, version, digest, aliases, gate, auc."""
    with _opened(home) as (ledger, tracking):
        return [_line(name, item) for name in _names(ledger) for item in tracking.versions(name)]


def show(home: Home, name: str, version: str) -> dict[str, Any]:
    """One version with its digests, its gate rule by rule, and how it ended; UserError where there is none."""
    with _opened(home) as (ledger, tracking):
        item = _version(tracking, name, version)
        own = [
            entry.payload
            for entry in ledger.entries(CANDIDATE)
            if (entry.payload["name"], entry.payload["version"]) == (name, version)
        ]
        gate: list[dict[str, Any]] = next((payload["record"]["gate"] for payload in own if "record" in payload), [])
        events = [told for told in story.history(name, ledger) if told["version"] == version]
        digests = {tag.removeprefix("pilotline."): value for tag, value in sorted(item["tags"].items())}
        return _line(name, item) | {"source": item["source"], "tags": digests, "gate_rules": gate, "events": events}


def history(home: Home, name: str, at: str | None = None, seen: Sequence[Anchor] = ()) -> list[dict[str, Any]]:
    """The story of a model, or the one version that was champion at a time.

    Raises:
        IntegrityError: the chain is broken, or lacks what the registry or others (`seen`) saw of it: whoever cuts off
            its end would else change who was champion. UserError: nothing is known of the model.
    """
    from components.tracking.mlflow_tracking import Tracking

    safe_name(name, "model name")
    with _ledger(home) as ledger:
        if has_registry(home):
            check_chain(name, ledger, Tracking.at(home), seen)
        else:  # who only asks makes none
            ledger.verify(seen)
        found = story.history(name, ledger, at)
        if not found:
            raise UserError(
                f"model {name}: nothing is known of it; known models: {', '.join(_names(ledger)) or 'none'}"
            )
        return found


def promote(home: Home, name: str, version: str, reason: str, who: Person | None = None) -> dict[str, Any]:
    """A person makes a version champion, without a rollout."""
    with _deciding(home, name) as (ledger, tracking):
        return by_hand.promote_by_hand(name, version, ledger, tracking, reason, home.models, who).to_dict()


def rollback(home: Home, name: str, reason: str, who: Person | None = None, taken_back: str = "") -> dict[str, Any]:
    """Back to the champion before this one, or before `taken_back`, which then is taken back once only."""
    with _deciding(home, name) as (ledger, tracking):
        return by_hand.rollback(name, ledger, tracking, reason, home.models, who, taken_back).to_dict()


def approve(home: Home, name: str, version: str, reason: str, who: Person) -> tuple[PromotionRef, str]:
    """A person approves a candidate that awaits it; how it stands now, and the run that asked."""
    with _deciding(home, name) as (ledger, tracking):
        return approvals.approve(name, version, who, reason, ledger, tracking, home.models)


def reject(home: Home, name: str, version: str, reason: str, who: Person) -> tuple[PromotionRef, str]:
    """A person refuses a candidate for good; how it ended, and the run that asked."""
    with _deciding(home, name) as (ledger, tracking):
        return approvals.reject(name, version, who, reason, ledger, tracking)


def follow_up(home: Home, seq: int) -> PromotionRef:
    """How the request for approval in ledger entry `seq` stands or ended."""
    with _opened(home) as (ledger, tracking):
        return approvals.follow_up(seq, ledger, tracking, home.models)


def has_registry(home: Home) -> bool:
    """Whether there is a registry to ask; the home's own is made by the first run."""
    return (home.root / "mlflow.db").exists() or not home.mlflow_uri.startswith("sqlite")


def ledger_anchors(home: Home) -> list[Anchor]:
    """What the registry saw of the ledger, asked without the ledger: it also shows that all of it is gone."""
    from components.tracking.mlflow_tracking import Tracking

    tracking = Tracking.at(home)
    return [found for name in tracking.names() for found in anchors(name, tracking)]


def sync(home: Home, name: str) -> dict[str, Any]:
    """Make the registry's aliases follow the ledger, for example after a kill; does nothing where they do.

    Raises:
        IntegrityError: the ledger is broken, or lacks what the registry saw of it; nothing is changed then.
    """
    with _deciding(home, name) as (ledger, tracking):
        live = champion(name, ledger)
        if live is None and (alias := tracking.alias(name, CHAMPION)) is not None:
            raise IntegrityError(
                f"model {name}: the ledger knows no champion but alias champion is version {alias}; "
                "`pilotline ledger verify` first"
            )
        follow(name, ledger, tracking)
        return {"name": name, "champion": live.version if live else None}


def repair(home: Home, name: str) -> dict[str, Any]:
    """`sync` as a person asks for it: of a model that nobody registered there is nothing to repair.

    Raises:
        UserError: there is no such model. IntegrityError: as in `sync`.
    """
    from components.tracking.mlflow_tracking import Tracking

    found = sync(home, name)
    if found["champion"] is None and not Tracking.at(home).versions(name):
        raise UserError(f"model {name}: no version is registered; see `pilotline models list`")
    return found


def verify(home: Home, name: str, version: str) -> dict[str, Any]:
    """Check a version's bytes, signature and papers, that registry and ledger agree, the champion alias, the chain.

    Raises:
        IntegrityError: names the first thing that does not hold. UserError: there is no such version.
    """
    with _opened(home) as (ledger, tracking):
        entries = ledger.verify()
        item = _version(tracking, name, version)
        known = [
            entry.payload["digest"]
            for kind in (CANDIDATE, PROMOTION)
            for entry in ledger.entries(kind)
            if (entry.payload["name"], entry.payload["version"]) == (name, version)
        ]
        if not known or set(known) != {item["digest"]}:
            raise IntegrityError(f"model {name} version {version}: registry and ledger name different digests")
        kept = home.models / item["digest"]
        check_kept(kept / MODEL, item["digest"], f"model {name} version {version}")
        signed_by = verify_signature(kept / MODEL, kept / SIGNATURE_FILE, trusted_keys(ledger))
        check_decision(name, version, ledger)
        own = [e.payload for e in decisions(name, ledger.entries(CANDIDATE)) if e.payload["version"] == version]
        decided = told_signature(own[-1], trusted_keys(ledger)) if own else "not in the ledger"
        verify_folder(papers(home.models, name, version))
        live, alias = champion(name, ledger), tracking.alias(name, CHAMPION)
        if alias != (live.version if live else None):
            raise IntegrityError(
                f"model {name}: alias champion is {alias}, the ledger says otherwise; sync the aliases"
            )
        checks = [
            "files equal the digest",
            f"signed by key {signed_by[:12]}",
            f"the gate's decision is {decided}",
            "card, evidence and bill of materials are as they were published",
            "registry and ledger agree",
            "alias follows the ledger",
            "ledger chain intact",
        ]
        return {"name": name, "version": version, "digest": item["digest"], "entries": entries, "checks": checks}


def card(home: Home, name: str, version: str, form: str = "md") -> str:
    """A version's card as Markdown (md) or as a page (html), with what the ledger says of it now.

    Raises:
        UserError: no such version. IntegrityError: the card is not as it was published.
    """
    folder = papers(home.models, name, version)
    if not folder.is_dir():
        raise UserError(f"model {name}: no card of version {version!r} in this home; `pilotline models list` shows all")
    verify_folder(folder)
    title, parts = read_card(folder)
    with _ledger(home) as ledger:
        parts = with_approvals(parts, said_of(ledger, name, version))
    return as_html(title, parts) if form == "html" else as_markdown(title, parts)


def keys(home: Home) -> list[dict[str, Any]]:
    """The keys whose signatures count: key_id and public_key (PEM), oldest first."""
    with _ledger(home) as ledger:
        return [{"key_id": key_id(key), "public_key": key} for key in trusted_keys(ledger)]


def trust(home: Home, public_key: Path, reason: str, withdrawn: bool = False) -> dict[str, Any]:
    """Count the signatures of a public key's file from now on, or no longer; UserError where it is none."""
    with _ledger(home) as ledger:
        return (withdraw_key if withdrawn else trust_key)(ledger, read_public_key(public_key), reason)


def policy(home: Home, name: str) -> dict[str, Any]:
    """The policy about people that is in force for a model, and each change of it by the ledger's owner."""
    with _ledger(home) as ledger:
        ledger.verify()
        if safe_name(name, "model name") not in _names(ledger):
            known = ", ".join(_names(ledger)) or "none"
            raise UserError(f"model {name}: nothing is known of it; known models: {known}")
        now = policies.policy_in_force(name, ledger)
        said = [f"{entry.time[:19].replace('T', ' ')} UTC  {policies.told(entry)}" for entry in changes(name, ledger)]
        return {"name": name, "policy": now.to_dict(), "words": now.words, "changes": said}


def change_policy(home: Home, name: str, recipe: Recipe, reason: str, who: Person) -> dict[str, Any]:
    """Put the policy of a recipe in force, by the ledger's owner; see policies.py.

    Raises:
        UserError: the recipe is of another model, or as in `policies.change_policy`. PolicyRefusal: not the owner.
    """
    if recipe.model.name != name:
        raise UserError(f"recipe {recipe.name}: is about model {recipe.model.name}, not {name}")
    with _deciding(home, name) as (ledger, _):
        entry = policies.change_policy(name, Policy.of(recipe), ledger, reason, who)
        return {"name": name, "policy": entry.payload["policy"], "words": policies.told(entry), "seq": entry.seq}


def _version(tracking: ModelRegistry, name: str, version: str) -> dict[str, Any]:
    found = tracking.versions(safe_name(name, "model name"))
    for item in found:
        if item["version"] == version:
            return item
    known = ", ".join(item["version"] for item in found) or "none"
    raise UserError(f"model {name}: no version {version!r}; known versions: {known}")


def _line(name: str, item: dict[str, Any]) -> dict[str, Any]:
    tags = item["tags"]
    return {
        "name": name,
        "version": item["version"],
        "digest": item["digest"],
        "aliases": item["aliases"],
        "gate": tags.get("pilotline.gate", ""),
        "auc": tags.get("pilotline.test_auc", ""),
        "run_id": tags.get("pilotline.run_id", ""),
    }


def _names(ledger: Ledger) -> list[str]:
    return sorted({entry.payload["name"] for kind in (CANDIDATE, PROMOTION) for entry in ledger.entries(kind)})


@contextmanager
def _ledger(home: Home) -> Iterator[Ledger]:
    ledger = Ledger(home.ledger_url)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def _deciding(home: Home, name: str) -> Iterator[tuple[Ledger, ModelRegistry]]:
    """As `_opened`, after the chain was verified (see `check_chain`): a broken one decides nothing."""
    safe_name(name, "model name")
    with _opened(home) as (ledger, tracking):
        check_chain(name, ledger, tracking)
        yield ledger, tracking


@contextmanager
def _opened(home: Home) -> Iterator[tuple[Ledger, ModelRegistry]]:
    from components.tracking.mlflow_tracking import Tracking

    with _ledger(home) as ledger:
        yield ledger, Tracking.at(home)
