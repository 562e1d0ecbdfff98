"""Guard the hand-over of a training set: its contract on each split, its structure, its times, and leakage.

Fails closed: the training set is immutable, so no row can be set aside here; a rule that is broken or that lacks the
rows to tell refuses the whole set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from components.contract.engines.split import CLEAN
from components.contract.handover_rows import structure, times
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.contract.validate import check
from components.core.digest import file_digest
from components.core.engine_time import engine_time
from components.core.errors import IntegrityError, UserError
from components.core.paths import find
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, HandOver, RuleResult, TrainingSetRef

BLOCKING = ("fail", "insufficient")
TOLD = 3


def guard_training_set(recipe: Recipe, clean: Path, training_set: Path, out: Path) -> HandOver:
    """Publish record.json (HandOver): whether training may begin, rule by rule.

    Args:
        recipe: sections contract (both contracts), features, model, source (key), evaluation (embargo) and leakage.
        clean: folder that validate published: the rows that the training set is made of.
        training_set: folder that featurise published; both are verified first.
        out: folder to publish, whether or not the guard lets it pass.

    Raises:
        IntegrityError: a folder is not what was published, or the training set is not made of these clean rows.
        UserError: a contract cannot be read, or the recipe names something that is not there.
    """
    source = load(find(recipe.contract.path, "contract"))
    handed = load(find(recipe.contract.training, "contract")) if recipe.contract.training else None
    record = _verified(clean, training_set)
    guards = structure(recipe, record, training_set)
    checks: list[RuleResult] = []
    engine = ""
    if handed is not None:
        checks, engine = _contract(recipe, record, training_set)
    if not _blocking(guards):  # measures need the columns that the structure promises
        guards += [*times(recipe, record, training_set), *_leakage(recipe, record, source, handed, clean, training_set)]
    verdict = _verdict(record, handed, engine, guards, checks)
    with publishing(out) as staging:
        verdict.write(staging)
    return verdict


def _verified(clean: Path, training_set: Path) -> TrainingSetRef:
    """The training set's record, after every file of both folders was compared with what names it."""
    for folder in (clean, training_set):
        verify(folder)
    behind, record = ContractVerdict.read(clean), TrainingSetRef.read(training_set)
    if (behind.clean_digest, behind.snapshot_digest) != (record.clean_digest, record.snapshot_digest):
        raise IntegrityError(f"{training_set}: is not made of the rows in {clean}; give the folder it was made of")
    if file_digest(clean / CLEAN) != record.clean_digest:
        raise IntegrityError(f"{clean}: {CLEAN} is not what its record names; run validate again")
    for split in record.splits:
        if file_digest(training_set / f"{split.name}.parquet") != split.digest:
            raise IntegrityError(
                f"{training_set}: {split.name}.parquet is not the split its record names; featurise again"
            )
    return record


def _contract(recipe: Recipe, record: TrainingSetRef, training_set: Path) -> tuple[list[RuleResult], str]:
    """The training contract's rules on each split; typed columns are read as text by the rule of components/tables.

    DuckDB where the recipe leaves the choice: the splits are Parquet, read in place. Service levels count from the
    moment up to which the set was made, so that the same set gets the same verdict at any time.
    """
    checks: list[RuleResult] = []
    path = find(recipe.contract.training, "contract")
    wanted = "duckdb" if recipe.contract.engine == "auto" else recipe.contract.engine
    engine = ""
    for split in record.splits:
        found = check(path, training_set / f"{split.name}.parquet", wanted, now=record.as_of)
        engine = found.engine
        where = f"{split.name}: "
        checks += [replace(rule, subject=f"{where}{rule.subject}".rstrip(": ")) for rule in found.checks]
        if found.passed and found.clean != found.rows:
            checks.append(
                RuleResult(
                    rule="no row set aside",
                    outcome="fail",
                    observed=float(found.rows - found.clean),
                    limit="0 rows",
                    subject=split.name,
                    reason=f"{found.rows - found.clean} rows break a rule of severity warning; a training set is whole",
                )
            )
        if not found.passed and not any(rule.outcome in BLOCKING for rule in found.checks):
            raise IntegrityError(f"{split.name}: the contract does not hold but no rule says why: {found.reason}")
    return checks, engine


def _leakage(
    recipe: Recipe,
    record: TrainingSetRef,
    source: DataContract,
    handed: DataContract | None,
    clean: Path,
    training_set: Path,
) -> list[RuleResult]:
    with engine_time("duckdb"):
        from components.contract.leakage.leakage_guards import Case, guards
        from components.contract.leakage.leakage_measures import Measures

        model = recipe.model
        with Measures(
            training_set, clean / CLEAN, recipe.source.key, model.label_column, model.positive_values
        ) as seen:
            absent = [name for name in (*recipe.source.key, model.label_column) if name not in seen.columns()]
            if absent:
                raise UserError(f"{clean}: the clean rows have no column {absent[0]!r}; check the recipe's names")
            return guards(Case(recipe, record, source, handed, training_set, seen))


def _verdict(
    record: TrainingSetRef,
    handed: DataContract | None,
    engine: str,
    guards: Sequence[RuleResult],
    checks: Sequence[RuleResult],
) -> HandOver:
    blocking = _blocking([*guards, *checks])
    return HandOver(
        passed=not blocking,
        training_set_digest=record.digest,
        snapshot_digest=record.snapshot_digest,
        contract=handed.name if handed else "",
        version=handed.version if handed else "",
        contract_digest=handed.digest if handed else "",
        engine=engine,
        rows=sum(split.rows for split in record.splits),
        guards=tuple(guards),
        checks=tuple(checks),
        reason=_reason(blocking),
    )


def _blocking(results: Sequence[RuleResult]) -> list[RuleResult]:
    return [rule for rule in results if rule.outcome in BLOCKING]


def _reason(blocking: Sequence[RuleResult]) -> str:
    """One line: what failed before what could not be told."""
    order = sorted(blocking, key=lambda rule: rule.outcome != "fail")
    told = list(dict.fromkeys(f"{rule.subject or rule.rule}: {rule.reason or rule.rule}" for rule in order))
    more = f" (and {len(told) - TOLD} more)" if len(told) > TOLD else ""
    return "; ".join(told[:TOLD]) + more
