"""A record is what its fields say: another type, a number that is none, or a field more is refused and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import IntegrityError
from components.core.records import Evidence, Interval, RuleResult
from tests.fakes.gating import full_evidence
from tests.fakes.judged import good_evidence


def changed(*path: str, value: Any) -> dict[str, Any]:
    """Good evidence as JSON with one value replaced."""
    whole: dict[str, Any] = good_evidence().to_dict()
    inner = whole
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metrics", "auc", "value"), "0.9"),
        (("metrics", "auc", "value"), True),
        (("metrics", "auc", "value"), float("nan")),
        (("metrics", "auc", "value"), float("inf")),
        (("metrics", "auc", "value"), [0.9]),
        (("metrics", "auc", "n"), 500.5),
        (("metrics", "auc"), 0.9),
        (("metrics",), None),
        (("metrics",), [1]),
        (("positives",), "60"),
        (("positives",), None),
        (("rows",), True),
        (("model_digest",), None),
        (("parts",), {"metrics": 1}),
        (("latency_ms",), {"offline_p95": "1"}),
        (("curves",), {"roc": [["a"]]}),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(path: tuple[str, ...], value: Any) -> None:
    """Where it stands is in the message, so that somebody can look."""
    with pytest.raises(IntegrityError) as refused:
        Evidence.from_dict(changed(*path, value=value))
    assert path[0] in str(refused.value)


def test_records_of_every_part_come_back_as_they_were() -> None:
    """Also the unions: an observed value is a number, a text or nothing."""
    assert Evidence.from_dict(full_evidence().to_dict()) == full_evidence()
    for observed in (0.5, "text", None, 3):
        rule = RuleResult(rule="a", outcome="pass", observed=observed, limit=None)
        assert RuleResult.from_dict(rule.to_dict()) == rule


@pytest.mark.parametrize(
    "text",
    [
        '{"value": NaN, "low": null, "high": null, "n": 1}',
        '{"value": 1, "low": null, "high": null, "n": 1, "n": 2}',
        '{"value": 1e999, "low": null, "high": null, "n": 1}',
        "[" * 100_000,
        "",
        "[]",
        "null",
    ],
)
def test_a_file_that_is_no_record_is_refused_and_named(tmp_path: Path, text: str) -> None:
    """Whatever JSON, or none, lies there."""
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"record\.json"):
        Interval.read(tmp_path)


def test_a_record_without_fields_that_have_defaults_is_read(tmp_path: Path) -> None:
    """Those of earlier versions."""
    (tmp_path / "record.json").write_text(json.dumps({"value": 1, "low": None, "high": None, "n": 1}))
    assert Interval.read(tmp_path) == Interval(value=1, low=None, high=None, n=1)
