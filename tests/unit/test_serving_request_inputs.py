"""What a request carries beside entities and text reaches the features, as the recipe names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from components.serving.scoring_service import ServiceConfig, create_app
from tests.fakes.serving_case import FixedFeatures, tiny_recipe


class Watching(FixedFeatures):
    """Keeps what it was asked with."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Any]] = []

    def read(self, entities: Mapping[str, str], request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """As the fixed ones."""
        self.seen.append(request)
        return super().read(entities, request)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[TestClient, Watching]]:
    """The application with no arm: nothing can answer, but features are read."""
    recipe = tiny_recipe(features={"request": {"product": "Product", "amount": "Amount"}}).to_json()
    paths = [str(tmp_path / name) for name in ("state.json", "decisions.db", "set")]
    features = Watching()
    config = ServiceConfig("i", "run-1", 0, "http://127.0.0.1:1", *paths, recipe)
    with TestClient(create_app(config, features)) as client:
        yield client, features


def test_inputs_reach_the_features(service: tuple[TestClient, Watching]) -> None:
    """Named ones as texts, "" where absent; the time with its zone, absent where the caller gave none."""
    client, features = service
    given = {"text": "t", "product": "card", "event_timestamp": "2026-03-01T10:00:00.5+02:00"}
    for body in (given, {}):
        assert client.post("/v1/decisions", json={"entities": {"shop": "s"}, "input": body}).status_code == 503
    time = datetime(2026, 3, 1, 8, 0, 0, 500_000, tzinfo=UTC)
    full = {"text": "t", "product": "card", "amount": "", "event_timestamp": time}
    assert features.seen == [full, {"text": "", "product": "", "amount": ""}]


@pytest.mark.parametrize(
    "given",
    [
        {"products": "card"},
        {"product": 3},
        {"event_timestamp": "2026-03-01T10:00:00"},
        {"event_timestamp": "2026-02-30T10:00:00Z"},
        {"event_timestamp": "9999-12-31T23:59:59-10:00"},
        {"event_timestamp": 1772359200},
        {"product": "x" * 50_001},
    ],
)
def test_an_input_that_does_not_fit_is_refused(service: tuple[TestClient, Watching], given: dict[str, Any]) -> None:
    """422, and no feature is read."""
    client, features = service
    assert client.post("/v1/decisions", json={"entities": {"shop": "s"}, "input": given}).status_code == 422
    assert features.seen == []


def test_the_schema_names_them(service: tuple[TestClient, Watching]) -> None:
    """OpenAPI lists the recipe's inputs beside text and time."""
    client, _ = service
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["Input"]["properties"]) == {"text", "event_timestamp", "product", "amount"}
