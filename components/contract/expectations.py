"""Great Expectations as an engine of rules: it measures, the verdict is made elsewhere.

The only module that imports Great Expectations; import it where it is used. The run is embedded: an ephemeral
context, no files, no network. It reports success for empty frames and all-null columns, and may leave a result out,
so nothing here looks at `success`: each rule gets the rows that break it, or an error.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when it is imported; it would report usage over the network

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
import pyarrow as pa
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider import (
    ColumnMapMetricProvider,
    column_condition_partial,
)

from components.contract.reading import reads
from components.contract.rules import Observation, Reading, Rule
from components.core.errors import one_line

ENGINE = f"great_expectations {gx.__version__}"


def measure(rules: Sequence[Rule], table: pa.Table) -> dict[int, Observation]:
    """What each rule sees in the table, by the rule's position in the list; a rule that is absent has no result.

    Args:
        rules: rules whose columns the table has.
        table: text columns, at least one row.
    """
    frame, names = _frame(rules, table)
    expectations = [_expectation(rule, names, number) for number, rule in enumerate(rules)]
    try:
        results = _run(frame, expectations)
    except Exception as error:  # whatever the engine raises: a rule without a result fails
        return {number: Observation(error=one_line(error)) for number in range(len(rules))}
    found: dict[int, Observation] = {}
    for result in results:
        number = (result.expectation_config.meta or {}).get("rule")
        if isinstance(number, int) and 0 <= number < len(rules):
            once = number not in found
            found[number] = (
                _observe(rules[number], result, table.num_rows) if once else Observation(error="two results")
            )
    return found


def _frame(rules: Sequence[Rule], table: pa.Table) -> tuple[pd.DataFrame, dict[tuple[str, tuple[str, ...]], str]]:
    """The source's columns, and for each set of missing texts a column in which they are null."""
    columns = {name: table.column(name).to_pandas() for name in table.column_names}
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    for rule in rules:
        for column in rule.columns if rule.of_rows else ():
            key = (column, rule.missing)
            if key not in names:
                names[key] = f"\0{len(names)}"
                series = columns[column].astype(object)
                columns[names[key]] = series.where(series.notna() & ~series.isin(rule.missing), None)
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows)), names


def _expectation(rule: Rule, names: Mapping[tuple[str, tuple[str, ...]], str], number: int) -> gxe.Expectation:
    about: dict[str, Any] = {"meta": {"rule": number}}
    if rule.kind == "rows":
        return gxe.ExpectTableRowCountToBeBetween(min_value=0, **about)
    if rule.kind == "column":
        return gxe.ExpectColumnToExist(column=rule.columns[0], **about)
    columns = [names[name, rule.missing] for name in rule.columns]
    if rule.kind == "unique" and len(columns) > 1:
        return gxe.ExpectCompoundColumnsToBeUnique(column_list=columns, ignore_row_if="all_values_are_missing", **about)
    about["column"] = columns[0]
    if rule.kind == "present":
        return gxe.ExpectColumnValuesToNotBeNull(**about)
    if rule.kind == "unique":
        return gxe.ExpectColumnValuesToBeUnique(**about)
    if rule.kind == "values":
        return gxe.ExpectColumnValuesToBeInSet(value_set=list(rule.values), **about)
    if rule.kind == "pattern":
        return gxe.ExpectColumnValuesToMatchRegex(regex=_python_regex(rule.pattern), **about)
    if rule.kind == "length":
        return gxe.ExpectColumnValueLengthsToBeBetween(min_value=rule.low or 0, max_value=rule.high, **about)
    reading = rule.reading
    assert reading is not None, rule
    return ExpectColumnValuesToRead(reading=reading.__dict__ | {"formats": list(reading.formats)}, **about)


def _python_regex(pattern: str) -> str:
    r"""ECMAScript semantics in Python: \d and \w are ASCII, and a closing `$` is the end, not before a line end."""
    closed = re.search(r"(?<!\\)(\\\\)*\$(\)*)$", pattern)
    if closed:
        at = pattern.rindex("$")
        pattern = f"{pattern[:at]}\\Z{pattern[at + 1 :]}"
    return f"(?a){pattern}"


def _run(frame: pd.DataFrame, expectations: Sequence[gxe.Expectation]) -> list[Any]:
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("rows")
    suite = context.suites.add(gx.ExpectationSuite(name="contract", expectations=list(expectations)))
    run = context.validation_definitions.add(gx.ValidationDefinition(name="contract", data=batch, suite=suite))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This pattern is interpreted as a regular expression, and has match groups")
        return list(run.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE").results)


def _observe(rule: Rule, result: Any, rows: int) -> Observation:
    """One result as an observation; an error where it contradicts itself or the table."""
    if error := _exception(result.exception_info):
        return Observation(error=error)
    if rule.kind == "column":
        return Observation(value=1.0 if result.success else 0.0, looked_at=rows)
    found = result.result
    if rule.kind == "rows":
        count = found.get("observed_value")
        return Observation(float(rows), looked_at=rows) if count == rows else Observation(error=f"counts {count} rows")
    bad = tuple(sorted(int(position) for position in found.get("unexpected_index_list") or ()))
    looked_at = found.get("element_count", -1) - (found.get("missing_count") or 0)
    whole = found.get("element_count") == rows and found.get("unexpected_count") == len(bad) == len(set(bad))
    if not whole or (bad and not 0 <= bad[0] <= bad[-1] < rows):
        return Observation(error="its counts contradict the rows it names")
    return Observation(value=float(len(bad)), bad_rows=bad, looked_at=looked_at)


def _exception(info: Any) -> str:
    """The message of an exception, flat or one a metric; "" where there is none."""
    if not info:
        return ""
    entries = [info] if "raised_exception" in info else list(info.values())
    raised = [entry for entry in entries if not isinstance(entry, Mapping) or entry.get("raised_exception", True)]
    if not raised:
        return ""
    first = raised[0].get("exception_message") if isinstance(raised[0], Mapping) else raised[0]
    return str(first) or "an exception without a message"


class ColumnValuesRead(ColumnMapMetricProvider):
    """Whether each text reads as a time or number."""

    condition_metric_name = "column_values.read_as"
    condition_value_keys = ("reading",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, reading: Mapping[str, Any], **_: Any) -> pd.Series:  # noqa: N805
        wanted = Reading(**{**reading, "formats": tuple(reading["formats"])})
        return column.map(lambda text: reads(text, wanted)).astype(bool)


class ExpectColumnValuesToRead(ColumnMapExpectation):
    """Expect each text to read as a time (by one of several formats) or a number, within bounds."""

    reading: dict[str, Any]
    map_metric = "column_values.read_as"
    success_keys = ("reading", "mostly")
