"""The `pilotline` command: parses, calls, prints; every verb's work is elsewhere and imported when used."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from components.core.errors import PilotlineError, UserError, one_line
from components.core.home import Home
from pipelines.audit_cli import add_audit_verb
from pipelines.contract_cli import add_contract_verbs
from pipelines.decisions_cli import add_decisions_verbs
from pipelines.features_cli import add_features_verbs
from pipelines.models_cli import add_ledger_verbs, add_models_verbs, add_rights_verb
from pipelines.plan_cli import add_plan_verbs
from pipelines.rollout_cli import add_rollout_verbs
from pipelines.serve_cli import add_score_verb, add_serve_verbs
from pipelines.training_cli import add_training_verbs

EPILOG = """exit status: 0 done, 1 failed, 2 bad usage or input, 3 a deliberate no, 4 waiting for a person.
State lies in --home, $PILOTLINE_HOME or ./.pilotline."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; one clear line for errors, a traceback with --debug."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = argparse.Namespace(json="--json" in words, debug="--debug" in words)
    try:
        args = parser().parse_args(words)
        return int(args.call(args))
    except PilotlineError as error:
        return _fail(args, one_line(error), error.exit_code, error.kind)
    except KeyboardInterrupt:
        return _fail(args, "interrupted; the same command resumes", 130, "interrupted")
    except Exception as error:  # anything unexpected is still one line for the person in front
        return _fail(args, f"{type(error).__name__}: {one_line(error)} (--debug shows where)", 1, "failed")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog="pilotline", description="From data to a canaried model.", epilog=EPILOG)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_run(verbs)
    _add_pipeline_verbs(verbs)
    add_contract_verbs(_group(verbs, "contract", "data contracts"), _verb, _print)
    features = _group(verbs, "features", "the feature store: registry, online values, parity")
    add_features_verbs(features, _verb, _print, _recipe_options, _recipe)
    training = _group(verbs, "training", "training jobs on a cluster: their file, state, log and end")
    add_training_verbs(training, _verb, _print, _recipe_options, _recipe)
    add_plan_verbs(_group(verbs, "plan", "does it fit, on how many GPUs, how fast"), _verb, _print)
    models = _group(verbs, "models", "registered models: who is champion, and who decides")
    add_models_verbs(models, _verb, _print)
    add_rights_verb(models, _verb, _print, _recipe_options, _recipe)
    add_ledger_verbs(_group(verbs, "ledger", "the append-only record of what happened"), _verb, _print)
    add_rollout_verbs(_group(verbs, "rollout", "candidates in front of traffic"), _verb, _print, _told)
    add_serve_verbs(_group(verbs, "serve", "the local serving stack: the champion answers decisions"), _verb, _print)
    add_score_verb(verbs, _verb, _print)
    add_audit_verb(verbs, _verb, _print)
    add_decisions_verbs(_group(verbs, "decisions", "the decision log: forget a subject, Parquet parts"), _verb, _print)
    _verb(verbs, "doctor", "what this machine has and what is missing, each with its mend", _doctor)
    return top


