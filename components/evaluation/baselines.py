"""Plain models on the same rows, so that a score has something to be compared with (scikit-learn)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from components.core.engine_time import engine_time
from components.core.errors import PolicyRefusal, UserError
from components.evaluation.metrics import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MAX_TRAINING_ROWS = 20_000  # the newest: a baseline is a yardstick, not a product
MAX_TEXT_CHARACTERS = 1_000
MAX_WORDS = 20_000
MIN_DOCUMENTS = 3
FEATURE_WEIGHT = 0.5  # of a standardised feature beside TF-IDF columns of unit length


def score_baselines(
    names: Sequence[str],
    train: pd.DataFrame,
    test: pd.DataFrame,
    features: Sequence[str],
    normalise: Callable[[str], str],
) -> dict[str, Floats]:
    """Train each baseline on the training rows and score the test rows.

    Args:
        names: of KNOWN.
        train: rows with `label`, `text` and the features, oldest first; the newest MAX_TRAINING_ROWS are used.
        test: rows to score.
        features: feature columns (float64, NaN = no history).
        normalise: the text normalisation of the model's own family.

    Returns:
        Probabilities of the positive label by name. A baseline that has no input (no text, no feature) is left out.

    Raises:
        UserError: a name is unknown. PolicyRefusal: the training rows hold one label only.
    """
    from threadpoolctl import threadpool_limits

    if unknown := [name for name in names if name not in KNOWN]:
        raise UserError(f"evaluation.baselines: {unknown[0]!r} is not known; choose from {', '.join(sorted(KNOWN))}")
    train = train.tail(MAX_TRAINING_ROWS)
    labels = train["label"].to_numpy(np.float64)
    if len(np.unique(labels)) != 2:
        raise PolicyRefusal("the training split holds one label only: no baseline can be trained; widen the interval")
    inputs = Inputs(train, test, features, normalise)
    # Small fits: threads that wait for each other cost more than they bring.
    with engine_time("scikit-learn"), threadpool_limits(1):
        scores = {name: KNOWN[name](inputs, labels) for name in names}
    return {name: score for name, score in scores.items() if score is not None}


class Inputs:
    """Design matrices of training and test rows, each made once and only where it is asked for."""

    def __init__(
        self, train: pd.DataFrame, test: pd.DataFrame, features: Sequence[str], normalise: Callable[[str], str]
    ) -> None:
        self._frames = (train, test)
        self._normalise = normalise
        self._made: dict[str, tuple[csr_matrix, csr_matrix] | None] = {}
        known = [name for name in features if train[name].notna().any()]  # else there is nothing to learn from
        self.raw = tuple(frame[known].to_numpy(np.float64) for frame in self._frames)
        self.test_rows = len(test)

    def features(self) -> tuple[csr_matrix, csr_matrix] | None:
        """Each feature as its rank among the training rows (normal scores) and a flag for no history."""
        return self._once("features", self._rank_features)

    def text(self) -> tuple[csr_matrix, csr_matrix] | None:
        """TF-IDF of words and word pairs; None where the training rows have no text."""
        return self._once("text", self._weigh_words)

    def both(self) -> tuple[csr_matrix, csr_matrix] | None:
        """Text and features side by side; what is there where one is missing."""
        from scipy.sparse import hstack

        text, features = self.text(), self.features()
        if text is None or features is None:
            return text or features
        train, test = (hstack([w, f * FEATURE_WEIGHT]).tocsr() for w, f in zip(text, features, strict=True))
        return train, test

    def _once(self, name: str, make: Callable[[], tuple[csr_matrix, csr_matrix] | None]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _rank_features(self) -> tuple[csr_matrix, csr_matrix] | None:
        from scipy.sparse import csr_matrix
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import QuantileTransformer

        train, test = self.raw
        if not train.shape[1]:
            return None
        quantiles = QuantileTransformer(n_quantiles=min(200, len(train)), output_distribution="normal", random_state=0)
        ranks = make_pipeline(SimpleImputer(strategy="median"), quantiles).fit(train)
        return csr_matrix(_with_gaps(ranks, train)), csr_matrix(_with_gaps(ranks, test))

    def _weigh_words(self) -> tuple[csr_matrix, csr_matrix] | None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        train, test = ([self._plain(text) for text in frame["text"]] for frame in self._frames)
        words = TfidfVectorizer(
            ngram_range=(1, 2), min_df=min(MIN_DOCUMENTS, len(train)), max_features=MAX_WORDS, sublinear_tf=True,
            lowercase=False, dtype=np.float64, token_pattern=r"\S+",  # noqa: S106 - a pattern for words
        )  # fmt: skip
        try:
            return words.fit_transform(train), words.transform(test)
        except ValueError:  # scikit-learn's way to say that no word is left
            return None

    def _plain(self, text: object) -> str:
        return self._normalise(text[:MAX_TEXT_CHARACTERS]) if isinstance(text, str) else ""


def _with_gaps(ranks: Any, values: Floats) -> Floats:
    """Ranks clipped to what a normal sample shows, then one flag a feature for no history."""
    return np.hstack([np.clip(ranks.transform(values), -3, 3), np.isnan(values).astype(np.float64)])


def _prior(inputs: Inputs, labels: Floats) -> Floats | None:
    return np.full(inputs.test_rows, labels.mean())


def _logistic(pair: tuple[csr_matrix, csr_matrix] | None, labels: Floats) -> Floats | None:
    from sklearn.linear_model import LogisticRegression

    if pair is None:
        return None
    model = LogisticRegression(C=3.0, max_iter=1000, tol=1e-4).fit(pair[0], labels)
    scores: Floats = model.predict_proba(pair[1])[:, 1]
    return scores


def _boosting(inputs: Inputs, labels: Floats) -> Floats | None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, test = inputs.raw
    if not train.shape[1]:
        return None
    model = HistGradientBoostingClassifier(
        max_iter=80, learning_rate=0.05, max_leaf_nodes=8, min_samples_leaf=30, l2_regularization=5.0,
        early_stopping=False, random_state=0,
    ).fit(train, labels)  # fmt: skip
    scores: Floats = model.predict_proba(test)[:, 1]
    return scores


KNOWN: dict[str, Callable[[Inputs, Floats], Floats | None]] = {
    "prior": _prior,
    "logistic_regression": lambda inputs, labels: _logistic(inputs.both(), labels),
    "feature_logistic_regression": lambda inputs, labels: _logistic(inputs.features(), labels),
    "text_logistic_regression": lambda inputs, labels: _logistic(inputs.text(), labels),
    "gradient_boosting": _boosting,
}
