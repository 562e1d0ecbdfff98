"""A project's on_demand.py: what loads, what it may import, what its functions may return, and what errors say."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from components.core.errors import IntegrityError, UserError
from components.features.on_demand import columns, load_on_demand, same_code
from components.features.repository import RequestView
from tests.fakes.feature_request_case import CODE, FEATURES
from tests.fakes.feature_rows import ROOT

VIEW = RequestView("parcel_request", ("text", "depot_name", "weight", "carrier_code", "event_timestamp"), FEATURES)
REQUEST = {
    "text": "abc",
    "depot_name": "A",
    "weight": "1",
    "carrier_code": "xy",
    "event_timestamp": datetime(2026, 1, 1, 5, tzinfo=UTC),
    "other": "left alone",
}


def test_a_function_is_called_with_what_it_names(tmp_path: Path) -> None:
    """By keyword, whatever else the request carries; None is no value."""
    (tmp_path / "on_demand.py").write_text(CODE)
    code = load_on_demand(tmp_path)
    assert code is not None
    assert code.inputs("parcel_request") == VIEW.inputs
    assert code.compute(VIEW, REQUEST) == [3.0, 0.0, 1.0, 2.0, 5.0]
    assert math.isnan(code.compute(VIEW, REQUEST | {"weight": ""})[1])


def test_a_project_may_have_none(tmp_path: Path) -> None:
    """No file is no code, and no code is not the code that a training set was made with."""
    assert load_on_demand(tmp_path) is None
    with pytest.raises(IntegrityError, match="is not there, but training set x was made with 0123"):
        same_code(tmp_path, "0123" * 16, "training set x")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def a(:", "is no Python file"),
        (b"\xff\xfe", "is no Python file"),
        ("import feast", "imports 'feast'; a scoring service has the standard library, numpy and pandas"),
        ("def a():\n    from feast.types import Float64", "imports 'feast.types'"),
        ("from . import features", "imports '.'"),
        ("import components.core", "imports 'components.core'"),
        ("1 / 0", "does not load .ZeroDivisionError"),
    ],
)
def test_a_file_that_a_serving_process_cannot_load_is_refused(tmp_path: Path, source: str | bytes, words: str) -> None:
    """In one line with its path."""
    (tmp_path / "on_demand.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    with pytest.raises(UserError, match=words) as refused:
        load_on_demand(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "on_demand.py"))
    assert "\n" not in str(refused.value)


def test_a_view_without_its_function_is_refused(tmp_path: Path) -> None:
    """With the nearest one; a function that takes anything does not say what a request has to carry."""
    (tmp_path / "on_demand.py").write_text("def parcels(text): ...\ndef all_of_it(**request): ...\nLIMIT = 3\n")
    code = load_on_demand(tmp_path)
    assert code is not None
    with pytest.raises(UserError, match="has no function 'parcel', as its view is called; did you mean 'parcels'"):
        code.function("parcel")
    with pytest.raises(UserError, match="has no function 'LIMIT'"):
        code.function("LIMIT")
    with pytest.raises(UserError, match=r"all_of_it\(\) has to name what it takes"):
        code.inputs("all_of_it")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError(text)", r"f\(\) failed \(ValueError\)$"),
        ("return 1", "returned int, not its view's features a, b"),
        ("return {'a': 1}", "returned a, not its view's features a, b"),
        ("return {'a': 1, 'b': 2, 'c': 3}", "returned a, b, c, not"),
        ("return {'a': 1, 'b': '2'}", r"f\(\) returned for 'b' a str; return a number or None"),
        ("return {'a': 1, 'b': float('inf')}", "for 'b' an infinite number"),
        ("return {'a': 1, 'b': 1j}", "for 'b' a complex"),
    ],
)
def test_an_answer_that_is_none_is_refused_and_the_request_never_quoted(tmp_path: Path, body: str, words: str) -> None:
    """Whatever the function does, its view's features come back as numbers, or one line that keeps the text private."""
    (tmp_path / "on_demand.py").write_text(f"def f(text):\n    {body}\n")
    code = load_on_demand(tmp_path)
    assert code is not None
    with pytest.raises(UserError, match=words) as refused:
        code.compute(RequestView("f", ("text",), ("a", "b")), {"text": "my secret"})
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_many_rows_are_computed_one_by_one_in_their_order() -> None:
    """Nulls are empty texts, times have their zone in UTC, and the index is the rows'."""
    seen: list[tuple[Any, ...]] = []

    def f(text: str, event_timestamp: datetime) -> dict[str, float]:
        seen.append((text, event_timestamp))
        return {"at": len(seen)}

    times = pd.to_datetime(["2026-01-01T10:00+02:00", "2026-01-02T10:00+02:00"]).tz_convert("Europe/Vienna")
    rows = pd.DataFrame({"event_timestamp": times, "text": ["b", None], "more": [1, 2]}, index=[7, 3])
    got = columns(f, ("text", "event_timestamp"), ("at",), rows)
    assert (got["at"].tolist(), got.index.tolist(), str(got["at"].dtype)) == ([1.0, 2.0], [7, 3], "float64")
    assert seen == [("b", datetime(2026, 1, 1, 8, tzinfo=UTC)), ("", datetime(2026, 1, 2, 8, tzinfo=UTC))]
    assert columns(f, ("text",), ("at",), rows[:0]).shape == (0, 1)


def test_a_function_that_takes_nothing_is_called_once_a_row() -> None:
    """Its value stands in every row."""
    rows = pd.DataFrame({"text": ["a", "b", "c"]})
    assert columns(lambda: {"one": 1}, (), ("one",), rows)["one"].tolist() == [1.0, 1.0, 1.0]


def test_the_scoring_path_needs_no_feast() -> None:
    """Loading the shipped project's functions and calling one imports no engine."""
    code = (
        "import sys; from pathlib import Path; from components.features.online import OnlineFeatures;"
        "from components.features.on_demand import load_on_demand;"
        "load_on_demand(Path('feature_repo/complaints')).function('complaint_request');"
        "sys.exit(any(name in sys.modules for name in ('feast', 'ibis', 'torch', 'mlflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
