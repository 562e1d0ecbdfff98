"""Great Expectations as an engine of rules: it measures, the verdict is made elsewhere.

Imports Great Expectations: import it where it is used. The run is embedded: an ephemeral context, no files, no
network. It reports success for empty frames and all-null columns, and may leave a result out, so nothing here looks at
`success` but for expectations that the contract names itself: each rule gets the rows that break it, or an error.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.contract.standard.expectation_types import (
    COLUMN_KEYS,
    ExpectColumnValuesToMatchRe2,
    ExpectColumnValuesToRead,
    counts_rows,
    expectation_class,
)

import great_expectations as gx  # isort: skip - after expectation_types, which switches its analytics off
import great_expectations.expectations as gxe
import pandas as pd
import pyarrow as pa
from great_expectations.data_context.types.base import ProgressBarsConfig

from components.contract.engines.expectation_frame import Frame, delays, references, seconds_of
from components.contract.engines.safe_error import safe_error, safe_traceback
from components.contract.standard.rules import Observation, Rule

ENGINE = f"great_expectations {gx.__version__}"
KEPT_RESULTS = (
    "element_count",
    "missing_count",
    "missing_percent",
    "unexpected_count",
    "unexpected_percent",
    "unexpected_percent_nonmissing",
    "observed_value",
)
KEPT_POSITIONS = 1000


@dataclass
class Evidence:
    """What Great Expectations was asked and answered, as JSON: no value of the data, at most 1000 positions a rule."""

    suite: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)


def measure(rules: Sequence[Rule], table: pa.Table) -> dict[int, Observation]:
    """What each rule sees in the table, by the rule's position in the list; a rule that is absent has no result.

    Args:
        rules: rules whose columns the table has; one of another engine gets an error.
        table: text columns, at least one row.
    """
    return measure_with_evidence(rules, table)[0]


def measure_with_evidence(rules: Sequence[Rule], table: pa.Table) -> tuple[dict[int, Observation], Evidence]:
    """As `measure`, with the suite and the validation result for people and other tools (`suite.json` and so on)."""
    found: dict[int, Observation] = {}
    evidence = Evidence()
    frame = Frame(table)
    expectations: list[gxe.Expectation] = []
    for number, rule in enumerate(rules):
        try:
            made = _expectation(rule, frame, number)
        except Exception as error:  # a rule that cannot be put has no result, and fails
            found[number] = Observation(error=safe_error(error))
            continue
        if isinstance(made, Observation):
            found[number] = made
        else:
            expectations.append(made)
    if not expectations:
        return found, evidence
    for rule in rules:
        if rule.kind == "column":  # last: a column that other rules look at need not be there twice
            frame.exists(rule.columns[0])
    try:
        results = _run(frame.frame(), expectations, evidence)
    except Exception as error:  # whatever the engine raises: a rule without a result fails
        return {
            number: found.get(number, Observation(error=safe_error(error))) for number in range(len(rules))
        }, evidence
    seen: set[int] = set()
    for result in results:
        place = (result.expectation_config.meta or {}).get("rule")
        if isinstance(place, int) and 0 <= place < len(rules):
            twice = place in seen
            seen.add(place)
            found[place] = Observation(error="two results") if twice else _observe(rules[place], result, table.num_rows)
    return found, evidence


def _expectation(rule: Rule, frame: Frame, number: int) -> gxe.Expectation | Observation:
    """The rule as an expectation, or what it sees where no expectation is of use."""
    about: dict[str, Any] = {
        "meta": {"rule": number, "name": rule.name, "columns": rule.subject, "where": rule.where, "kind": rule.kind}
    }
    if rule.engine == "duckdb":
        return Observation(error="a query needs the DuckDB engine")
    if rule.kind == "rows":
        return gxe.ExpectTableRowCountToBeBetween(min_value=0, **about)
    if rule.kind == "column":
        return gxe.ExpectColumnToExist(column=rule.columns[0], **about)
    if rule.kind == "expectation":
        return _custom(rule, frame, about)
    if rule.kind in ("freshness", "frequency"):
        return _of_times(rule, frame, about)
    if rule.kind in ("latency", "reference"):
        kept = delays(rule, frame) if rule.kind == "latency" else references(rule, frame)
        return gxe.ExpectColumnValuesToBeInSet(column=frame.made(rule, rule.kind, kept), value_set=[True], **about)
    columns = [frame.texts(name, rule.missing) for name in rule.columns]
    if rule.kind == "unique" and len(columns) > 1:
        return gxe.ExpectCompoundColumnsToBeUnique(column_list=columns, ignore_row_if="all_values_are_missing", **about)
    return _of_column(rule, {"column": columns[0], **about})


def _of_column(rule: Rule, about: Mapping[str, Any]) -> gxe.Expectation | Observation:
    if rule.kind == "present":
        return gxe.ExpectColumnValuesToNotBeNull(**about)
    if rule.kind == "unique":
        return gxe.ExpectColumnValuesToBeUnique(**about)
    if rule.kind == "values":
        return gxe.ExpectColumnValuesToBeInSet(value_set=list(rule.values), **about)
    if rule.kind == "pattern":
        return ExpectColumnValuesToMatchRe2(pattern=rule.pattern, **about)
    if rule.kind == "length":
        return gxe.ExpectColumnValueLengthsToBeBetween(min_value=rule.low or 0, max_value=rule.high, **about)
    if rule.kind == "retention" and not rule.now:
        return Observation(error="no time of reading is given")
    if rule.kind not in ("reading", "retention") or rule.reading is None:
        return Observation(error=f"Great Expectations has nothing for a rule of kind {rule.kind}")
    return ExpectColumnValuesToRead(reading=rule.reading.__dict__ | {"formats": list(rule.reading.formats)}, **about)


def _of_times(rule: Rule, frame: Frame, about: Mapping[str, Any]) -> gxe.Expectation | Observation:
    """A service level of a whole column: its number is computed here, Great Expectations holds it to the limit."""
    seconds = seconds_of(rule, frame)
    if isinstance(seconds, str):
        return Observation(error=seconds)
    column = frame.made(rule, f"{rule.kind} in seconds", pd.Series(seconds, index=range(frame.rows)).to_numpy())
    lowest = rule.limit.value if rule.limit.operator == "mustBeBetween" else None
    return gxe.ExpectColumnMaxToBeBetween(column=column, min_value=lowest, max_value=rule.limit.high, **about)


def _custom(rule: Rule, frame: Frame, about: Mapping[str, Any]) -> gxe.Expectation | Observation:
    kind = expectation_class(rule.expectation)
    if kind is None:
        return Observation(error=f"Great Expectations has no {rule.expectation}")
    readings = dict(zip(rule.columns, rule.readings or [None] * len(rule.columns), strict=True))
    arguments = json.loads(rule.arguments or "{}")
    for key in COLUMN_KEYS:
        named = arguments.get(key)
        if isinstance(named, list):
            arguments[key] = [frame.typed(name, rule.missing, readings[name]) for name in named]
        elif named is not None:
            arguments[key] = frame.typed(named, rule.missing, readings[named])
    empty = [name for name in rule.columns if not frame.holds_value(name, rule.missing, readings[name])]
    if empty and not counts_rows(kind):
        return Observation(error=f"{empty[0]} holds no value to look at")
    return kind(**arguments, **about)


def _run(frame: pd.DataFrame, expectations: Sequence[gxe.Expectation], evidence: Evidence) -> list[Any]:
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)  # its errors quote the data
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    suite = gx.ExpectationSuite(name="contract", expectations=list(expectations))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = asset.add_batch_definition_whole_dataframe("rows").get_batch(batch_parameters={"dataframe": frame})
        results = list(batch.validate(suite, result_format="COMPLETE").results)  # a stored result is copied thrice
    evidence.suite = suite.to_json_dict()
    evidence.validation = {"engine": ENGINE, "results": [_told(result) for result in results]}
    return results


def _told(result: Any) -> dict[str, Any]:
    """A result without the data's values."""
    found = result.result or {}
    config = result.expectation_config
    kept = {key: found[key] for key in KEPT_RESULTS if key in found}
    if (config.meta or {}).get("kind") == "expectation":
        kept.pop("observed_value", None)  # may be a value of the data, or a list of them
    positions = found.get("unexpected_index_list") or []
    return {
        "expectation_type": config.type,
        "meta": dict(config.meta or {}),
        "success": result.success,
        "exception": _exception(result.exception_info),
        "result": json.loads(json.dumps(kept, default=str)),
        "positions": [int(position) for position in positions[:KEPT_POSITIONS] if isinstance(position, int)],
    }


