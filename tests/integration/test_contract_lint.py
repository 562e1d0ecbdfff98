"""The standard's own linter accepts what we ship and, of the words that it knows, what we accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.contract.standard.contract import load
from components.core.paths import PROJECT_ROOT
from tests.fakes.contract_case import contract_file

SHIPPED = sorted((PROJECT_ROOT / "data_contracts").glob("*.yaml"))


def _lint(path: Path) -> list[str]:
    from datacontract.data_contract import DataContract

    run = DataContract(data_contract_file=str(path)).lint()
    return [f"{check.name}: {check.reason}" for check in run.checks if check.result != "passed"]


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_the_standard_s_linter_accepts_every_shipped_contract(path: Path) -> None:
    """`datacontract lint` passes without a warning, and so do we."""
    assert _lint(path) == []
    assert load(path).rules


def test_the_linter_accepts_every_word_that_we_read(tmp_path: Path) -> None:
    """A contract that uses all kinds of rules is a valid document of the standard."""
    columns = [
        {
            "name": "id",
            "primaryKey": True,
            "primaryKeyPosition": 1,
            "required": True,
            "logicalType": "string",
            "logicalTypeOptions": {"format": "uuid"},
        },
        {"name": "day", "logicalType": "date", "physicalType": "DATE", "primaryKey": True, "primaryKeyPosition": 2},
        {"name": "at", "logicalType": "timestamp", "logicalTypeOptions": {"timezone": True, "minimum": "2020-01-01"}},
        {"name": "clock", "logicalType": "time", "logicalTypeOptions": {"format": "HH:mm"}},
        {
            "name": "n",
            "logicalType": "integer",
            "logicalTypeOptions": {"format": "u16", "multipleOf": 5},
            "examples": [5],
            "quality": [
                {"type": "sql", "query": "SELECT count(*) FROM {object} WHERE {property} < 0", "mustBe": 0},
                {
                    "type": "custom",
                    "engine": "greatExpectations",
                    "implementation": {"type": "expect_column_mean_to_be_between", "kwargs": {"min_value": 1}},
                },
            ],
        },
        {"name": "parent", "relationships": [{"to": "rows.id"}], "enum": [{"value": "x"}]},
    ]
    levels = [
        {"property": "freshness", "value": 1, "unit": "d", "element": "rows.day"},
        {"property": "latency", "value": 1, "unit": "d", "element": "rows.day, rows.at"},
        {"property": "frequency", "value": "P1D", "element": "rows.day"},
    ]
    quality = [
        {"metric": "rowCount", "mustBeBetween": [1, 9]},
        {"metric": "duplicateValues", "arguments": {"properties": ["id", "n"]}, "mustBe": 0},
    ]
    path = contract_file(tmp_path / "c.yaml", columns, levels=levels, quality=quality)
    assert _lint(path) == []
    assert {rule.kind for rule in load(path).rules} >= {
        "sql",
        "expectation",
        "reference",
        "latency",
        "freshness",
        "rows",
    }
