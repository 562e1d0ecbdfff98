"""`pilotline training`: the file a back-end would submit, and a job's state, log and end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.core.home import Home

Show = Callable[[argparse.Namespace, dict[str, Any], str], None]
MakeVerb = Callable[..., argparse.ArgumentParser]
RecipeOf = Callable[[argparse.Namespace], Any]


def add_training_verbs(
    group: Any,
    verb: MakeVerb,
    show: Show,
    options: Callable[[argparse.ArgumentParser], None],
    recipe_of: RecipeOf,
) -> None:
    """Add the verbs to the group; `options` adds those of a recipe, `recipe_of` reads them, `show` prints."""
    text = "write the TrainJob or the sbatch script of a recipe"
    render = verb(group, "render", text, lambda args: _render(args, show, recipe_of))
    options(render)
    render.add_argument("--backend", choices=["trainjob", "slurm"], default="", help="default: the recipe's")
    render.add_argument(
        "--training-set", default="", metavar="DIR", help="names the job; without it a draft is written"
    )
    render.add_argument("-o", "--output", default="-", metavar="FILE", help="default: standard output")
    for name, about in (
        ("status", "whether a recipe's training on a cluster has ended"),
        ("logs", "the last lines of a recipe's training on a cluster"),
        ("cancel", "end a recipe's training on a cluster; its checkpoints stay"),
    ):
        made = verb(group, name, about, lambda args, name=name: _ask(args, show, recipe_of, name))
        options(made)
        made.add_argument(
            "--training-set", required=True, metavar="DIR", help="folder that the step featurise published"
        )


def _render(args: argparse.Namespace, show: Show, recipe_of: RecipeOf) -> int:
    from components.core.publish import write_atomic
    from pipelines.training_jobs import render

    root = Path(args.home).absolute() if args.home else None
    launch, text = render(recipe_of(args), args.backend, args.training_set, root)
    values = {
        "name": launch.name,
        "backend": args.backend or launch.recipe.training.backend,
        "job": str(launch.job_file),
    }
    if args.output == "-":
        if args.json:
            show(args, values | {"text": text}, text)
        else:
            sys.stdout.write(text)
        return 0
    try:
        write_atomic(Path(args.output), text)
    except OSError as error:
        raise UserError(f"{args.output}: cannot be written ({error.strerror}); choose another with -o") from error
    show(args, values | {"file": args.output}, f"wrote {args.output}: {launch.name}, ranks read {launch.job_file}")
    return 0


def _ask(args: argparse.Namespace, show: Show, recipe_of: RecipeOf, name: str) -> int:
    from pipelines import training_jobs

    home, recipe = Home.at(args.home), recipe_of(args)
    if name == "logs":
        found = training_jobs.logs(recipe, home, args.training_set)
        show(args, found, found["text"] or f"{found['name']}: no log yet")
    elif name == "cancel":
        found = training_jobs.cancel(recipe, home, args.training_set)
        show(args, found, f"{found['name']}: ended on {found['backend']}; its checkpoints stay")
    else:
        found = training_jobs.state(recipe, home, args.training_set)
        why = f" ({found['reason']})" if found["reason"] else ""
        show(args, found, f"{found['name']} on {found['backend']}: {found['state']}{why}; {found['folder']}")
    return 0
