"""Bring a registered version in front of replayed traffic and say, with evidence, whether it may stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.ledger import Ledger
from components.core.protocols import ServingStack
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef, RolloutReport, TrainingSetRef
from components.models.feature_source import FeatureSource, check_source
from components.models.files import model_digest, read_signature
from components.rollout.controller import Controller, order_of
from components.rollout.journal import About, Journal, hold
from components.rollout.margins import Margins
from components.rollout.replay import Replay
from components.rollout.slo import check_slo_settings
from components.rollout.stages import Stages
from components.rollout.steering import Steered, Watch
from components.rollout.traffic import Traffic


def roll_out(
    recipe: Recipe,
    version: Path,
    training_set: Path,
    evidence: Path,
    out: Path,
    open_stack: Callable[[], AbstractContextManager[ServingStack]],
    model_dirs: Mapping[str, Path | None],
    ledger: Ledger,
    run_id: str,
    now: Callable[[], float] = time.monotonic,
) -> RolloutReport:
    """Roll the version out and publish the report at `out`.

    Called again after it was killed anywhere, it goes on in the state that the ledger holds and reaches the same end; a
    rollout that ended is published again as it ended, without serving anything.

    Args:
        recipe: sections rollout, serving and model are read.
        version: published folder with a ModelVersionRef; the champion that it names, if any, is the stable version.
        training_set: published folder with test.parquet, the rows that are replayed.
        evidence: published folder with predictions.parquet, the scores that the candidate has to give again.
        out: folder to publish; its record.json is the RolloutReport.
        open_stack: opens the serving stack once this is the one controller. A canary left on it is stopped first.
        model_dirs: "candidate" and "stable" (None where there is no champion).
        ledger: holds the rollout's state.
        run_id: the run that asks; with version, champion and recipe it names the rollout.
        now: seconds, monotonic.

    Returns:
        The report. After a pass the candidate has all traffic; otherwise stable has it and the canary is stopped.

    Raises:
        UserError: settings with which nothing could be shown.
        PolicyRefusal: the gate did not let the version through, or the machine has no room for both versions.
        IntegrityError: model, version, evidence and training set do not belong together, or a version reads other
            features than would be served.
        TransientError: the stack failed, and not through the candidate, or another controller leads this model's
            rollout; traffic is on stable, run again.
    """
    ref = preflight(recipe, version, training_set, evidence, model_dirs)
    about = About(run_id, ref.name, ref.version, ref.digest, ref.champion_version, ref.champion_digest, recipe.digest)
    with hold(ledger, about, order_of(recipe, not ref.champion_version)) as journal:
        if (report := journal.report) is None:
            replay = Replay.read(training_set, evidence, recipe.rollout.seed)
            with open_stack() as stack:
                report = _lead(recipe, ref, stack, replay, model_dirs, journal, now)
    with publishing(out, outcome=report.outcome) as folder:
        report.write(folder)
    return report


def _lead(
    recipe: Recipe,
    ref: ModelVersionRef,
    stack: ServingStack,
    replay: Replay,
    model_dirs: Mapping[str, Path | None],
    journal: Journal,
    now: Callable[[], float],
) -> RolloutReport:
    steered = Steered(stack)
    traffic = Traffic(steered, replay, recipe, {"stable": ref.champion_version, "canary": ref.version}, now)
    with Watch(journal, steered):
        return Controller(Stages(recipe, ref, steered, traffic, model_dirs), journal).go()


def preflight(
    recipe: Recipe, version: Path, training_set: Path, evidence: Path, model_dirs: Mapping[str, Path | None]
) -> ModelVersionRef:
    """Check that everything belongs together before a replica is started; raises as `roll_out`."""
    for folder in (version, training_set, evidence):
        verify(folder)
    ref, said, rows = ModelVersionRef.read(version), Evidence.read(evidence), TrainingSetRef.read(training_set)
    if not ref.gate_passed:
        raise PolicyRefusal(f"version {ref.version} of {ref.name} did not pass the gate ({ref.reason}); not rolled out")
    _same("the version and its evidence", ref.digest, said.model_digest)
    _same("the evidence and the version's note of it", said.record_digest, ref.evidence_digest)
    _same("the evidence and the training set", said.training_set_digest, rows.digest)
    check = {"candidate": ref.digest, **({"stable": ref.champion_digest} if ref.champion_version else {})}
    for role, digest in check.items():
        if (directory := model_dirs.get(role)) is None:
            raise IntegrityError(f"no model directory for the {role}; register the model again")
        _same(f"the {role} version and its directory", digest, model_digest(directory))
        source = FeatureSource.of(rows, recipe.features.model_inputs)
        check_source(read_signature(directory), source, f"the {role} version", exact=role == "candidate")
    if ref.champion_version and recipe.rollout.strategy == "canary":
        Margins.of(recipe)
    else:
        check_slo_settings(recipe.rollout)
    return ref


def _same(what: str, one: str, other: str) -> None:
    if one != other:
        raise IntegrityError(f"{what} do not belong together ({one[:12]} and {other[:12]}); run the steps again")
