"""Check a snapshot against its contract: a verdict, the clean rows, and the rows set aside with their reasons.

Fails closed: every declared rule has a result, and no rows, no rules, a missing result, an engine's exception or a
column that is all missing where values are required is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from components.contract.contract import load
from components.contract.judge import Judgement, judge
from components.contract.rules import DataContract, Observation, Rule
from components.core.digest import file_digest
from components.core.engine_time import engine_time
from components.core.errors import IntegrityError, UserError
from components.core.paths import find
from components.core.publish import publishing, verify
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, SnapshotRef
from components.tables.read import read_files

CLEAN = "clean.parquet"
QUARANTINE = "quarantine.parquet"
RULE, REASON = "_rule", "_reason"
Engine = Callable[[Sequence[Rule], pa.Table], dict[int, Observation]]


def validate_snapshot(recipe: Recipe, snapshot: Path, out: Path, engine: Engine | None = None) -> ContractVerdict:
    """Publish clean.parquet, quarantine.parquet (with _rule and _reason) and record.json; clean + quarantined = rows.

    A refused batch has no clean row: all its rows are in the quarantine.

    Args:
        recipe: its `contract` section names the contract.
        snapshot: folder that ingestion published; verified first.
        out: folder to publish, whether or not the contract holds.
        engine: what measures the rules; Great Expectations where None.

    Raises:
        IntegrityError: the snapshot is not what was published.
        UserError: the contract cannot be read.
    """
    contract = load(find(recipe.contract.path, "contract"))
    verify(snapshot)
    ref = SnapshotRef.read(snapshot)
    if file_digest(snapshot / "data.parquet") != ref.digest:
        raise IntegrityError(f"{snapshot}: data.parquet is not what its record names; run the ingest step again")
    table = pq.read_table(snapshot / "data.parquet")
    judgement, name = _judge(contract, table, engine)
    with publishing(out) as staging:
        clean = table.filter(pa.array(judgement.clean, pa.bool_()))
        pq.write_table(clean, staging / CLEAN, compression="zstd")
        pq.write_table(_quarantine(table, judgement), staging / QUARANTINE, compression="zstd")
        verdict = _verdict(contract, judgement, name, ref.digest, file_digest(staging / CLEAN))
        verdict.write(staging)
    return verdict


def check(contract_path: Path, data_path: Path | str, engine: Engine | None = None) -> ContractVerdict:
    """The verdict on a file, folder, glob or URI; writes nothing. UserError where either cannot be read."""
    contract = load(contract_path)
    read = read_files(str(data_path))
    judgement, name = _judge(contract, read.table, engine)
    digest = read.inputs[0]["sha256"] if len(read.inputs) == 1 else ""
    return _verdict(contract, judgement, name, digest, "")


def _judge(contract: DataContract, table: pa.Table, engine: Engine | None) -> tuple[Judgement, str]:
    """Measure the rules whose columns are there, and judge all."""
    present = set(table.column_names)
    asked = [rule for rule in contract.rules if rule.kind != "note" and set(rule.columns) <= present]
    name = "given"
    if engine is None:
        with engine_time("great_expectations"):
            from components.contract import expectations

        engine, name = expectations.measure, expectations.ENGINE
    with engine_time("great_expectations"):
        measured = engine(asked, table) if asked and table.num_rows else {}
    seen = {id(rule): measured[number] for number, rule in enumerate(asked) if number in measured}
    observations = [seen.get(id(rule)) for rule in contract.rules]
    examples = [
        _examples(contract, rule, found, table) for rule, found in zip(contract.rules, observations, strict=True)
    ]
    return judge(contract, table.column_names, table.num_rows, observations, examples), name


def _examples(contract: DataContract, rule: Rule, found: Observation | None, table: pa.Table) -> str:
    """Up to three values that break the rule; none of columns with personal data."""
    if found is None or not found.bad_rows or any(contract.column(name).masked for name in rule.columns):
        return ""
    values: dict[str, None] = {}
    for position in found.bad_rows[:50]:
        cells = [table.column(name)[position].as_py() for name in rule.columns]
        values[", ".join("null" if cell is None else repr(cell[:60]) for cell in cells)] = None
    return ", ".join(list(values)[:3])


def _quarantine(table: pa.Table, judgement: Judgement) -> pa.Table:
    """The rows set aside, with the names of the rules they break and what these ask."""
    if taken := {RULE, REASON} & set(table.column_names):
        raise UserError(f"column {min(taken)!r}: this name is used by the quarantine; rename it in the source")
    aside = [not clean for clean in judgement.clean]
    rows = table.filter(pa.array(aside, pa.bool_()))
    for name, texts in ((RULE, judgement.rules), (REASON, judgement.reasons)):
        kept = [text for text, out in zip(texts, aside, strict=True) if out]
        rows = rows.append_column(name, pa.array(kept, pa.string()))
    return rows


def _verdict(
    contract: DataContract, judgement: Judgement, engine: str, snapshot_digest: str, clean_digest: str
) -> ContractVerdict:
    rows, clean = len(judgement.clean), sum(judgement.clean)
    return ContractVerdict(
        passed=judgement.passed,
        contract=contract.name,
        version=contract.version,
        contract_digest=contract.digest,
        snapshot_digest=snapshot_digest,
        rows=rows,
        clean=clean,
        quarantined=rows - clean,
        engine=engine,
        checks=judgement.checks,
        clean_digest=clean_digest,
        reason=judgement.reason,
    )
