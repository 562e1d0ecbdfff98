"""What an engine found out about a batch, in the form that the verdict is made from; the same for every engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.contract.engines.batch import Batch
from components.contract.engines.marks import Marks, write_marks
from components.contract.standard.rules import Observation, Rule
from components.core.errors import one_line

InMemory = Callable[[list[Rule], pa.Table], dict[int, Observation]]


@dataclass(frozen=True)
class Measured:
    """rows of the batch; observations by the rule's number in the contract (absent: no result); rows that break them.

    An observation here has no `bad_rows`: the marks hold them. evidence: what the engine leaves for other tools, JSON
    values by the name of their file.
    """

    rows: int
    observations: Mapping[int, Observation]
    marks: Marks
    evidence: Mapping[str, Any] = field(default_factory=dict)


Engine = Callable[[Mapping[int, Rule], int, Batch, Path], Measured]
"""Measures numbered rules whose columns the batch has; also given: the words of the marks, a folder to write in."""


def in_memory(engine: InMemory) -> Engine:
    """An engine that works on a table in memory and lists the rows that break each rule."""

    def measure(rules: Mapping[int, Rule], words: int, batch: Batch, scratch: Path) -> Measured:
        return lifted(rules, words, batch, scratch, lambda asked, table: (engine(asked, table), {}))

    return measure


def lifted(
    rules: Mapping[int, Rule],
    words: int,
    batch: Batch,
    scratch: Path,
    engine: Callable[[list[Rule], pa.Table], tuple[dict[int, Observation], dict[str, Any]]],
) -> Measured:
    """What an engine finds on the rules' columns in memory, by place in the list, with its evidence, as `Measured`."""
    columns = {name for rule in rules.values() for name in (*rule.columns, *rule.targets)} or set(batch.names[:1])
    table = batch.table([name for name in batch.names if name in columns])
    numbers = list(rules)
    found, evidence = engine(list(rules.values()), table)
    seen = {numbers[place]: one for place, one in found.items() if 0 <= place < len(numbers)}
    broken = {number: one.bad_rows for number, one in seen.items() if not one.error}
    marks = write_marks(scratch / "marks.parquet", broken, words)
    return Measured(
        table.num_rows, {number: replace(one, bad_rows=()) for number, one in seen.items()}, marks, evidence
    )


def confirmed(rules: Mapping[int, Rule], measured: Measured) -> Measured:
    """The same, with an error in place of each observation that contradicts itself or the marks.

    Marks that cannot be read, are out of order or name rows that the batch does not have are no marks.
    """
    try:
        counts = measured.marks.counts()
        broken = "" if measured.marks.last_row < measured.rows else "it names rows that the batch does not have"
    except (ValueError, OSError, KeyError, pa.ArrowException) as error:
        counts, broken = {}, f"the rows that it names cannot be read: {one_line(error)}"
    found = {}
    for number, seen in measured.observations.items():
        if number in rules:
            against = broken or _contradiction(rules[number], seen, counts.get(number, 0), measured.rows)
            found[number] = replace(seen, error=seen.error or against)
    return replace(measured, observations=found, marks=Marks(None, measured.marks.words) if broken else measured.marks)


def _contradiction(rule: Rule, seen: Observation, marked: int, rows: int) -> str:
    """What about an observation cannot be; "" where nothing."""
    if not math.isfinite(seen.value):
        return f"it counts {seen.value}"
    if not 0 <= seen.looked_at <= rows:
        return f"it looked at {seen.looked_at} of {rows} rows"
    if rule.kind == "rows" and seen.value != rows:
        return f"it counts {seen.value:g} rows of {rows}"
    if not rule.of_rows:
        return ""
    if seen.value != int(seen.value) or not 0 <= seen.value <= seen.looked_at:
        return f"it counts {seen.value:g} broken rows among {seen.looked_at}"
    if rule.engine == "any" and marked != seen.value:
        return f"it counts {seen.value:g} broken rows and names {marked}"
    return ""
