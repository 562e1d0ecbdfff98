"""Great Expectations against a loop over rows, and the sum of clean rows and rows set aside."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.contract.engines.expectations import measure
from components.contract.engines.measured import in_memory
from components.contract.standard.contract import load
from components.contract.validate import validate_snapshot
from components.core.publish import verify
from tests.fakes.contract_case import contract_file, slow_engine, snapshot_of
from tests.fakes.ingestion_case import recipe_for

WARNING = [{"property": "ruleSeverity", "value": "warning"}]
PROPERTIES = [
    {"name": "id", "primaryKey": True, "required": True, "logicalTypeOptions": {"pattern": "^[a-z]$"}},
    {
        "name": "day",
        "logicalType": "date",
        "logicalTypeOptions": {"format": "[MM/dd/yy][yyyy-MM-dd]"},
        "required": True,
    },
    {
        "name": "text",
        "logicalTypeOptions": {"minLength": 2, "maxLength": 4},
        "customProperties": WARNING,
        "enum": [{"value": "yes"}, {"value": "no"}, {"value": "long text"}],
        "quality": [
            {
                "metric": "missingValues",
                "arguments": {"missingValues": [None, "None"]},
                "mustBeLessThan": 60,
                "unit": "percent",
            },
            {"metric": "nullValues", "mustBeLessOrEqualTo": 3},
            {"metric": "invalidValues", "arguments": {"pattern": "^[a-z]+$"}, "mustBe": 0, "severity": "warning"},
        ],
    },
    {
        "name": "n",
        "logicalType": "integer",
        "logicalTypeOptions": {"minimum": 0, "maximum": 9},
        "customProperties": WARNING,
    },
]
TABLE_RULES = [
    {"metric": "rowCount", "mustBeGreaterThan": 1},
    {"metric": "duplicateValues", "arguments": {"properties": ["day", "text"]}, "mustBeLessThan": 4},
]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", "e", "f", "G", "a\n", ""]),
        st.sampled_from(["01/02/25", "2025-01-02", "2025-02-30", ""]),
        st.sampled_from(["yes", "no", "No", "long text", "None", "", "yes\n"]),
        st.sampled_from(["0", "9", "10", "-1", "1.5", "x", "", "٣"]),
    ),
    min_size=1,
    max_size=9,
)


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A contract with every kind of rule."""
    path = tmp_path_factory.mktemp("contract") / "c.yaml"
    return contract_file(
        path, PROPERTIES, quality=TABLE_RULES, customProperties=[{"property": "maxQuarantinePercent", "value": 60}]
    )


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, nulls=st.sets(st.integers(0, 8)))
def test_the_engine_sees_what_a_loop_over_rows_sees(
    contract: Path, rows: list[tuple[str, ...]], nulls: set[int]
) -> None:
    """For every kind of rule: the same rows break it, and the same number of values was looked at."""
    rules = load(contract).rules
    columns = [list(column) for column in zip(*rows, strict=True)]
    for row in nulls & set(range(len(rows))):
        columns[2][row] = None  # type: ignore[call-overload]
    table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "day", "text", "n"])
    assert measure(rules, table) == slow_engine(rules, table)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_clean_and_quarantined_rows_are_all_rows(contract: Path, rows: list[tuple[str, ...]]) -> None:
    """Each row is in exactly one of the two files, with a reason if set aside; a refused batch has no clean row."""
    dated = [(row[0], "2025-01-02", *row[2:]) for row in rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = snapshot_of(folder, dated, ("id", "day", "text", "n"))
        verdict = validate_snapshot(recipe_for("x", contract), snapshot, folder / "out", in_memory(slow_engine))
        verify(folder / "out")
        clean = pq.read_table(folder / "out" / "clean.parquet").to_pylist()
        aside = pq.read_table(folder / "out" / "quarantine.parquet").to_pylist()
        source = pq.read_table(snapshot / "data.parquet").to_pylist()
    assert (len(clean), len(aside)) == (verdict.clean, verdict.quarantined)
    assert verdict.rows == len(rows) == verdict.clean + verdict.quarantined
    assert all(row.pop("_rule") and row.pop("_reason") for row in aside)
    assert [source[row.pop("_row")] for row in aside] == aside
    assert sorted(tuple(row.values()) for row in clean + aside) == sorted(dated)
    assert verdict.passed or (not clean and verdict.reason)
    assert not verdict.passed or clean
