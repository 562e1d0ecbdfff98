"""Scores of rows with exactly given features through the router: the golden set's path, past the online store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from components.core.errors import PilotlineError
from components.core.protocols import Served
from components.models.spec import Renderer
from components.serving.replica import ReplicaSpec
from components.serving.scoring import ARM_HEADER, COMPLETIONS, InvalidAnswerError, label_logprobs, scoring_request

AT_ONCE = 4

Row = Mapping[str, object]


class Scored(Protocol):
    """What is known of a replica, wherever it runs, to ask it for a score."""

    @property
    def spec(self) -> ReplicaSpec:
        """What it serves, and as which arm."""
        ...

    @property
    def renderer(self) -> Renderer:
        """Makes its prompts."""
        ...

    @property
    def served(self) -> Served:
        """Its record."""
        ...


def score_rows(replica: Scored, router_url: str, rows: Sequence[Row], timeout_seconds: float) -> list[float | None]:
    """One calibrated score a row, None where the arm failed.

    Args:
        rows: mappings with "features" (name → value) and "text".
    """
    import httpx

    headers = {ARM_HEADER: replica.spec.arm}
    with (
        httpx.Client(base_url=router_url, timeout=timeout_seconds, headers=headers, trust_env=False) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        return list(pool.map(lambda row: _score(client, replica, row), rows))


def _score(client: Any, replica: Scored, row: Row) -> float | None:
    import httpx

    features: Any = row["features"]
    ids = replica.renderer.token_ids(features, str(row.get("text") or ""))
    name, labels = replica.served.served_name, replica.renderer.label_token_ids
    try:
        answer = client.post(COMPLETIONS, json=scoring_request(name, ids, labels))
        answer.raise_for_status()
        return replica.renderer.score(*label_logprobs(answer.json(), name, labels))
    except (httpx.HTTPError, InvalidAnswerError, ValueError, PilotlineError):
        return None
