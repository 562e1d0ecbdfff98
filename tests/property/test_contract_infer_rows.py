"""A drafted contract is valid against the standard, is loaded by us, and its own rows hold it, whatever they are."""

from __future__ import annotations

import json
import tempfile
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.contract.evolution.infer import infer
from components.contract.standard.contract import load
from components.contract.validate import check

NUMBERS = st.one_of(
    st.integers(-50, 5000).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["007", "1" * 38, "-0", "+5"]),
)
DAYS = st.dates().flatmap(
    lambda day: st.sampled_from([f"{day:%Y-%m-%d}".zfill(10), f"{day:%m/%d/%y}", f"{day:%d.%m.}{day.year:04}"])
)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
MARKS = st.sampled_from(
    ["", "N/A", "None", "null", "true", "No", "AB-1", "XY-22", "#x: y", "'", '"', "- a", "{b}", "é"]
)
COLUMNS = st.sampled_from([NUMBERS, DAYS, WORDS, MARKS, st.sampled_from(["yes", "no"]), st.just(None), NUMBERS | DAYS])
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=10)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, str | None]]:
    """Rows of a few columns, each of one kind of values or a mixture, with some missing."""
    kinds = draw(st.dictionaries(NAMES | st.just("order id"), COLUMNS, min_size=1, max_size=4))
    count = draw(st.integers(1, 12))
    times = draw(st.sampled_from([1, 1, 20]))
    rows = [
        {name: draw(kind) if draw(st.integers(0, 6)) else None for name, kind in kinds.items()} for _ in range(count)
    ]
    return rows * times


@pytest.fixture(scope="module")
def standard() -> jsonschema.protocols.Validator:
    """The schema that `datacontract lint` uses."""
    schema = json.loads((files("datacontract") / "schemas" / "odcs-3.2.0.schema.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=tables())
def test_a_draft_holds_for_the_rows_that_it_was_drafted_from(
    standard: jsonschema.protocols.Validator, rows: list[dict[str, str | None]]
) -> None:
    """All rows are clean under it, and the draft is valid for the standard's own tool."""
    with tempfile.TemporaryDirectory() as name:
        data, contract = Path(name) / "rows.jsonl", Path(name) / "draft.yaml"
        data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        contract.write_text(infer(str(data)).text, encoding="utf-8")
        standard.validate(yaml.safe_load(contract.read_text(encoding="utf-8")))
        assert len(load(contract).columns) == len(rows[0])
        verdict = check(contract, data, "duckdb")
    assert verdict.passed, verdict.reason
    assert verdict.clean == len(rows)
