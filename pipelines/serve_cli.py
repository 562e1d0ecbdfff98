"""The verbs of `pilotline serve`, and `pilotline score`: parse, call, print."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.home import Home

Verb = Callable[[Any, str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]
Printer = Callable[[argparse.Namespace, dict[str, Any], str], None]


def add_serve_verbs(serve: Any, verb: Verb, show: Printer) -> None:
    """Add the verbs to the parser group `serve`."""
    up = verb(serve, "up", "the champion answers /v1/decisions; follows the ledger from then on", _up(show))
    up.add_argument("--name", default="", metavar="MODEL", help="where several models have champions")
    up.add_argument("--engine", choices=["auto", "vllm", "reference"], default="auto", help="default: the recipe's")
    up.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default serving.port, else a free one")
    verb(serve, "status", "what is served, and whether it is ready", _status(show))
    verb(serve, "down", "drain and end it", _down(show))
    settle = verb(serve, "settle", "in a cluster: the champion alone answers, after approve, promote or rollback",
                  _settle(show))  # fmt: skip
    settle.add_argument("--name", default="", metavar="MODEL", help="where several models have champions")


def add_score_verb(verbs: Any, verb: Verb, show: Printer) -> None:
    """Add `score` to the verbs."""
    score = verb(verbs, "score", "ask the service for a decision on each line of a file", _score(show))
    score.add_argument(
        "file", metavar="FILE.jsonl", help='lines {"entities": {...}, "input": {...}}; - reads them here'
    )
    score.add_argument("--url", default="", help="of a scoring service; default the one of this home")


def _up(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.serve import up

        show(args, found := up(Home.at(args.home), args.name, args.engine, args.port), _line(found))
        return 0

    return call


def _status(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.serve import status

        show(args, found := status(Home.at(args.home)), _line(found))
        return 0

    return call


def _down(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.serve import down

        found = down(Home.at(args.home))
        show(args, found, f"down: ended process {found['ended']}" if found["ended"] else "down: nothing was up")
        return 0

    return call


def _settle(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.cluster_serving import settle_champion

        said = settle_champion(Home.at(args.home), args.name)
        show(args, {"settled": said}, said)
        return 0

    return call


def _score(show: Printer) -> Callable[[argparse.Namespace], int]:
    def call(args: argparse.Namespace) -> int:
        from pipelines.serve import read_lines, score

        counts = {"ok": 0, "fallback": 0, "refused": 0, "problem": 0}
        for found in score(Home.at(args.home), read_lines(Path(args.file)), args.url):
            counts["problem" if "problem" in found else str(found["status"])] += 1
            print(json.dumps(found), flush=True)
        lines = sum(counts.values())
        if args.json:
            show(args, {"lines": lines, **counts}, "")
        return 2 if counts["problem"] else 1 if counts["refused"] else 0

    return call


def _line(found: dict[str, Any]) -> str:
    if found["state"] == "down":
        return "down"
    if found["state"] == "stale":
        return f"stale: process {found['pid']} is gone; `pilotline serve up` begins anew"
    ready = "ready" if found["ready"] else "not ready"
    said = f"{found['state']}, {ready}: {found['name']} version {found['version']} on {found['url']}"
    return said + (f"; {found['problem']}" if found["problem"] else "")
