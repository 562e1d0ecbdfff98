"""The complaint generator: what it promises about rows, signal, groups and planted faults."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipelines.generators import GENERATORS
from pipelines.generators.complaints import COLUMNS, generate, generate_with_truth
from pipelines.generators.faults import LEAKING, RESPONSE

DAY = pd.Timedelta(days=1)


@pytest.fixture(scope="module")
def standard() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The default rows and their truth."""
    return generate_with_truth()


def test_the_layout_is_the_bureau_s(standard: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """18 text columns in the bureau's order, 20,000 rows over 240 days, one a Complaint ID, no null."""
    frame, truth = standard
    assert tuple(frame.columns) == COLUMNS
    assert len(COLUMNS) == 18
    assert len(frame) == 20_000
    assert frame.map(type).eq(str).all().all()
    assert frame["Complaint ID"].is_unique
    received = pd.to_datetime(frame["Date received"], format="%m/%d/%y", utc=True)
    assert (received == truth["received"]).all()
    assert received.min() == pd.Timestamp("2025-01-01", tz="UTC")
    assert (received.max() - received.min()).days == 239
    assert GENERATORS["complaints"] is generate


def test_shares_and_volumes(standard: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """About 9 % positive, 300 companies with a few large ones, and 30 or more positives of each group at the end."""
    frame, truth = standard
    relieved = frame[RESPONSE].isin(["Closed with monetary relief", "Closed with non-monetary relief"])
    assert (relieved.astype(int) == truth["label"]).all()
    assert 0.08 < relieved.mean() < 0.10
    volumes = frame["Company"].value_counts(normalize=True)
    assert len(volumes) == 300
    assert volumes.iloc[:30].sum() > 0.5
    last = truth.sort_values("received", kind="stable").index[-4000:]
    for group in ("Older American", "Servicemember"):
        assert (relieved & frame["Tags"].str.contains(group))[last].sum() >= 30


def test_outcomes_and_late_rows(standard: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Every outcome comes 0 to 30 days after receipt, and some rows arrive days late, out of order."""
    _, truth = standard
    days = (truth["outcome"] - truth["received"]) / DAY
    assert days.between(0, 30).all()
    late = (truth["arrived"] - truth["received"]) / DAY
    assert 0.01 < (late > 2).mean() < 0.06
    assert truth["arrived"].is_monotonic_increasing
    assert not truth["received"].is_monotonic_increasing


def test_text_and_company_both_carry_signal(standard: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """A logistic regression on text and on a company's past finds each, both together more, and less than the truth."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    frame, truth = (part.sort_index() for part in standard)
    order = truth["received"].argsort(kind="stable")[:8000]
    frame, truth = frame.iloc[order], truth.iloc[order]
    fit, test = slice(0, 5500), slice(6400, 8000)
    label = truth["label"].to_numpy()
    past = frame["Company"][fit].to_frame().assign(label=label[fit]).groupby("Company")["label"].agg(["sum", "count"])
    rate = ((past["sum"] + 0.9) / (past["count"] + 10)).reindex(frame["Company"]).fillna(0.09).to_numpy()
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=3)
    seen = words.fit_transform(frame["Consumer complaint narrative"][fit])
    unseen = words.transform(frame["Consumer complaint narrative"][test])
    logit = csr_matrix(np.log(rate / (1 - rate))[:, None])
    text = LogisticRegression(max_iter=300).fit(seen, label[fit])
    both = LogisticRegression(max_iter=300).fit(hstack([seen, logit[fit]]), label[fit])
    auc = {
        "company": roc_auc_score(label[test], rate[test]),
        "text": roc_auc_score(label[test], text.predict_proba(unseen)[:, 1]),
        "both": roc_auc_score(label[test], both.predict_proba(hstack([unseen, logit[test]]))[:, 1]),
        "truth": roc_auc_score(label[test], truth["ideal"].to_numpy()[test]),
    }
    assert auc["company"] > 0.68, auc
    assert auc["text"] > 0.70, auc
    assert max(auc["company"], auc["text"]) + 0.02 < auc["both"] < auc["truth"], auc
    assert 0.88 < auc["truth"] < 0.96, auc


def test_drift_moves_only_later_rows() -> None:
    """Rows before the drift's first day stay, and later ones turn to other matters."""
    plain, truth = generate_with_truth(rows=3000)
    moved, _ = generate_with_truth(rows=3000, drift=0.8, drift_from="2025-05-01")
    before = (truth["received"] < "2025-05-01").to_numpy()
    plain, moved = plain.set_index("Complaint ID"), moved.set_index("Complaint ID")
    early = plain.index[before]
    pd.testing.assert_frame_equal(plain.loc[early], moved.loc[early])
    late = plain.index[~before]
    assert (plain.loc[late, "Issue"] != moved.loc[late, "Issue"]).mean() > 0.4
    assert "Problem with additional add-on products or services" in set(moved.loc[late, "Issue"])


def test_leak_tracks_the_label() -> None:
    """The leaking column tells the label nearly always, and nothing else changes."""
    plain, truth = generate_with_truth(rows=3000)
    leaking = generate(rows=3000, leak=1)
    pd.testing.assert_frame_equal(leaking.drop(columns=LEAKING), plain)
    agrees = (leaking[LEAKING] != "0.00").astype(int) == truth["label"]
    assert 0.9 < agrees.mean() < 1.0


def test_schema_breaks() -> None:
    """Columns are dropped or renamed, dates change format, a category changes its name."""
    broken = generate(rows=300, schema_break="drop:State,rename:Company>Firm,iso_dates,category")
    assert "State" not in broken
    assert "Company" not in broken
    assert "Firm" in broken
    assert broken["Date received"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    assert "Closed - explained" in set(broken[RESPONSE])


def test_as_of_leaves_out_what_had_not_arrived() -> None:
    """An early export lacks late rows and is otherwise the same."""
    full, truth = generate_with_truth(rows=3000)
    early = generate(rows=3000, as_of="2025-06-01")
    had = (truth["arrived"] < "2025-06-01").to_numpy()
    pd.testing.assert_frame_equal(early, full[had].reset_index(drop=True))
    assert ((truth["received"] < "2025-06-01").to_numpy() & ~had).any()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rows": 0}, "rows=0"),
        ({"seed": -1}, "seed=-1"),
        ({"drift": 1.5}, "drift=1.5"),
        ({"poison": float("nan")}, "poison=nan"),
        ({"leak": 2}, "leak=2"),
        ({"until": "soon"}, "until='soon'"),
        ({"schema_break": "drop:Nothing"}, "no column 'Nothing'"),
        ({"schema_break": "melt"}, "schema_break='melt'"),
    ],
)
def test_senseless_arguments_are_named(arguments: dict[str, object], named: str) -> None:
    """A ValueError names the argument."""
    with pytest.raises(ValueError, match=r"^[a-z_]+=") as raised:
        generate(**({"rows": 100} | arguments))  # type: ignore[arg-type]
    assert named in str(raised.value)
