"""`pilotline contract`: check a file, compare two versions, draft a contract from a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Show = Callable[[argparse.Namespace, dict[str, Any], str], None]


def add_contract_verbs(group: Any, verb: Callable[..., argparse.ArgumentParser], show: Show) -> None:
    """Add check, diff and infer to the group; `verb` makes one with the common options, `show` prints its result."""
    check = verb(group, "check", "check a file against a contract", lambda args: _check(args, show))
    check.add_argument("contract", metavar="CONTRACT")
    check.add_argument("data", metavar="DATA", help="file, folder, glob or URI: CSV, JSON lines, Parquet; .gz too")
    engines = ["auto", "great_expectations", "duckdb"]
    check.add_argument("--engine", choices=engines, default="auto", help="default auto: by the number of rows")
    page = "write the verdict as one HTML page: rules by column, failing rows, personal data masked"
    check.add_argument("--page", default="", metavar="FILE", help=page)
    diff = verb(group, "diff", "what changed between two versions, and whom it breaks", lambda args: _diff(args, show))
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    infer = verb(group, "infer", "draft a contract from a file", lambda args: _infer(args, show))
    infer.add_argument("data", metavar="DATA", help="file, folder, glob or URI: CSV, JSON lines, Parquet; .gz too")
    infer.add_argument("-o", "--output", default="", metavar="FILE", help="a new file; default standard output")


def _check(args: argparse.Namespace, show: Show) -> int:
    from pipelines.contract_check import broken_lines, shown, verdict_on

    page = Path(args.page) if args.page else None
    verdict = verdict_on(Path(args.contract), args.data, args.engine, args.home, page)
    counts = f"{verdict.rows} rows, {verdict.clean} clean, {verdict.quarantined} set aside; {verdict.engine}"
    word = "passed" if verdict.passed else f"violated: {verdict.reason}"
    wrote = [f"wrote {page}"] if page else []
    show(args, shown(verdict), "\n".join([f"{args.contract}: {word} ({counts})", *broken_lines(verdict), *wrote]))
    return 0 if verdict.passed else 3


def _diff(args: argparse.Namespace, show: Show) -> int:
    from components.contract.evolution.changes import Release
    from components.contract.evolution.compare import compare

    found = compare(Release.read(Path(args.old)), Release.read(Path(args.new)))
    lines = [f"{one.bump:5}  {one.path}: {one.text}" for one in found.changes]
    if not found.changes:
        lines.append(f"{args.new}: asks and promises what {args.old} does")
    elif found.breaking:
        verdict = (
            "breaking, under a new major version" if found.major_raised else "breaking without a new major version"
        )
        lines.append(f"{found.old_version} to {found.new_version}: {verdict}")
    else:
        lines.append(f"{found.old_version} to {found.new_version}: compatible{found.warning and f'; {found.warning}'}")
    show(args, found.to_dict(), "\n".join(lines))
    return 0 if found.accepted else 3


def _infer(args: argparse.Namespace, show: Show) -> int:
    from pipelines.contract_infer import infer_checked

    drafted = infer_checked(args.data, Path(args.output) if args.output else None)
    told = (
        f"{drafted.rows} rows, {drafted.columns} columns, which hold it; key: {', '.join(drafted.key) or 'none found'}"
    )
    values = {"rows": drafted.rows, "columns": drafted.columns, "key": list(drafted.key), "file": args.output}
    if args.output:
        show(args, values, f"wrote {args.output} ({told}); a draft: read it, then set its status")
    else:
        show(args, values | {"contract": drafted.text}, drafted.text.rstrip("\n"))
    return 0
