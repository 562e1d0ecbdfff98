"""Expectations of our own in Great Expectations, and what of its own a contract may name.

Imports Great Expectations: import it where it is used. Our expectations compute on whole columns what `cells.keeps`
defines, so that both engines agree on patterns (RE2) and on what a text is as a time or number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when it is imported; it would report usage over the network

import great_expectations.expectations as gxe
import pandas as pd
import pyarrow as pa
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import (
    ColumnMapExpectation,
    ColumnPairMapExpectation,
    MulticolumnMapExpectation,
)
from great_expectations.expectations.metrics.map_metric_provider import (
    ColumnMapMetricProvider,
    column_condition_partial,
)

from components.contract.standard.patterns import matches
from components.contract.standard.reading import fits
from components.contract.standard.rules import Reading

COLUMN_KEYS = ("column", "column_A", "column_B", "column_list")
REFUSED = {
    "row_condition": "evaluates code on the rows; write a rule of type sql",
    "condition_parser": "evaluates code on the rows; write a rule of type sql",
    "result_format": "is set by the engine; remove it",
    "catch_exceptions": "is set by the engine; remove it",
    "batch_id": "is set by the engine; remove it",
    "meta": "is set by the engine; remove it",
    "id": "is set by the engine; write the rule's id",
    "windows": "needs results of earlier runs; remove it",
    "severity": "belongs to the rule; write it there",
}
ELSEWHERE = ("unexpected_rows_expectation", "expect_query_results", "other_table", "expect_table_column", "_of_type")


def expectation_class(name: str) -> type[gxe.Expectation] | None:
    """The class of an expectation in snake or camel case; None where Great Expectations has none of that name."""
    camel = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    found = getattr(gxe, camel, None)
    if camel == "Expectation" or not isinstance(found, type) or not issubclass(found, gxe.Expectation):
        return None
    return found


def known_names() -> list[str]:
    """The expectations that Great Expectations has, in snake case."""
    return [snake_case(kind) for name in dir(gxe) if (kind := expectation_class(name)) is not None]


def snake_case(kind: type[gxe.Expectation]) -> str:
    """The expectation's name as suites write it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def counts_rows(kind: type[gxe.Expectation]) -> bool:
    """Whether the expectation names the rows that break it."""
    return issubclass(kind, ColumnMapExpectation | ColumnPairMapExpectation | MulticolumnMapExpectation)


def problem_of(kind: type[gxe.Expectation], arguments: Mapping[str, Any]) -> str:
    """Why the expectation cannot be used with these arguments, "" where it can; what and how to mend it."""
    name = snake_case(kind)
    if any(part in name or part in kind.__name__.lower() for part in ELSEWHERE):
        return f"{name} looks outside the rows or at storage types; write a rule of type sql, or declare the column"
    refused = [key for key in arguments if key in REFUSED]
    if refused:
        return f"{refused[0]} {REFUSED[refused[0]]}"
    if _holds_parameter(arguments):
        return "$PARAMETER has no value here; write the value"
    try:
        kind(**arguments)
    except Exception as error:  # whatever pydantic or the class itself raises says what does not fit
        told = error.errors() if hasattr(error, "errors") else []
        parts = [f"{'.'.join(map(str, item['loc'])).replace('__root__', name)}: {item['msg']}" for item in told]
        return "; ".join(parts) or " ".join(str(error).split())
    return ""


def _holds_parameter(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(str(key).startswith("$") or _holds_parameter(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_parameter, value))


class ColumnValuesRead(ColumnMapMetricProvider):
    """Whether each text reads as a time or number."""

    condition_metric_name = "column_values.read_as"
    condition_value_keys = ("reading",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, reading: Mapping[str, Any], **_: Any) -> pd.Series:  # noqa: N805
        wanted = Reading(**{**reading, "formats": tuple(reading["formats"])})
        return pd.Series(fits(pa.array(column, pa.string()), wanted), index=column.index)


class ExpectColumnValuesToRead(ColumnMapExpectation):
    """Expect each text to read as a time (by one of several formats) or a number, within bounds."""

    reading: dict[str, Any]
    map_metric = "column_values.read_as"
    success_keys = ("reading", "mostly")


class ColumnValuesFound(ColumnMapMetricProvider):
    """Whether an RE2 pattern is found in each text."""

    condition_metric_name = "column_values.found_by_re2"
    condition_value_keys = ("pattern",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, pattern: str, **_: Any) -> pd.Series:  # noqa: N805
        found = matches(pa.array(column, pa.string()), pattern)
        return pd.Series(found.to_numpy(zero_copy_only=False).astype(bool), index=column.index)


class ExpectColumnValuesToMatchRe2(ColumnMapExpectation):
    """Expect an RE2 pattern to be found in each text."""

    pattern: str
    map_metric = "column_values.found_by_re2"
    success_keys = ("pattern", "mostly")
