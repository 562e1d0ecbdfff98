"""The verbs of `pilotline rollout`: parse, call, print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from components.core.home import Home

Verb = Callable[[Any, str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]
Printer = Callable[[argparse.Namespace, dict[str, Any], str], None]
Shower = Callable[[argparse.Namespace, Any], int]


def add_rollout_verbs(rollout: Any, verb: Verb, show: Printer, told: Shower) -> None:
    """Add the verbs to the parser group `rollout`; `told` prints a run's outcome and gives its exit status."""
    start = verb(rollout, "start", "go on with a rollout whose controller died", _start(told))
    start.add_argument("run_id", nargs="?", default="", help="default: the run whose rollout was left half way last")
    status = verb(rollout, "status", "the rollout under way, else the last one", _status(show))
    abort = verb(rollout, "abort", "all traffic back to stable, from any state", _abort(show))
    abort.add_argument("--reason", default="", help="why, for the record")
    abort.add_argument("--as", dest="who", default=None, metavar="WHO", help="who asks (default $PILOTLINE_USER)")
    for parser in (status, abort):
        parser.add_argument("--name", default="", metavar="MODEL", help="where several models are being rolled out")


def _start(told: Shower) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.rollouts import unfinished
        from pipelines.run import keep_environment, resume

        keep_environment()
        home = Home.at(args.home)
        return told(args, resume(home, args.run_id or unfinished(home)))

    return call


def _status(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.rollouts import status

        show(args, found := status(Home.at(args.home), args.name), _lines(found))
        return 0

    return call


def _abort(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.rollouts import abort

        show(args, found := abort(Home.at(args.home), args.reason, args.who, args.name), _lines(found))
        return 0

    return call


def _lines(found: dict[str, Any]) -> str:
    if found["state"] == "none":
        return "no rollout yet"
    beside = f" beside version {found['stable_version']}" if found["stable_version"] else ""
    lines = [
        f"{found['model']} version {found['version']}{beside}: {found['state']}, {found['weight']} % to the candidate"
    ]
    if found["outcome"] is None:
        lines.append(
            f"controller: {found['controller'] or 'none lives; `pilotline rollout start` goes on, abort ends'}"
        )
    lines += [_event_line(event) for event in found["events"]]
    return "\n".join([*lines, f"{found['outcome']}: {found['reason']}"] if found["outcome"] else lines)


def _event_line(event: dict[str, str]) -> str:
    return f"  {event['time'][:19]}  {event['event']:6} {event['state']:10} {event['text']}"
