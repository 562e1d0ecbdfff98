"""`pilotline decisions forget|compact`: parse, call, print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from components.core.home import Home
from pipelines.models_cli import Printer, Verb


def add_decisions_verbs(decisions: Any, verb: Verb, show: Printer) -> None:
    """Add the verbs to the parser group `decisions`."""
    forget = verb(decisions, "forget", "destroy the key that one subject's kept data is encrypted with", _forget(show))
    forget.add_argument("subject", metavar="SUBJECT", help="value of the entity that the recipe names as subject")
    forget.add_argument("--reason", required=True, help="why, for the record")
    forget.add_argument("--as", dest="who", default=None, metavar="WHO", help="who asks (default $PILOTLINE_USER)")
    compact = verb(decisions, "compact", "move settled decisions to Parquet parts now", _compact(show))
    compact.add_argument("--store", default="", metavar="URL", help="folder or fsspec URL (default in the home)")
    compact.add_argument("--days", type=int, default=0, help="delete what is older (default 0: nothing)")


def _forget(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from components.core.people import identify
        from pipelines.decisions import forget

        done = forget(Home.at(args.home), args.subject, args.reason, identify(args.who))
        said = "its key is destroyed; digests stay" if done["keys"] else "no key of it is here"
        show(args, done, f"{args.subject}: {said}")
        return 0

    return call


def _compact(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.decisions import compact

        done = compact(Home.at(args.home), args.store, args.days)
        show(args, done, f"{done['parts']} parts written to {done['store']}, {done['dropped']} deleted")
        return 0

    return call
