"""Small clean folders for tests of the features room, and an oracle in plain Python of what was known when."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from components.core.digest import file_digest
from components.core.publish import publishing
from components.core.recipe import Recipe, parse_recipe
from components.core.records import ContractVerdict
from components.features.history import Rows
from components.features.rows import typed_rows

ROOT = Path(__file__).resolve().parents[2]
RELIEF = "Closed with monetary relief"
NONE = "Closed with explanation"
FIRST_DAY = date(2023, 1, 1)

Complaint = tuple[int, str, str, bool, bool, int]  # day, company, state, relief, untimely, days to send


def complaints(rows: Sequence[Complaint], form: str = "%Y-%m-%d") -> pd.DataFrame:
    """Complaint rows as clean text, in the order given."""
    records = []
    for at, (day, company, state, relief, untimely, days) in enumerate(rows):
        received = FIRST_DAY + timedelta(days=day)
        records.append(
            {
                "Complaint ID": str(1000 + at),
                "Date received": received.strftime(form),
                "Date sent to company": (received + timedelta(days=days)).strftime(form),
                "Company": company,
                "State": state,
                "Company response to consumer": RELIEF if relief else NONE,
                "Timely response?": "No" if untimely else "Yes",
                "Tags": "Older American" if at % 3 == 0 else "None",
                "Consumer complaint narrative": f"words {at}",
            }
        )
    return pd.DataFrame(records)


def many_complaints(count: int, days: int = 240, seed: int = 0) -> list[Complaint]:
    """Complaints in order of time over `days`, a fifth of them with relief, companies of uneven size."""
    draw = random.Random(seed)
    received = sorted(draw.randrange(days) for _ in range(count))
    return [
        (
            day,
            f"Company {int(draw.paretovariate(0.7)) % 23}",
            draw.choice(["TX", "CA", "FL", ""]),
            draw.random() < 0.2,
            draw.random() < 0.1,
            draw.randrange(4),
        )
        for day in received
    ]


def complaint_recipe(**changes: Any) -> Recipe:
    """A recipe for complaint rows; `changes` replace or extend its sections key by key."""
    values: dict[str, Any] = {
        "name": "small",
        "source": {"uri": "none", "time_column": "Date received", "key": ["Complaint ID"]},
        "contract": {"path": "none"},
        "features": {
            "repo": str(ROOT / "feature_repo" / "complaints"),
            "service": "complaint_triage_v1",
            "entities": {"company": "Company", "state": "State"},
            "model_inputs": ["company_complaint_count", "company_relief_rate"],
        },
        "model": {
            "name": "small",
            "label_column": "Company response to consumer",
            "positive_values": [RELIEF],
            "text_column": "Consumer complaint narrative",
        },
        "evaluation": {"groups": [{"name": "Older American", "column": "Tags", "contains": "Older American"}]},
    }
    for section, replaced in changes.items():
        values[section] = values[section] | replaced
    return parse_recipe(values)


def delivery_recipe() -> Recipe:
    """A recipe of the second project: other columns, a label column called label, two keys, a zone in the times."""
    return parse_recipe(
        {
            "name": "parcels",
            "source": {
                "uri": "none",
                "time_column": "sent at",
                "time_formats": ["%Y-%m-%dT%H:%M:%S%z"],
                "key": ["depot", "number"],
            },
            "contract": {"path": "none"},
            "features": {
                "repo": str(ROOT / "tests" / "fakes" / "deliveries"),
                "service": "parcels_v3",
                "entities": {"carrier_code": "carrier", "origin": "from", "destination": "to"},
                "model_inputs": ["late_share", "route_uses"],
                "label_delay_days": 3,
            },
            "model": {"name": "parcels", "label_column": "label", "positive_values": ["late"]},
            "evaluation": {"embargo_days": 5},
        }
    )


def deliveries(count: int, seed: int = 0) -> pd.DataFrame:
    """Parcels as clean text, not in order of time; some sent at the same second."""
    draw = random.Random(seed)
    start = pd.Timestamp("2024-03-01T00:00:00+02:00")
    return pd.DataFrame(
        {
            "depot": draw.choice("AB"),
            "number": str(at),
            "sent at": (start + pd.Timedelta(hours=draw.randrange(24 * 90))).strftime("%Y-%m-%dT%H:%M:%S%z"),
            "carrier": draw.choice(["swift", "slow", "steady"]),
            "from": draw.choice(["Graz", "Wien"]),
            "to": draw.choice(["Graz", "Linz", "Wien"]),
            "label": draw.choice(["late", "on time", "on time"]),
        }
        for at in range(count)
    )


def clean_folder(folder: Path, frame: pd.DataFrame, passed: bool = True, after_outcome: tuple[str, ...] = ()) -> Path:
    """Publish a frame as validate does."""
    with publishing(folder) as staging:
        table = pa.table({name: pa.array(frame[name], pa.string()) for name in frame.columns})
        pq.write_table(table, staging / "clean.parquet")
        ContractVerdict(
            passed=passed,
            contract="small",
            version="1.0.0",
            contract_digest="c" * 64,
            snapshot_digest="5" * 64,
            rows=len(frame),
            clean=len(frame),
            quarantined=0,
            engine="none",
            checks=(),
            after_outcome=after_outcome,
            clean_digest=file_digest(staging / "clean.parquet"),
        ).write(staging)
    return folder


def seen_by_sql(frame: pd.DataFrame, recipe: Recipe) -> Rows:
    """The rows as history tables see them."""
    typed = typed_rows(frame, recipe)
    delay = recipe.features.label_delay_days
    return Rows(frame, typed, recipe.model.label_column, delay, recipe.source.time_formats)


def known_about(rows: Sequence[Complaint], name: str, value: str, at: float, delay: int) -> dict[str, float]:
    """What was known at day `at` about the company or state called `value`: every feature, NaN without history.

    A row with no delay is known just after its event, so that it does not see itself.
    """
    column, prefix = {"company": (1, "company"), "state": (2, "state")}[name]
    known = [(row[0] + (delay or 1e-6), row) for row in rows]
    own = [(when, row) for when, row in known if row[column] == value and value not in ("", "None") and when <= at]
    names = ["complaint_count", "relief_rate", "untimely_rate", *(["days_to_send"] if name == "company" else [])]
    if not own:
        return {f"{prefix}_{feature}": math.nan for feature in names}
    last = max(when for when, _ in own)
    all_then = [row for when, row in known if when <= last]
    relief_rate = (sum(row[3] for row in all_then) + 4.5) / (len(all_then) + 50)
    untimely_rate = (sum(row[4] for row in all_then) + 2.0) / (len(all_then) + 50)
    values = [
        float(len(own)),
        (sum(row[3] for _, row in own) + 10 * relief_rate) / (len(own) + 10),
        (sum(row[4] for _, row in own) + 10 * untimely_rate) / (len(own) + 10),
        sum(row[5] for _, row in own) / len(own),
    ]
    return {f"{prefix}_{feature}": value for feature, value in zip(names, values, strict=False)}
