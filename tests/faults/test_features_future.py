"""A planted feature that knows the future is refused before anything is published, or has no value."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from components.core.errors import UserError
from components.core.paths import PROJECT_ROOT
from components.features.featurise import featurise
from tests.fakes.feature_rows import clean_folder, complaint_recipe, complaints, many_complaints

ROWS = complaints(many_complaints(600, seed=3))
LATE = ("Timely response?", "Date sent to company", "Company response to consumer")
REST = """, 0.1 AS company_untimely_rate, 1.0 AS company_days_to_send"""
PLANTED = {
    "outcomes counted at receipt": f"""
        SELECT "Company" AS company, event_timestamp, event_timestamp AS created_timestamp,
            sum(count(*)) OVER w AS company_complaint_count,
            sum(sum(CAST("Timely response?" = 'No' AS INTEGER))) OVER w AS company_relief_rate {REST}
        FROM rows GROUP BY "Company", event_timestamp
        WINDOW w AS (PARTITION BY "Company" ORDER BY event_timestamp)""",
    "a whole month counted at its start": f"""
        SELECT "Company" AS company, date_trunc('month', known_timestamp) AS event_timestamp,
            date_trunc('month', known_timestamp) AS created_timestamp,
            count(*) AS company_complaint_count,
            sum(CAST("Timely response?" = 'No' AS INTEGER)) AS company_relief_rate {REST}
        FROM rows GROUP BY ALL""",
    "the next outcomes, only after the last event": f"""
        SELECT company, moment AS event_timestamp, moment AS created_timestamp, one AS company_complaint_count,
            CASE WHEN moment > (SELECT max(event_timestamp) FROM rows)
                 THEN sum(relieved) OVER (PARTITION BY company ORDER BY moment ROWS BETWEEN 1 FOLLOWING AND 5 FOLLOWING)
                 ELSE relieved END AS company_relief_rate {REST}
        FROM (SELECT "Company" AS company, known_timestamp AS moment, count(*) AS one, sum(label) AS relieved
              FROM rows GROUP BY ALL)""",
    "the label of the row itself": f"""
        SELECT "Company" AS company, event_timestamp, event_timestamp AS created_timestamp,
            count(*) AS company_complaint_count, avg(label) AS company_relief_rate {REST}
        FROM rows GROUP BY "Company", event_timestamp""",
    "the label, in one early month": f"""
        SELECT "Company" AS company, event_timestamp, event_timestamp AS created_timestamp,
            count(*) AS company_complaint_count, avg(label) AS company_relief_rate {REST}
        FROM rows WHERE event_timestamp < TIMESTAMP '2023-03-01' GROUP BY "Company", event_timestamp""",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_future_is_refused(name: str, tmp_path: Path) -> None:
    """The line names the SQL file; nothing is published."""
    repo = tmp_path / "repo"
    shutil.copytree(PROJECT_ROOT / "feature_repo" / "complaints", repo)
    (repo / "company_history.sql").write_text(PLANTED[name])
    clean = clean_folder(tmp_path / "clean", ROWS, after_outcome=LATE)
    with pytest.raises(UserError, match=r"company_history\.sql: looks ahead"):
        featurise(complaint_recipe(features={"repo": str(repo)}), clean, tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_the_shipped_features_do_not_look_ahead(tmp_path: Path) -> None:
    """With the same columns hidden the shipped project, windows included, is published."""
    clean = clean_folder(tmp_path / "clean", ROWS.assign(Product="loan"), after_outcome=LATE)
    inputs = ["company_relief_rate", "company_relief_rate_30d", "company_days_to_send_90d"]
    recipe = complaint_recipe(features={"service": "complaint_triage_v2", "model_inputs": inputs})
    record = featurise(recipe, clean, tmp_path / "set")
    assert pd.read_parquet(tmp_path / "set" / "test.parquet")["company_relief_rate_30d"].notna().mean() > 0.5
    assert record.skew == 0.0


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        (
            "features",
            {"request": {"said": "Company response to consumer"}},
            "features.request.said: 'Company response to consumer' is the label's column",
        ),
        (
            "features",
            {"request": {"late": "Timely response?"}},
            "features.request.late: 'Timely response.' is known only",
        ),
        (
            "features",
            {"entities": {"company": "Company", "state": "Timely response?"}},
            "features.entities.state: 'Timely",
        ),
        ("features", {"model_inputs": ["Timely response?"]}, r"features.model_inputs\[0\]: 'Timely"),
        ("model", {"text_column": "Company response to consumer"}, "model.text_column: .* is the label's column"),
    ],
)
def test_no_input_is_the_outcome_or_known_with_it(
    tmp_path: Path, section: str, changes: dict[str, object], words: str
) -> None:
    """A request does not carry what the contract declares to be known after the outcome; one line names where."""
    clean = clean_folder(tmp_path / "clean", ROWS, after_outcome=LATE)
    with pytest.raises(UserError, match=words) as refused:
        featurise(complaint_recipe(**{section: changes}), clean, tmp_path / "set")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "set").exists()
