"""The trailing windows of the complaints project against a count by hand of what was known when."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from components.core.paths import PROJECT_ROOT
from components.features.feast_store import load_project
from components.features.history import Rows, write_history
from tests.fakes.feature_rows import complaint_recipe

WINDOWS = (7, 30, 90, 365)
START = pd.Timestamp("2023-01-01", tz="UTC")
DELAY = 30
NEVER = 10**9


class Outcome(NamedTuple):
    """A version of a complaint: days since the start; known from `known` until `until`."""

    company: str
    state: str
    product: str
    day: int
    known: int
    until: int
    relief: int
    untimely: int
    to_send: int | None


def outcomes(count: int, seed: int) -> list[Outcome]:
    """Random versions: some recorded late, some replaced by a correction, some sent on an unreadable day."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        day = draw.randrange(500)
        recorded = day + (draw.randrange(200) if draw.random() < 0.2 else 0)
        known = max(day + DELAY, recorded)
        until = recorded + draw.randrange(1, 300) if draw.random() < 0.2 else NEVER
        found.append(
            Outcome(
                draw.choice(["A", "B", "C", ""]),
                draw.choice(["TX", "CA", "None"]),
                draw.choice(["loan", "card", "account"]),
                day,
                known,
                until,
                int(draw.random() < 0.3),
                int(draw.random() < 0.2),
                draw.choice([0, 1, 5, None]),
            )
        )
    return found


def rows_of(found: list[Outcome]) -> Rows:
    """The versions as history tables see them."""

    def moments(days: list[int]) -> pd.Series:
        return pd.Series([pd.NaT if day == NEVER else START + pd.Timedelta(days=day) for day in days]).astype(
            "datetime64[us, UTC]"
        )

    event = moments([row.day for row in found])
    sent = [
        "soon" if row.to_send is None else str((START + pd.Timedelta(days=row.day + row.to_send)).date())
        for row in found
    ]
    clean = pd.DataFrame(
        {
            "Company": [row.company for row in found],
            "State": [row.state for row in found],
            "Product": [row.product for row in found],
            "Timely response?": ["No" if row.untimely else "Yes" for row in found],
            "Date sent to company": sent,
        }
    )
    typed = pd.DataFrame(
        {"row_id": [str(at) for at in range(len(found))], "event_timestamp": event, "label": [r.relief for r in found]}
    )
    recorded = moments([row.known if row.known > row.day + DELAY else row.day for row in found])
    return Rows(clean, typed, "none", DELAY, ["%Y-%m-%d"], recorded, moments([row.until for row in found]))


def by_hand(found: list[Outcome], entity: str, value: str, at: int) -> dict[str, float]:
    """Every window of one company or state at the end of a day, counted row by row."""

    def inside(days: int) -> list[Outcome]:
        return [row for row in found if row.known <= at < min(row.known + days, row.until)]

    year = inside(365)
    relief = (sum(row.relief for row in year) + 4.5) / (len(year) + 50)
    late = (sum(row.untimely for row in year) + 2) / (len(year) + 50)
    answer = {}
    for days in WINDOWS:
        own = [row for row in inside(days) if getattr(row, entity) == value]
        answer[f"{entity}_complaints_{days}d"] = float(len(own))
        answer[f"{entity}_relief_rate_{days}d"] = (sum(row.relief for row in own) + 10 * relief) / (len(own) + 10)
        answer[f"{entity}_untimely_rate_{days}d"] = (sum(row.untimely for row in own) + 10 * late) / (len(own) + 10)
        if entity == "company":
            sent = [row.to_send for row in own if row.to_send is not None]
            answer[f"company_days_to_send_{days}d"] = sum(sent) / len(sent) if sent else math.nan
    if entity == "company":
        own = [row for row in year if row.company == value]
        shares = [sum(row.product == name for row in own) / max(len(own), 1) for name in {row.product for row in own}]
        answer["company_products_365d"] = float(len(shares))
        answer["company_product_concentration_365d"] = sum(share**2 for share in shares) if own else math.nan
    return answer


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_window_is_what_a_count_by_hand_finds(seed: int, tmp_path: Path) -> None:
    """At each moment at which anything changes the table holds every window's value, also after corrections."""
    found = outcomes(120, seed)
    repo = PROJECT_ROOT / "feature_repo" / "complaints"
    service = load_project(repo, 0).service("complaint_triage_v2")
    cut = START + pd.Timedelta(days=260)
    write_history(repo, service.views, rows_of(found), tmp_path, [cut])
    for entity, values in (("company", "ABC"), ("state", ("TX", "CA"))):
        table = pd.read_parquet(tmp_path / f"{entity}_windows.parquet")
        assert set(table[entity]) == set(values)
        for row in table.sample(60, random_state=seed).to_dict("records"):
            at = (row["event_timestamp"] - START).days
            expected = by_hand(found, entity, row[entity], at)
            assert set(expected) == set(row) - {entity, "event_timestamp", "created_timestamp"}
            for name, value in expected.items():
                np.testing.assert_allclose(row[name], value, rtol=1e-12, err_msg=f"{name} of {row[entity]} on day {at}")


def test_no_change_is_left_out(tmp_path: Path) -> None:
    """Every day on which an outcome becomes known, leaves a window or is replaced has a row."""
    found = outcomes(60, 9)
    repo = PROJECT_ROOT / "feature_repo" / "complaints"
    service = load_project(repo, 0).service("complaint_triage_v2")
    rows = rows_of(found)
    write_history(repo, service.views, rows, tmp_path, [])
    last = (rows.as_of - START).days
    for company in "ABC":
        mine = [row for row in found if row.company == company and row.until > row.known]
        days = {row.known for row in mine} | {min(row.known + days, row.until) for row in mine for days in WINDOWS}
        table = pd.read_parquet(tmp_path / "company_windows.parquet")
        there = {(moment - START).days for moment in table.loc[table["company"] == company, "event_timestamp"]}
        assert there == {day for day in days if day <= last}


def test_the_windows_join_as_features(tmp_path: Path) -> None:
    """The second service's features can be asked for by a recipe, through Feast, beside the first one's."""
    from components.features.featurise import featurise
    from tests.fakes.feature_rows import clean_folder, complaints, many_complaints

    frame = complaints(many_complaints(500, seed=2)).assign(Product="loan")
    inputs = ["company_relief_rate", "company_relief_rate_90d", "company_product_concentration_365d"]
    recipe = complaint_recipe(features={"service": "complaint_triage_v2", "model_inputs": inputs})
    record = featurise(recipe, clean_folder(tmp_path / "clean", frame), tmp_path / "set")
    test = pd.read_parquet(tmp_path / "set" / "test.parquet")
    assert {split.name for split in record.splits} == {"train", "validation", "test"}
    assert (test["company_product_concentration_365d"].dropna() == 1.0).all()
    assert test["company_relief_rate_90d"].between(0, 1).mean() > 0.8
