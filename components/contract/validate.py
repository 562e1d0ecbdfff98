"""Check a snapshot against its contract: a verdict, the clean rows, and the rows set aside with their reasons.

Fails closed: every declared rule has a result, and no rows, no rules, a missing result, an engine's exception, a result
that contradicts itself or a column that is all missing where values are required is a failure.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.contract.engines.batch import Batch, snapshot_batch, source_batch, unchanged
from components.contract.engines.broken_values import broken_rows, broken_values
from components.contract.engines.choose import measured
from components.contract.engines.measured import Engine, Measured
from components.contract.engines.split import CLEAN, split
from components.contract.judge import Judgement, judge, setting_aside
from components.contract.meaning.comparison import compare_batch, compare_snapshot
from components.contract.meaning.profile import Profile
from components.contract.meaning.profile_history import load_history
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.contract.standard.sla import at_time
from components.core.digest import file_digest
from components.core.errors import IntegrityError
from components.core.home import Home
from components.core.paths import find
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, RuleResult, SnapshotRef
from components.tables.decode import AUTO

DATA, EVIDENCE = "data.parquet", "expectations"
AVAILABILITY, LATE = "availability", "after_outcome"


def validate_snapshot(
    recipe: Recipe,
    snapshot: Path,
    out: Path,
    engine: str | Engine | None = None,
    *,
    contract: Path | None = None,
    extra: Sequence[RuleResult] = (),
    history: Sequence[Profile] | None = None,
    now: str = "",
) -> ContractVerdict:
    """Publish clean.parquet, quarantine.parquet (with _row, _rule and _reason), record.json and expectations/.

    clean + quarantined = rows. A refused batch has no clean row: all its rows are in the quarantine.

    Args:
        recipe: its `contract` section names the contract and the engine.
        snapshot: folder that ingestion published; verified first.
        out: folder to publish, whether or not the contract holds.
        engine: in place of the recipe's: auto, great_expectations, duckdb, or what measures the rules.
        contract: in place of the recipe's: the file that the snapshot names.
        extra: results found elsewhere; one that fails refuses the batch.
        history: profiles of the snapshots accepted before, oldest first: a change of meaning is named, and may refuse
            the batch. None: nothing is compared, and no profile is published.
        now: the time of reading for service levels (ISO 8601); the end of the snapshot's interval, else the present.

    Raises:
        IntegrityError: the snapshot is not what was published.
        UserError: the contract cannot be read.
    """
    asked = load(contract or find(recipe.contract.path, "contract"))
    verify(snapshot)
    ref = SnapshotRef.read(snapshot)
    if file_digest(snapshot / DATA) != ref.digest:
        raise IntegrityError(f"{snapshot}: {DATA} is not what its record names; run the ingest step again")
    batch = snapshot_batch(snapshot / DATA)
    timed = at_time(asked, now or ref.until or datetime.now(UTC))
    with publishing(out) as staging, tempfile.TemporaryDirectory(prefix=".contract-", dir=out.parent) as scratch:
        if history is not None:
            shape, found = compare_snapshot(batch, ref, timed, history, recipe, Path(scratch))
            extra = (*extra, *found)
            if shape is not None:
                shape.write_beside(staging)
        judgement, seen, name = _judged(timed, batch, Path(scratch), engine or recipe.contract.engine, extra)
        split(batch, seen.marks, judgement, timed.rules, staging)
        _write_evidence(seen, staging / EVIDENCE)
        verdict = _verdict(timed, judgement, name, ref.digest, file_digest(staging / CLEAN))
        verdict.write(staging)
    return verdict


def check(
    contract_path: Path,
    data_path: Path | str,
    engine: str | Engine = "auto",
    *,
    encoding: str = AUTO,
    home: Home | None = None,
    now: str = "",
) -> ContractVerdict:
    """The verdict on a file, folder, glob or URI; writes nothing. UserError where either cannot be read.

    With a home, its accepted snapshots that came from the same place are compared with, where there are any.
    """
    return check_with_examples(contract_path, data_path, engine, encoding=encoding, home=home, now=now)[0]


def check_with_examples(
    contract_path: Path,
    data_path: Path | str,
    engine: str | Engine = "auto",
    *,
    encoding: str = AUTO,
    home: Home | None = None,
    now: str = "",
) -> tuple[ContractVerdict, list[dict[str, Any]]]:
    """As `check`, with the first rows that break its rules, for a page: not masked, as rows of the quarantine."""
    contract = at_time(load(contract_path), now or datetime.now(UTC))
    history = load_history(home, contract, "", str(data_path)) if home else ()
    with tempfile.TemporaryDirectory(prefix="pilotline-contract-") as scratch:
        batch = source_batch(str(data_path), Path(scratch), encoding)
        found = compare_batch(batch, contract, history, Path(scratch)) if history else ()
        judgement, seen, name = _judged(contract, batch, Path(scratch), engine, found)
        examples = broken_rows(contract, batch, seen, judgement.setting_aside)
        unchanged(batch)
    digest = batch.inputs[0]["sha256"] if len(batch.inputs) == 1 else ""
    return _verdict(contract, judgement, name, digest, ""), examples


def _judged(
    contract: DataContract, batch: Batch, scratch: Path, engine: str | Engine, extra: Sequence[RuleResult] = ()
) -> tuple[Judgement, Measured, str]:
    """Measure the rules whose columns are there, and judge all."""
    seen, name = measured(contract, batch, scratch, engine)
    aside = seen.marks.of_any(setting_aside(contract.rules, seen.observations, seen.rows))
    told = broken_values(contract, batch, seen)
    judgement = judge(contract, batch.names, seen.rows, seen.observations, aside, told, extra)
    return judgement, seen, name


def _write_evidence(seen: Measured, folder: Path) -> None:
    """What Great Expectations was asked and answered, where it was."""
    for name, values in seen.evidence.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(values, indent=1, sort_keys=True))


def _verdict(
    contract: DataContract, judgement: Judgement, engine: str, snapshot_digest: str, clean_digest: str
) -> ContractVerdict:
    return ContractVerdict(
        passed=judgement.passed,
        contract=contract.name,
        version=contract.version,
        contract_digest=contract.digest,
        snapshot_digest=snapshot_digest,
        rows=judgement.clean + judgement.quarantined,
        clean=judgement.clean,
        quarantined=judgement.quarantined,
        engine=engine,
        checks=judgement.checks,
        clean_digest=clean_digest,
        reason=judgement.reason,
        after_outcome=tuple(one.name for one in contract.columns if dict(one.custom).get(AVAILABILITY) == LATE),
    )
