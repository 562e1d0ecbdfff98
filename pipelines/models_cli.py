"""The verbs of `pilotline models`, `pilotline ledger` and `pilotline audit`: parse, call, print."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, TransientError, UserError, one_line
from components.core.home import Home

Verb = Callable[[Any, str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]
Printer = Callable[[argparse.Namespace, dict[str, Any], str], None]

MOVES = {  # verb: (what it does, whether it names a version)
    "promote": ("make a version champion without a rollout, or an earlier champion again", True),
    "rollback": ("back to the version before", False),
    "approve": ("approve a version that awaits approval; the last word that it needs promotes it", True),
    "reject": ("refuse a version that awaits approval, for good", True),
}


def add_models_verbs(models: Any, verb: Verb, show: Printer) -> None:
    """Add the verbs to the parser group `models`."""
    verb(models, "list", "registered versions", _call(show, "list_versions"))
    one = verb(models, "show", "one version with its gate and digests", _call(show, "show", "name", "version"))
    told = verb(models, "history", "what happened to a model, or its champion at a time", _history(show))
    told.add_argument("--at", default=None, help="ISO 8601 time, UTC where it names no zone: the one champion of then")
    check = verb(models, "verify", "a version's files against their digest", _call(show, "verify", "name", "version"))
    mend = verb(models, "repair", "make the registry's aliases follow the ledger", _call(show, "repair", "name"))
    card = verb(models, "card", "a version's model card, with its approvals of now", _card(show))
    for parser in (one, told, check, mend, card):
        parser.add_argument("name")
    for parser in (one, check, card):
        parser.add_argument("version")
    card.add_argument("-o", "--out", default="", metavar="FILE", help="write it there instead of printing it")
    card.add_argument("--format", choices=["md", "html"], default="", help="default by the file's name, else md")
    verb(models, "keys", "the public keys whose signatures count", _call(show, "keys"))
    trust = verb(models, "trust", "count a public key's signatures, beside the earlier keys", _trust(show))
    trust.add_argument("public_key", metavar="FILE", help="PEM file with the public key")
    trust.add_argument("--reason", required=True, help="why, for the record")
    trust.add_argument("--withdraw", action="store_true", help="count them no longer")
    who = "who decides about a model; the ledger's owner can put others in charge"
    people = verb(models, "policy", who, _policy(show))
    people.add_argument("name")
    people.add_argument("--from", dest="recipe", default="", metavar="RECIPE", help="put this recipe's policy in force")
    people.add_argument("--reason", default="", help="why, for the record; asked for with --from")
    people.add_argument("--as", dest="who", default=None, metavar="WHO", help="who decides, as for promote")
    for name, (text, versioned) in MOVES.items():
        move = verb(models, name, text, _move(show, name, versioned))
        move.add_argument("name")
        if versioned:
            move.add_argument("version")
        move.add_argument("--reason", required=True, help="why, for the record")
        if name == "rollback":
            move.add_argument(
                "--from", dest="taken_back", default="", metavar="VERSION",
                help="take this version back, once, also where the command is given again",
            )  # fmt: skip
        move.add_argument(
            "--as", dest="who", default=None, metavar="WHO",
            help="who decides (default $PILOTLINE_USER, else the operating system's user); a claim, noted beside that "
            "user",
        )  # fmt: skip


def add_rights_verb(models: Any, verb: Verb, show: Printer, recipe_options: Any, recipe: Any) -> None:
    """Add `models rights`, which needs a recipe."""
    text = "the recipe's roles as Kubernetes RoleBindings and MLflow permissions"
    rights = verb(models, "rights", text, _rights(show, recipe))
    recipe_options(rights)
    rights.add_argument("--namespace", default="pilotline", help="Kubernetes namespace (default pilotline)")


def _rights(show: Printer, recipe: Any) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        import yaml

        from pipelines.rights import kubernetes_rights, mlflow_rights

        asked = recipe(args)
        found = {"kubernetes": kubernetes_rights(asked, args.namespace), "mlflow": mlflow_rights(asked)}
        lines = [f"# MLflow: {item['username']} {item['permission']} on {item['name']}" for item in found["mlflow"]]
        show(args, found, "\n".join([*lines, yaml.safe_dump_all(found["kubernetes"], sort_keys=False)]))
        return 0

    return call


def add_ledger_verbs(ledger: Any, verb: Verb, show: Printer) -> None:
    """Add the verbs to the parser group `ledger`."""
    verb(ledger, "verify", "name the first altered, missing or reordered entry", _verify(show))


def _call(show: Printer, function: str, *names: str) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        models = importlib.import_module("components.registry.models")
        found = getattr(models, function)(_there(args.home), *(getattr(args, name) for name in names))
        show(args, found if isinstance(found, dict) else {"items": found}, _table(found))
        return 0

    return call


def _history(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.registry.models import history
        from pipelines.outcome import run_anchors

        home = _there(args.home)
        found = history(home, args.name, args.at, run_anchors(home))
        lines = [
            f"{item.get('time', item.get('since', ''))[:19].replace('T', ' ')} UTC  {_told(item)}" for item in found
        ]
        show(args, {"items": found}, "\n".join(lines))
        return 0

    return call


def _card(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.core.publish import write_atomic
        from components.registry.models import card

        form = args.format or ("html" if args.out.endswith((".html", ".htm")) else "md")
        text = card(_there(args.home), args.name, args.version, form)
        if args.out:
            try:
                write_atomic(Path(args.out), text)
            except (OSError, ValueError) as error:  # ValueError: "." or "/", which name no file
                why = error.strerror if isinstance(error, OSError) else "no file's name"
                raise UserError(f"--out {args.out!r}: cannot be written ({why}); name another file") from error
        about = {"name": args.name, "version": args.version, "format": form}
        show(args, about | ({"path": args.out} if args.out else {"card": text}), args.out or text.rstrip())
        return 0

    return call


def _trust(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.registry.models import trust

        said = trust(Home.at(args.home), Path(args.public_key), args.reason, args.withdraw)
        show(args, said, f"key {said['key_id'][:12]} {said['event']}: {said['reason']}")
        return 0

    return call


def _policy(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.core.people import identify
        from components.core.recipe import load_recipe
        from components.registry import models
        from pipelines.recipes import locate

        home = _there(args.home)
        if not args.recipe:
            said = models.policy(home, args.name)
            show(args, said, "\n".join([f"in force for {args.name}: {said['words']}", *said["changes"]]))
            return 0
        recipe = load_recipe(locate(args.recipe))
        said = models.change_policy(home, args.name, recipe, args.reason, identify(args.who))
        show(args, said, f"{args.name}: {said['words']}")
        return 0

    return call


def _told(item: dict[str, Any]) -> str:
    return str(item.get("text") or f"v{item['version']} was champion at {item.get('at', '')}: {item['reason']}")


def _move(show: Printer, name: str, versioned: bool) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.core.people import identify
        from components.registry import models
        from pipelines.outcome import EXIT_CODES
        from pipelines.settling import settle

        home, who = Home.at(args.home), identify(args.who)
        about = (args.name, args.version) if versioned else (args.name,)
        run_id = ""
        if name in ("approve", "reject"):
            ended, run_id = getattr(models, name)(home, *about, args.reason, who)
            settle(home, run_id)
            values = ended.to_dict() | {"run_id": run_id}
        else:
            more = {"taken_back": args.taken_back} if name == "rollback" else {}
            values = getattr(models, name)(home, *about, args.reason, who, **more)
        text = f"{values['name']} v{values['version']} {values['outcome'].replace('_', ' ')}: {values['reason']}"
        show(args, values | {"by": who.to_dict()}, f"{text} (by {who.name}, {who.source}; user {who.os_user})")
        return EXIT_CODES["awaiting_approval"] if values["outcome"] == "awaiting_approval" else 0

    return call


def _verify(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from contextlib import closing

        from components.core.ledger import Ledger
        from components.registry.models import has_registry, ledger_anchors
        from pipelines.outcome import missing_runs, run_anchors

        home, silent = _there(args.home), ""
        anchors = run_anchors(home)
        if has_registry(home):
            try:
                anchors += ledger_anchors(home)
            except TransientError as error:  # the chain can be judged without it
                silent = f"; anchors not read: {one_line(error)}"
        try:
            opened = Ledger(home.ledger_url, existing=True)
        except IntegrityError as error:
            seen = f"; {anchors[-1].where} saw entry {anchors[-1].seq} of it" if anchors else ""
            raise IntegrityError(f"{error}{seen}") from error
        with closing(opened) as ledger:
            count = ledger.verify(anchors)
        missing_runs(home)
        text = f"{count} entries, chain intact; {len(anchors)} anchors outside of it agree{silent}"
        show(args, {"entries": count, "intact": True, "anchors": len(anchors)}, text)
        return 0

    return call


def _there(given: str | None) -> Home:
    """The home, where it is there; nothing is made, for who asks of what was must not begin it anew."""
    root = Path(given or os.environ.get("PILOTLINE_HOME") or ".pilotline").expanduser()
    if not root.exists() and not set(str(root)) & set("?#%\n"):
        raise UserError(f"home {root}: is not there; look at --home")
    return Home.at(given)


def _table(found: Any) -> str:
    rows = found if isinstance(found, list) else [found]
    return "\n".join("  ".join(f"{name}={value}" for name, value in row.items() if value) for row in rows) or "nothing"
