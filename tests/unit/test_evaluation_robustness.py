"""Changed inputs, drift, memorisation, personal data and the use of test windows."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from components.core.errors import IntegrityError
from components.evaluation.attacks import changed, injected
from components.evaluation.drift import measure_drift, psi
from components.evaluation.memorisation import PROMPT, VERBATIM, measure_memorisation, sample_texts
from components.evaluation.metrics import exact_rate
from components.evaluation.personal_data import count_kinds, find_personal_data
from components.evaluation.robustness import Robustness, measure_robustness
from components.evaluation.windows import WindowsInHome, window_digest
from tests.fakes.judged import FEATURES, training_rows

LABELS = ("no", "yes")


class Shouting:
    """Says 0.9 to a text in capitals, 0.2 to any other, and NaN or an exception where the text asks for it."""

    def score(self, frame: pd.DataFrame) -> np.ndarray:
        """Scores by the text alone."""
        if frame["text"].str.contains("<yes>").any():
            raise RuntimeError("a token that is none")
        said = np.where(frame["text"].str.isupper(), 0.9, 0.2)
        return np.where(frame["text"].str.contains("MAYBE"), np.nan, said)


def measured(rows: int = 60, **changes: object) -> Robustness:
    """Robustness of `Shouting` on 100 rows."""
    frame = training_rows(100, 1)
    given = {"features": FEATURES, "reads_text": True, "labels": LABELS, "threshold": 0.5, "rows": rows}
    return measure_robustness(
        Shouting(),
        frame,
        np.full(100, 0.2),
        **(given | {"resamples": 50, "seed": 3} | changes),  # type: ignore[arg-type]
    )


def test_shifts_flips_and_invalid_answers_are_counted_by_kind_of_change() -> None:
    """Capitals move every row by 0.7 over the threshold, typos none; what answers NaN or raises is invalid, alone."""
    found = measured()
    upper, typos = found.shifts["upper_case"], found.shifts["typos"]
    assert (upper["mean_shift"].value, upper["flip_rate"].value) == (pytest.approx(0.7), 1.0)
    assert (upper["mean_shift"].low, upper["mean_shift"].high) == (pytest.approx(0.7), pytest.approx(0.7))
    assert (typos["mean_shift"].value, typos["p95_shift"].value, typos["flip_rate"].value) == (0.0, 0.0, 0.0)
    assert typos["flip_rate"].high == pytest.approx(1 - 0.025 ** (1 / 60))
    attempts = injected(training_rows(60, 1), LABELS, FEATURES)["text"]
    wrong = attempts.str.contains("<yes>") | attempts.str.contains("MAYBE")
    assert found.shifts["injection"]["invalid_rate"].positives == wrong.sum() == 5
    assert found.invalid_rate.positives == wrong.sum()
    assert found.invalid_rate.n == 7 * 60 + len(attempts)


def test_only_what_the_model_reads_is_changed() -> None:
    """No text, no change of text; no feature, no change of features; nothing asked, nothing claimed."""
    assert set(measured(reads_text=False).shifts) == {"shuffled_features", "missing_features"}
    assert set(measured(features=()).shifts) == {
        "typos", "upper_case", "truncated", "personal_data", "neutral_words", "injection",
    }  # fmt: skip
    for nothing in (measured(rows=0), measured(reads_text=False, features=())):
        assert (nothing.shifts, nothing.invalid_rate) == ({}, None)


def test_changes_are_what_they_are_called_and_come_of_the_seed() -> None:
    """Row order stays, features keep their values as a set, the same seed repeats, another does not."""
    sample = training_rows(40, 1)
    one, again, other = (changed(sample, FEATURES, True, seed) for seed in (1, 1, 2))
    assert all(one[name].equals(again[name]) for name in one)
    assert one["typos"]["text"].tolist() != other["typos"]["text"].tolist()
    assert (one["typos"]["text"] != sample["text"]).mean() > 0.5
    for name in FEATURES:
        assert sorted(one["shuffled_features"][name].fillna(-1)) == sorted(sample[name].fillna(-1))
        assert one["missing_features"][name].isna().all()
    assert (one["truncated"]["text"].str.len() == sample["text"].str.len() // 4).all()
    assert all((frame["row_id"] == sample["row_id"]).all() for frame in one.values())


def test_an_exact_rate_is_the_textbook_interval() -> None:
    """Equal to scipy's exact binomial interval, also at the ends."""
    for count, rows in ((0, 30), (3, 40), (40, 40)):
        theirs = binomtest(count, rows).proportion_ci(0.95, "exact")
        ours = exact_rate(count, rows)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert exact_rate(0, 0).value is None


