"""`pilotline audit DECISION_ID [--replay]`: parse, call, print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from components.core.home import Home
from pipelines.models_cli import Printer, Verb

BROKEN_EXIT = 3


def add_audit_verb(verbs: Any, verb: Verb, show: Printer) -> None:
    """Add the verb to the command line."""
    text = "which model, promotion, gate, data and code a decision came from, each link verified"
    parser = verb(verbs, "audit", text, _audit(show))
    parser.add_argument("decision_id", metavar="DECISION_ID", help="as the scoring service answered it")
    parser.add_argument("--replay", action="store_true", help="score the stored inputs again and compare")


def _audit(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.audit import BROKEN, audit

        home = Home.at(args.home)
        found = audit(home, args.decision_id)
        values = found.to_dict()
        lines = [f"decision {found.decision_id}: {found.name} version {found.version or 'none'}, {found.status}"]
        for link in found.links:
            mark = "BROKEN" if link.state == BROKEN else "ok"
            lines.append(f"  {mark:6} {link.link:16} {link.digest[:12]:12}  {link.said}")
            lines += [_rule(rule) for rule in link.more.get("rules", [])]
        refused = bool(found.broken)
        if args.replay:
            state = _replay(home, args.decision_id, values)
            lines.append(f"  replay {state['state']}: {state['reason']}")
            refused = refused or state["state"] in ("differs", "broken")
        if found.broken:
            lines.append(f"broken at: {found.broken}")
        show(args, values, "\n".join(lines))
        return BROKEN_EXIT if refused else 0

    return call


def _replay(home: Home, decision_id: str, values: dict[str, Any]) -> dict[str, Any]:
    from components.core.errors import IntegrityError, one_line
    from pipelines.audit_replay import replay

    try:
        values["replay"] = replay(home, decision_id).to_dict()
    except IntegrityError as error:
        values["replay"] = {"state": "broken", "reason": one_line(error)}
    state: dict[str, Any] = values["replay"]
    return state


def _rule(rule: dict[str, Any]) -> str:
    def short(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)

    named = f"{rule['rule']} {rule['subject']}".strip()
    return f"           {rule['outcome']:13}{named}: {short(rule['observed'])} (limit {short(rule['limit'])})"