def _observe(rule: Rule, result: Any, rows: int) -> Observation:
    """One result as an observation; an error where it contradicts itself or the table."""
    if error := _exception(result.exception_info):
        return Observation(error=error)
    found = result.result or {}
    if rule.kind == "column":
        return Observation(value=1.0 if result.success else 0.0, looked_at=rows)
    if rule.kind == "rows":
        count = found.get("observed_value")
        return Observation(float(rows), looked_at=rows) if count == rows else Observation(error=f"counts {count} rows")
    if rule.kind in ("freshness", "frequency"):
        value = found.get("observed_value")
        return Observation(float(value), looked_at=rows) if value is not None else Observation(error="no number")
    if rule.kind == "expectation" and (whole := _of_whole(rule, result, rows)):
        return whole
    bad = tuple(sorted(int(position) for position in found.get("unexpected_index_list") or ()))
    looked_at = found.get("element_count", -1) - (found.get("missing_count") or 0)
    whole_table = found.get("element_count") == rows and found.get("unexpected_count") == len(bad) == len(set(bad))
    if not whole_table or (bad and not 0 <= bad[0] <= bad[-1] < rows):
        return Observation(error="its counts contradict the rows it names")
    return Observation(value=float(len(bad)), bad_rows=bad, looked_at=looked_at)


def _of_whole(rule: Rule, result: Any, rows: int) -> Observation | None:
    """What an expectation of the contract's own says as a whole; None where the rows that break it are what counts.

    With `mostly`, broken rows are within what the contract allows: they count only when the share is missed.
    """
    kind = expectation_class(rule.expectation)
    found = result.result or {}
    if kind is not None and counts_rows(kind):
        looked_at = found.get("element_count", 0) - (found.get("missing_count") or 0)
        return Observation(0.0, looked_at=looked_at) if result.success and looked_at > 0 else None
    if result.success and "observed_value" in found and found["observed_value"] is None:
        return Observation(error="it saw no value")
    return Observation(0.0 if result.success else 1.0, looked_at=rows)


def _exception(info: Any) -> str:
    """What is told of an exception, flat or one a metric; "" where there is none."""
    if not info:
        return ""
    entries = [info] if "raised_exception" in info else list(info.values())
    raised = [entry for entry in entries if not isinstance(entry, Mapping) or entry.get("raised_exception", True)]
    if not raised:
        return ""
    first = raised[0].get("exception_traceback") if isinstance(raised[0], Mapping) else ""
    return safe_traceback(str(first or ""))
