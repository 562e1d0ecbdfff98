"""`pilotline features`: apply, materialize, push, parity."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.home import Home

Show = Callable[[argparse.Namespace, dict[str, Any], str], None]
MakeVerb = Callable[..., argparse.ArgumentParser]
RecipeOf = Callable[[argparse.Namespace], Any]


def add_features_verbs(
    group: Any,
    verb: MakeVerb,
    show: Show,
    options: Callable[[argparse.ArgumentParser], None],
    recipe_of: RecipeOf,
) -> None:
    """Add the verbs to the group; `options` adds those of a recipe, `recipe_of` reads them, `show` prints."""
    apply = verb(group, "apply", "register the feature project in the home", lambda args: _apply(args, show, recipe_of))
    fill = verb(
        group,
        "materialize",
        "write what became known into the online store",
        lambda args: _materialize(args, show, recipe_of),
    )
    parity = verb(
        group, "parity", "online reads as of then against training", lambda args: _parity(args, show, recipe_of)
    )
    stream = verb(
        group,
        "push",
        "write rows of streaming events (JSON lines) into the online store",
        lambda args: _push(args, show, recipe_of),
    )
    for made in (apply, fill, parity, stream):
        options(made)
    stream.add_argument("file", metavar="FILE", help="a row a line; - for standard input")
    stream.add_argument("--view", default="", metavar="NAME", help="feature view of rows that name none")
    stream.add_argument("--batch", type=_natural, default=0, metavar="ROWS", help="rows written at once (default: all)")
    stream.add_argument("--skip-bad", action="store_true", help="tell bad rows and write the others")
    for made in (fill, parity, stream):
        made.add_argument("--training-set", default="", metavar="DIR", help="default: the newest of the home's runs")
    fill.add_argument("--until", default="", metavar="TIME", help="ISO 8601 (default: all that the history holds)")
    fill.add_argument("--whole", action="store_true", help="from the beginning, not from where the last call ended")
    fill.add_argument(
        "--rebuild", action="store_true", help="drop what the store holds, also newer values, then fill it"
    )


def _apply(args: argparse.Namespace, show: Show, recipe_of: RecipeOf) -> int:
    from pipelines.features import apply

    done = apply(Home.at(args.home), recipe_of(args))
    views = [f"  {name}: {', '.join(features)}" for name, features in done["views"].items()]
    show(args, done, "\n".join([f"{done['project']}: service {done['service']} in {done['registry']}", *views]))
    return 0


def _materialize(args: argparse.Namespace, show: Show, recipe_of: RecipeOf) -> int:
    from pipelines.features import materialize

    done = materialize(Home.at(args.home), recipe_of(args), args.training_set, args.until, args.whole, args.rebuild)
    views = [
        f"  {view['view']}: {view['rows']} entities, known until {view['until']}" + _older(view["older"])
        for view in done["views"]
    ]
    show(args, done, "\n".join([f"{done['online']}:", *views]))
    return 0


def _push(args: argparse.Namespace, show: Show, recipe_of: RecipeOf) -> int:
    from pipelines.features import push

    def told(done: Any) -> None:
        for at, error in done.rejected:
            print(f"line {at}: {error}", file=sys.stderr, flush=True)

    how = {"batch": args.batch, "skip_bad": args.skip_bad, "default_view": args.view}
    with ExitStack() as stack:
        if args.file == "-":
            lines: Any = sys.stdin.buffer
        else:
            try:
                lines = stack.enter_context(Path(args.file).open("rb"))
            except OSError as error:
                raise UserError(f"{args.file}: cannot be read ({error.strerror})") from error
        done = push(Home.at(args.home), recipe_of(args), args.training_set, lines, told, **how)
    skipped = f"; {done['rejected']} bad ones were skipped" if done["rejected"] else ""
    show(args, done, f"{done['online']}: {done['rows']} rows pushed{_older(done['older'])}{skipped}")
    return 0


def _older(count: int) -> str:
    return f"; older than what is kept: {count}" if count else ""


def _natural(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _parity(args: argparse.Namespace, show: Show, recipe_of: RecipeOf) -> int:
    from pipelines.features import parity

    found = parity(Home.at(args.home), recipe_of(args), args.training_set)
    word = "equal" if found["passed"] else "skew"
    if found["insufficient"] and not found["skew"]:
        word = "insufficient"
    lines = [
        f"{word}: {found['differing']} of {found['values']} values differ ({found['rows']} rows of {found['moments']} "
        f"moments; limit {found['limit']:.1%})"
    ]
    lines += [f"insufficient: {line}" for line in found["insufficient"]]
    lines += [f"note: {note}" for note in found["notes"]]
    lines += [
        f"store {one['store']}, as of {one['at']}: {one['differing']} of {one['values']} values of {one['entities']} "
        "entities differ" + (f"; {one['ahead']} were pushed later than the history" if one["ahead"] else "")
        for one in found["served"]
        if one["at"]
    ]
    lines += [
        f"  {one['feature']} of {one['entities']} at {one['moment']}: {one['offline']} in training, "
        f"{one['online']} online"
        for one in found["examples"]
    ]
    show(args, found, "\n".join(lines))
    return 0 if found["passed"] else 3