def test_drift_is_seen_where_it_is_and_noise_is_told_beside_it() -> None:
    """A column moved by half a deviation, one that gains a category, one that loses its values; the rest is noise."""
    draw = np.random.default_rng(0)
    train = pd.DataFrame(
        {"still": draw.normal(size=4000), "moved": draw.normal(size=4000), "known": draw.normal(size=4000)}
    )
    test = pd.DataFrame({"still": draw.normal(size=2000), "moved": draw.normal(0.5, 1, 2000), "known": np.nan})
    train["who"], test["who"] = draw.choice(list("abc"), 4000), draw.choice(list("abcz"), 2000, p=[0.3, 0.3, 0.3, 0.1])
    scores = (draw.random(500), draw.random(2000))
    found = measure_drift(train, test, ["still", "moved", "known"], ["who"], scores)
    assert found["still"]["psi"] < 3 * found["still"]["noise"]
    assert found["score"]["psi"] < 3 * found["score"]["noise"]
    assert found["moved"]["psi"] > 0.2
    assert found["known"]["psi"] > 1
    assert found["who"]["new_share"] == pytest.approx((test["who"] == "z").mean())
    assert psi(np.array([50.0, 50.0]), np.array([25.0, 75.0])) == pytest.approx(0.25 * np.log(1.5) + 0.25 * np.log(2))
    assert measure_drift(train, test.iloc[:0], ["still"], ["who"], None) == {}


def test_the_noise_of_the_index_is_its_mean_where_nothing_drifts() -> None:
    """The average of many draws from one distribution lies within a fifth of what is told."""
    draw, seen, told = np.random.default_rng(1), [], []
    for _ in range(60):
        train, test = (pd.DataFrame({"x": draw.normal(size=size)}) for size in (1500, 700))
        found = measure_drift(train, test, ["x"], [], None)["x"]
        seen.append(found["psi"])
        told.append(found["noise"])
    assert np.mean(seen) == pytest.approx(np.mean(told), rel=0.2)


def traces(likely: np.ndarray, completed: float, seed: int) -> list[tuple[float, np.ndarray]]:
    """Texts of 30 tokens, a share of which the model would write itself."""
    draw = np.random.default_rng(seed)
    return [(float(value), np.full(30, draw.random() < completed)) for value in likely]


def test_memorisation_tells_texts_that_were_learnt_by_heart_from_those_that_were_not() -> None:
    """Likelier and completed word by word: both tests see it, beyond doubt; of equal sides neither does."""
    draw = np.random.default_rng(0)
    member, other = draw.normal(-2, 0.5, 200), draw.normal(-3, 0.5, 200)
    found = measure_memorisation(traces(member, 0.6, 1), traces(other, 0.0, 2), 200, 0)
    assert found["membership_auc"].low > 0.8  # type: ignore[operator]
    wins = np.mean(member[:, None] > other[None, :])
    assert found["membership_auc"].value == pytest.approx(wins)
    assert found["completion_rate_heldout"].value == 0.0
    assert found["completion_difference"].low > 0.4  # type: ignore[operator]
    same = measure_memorisation(traces(member, 0.2, 1), traces(draw.normal(-2, 0.5, 200), 0.2, 2), 200, 0)
    assert same["membership_auc"].low < 0.5 < same["membership_auc"].high  # type: ignore[operator]


def test_too_few_or_too_short_texts_say_nothing() -> None:
    """Under thirty texts on a side there is no figure; texts too short to complete have no completion rate."""
    assert measure_memorisation(traces(np.zeros(29), 0, 1), traces(np.zeros(90), 0, 2), 20, 0) == {}
    short = [(float(at), np.ones(PROMPT + VERBATIM - 1, bool)) for at in range(40)]
    found = measure_memorisation(short, short, 20, 0)
    assert found["completion_rate_train"].value is None
    assert found["membership_auc"].value == 0.5


