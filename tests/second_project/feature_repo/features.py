"""Features of ticket triage: what was known about a team when a ticket was opened."""

from collections.abc import Callable
from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, ValueType
from feast.data_source import DataSource
from feast.types import Float64

project = "tickets"


def definitions(source: Callable[[str], DataSource], ttl: timedelta) -> list[Entity | FeatureView | FeatureService]:
    """One entity, one view, one service."""
    team = Entity(name="squad", join_keys=["squad"], value_type=ValueType.STRING, description="The team asked.")
    past = FeatureView(
        name="squad_past",
        entities=[team],
        ttl=ttl,
        source=source("squad_past"),
        schema=[Field(name="squad_tickets", dtype=Float64), Field(name="squad_escalation_rate", dtype=Float64)],
    )
    return [team, past, FeatureService(name="ticket_triage_v3", features=[past])]
