"""A run's promotion: gate and rollout are checked again, people asked where the recipe says so; then it is decided."""

from __future__ import annotations

from pathlib import Path

from components.core.errors import PolicyRefusal
from components.core.home import safe_name
from components.core.ledger import Lease, Ledger
from components.core.people import Policy
from components.core.publish import verify
from components.core.records import ModelVersionRef, PromotionRef, RolloutReport
from components.registry.approvals import ask, last_look, proceed, refuse_rejected
from components.registry.champions import INCONCLUSIVE, REFUSED, ROLLED_BACK
from components.registry.policies import policy_for
from components.registry.ports import ModelRegistry
from components.registry.transaction import (
    Candidate,
    check,
    lease_name,
    outcome_of,
    same_candidate,
    stop,
    transact,
)


def promote(
    version: ModelVersionRef,
    report: RolloutReport,
    ledger: Ledger,
    tracking: ModelRegistry,
    run_id: str,
    reason: str = "",
    policy: Policy | None = None,
    requesters: tuple[str, ...] = (),
    models_root: Path | None = None,
) -> PromotionRef:
    """Make the candidate champion where gate and rollout passed and the champion is the one it was judged against.

    Where the policy asks for approvals the answer is awaiting_approval until enough people approved. A candidate that
    the rollout stopped is noted in the ledger with its reason and loses alias `challenger`. Run again after a kill
    anywhere: one entry, aliases in place. A promotion that was rolled back later stays so.

    Args:
        version: the registered candidate with the champion it was judged against.
        report: how it met traffic.
        ledger: where the promotion is decided.
        tracking: registry whose aliases follow.
        run_id: the run that asks; with the version it names the promotion.
        reason: why, for the record; default the report's reason.
        policy: what the recipe says about people; default no approval. Where the policy in force is stricter, that one
            governs.
        requesters: who started the run.
        models_root: where given, the ledger has to know the version, and the kept files are checked first, bytes and
            signature.

    Raises:
        IntegrityError: version and report are about different models, the version is not the one that was registered,
            or the kept files are not as they were.
        PolicyRefusal: the gate did not pass, the rollout has no evidence, another version won meanwhile, or a person
            rejected it.
        TransientError: the ledger or the registry does not answer, or somebody else is deciding; run again.
    """
    safe_name(version.name, "model name")
    safe_name(run_id, "run id")
    same_candidate(version, report)
    declared = policy or Policy()
    with ledger.hold(lease_name(version.name)) as lease:
        governing = policy_for(version.name, declared, ledger)
        candidate = Candidate(version, report, run_id, governing, requesters, declared)
        if report.outcome != "passed":
            outcome = report.outcome if report.outcome in (ROLLED_BACK, INCONCLUSIVE) else INCONCLUSIVE
            entry = stop(candidate, outcome, report.reason, ledger, tracking, lease)
            return outcome_of(version, outcome, report.reason, entry)
        if ledger.find(candidate.key) is None:
            last_look(candidate, ledger, models_root, known=models_root is not None)
        return _passed(candidate, ledger, tracking, lease, reason or report.reason, models_root)


def read_inputs(version: Path, report: Path) -> tuple[ModelVersionRef, RolloutReport]:
    """The records of two published folders, verified."""
    verify(version)
    verify(report)
    return ModelVersionRef.read(version), RolloutReport.read(report)


def _passed(
    candidate: Candidate,
    ledger: Ledger,
    tracking: ModelRegistry,
    lease: Lease,
    reason: str,
    models_root: Path | None,
) -> PromotionRef:
    if ledger.find(candidate.key) is None:
        try:
            check(candidate)
            refuse_rejected(candidate, ledger)
        except PolicyRefusal as refused:
            stop(candidate, REFUSED, str(refused), ledger, tracking, lease)
            raise
        if candidate.policy.required:
            request = ask(candidate, ledger, tracking, lease, reason)
            return proceed(request, ledger, tracking, lease, models_root)
    return transact(candidate, ledger, tracking, lease, reason)
