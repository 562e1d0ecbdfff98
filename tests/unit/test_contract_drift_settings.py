"""What a contract may say about drift of meaning, and what is refused with its place in the YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.contract.meaning.drift_settings import DriftSettings
from components.contract.standard.contract import load
from components.core.errors import UserError
from tests.fakes.contract_case import contract_file


def custom(**values: Any) -> list[dict[str, Any]]:
    """customProperties of the standard."""
    return [{"property": name, "value": value} for name, value in values.items()]


def loaded(path: Path, column: list[dict[str, Any]], table: list[dict[str, Any]]) -> DriftSettings:
    """The settings of a contract with these customProperties."""
    properties: list[dict[str, Any]] = [{"name": "id"}, {"name": "text", "customProperties": column}]
    return load(contract_file(path, properties, customProperties=table)).drift


def test_nothing_said_is_the_default(tmp_path: Path) -> None:
    """Five snapshots, ten points, a band learned from the history."""
    found = loaded(tmp_path / "c.yaml", [], [])
    assert found == DriftSettings()
    assert (found.history, found.null_share_points, found.row_count_factor, found.mode_of("id")) == (5, 10.0, None, "")


def test_a_property_goes_before_the_table(tmp_path: Path) -> None:
    """A bare `off`, which YAML reads as false, is off."""
    table = custom(driftOfMeaning="warning", driftHistory=3, driftRowCountFactor=4, driftNullSharePoints=2.5)
    found = loaded(tmp_path / "c.yaml", custom(driftOfMeaning=False), table)
    assert (found.mode_of("text"), found.mode_of("id"), found.mode_of("")) == ("off", "warning", "warning")
    assert (found.history, found.row_count_factor, found.null_share_points) == (3, 4.0, 2.5)


@pytest.mark.parametrize(
    ("column", "table", "place"),
    [
        ({"driftOfMeaning": "loud"}, {}, r"schema\[0\]\.properties\[1\]\.customProperties"),
        ({}, {"driftOfMeaning": True}, r"schema\[0\]\.customProperties"),
        ({}, {"driftHistory": 0}, "driftHistory"),
        ({}, {"driftHistory": 2.5}, "whole number"),
        ({}, {"driftRowCountFactor": 1}, "driftRowCountFactor"),
        ({}, {"driftNullSharePoints": "many"}, "driftNullSharePoints"),
        ({}, {"driftNullSharePoints": float("nan")}, "driftNullSharePoints"),
        ({}, {"driftRowCountFactor": None}, "driftRowCountFactor"),
    ],
)
def test_what_makes_no_sense_is_refused(
    column: dict[str, Any], table: dict[str, Any], place: str, tmp_path: Path
) -> None:
    """One line with the place and what to write."""
    with pytest.raises(UserError, match=place) as caught:
        loaded(tmp_path / "c.yaml", custom(**column), custom(**table))
    assert "\n" not in str(caught.value)
