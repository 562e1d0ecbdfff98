"""Changed and hostile inputs, made of test rows and a seed: what users do by accident, and on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

CORPUS = Path(__file__).parent / "injection.json"
TYPO_SHARE = 0.1  # of the words, at least one
KEPT_SHARE = 0.25  # of a truncated text
MOST_BYTES = 1 << 20
PERSONAL = (  # made up: reserved domain, reserved phone numbers, the test number of card networks
    "jane.roe@example.com called from (202) 555-0143 about 123-45-6789 and card 4111 1111 1111 1111.",
    "write to r.miles@example.org or 415-555-0199, my number is 987-65-4321, card 5555-5555-5555-4444.",
)
NEUTRAL = (
    "the weather was mild that week and the road to the town was open until noon on most days.",
    "a short walk along the river leads past two mills and an old bridge with a wooden rail.",
)

Draw = np.random.Generator


def changed(sample: pd.DataFrame, features: Sequence[str], reads_text: bool, seed: int) -> dict[str, pd.DataFrame]:
    """The sample once for each kind of change, rows in the same order.

    Args:
        sample: rows with `text` and the features.
        features: those that the model reads; none leaves the changes of features out.
        reads_text: whether the model does; else the changes of text are left out.
        seed: the same seed, the same changes.
    """
    made = {}
    if reads_text:
        texts = ["" if text is None else str(text) for text in sample["text"]]
        for at, (name, change) in enumerate(TEXT_CHANGES.items()):
            draw = np.random.default_rng([seed, at])
            made[name] = sample.assign(text=[change(text, draw) for text in texts])
    if features:
        draw = np.random.default_rng([seed, len(TEXT_CHANGES)])
        shuffled = {name: sample[name].to_numpy()[draw.permutation(len(sample))] for name in features}
        made["shuffled_features"] = sample.assign(**shuffled)
        made["missing_features"] = sample.assign(**dict.fromkeys(features, np.nan))
    return made


def injected(sample: pd.DataFrame, labels: Sequence[str], features: Sequence[str]) -> pd.DataFrame:
    """One row for each attempt of the corpus, made of the sample's rows in turn; its index is the sample's position."""
    attempts = json.loads(CORPUS.read_text(encoding="utf-8"))["attempts"]
    rows = np.arange(len(attempts)) % len(sample)
    texts = []
    for attempt, text in zip(attempts, sample["text"].iloc[rows], strict=True):
        planted = hostile_text(attempt, labels, features)
        parts = {"before": [planted, str(text or "")], "after": [str(text or ""), planted], "instead": [planted]}
        texts.append(" ".join(parts[attempt["place"]]))
    return sample.iloc[rows].assign(text=texts).set_axis(rows)


def hostile_text(attempt: dict[str, str | int], labels: Sequence[str], features: Sequence[str]) -> str:
    """The text of an attempt with the labels and a feature's name put in, repeated to its size where it has one."""
    text = str(attempt["text"])
    named = {"{positive}": labels[1], "{negative}": labels[0], "{feature}": features[0] if features else "feature"}
    for place, name in named.items():
        text = text.replace(place, name)
    if size := min(int(attempt.get("bytes", 0)), MOST_BYTES):
        text *= -(-size // len(text.encode("utf-8", "surrogatepass")))
    return text


def _typos(text: str, draw: Draw) -> str:
    """Swap, drop or double a letter in a share of the words."""
    words = text.split(" ")
    for at in draw.choice(len(words), max(1, round(len(words) * TYPO_SHARE)), replace=False):
        word = words[at]
        if len(word) < 2:
            continue
        place = int(draw.integers(0, len(word) - 1))
        head, pair, tail = word[:place], word[place : place + 2], word[place + 2 :]
        words[at] = head + (pair[::-1], pair[:1], pair[:1] + pair)[int(draw.integers(0, 3))] + tail
    return " ".join(words)


def _upper(text: str, _draw: Draw) -> str:
    return text.upper()


def _truncated(text: str, _draw: Draw) -> str:
    return text[: int(len(text) * KEPT_SHARE)]


def _personal(text: str, draw: Draw) -> str:
    return f"{PERSONAL[int(draw.integers(0, len(PERSONAL)))]} {text}"


def _neutral(text: str, draw: Draw) -> str:
    """As many words as `_personal` puts there, about nothing: what is pushed out of the model's view has a cost too."""
    return f"{NEUTRAL[int(draw.integers(0, len(NEUTRAL)))]} {text}"


TEXT_CHANGES: dict[str, Callable[[str, Draw], str]] = {
    "typos": _typos,
    "upper_case": _upper,
    "truncated": _truncated,
    "personal_data": _personal,
    "neutral_words": _neutral,
}
