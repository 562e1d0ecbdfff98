"""The world behind generated complaints: companies, states, and the random choices of a number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from pipelines.generators.wording import (
    CLOSINGS,
    COMPANIES,
    OPENINGS,
    PUBLIC_RESPONSE_SHARES,
    REMARKS,
    SLOTS,
    STATES,
    SUB_PRODUCT_SHARES,
    TAG_SHARES,
    THEMES,
)

POSITIVE_RATE = 0.09
COMPANY_DEVIATION = 1.85  # of the propensities, on the logit scale
STATE_DEVIATION = 0.15
PILOT_ROWS = 4000  # fixed sample that sets the intercept
DRAWS = 64  # uniforms a row uses for its wording


@dataclass(frozen=True)
class World:
    """What all days of a seed share."""

    seed: int
    volumes: np.ndarray  # (companies,) shares, Zipf
    propensities: np.ndarray  # (companies,) on the logit scale
    slowness: np.ndarray  # (companies,) share of untimely responses
    state_shares: np.ndarray  # (states,)
    state_effects: np.ndarray  # (states,)
    intercept: float


@cache
def world_of(seed: int) -> World:
    """The world of a seed."""
    stream = np.random.default_rng([seed, 0])
    companies, states = len(COMPANIES), len(STATES)
    volumes = 1 / np.arange(1, companies + 1)
    state_shares = 1 / np.arange(1, states + 1) ** 0.7
    parts = {
        "seed": seed,
        "volumes": stream.permutation(volumes / volumes.sum()),
        "propensities": stream.normal(0.0, COMPANY_DEVIATION, companies),
        "slowness": stream.beta(1, 20, companies),
        "state_shares": state_shares / state_shares.sum(),
        "state_effects": stream.normal(0.0, STATE_DEVIATION, states),
    }
    pilot = Drawn(World(**parts, intercept=0.0), np.random.default_rng([seed, 1]), PILOT_ROWS, 0.0)
    return World(**parts, intercept=_intercept(pilot.logits()))


def _intercept(logits: np.ndarray) -> float:
    """The shift that gives the wanted positive rate, by bisection."""
    low, high = -20.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).mean() < POSITIVE_RATE else (low, middle)
    return low


class Drawn:
    """The random choices behind a number of rows."""

    def __init__(self, world: World, stream: np.random.Generator, rows: int, drift: float) -> None:
        self.world = world
        choice = stream.random((rows, 8))
        self.drifted = stream.random(rows) < drift
        usual = _pick(choice[:, 0], [theme.share for theme in THEMES])
        moved = _pick(choice[:, 0], [theme.drifted_share for theme in THEMES])
        self.themes = np.where(self.drifted, moved, usual)
        self.companies = np.where(
            self.drifted, _pick(choice[:, 1], world.volumes[::-1]), _pick(choice[:, 1], world.volumes)
        )
        self.states = np.where(
            self.drifted, _pick(choice[:, 2], world.state_shares[::-1]), _pick(choice[:, 2], world.state_shares)
        )
        self.sub_products = _pick(choice[:, 3], SUB_PRODUCT_SHARES)
        self.public_responses = _pick(choice[:, 4], PUBLIC_RESPONSE_SHARES)
        self.tags = _pick(choice[:, 5], TAG_SHARES)
        self.remark_counts = 1 + (choice[:, 6] * 4).astype(int)  # 1 to 4
        self.zip_codes = 10000 + (choice[:, 7] * 90000).astype(int)
        self.remarks = np.argsort(stream.random((rows, len(REMARKS))), axis=1)[:, :4]  # (rows, 4), without repetition
        self.wording = stream.random((rows, DRAWS))
        self.luck = stream.random((rows, 7))

    def logits(self) -> np.ndarray:
        """Logit of relief of each row, (rows,)."""
        theme_weights = np.array([theme.weight for theme in THEMES])[self.themes]
        weights = np.array([remark.weight for remark in REMARKS])[self.remarks]  # (rows, 4)
        said = np.arange(weights.shape[1]) < self.remark_counts[:, None]
        world = self.world
        effects = world.propensities[self.companies] + world.state_effects[self.states]
        logits: np.ndarray = world.intercept + effects + theme_weights + (weights * said).sum(axis=1)
        return logits

    def narrative(self, row: int) -> str:
        """The text of one row."""
        draws = iter(self.wording[row])
        theme = THEMES[self.themes[row]]
        body = [_one(theme.sentences, next(draws))]
        body += [REMARKS[index].sentence for index in self.remarks[row][: self.remark_counts[row]]]
        if next(draws) < 0.4:
            body.append(_one(theme.sentences, next(draws)))
        keys = [next(draws) for _ in body]
        body = [sentence for _, sentence in sorted(zip(keys, body, strict=True))]
        parts = [_one(OPENINGS, next(draws)), *body, _one(CLOSINGS, next(draws))]
        return " ".join(_fill(part, draws) + " ." for part in parts if part)


def _pick(uniforms: np.ndarray, shares: np.ndarray | tuple[float, ...] | list[float]) -> np.ndarray:
    """Indices drawn with the given shares from uniforms, (rows,)."""
    edges = np.cumsum(np.asarray(shares, dtype=float))
    picked: np.ndarray = np.searchsorted(edges / edges[-1], uniforms, side="right")
    return picked


def _one(options: tuple[str, ...], uniform: float) -> str:
    return options[int(uniform * len(options))]


def _fill(sentence: str, draws: Iterator[float]) -> str:
    """Put words into the slots of a sentence."""
    if "{" not in sentence:
        return sentence
    words = {name: _one(options, next(draws)) for name, options in SLOTS.items()}
    return sentence.format(amount=f"{{${20 + 10 * int(next(draws) * 90)}.00}}", **words)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits."""
    probabilities: np.ndarray = 1 / (1 + np.exp(-logits))
    return probabilities