class _Parser(argparse.ArgumentParser):
    """Says bad usage in one line, like any other bad input."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def _add_run(verbs: Any) -> None:
    run = _verb(verbs, "run", "run a recipe to its outcome", _run)
    _recipe_options(run)
    run.add_argument("--engine", choices=["auto", "vllm", "reference"], default="auto", help="serving engine")
    run.add_argument("--force", action="store_true", help="repeat a run that is finished")
    demo = _verb(verbs, "demo", "three weekly retrainings: promoted, promoted, stopped", _demo)
    demo.add_argument("--engine", choices=["auto", "vllm", "reference"], default="auto", help="serving engine")


def _add_pipeline_verbs(verbs: Any) -> None:
    step = _verb(verbs, "step", "run one component alone, on local paths", _step)
    _recipe_options(step)
    step.add_argument(
        "name", metavar="NAME", help="ingest, validate, featurise, guard, train, evaluate, register, rollout, promote"
    )
    step.add_argument("--input", action="append", default=[], metavar="NAME=DIR", help="an input folder; repeatable")
    step.add_argument("--out", default="out", metavar="DIR", help="folder to publish (default ./out)")
    step.add_argument("--run-id", default="step", help="run whose records are kept (default step)")
    step.add_argument("--engine", choices=["auto", "vllm", "reference"], default="auto", help="serving engine")
    comp = _verb(verbs, "compile", "write the file one uploads to Kubeflow Pipelines", _compile)
    _recipe_options(comp)
    comp.add_argument("-o", "--output", default="pilotline-retrain.yaml", metavar="FILE")
    comp.add_argument("--profile", choices=["laptop", "gpu-pool"], default="", help="default: the recipe's")
    for name, text in (("submit", "upload the pipeline version and start a run"), ("schedule", "a recurring run")):
        verb = _verb(verbs, name, text, _submit if name == "submit" else _schedule)
        _recipe_options(verb)
        verb.add_argument("--host", required=True, help="Kubeflow Pipelines endpoint, for example http://host:8888")
        verb.add_argument("--profile", choices=["laptop", "gpu-pool"], default="gpu-pool", help="default gpu-pool")
        verb.add_argument("--experiment", default="pilotline", help="Kubeflow experiment (default pilotline)")
        verb.add_argument("--cluster-home", default="/pilotline", help="the home inside the cluster")
        if name == "schedule":
            verb.add_argument("--cron", default="0 0 6 * * 1", help="six fields, seconds first (default Mondays 06:00)")


def _verb(verbs: Any, name: str, text: str, call: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    made.set_defaults(call=call)
    made.add_argument("--home", default=None, metavar="DIR", help="state (default $PILOTLINE_HOME or ./.pilotline)")
    made.add_argument("--json", action="store_true", help="the last line of standard output is one JSON object")
    made.add_argument("--debug", action="store_true", help="tracebacks")
    return made


def _group(verbs: Any, name: str, text: str) -> Any:
    return verbs.add_parser(name, help=text, description=text).add_subparsers(required=True, metavar="VERB")


def _recipe_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--recipe", default="laptop", metavar="NAME|FILE", help="recipe (default laptop)")
    verb.add_argument("--source", default="", metavar="URI", help="the same as --set source.uri=URI")
    verb.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key; repeatable")


def _recipe(args: argparse.Namespace) -> Any:
    from components.core.recipe import load_recipe
    from pipelines.recipes import locate

    overrides = [*args.set, *([f"source.uri={json.dumps(args.source)}"] if args.source else [])]
    return load_recipe(locate(args.recipe), overrides)


def _run(args: argparse.Namespace) -> int:
    from pipelines.run import keep_environment, run

    keep_environment()
    home = Home.at(args.home)
    return _told(args, run(_recipe(args), home, engine=args.engine, force=args.force))


def _told(args: argparse.Namespace, outcome: Any) -> int:
    """Print how a run ended and return its exit status."""
    home = Home.at(args.home)
    report = home.run(outcome.run_id) / "report.html"
    shown = {
        name: value
        for name, value in asdict(outcome).items()
        if name in ("run_id", "outcome", "reason", "steps", "snapshot", "model", "metrics", "engine", "seconds")
    }
    if outcome.outcome == "failed":
        print(f"pilotline: {outcome.reason}", file=sys.stderr)
    place = str(report) if report.exists() else ""
    _print(args, shown | {"report": place}, f"{outcome.outcome}: {outcome.reason}\nreport: {place or 'was removed'}")
    return int(outcome.exit_code)


def _demo(args: argparse.Namespace) -> int:
    from pipelines.demo import demo
    from pipelines.run import keep_environment

    keep_environment()
    weeks = demo(Home.at(args.home), engine=args.engine)
    lines = [f"week {week['week']}: {week['outcome']}: {week['reason']}" for week in weeks]
    _print(args, {"weeks": weeks}, "\n".join(lines))
    return 0 if [week["told"] for week in weeks] == ["promoted", "promoted", "stopped"] else 1


def _step(args: argparse.Namespace) -> int:
    from pipelines.run import keep_environment
    from pipelines.single_step import run_step

    keep_environment()
    record = run_step(
        args.name, _recipe(args), Home.at(args.home), args.input, Path(args.out), args.run_id, args.engine
    )
    refused = not record.get("passed", True) or not record.get("gate_passed", True)
    refused = refused or record.get("outcome", "passed") not in ("passed", "promoted")
    said = f"; {record.get('reason') or 'refused'}" if refused else ""
    _print(args, record, f"{args.name}: published {args.out}{said}")
    return 3 if refused else 0


def _compile(args: argparse.Namespace) -> int:
    from pipelines.compile import compile_retrain

    recipe = _recipe(args)
    out = compile_retrain(recipe, Path(args.output), args.profile or recipe.resources.profile)
    _print(args, {"file": str(out)}, f"wrote {out}")
    return 0


def _submit(args: argparse.Namespace) -> int:
    from pipelines.kubeflow import submit_retrain

    done = submit_retrain(_recipe(args), args.host, args.profile, args.experiment, args.cluster_home)
    _print(args, done, f"run {done['run_id']} of version {done['version_name']} started")
    return 0


def _schedule(args: argparse.Namespace) -> int:
    from pipelines.kubeflow import schedule_retrain

    done = schedule_retrain(_recipe(args), args.host, args.profile, args.experiment, args.cluster_home, args.cron)
    _print(args, done, f"recurring run {done['recurring_run_id']} ({args.cron})")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from pipelines.doctor import examine

    found = examine(Home.at(args.home))
    lines = [
        f"{'ok     ' if item['ok'] else 'missing'} {item['what']}: {item['seen']}" + item["mend"] for item in found
    ]
    _print(args, {"items": found}, "\n".join(lines))
    return 0 if all(item["ok"] for item in found if item["needed"]) else 1


def _print(args: argparse.Namespace, values: dict[str, Any], text: str) -> None:
    print(json.dumps(values) if args.json else text, flush=True)


def _fail(args: argparse.Namespace, text: str, code: int, kind: str) -> int:
    if args.debug:
        import traceback

        traceback.print_exc()
    print(f"pilotline: {text}", file=sys.stderr)
    if args.json:
        print(json.dumps({"error": text, "kind": kind, "exit_code": code}), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
