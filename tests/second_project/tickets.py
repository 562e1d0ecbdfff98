"""Seeded support tickets as JSON lines: ISO times with zone, other names, a true/false label."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

TEAMS = [f"team-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
TIERS = ["free", "pro", "enterprise"]
CALM = ["how do i export my data", "please change my billing address", "the colours look odd on my phone", "thanks"]
HOT = ["production is down", "we lost data", "this is the third time", "our customers cannot log in", "i want a refund"]


def write_tickets(path: Path, rows: int = 4000, seed: int = 3) -> Path:
    """Write `rows` tickets over 120 days; team and wording carry the signal, about one in five is escalated."""
    rng = np.random.default_rng(seed)
    lean = rng.normal(0, 1.2, len(TEAMS))
    began = datetime(2026, 1, 5, 8, tzinfo=UTC)
    minutes = np.sort(rng.integers(0, 120 * 24 * 60, rows))
    with path.open("w", encoding="utf-8") as stream:
        for number, minute in enumerate(minutes):
            team = int(rng.integers(len(TEAMS)))
            hot = int(rng.binomial(3, 0.3))
            words = [*rng.choice(HOT, hot, replace=False), *rng.choice(CALM, 3 - hot, replace=False)]
            chance = 1 / (1 + math.exp(-(lean[team] + 1.3 * hot - 3.0)))
            ticket = {
                "ticket_no": f"T{number:06d}",
                "opened": (began + timedelta(minutes=int(minute))).isoformat(),
                "team": TEAMS[team],
                "customer_tier": TIERS[int(rng.choice(3, p=[0.6, 0.3, 0.1]))],
                "body": ". ".join(words),
                "escalated": bool(rng.random() < chance),
            }
            stream.write(json.dumps(ticket) + "\n")
    return path
