"""Which engine measures which rule, and one form of result whichever it was.

Great Expectations measures up to GREAT_EXPECTATIONS_ROWS rows: it leaves a suite and its validation as evidence, and
holds the table in memory at about six times the processor time of DuckDB. Beyond it is DuckDB. `sql` rules run on
DuckDB and `custom` ones on Great Expectations in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.contract.engines.batch import Batch
from components.contract.engines.marks import Marks, merged_marks, word_count
from components.contract.engines.measured import Engine, Measured, confirmed, lifted
from components.contract.engines.safe_error import safe_error
from components.contract.standard.rules import DataContract, Observation, Rule
from components.core.engine_time import engine_time
from components.core.errors import PilotlineError, UserError

GREAT_EXPECTATIONS_ROWS = 1_000_000
QUERIES = "queries"
ENGINES = ("auto", "great_expectations", "duckdb")


def measured(
    contract: DataContract, batch: Batch, scratch: Path, engine: str | Engine = "auto"
) -> tuple[Measured, str]:
    """What every rule of the contract sees that can be looked at, and the names of the engines that were asked.

    Args:
        contract: the rules; those whose columns the batch lacks are left out.
        batch: the rows.
        scratch: a folder for what does not stay in memory.
        engine: one of ENGINES, or what measures the rules that both engines have.
    """
    words = word_count(len(contract.rules))
    names: dict[str, None] = {}
    found: list[Measured] = []
    for place, (engine_of, rules) in enumerate(_groups(contract, batch, _chosen(engine, batch)).items()):
        title, measure = _engine(engine_of, contract)
        names[title] = None
        if batch.rows != 0:
            folder = scratch / f"engine-{place}"
            folder.mkdir(exist_ok=True)
            found.append(_confirmed(title.partition(" ")[0], measure, rules, words, batch, folder))
    return _joined(found, words, batch, scratch), " + ".join(names)


def _groups(contract: DataContract, batch: Batch, chosen: str | Engine) -> dict[str | Engine, dict[int, Rule]]:
    """By engine, the rules that it is asked: numbered, without those whose columns the batch lacks."""
    fixed: dict[str, str] = {"duckdb": QUERIES, "great_expectations": "great_expectations"}
    groups: dict[str | Engine, dict[int, Rule]] = {chosen: {}}
    for number, rule in enumerate(contract.rules):
        if rule.kind != "note" and {*rule.columns, *rule.targets} <= set(batch.names):
            groups.setdefault(fixed.get(rule.engine, chosen), {})[number] = rule
    return groups


def _chosen(engine: str | Engine, batch: Batch) -> str | Engine:
    if callable(engine):
        return engine
    if engine not in ENGINES:
        raise UserError(f"contract engine {engine!r} is unknown; choose {', '.join(ENGINES)}")
    if engine != "auto":
        return engine
    return "great_expectations" if batch.rows <= GREAT_EXPECTATIONS_ROWS else "duckdb"


def _engine(chosen: str | Engine, contract: DataContract) -> tuple[str, Engine]:
    """The engine's name with its version, and what measures."""
    if not isinstance(chosen, str):
        return "given", chosen
    with engine_time("duckdb" if chosen == QUERIES else chosen):
        if chosen == "great_expectations":
            from components.contract.engines import expectations

            return expectations.ENGINE, _great_expectations
        from components.contract.engines import duckdb_engine, duckdb_queries

        queries = duckdb_queries.of_contract(contract)
        return duckdb_engine.engine_name(), queries if chosen == QUERIES else duckdb_engine.measure


def _great_expectations(rules: Mapping[int, Rule], words: int, batch: Batch, scratch: Path) -> Measured:
    from components.contract.engines import expectations

    def engine(asked: list[Rule], table: pa.Table) -> tuple[dict[int, Observation], dict[str, Any]]:
        found, evidence = expectations.measure_with_evidence(asked, table)
        return found, {"suite.json": evidence.suite, "validation.json": evidence.validation}

    return lifted(rules, words, batch, scratch, engine)


def _confirmed(
    name: str, measure: Engine, rules: Mapping[int, Rule], words: int, batch: Batch, folder: Path
) -> Measured:
    """What an engine measured; whatever it raises, or leaves out, or contradicts becomes an error of the rule."""
    try:
        with engine_time(name):
            seen = measure(rules, words, batch, folder)
    except PilotlineError:
        raise
    except Exception as error:  # any engine, any error: no evidence
        failed = Observation(error=safe_error(error))
        return Measured(batch.rows, dict.fromkeys(rules, failed), Marks(None, words))
    return confirmed(rules, seen)


def _joined(found: list[Measured], words: int, batch: Batch, scratch: Path) -> Measured:
    """The engines' results as one; no result at all where they disagree on how many rows there are."""
    counts = {one.rows for one in found} | {batch.rows}
    observations = {number: seen for one in found for number, seen in one.observations.items()}
    if len(counts) > 1:
        failed = Observation(error=f"the engines count {' and '.join(map(str, sorted(counts)))} rows")
        return Measured(batch.rows, dict.fromkeys(observations, failed), Marks(None, words))
    marks = merged_marks(scratch / "marks.parquet", [one.marks for one in found], words)
    evidence = {name: value for one in found for name, value in one.evidence.items()}
    return Measured(batch.rows, observations, marks, evidence)
