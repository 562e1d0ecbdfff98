"""Bring a registered version in front of replayed traffic and say, with evidence, whether it may stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from components.core.errors import IntegrityError, PolicyRefusal
from components.core.protocols import ServingStack
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import Evidence, ModelVersionRef, RolloutReport, TrainingSetRef
from components.models.feature_source import FeatureSource, check_source
from components.models.files import model_digest, read_signature
from components.rollout.margins import Margins
from components.rollout.replay import Replay
from components.rollout.slo import check_slo_settings
from components.rollout.stages import Stages
from components.rollout.traffic import Traffic
from components.rollout.verdict import FAIL, INCONCLUSIVE, PASS

OUTCOMES = {PASS: "passed", FAIL: "rolled_back", INCONCLUSIVE: "inconclusive"}


def roll_out(
    recipe: Recipe,
    version: Path,
    training_set: Path,
    evidence: Path,
    out: Path,
    stack: ServingStack,
    model_dirs: Mapping[str, Path | None],
    now: Callable[[], float] = time.monotonic,
) -> RolloutReport:
    """Roll the version out on `stack` and publish the report at `out`.

    Args:
        recipe: sections rollout, serving and model are read.
        version: published folder with a ModelVersionRef; the champion that it names, if any, is the stable version.
        training_set: published folder with test.parquet, the rows that are replayed.
        evidence: published folder with predictions.parquet, the scores that the candidate has to give again.
        out: folder to publish; its record.json is the RolloutReport.
        stack: an open serving stack; the caller closes it. A canary left on it is stopped first.
        model_dirs: "candidate" and "stable" (None where there is no champion).
        now: seconds, monotonic.

    Returns:
        The report. After a pass the candidate has all traffic; otherwise stable has it and the canary is stopped.

    Raises:
        UserError: settings with which nothing could be shown.
        PolicyRefusal: the gate did not let the version through.
        IntegrityError: model, version, evidence and training set do not belong together, or a version reads other
            features than would be served.
        TransientError: the stack failed, and not through the candidate; traffic is on stable, run again.
    """
    ref = preflight(recipe, version, training_set, evidence, model_dirs)
    replay = Replay.read(training_set, evidence, recipe.rollout.seed)
    traffic = Traffic(stack, replay, recipe, {"stable": ref.champion_version, "canary": ref.version}, now)
    stages = Stages(recipe, ref, stack, traffic, model_dirs)
    end = stages.go()
    report = RolloutReport(
        outcome=OUTCOMES[end.outcome],
        reason=end.text,
        engine=stages.engine,
        candidate_version=ref.version,
        candidate_digest=ref.digest,
        stable_version=ref.champion_version,
        stable_digest=ref.champion_digest,
        rules=tuple(stages.rules),
        timeline=tuple(traffic.timeline),
        requests=traffic.requests,
        failed_requests=traffic.failed_requests,
        latency_ms=traffic.latency_ms(),
    )
    with publishing(out, outcome=report.outcome) as folder:
        report.write(folder)
    return report


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
    if ref.champion_version:
        Margins.of(recipe)
    else:
        check_slo_settings(recipe.rollout)
    return ref


def _same(what: str, one: str, other: str) -> None:
    if one != other:
        raise IntegrityError(f"{what} do not belong together ({one[:12]} and {other[:12]}); run the steps again")