def test_held_out_texts_are_those_that_no_training_row_holds() -> None:
    """Equal after normalisation is equal; empty texts are nobody's secret."""
    train = pd.DataFrame({"text": ["One thing", "another", "", None]})
    test = pd.DataFrame({"text": ["one thing", "fresh", "ANOTHER", "new"]})
    member, other = sample_texts(train, test, str.lower, 10, 0)
    assert member["text"].tolist() == ["One thing", "another"]
    assert other["text"].tolist() == ["fresh", "new"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to jane.roe+x@mail.example.com now", "email"),
        ("call (202) 555-0143", "phone"),
        ("+1 202-555-0143.", "phone"),
        ("ssn 123-45-6789", "social_security"),
        ("4111 1111 1111 1111", "card"),
        ("378282246310005", "card"),
    ],
)
def test_personal_data_is_found_by_kind(text: str, kind: str) -> None:
    """Each pattern finds its own and no other."""
    assert count_kinds(text) == dict.fromkeys(("email", "phone", "social_security", "card"), 0) | {kind: 1}


@pytest.mark.parametrize(
    "text",
    ["4111 1111 1111 1112", "0000000000000000", "0.4111111111111111", "e3b0c44298fc1c149afbf4c8996fb924", "1.5.0-12",
     "000-12-3456", "a@b", "2023-01-01", "<co_n=12>"],
)  # fmt: skip
def test_what_only_looks_like_personal_data_is_not_counted(text: str) -> None:
    """Wrong check digits, fractions, digests, dates and tokens."""
    assert sum(count_kinds(text).values()) == 0


def test_vocabulary_texts_and_heads_of_weights_are_read(tmp_path: Path) -> None:
    """A token, a merge, a text line and the metadata of safetensors; the signature's numbers are no card numbers."""
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"jane@example.com": 5}, "merges": [["call 202-555-0143", "x"]]}})
    )
    (tmp_path / "vocab.txt").write_text("fine\n123-45-6789\n")
    (tmp_path / "pilotline.json").write_text(json.dumps({"edges": [4111111111111111, 0.25]}))
    head = json.dumps({"__metadata__": {"by": "r@example.org"}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    assert find_personal_data(tmp_path) == {"email": 2, "phone": 1, "social_security": 1, "card": 0}


def test_a_window_counts_each_candidate_once_and_keeps_its_place(tmp_path: Path) -> None:
    """First, second, first again; another window begins anew; order of rows does not matter."""
    windows = WindowsInHome(tmp_path / "windows")
    one = ["a", "b"]
    assert window_digest(one) == window_digest(["b", "a"]) != window_digest(["a"])
    assert [windows.use(one, name) for name in ("x", "y", "x", "z")] == [1, 2, 1, 3]
    assert windows.use(["c", "d"], "y") == 1


def test_candidates_that_come_at_once_all_get_a_place(tmp_path: Path) -> None:
    """Twenty threads, twenty places."""
    places: list[int] = []

    def use(name: str) -> None:
        places.append(WindowsInHome(tmp_path).use(["w"], name))

    threads = [threading.Thread(target=use, args=(f"c{at}",)) for at in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(places) == list(range(1, 21))


def test_a_damaged_count_refuses(tmp_path: Path) -> None:
    """A file that is no list of candidates is never read as no use at all."""
    (tmp_path / f"{window_digest(['w'])}.json").write_text("{")
    with pytest.raises(IntegrityError, match="no list of candidates"):
        WindowsInHome(tmp_path).use(["w"], "c")


def test_a_row_less_or_more_makes_no_new_window(tmp_path: Path) -> None:
    """Windows that share half of their rows count together, in whatever order they come; others do not."""
    windows, rows = WindowsInHome(tmp_path), [f"r{at}" for at in range(100)]
    assert [windows.use(rows[cut:], name) for cut, name in enumerate("abc")] == [1, 2, 3]
    assert windows.use(rows[:10], "d") == 4  # a part of them
    assert windows.use(rows[50:] + [f"s{at}" for at in range(50)], "e") == 4  # half of them, none of d's
    assert windows.use(rows[60:] + [f"t{at}" for at in range(60)], "f") == 1  # too few with any
    assert windows.use([f"u{at}" for at in range(100)], "g") == 1
    assert windows.use(rows, "b") == 5  # known from a window of 99 of these rows: a, b, c, d and e
    assert windows.use(rows, "a") == 1
