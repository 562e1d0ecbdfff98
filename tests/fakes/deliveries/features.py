"""A feature project of another kind: parcels, with a view on two join keys and late records."""

from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, ValueType
from feast.types import Float64

project = "deliveries"


def definitions(source, ttl: timedelta):
    """A carrier's lateness and how often a route was used."""
    carrier = Entity(name="carrier", join_keys=["carrier_code"], value_type=ValueType.STRING)
    origin = Entity(name="origin", join_keys=["origin"], value_type=ValueType.STRING)
    destination = Entity(name="destination", join_keys=["destination"], value_type=ValueType.STRING)
    lateness = FeatureView(
        name="carrier_lateness",
        entities=[carrier],
        ttl=ttl,
        source=source("lateness"),
        schema=[Field(name="late_share", dtype=Float64), Field(name="parcels", dtype=Float64)],
    )
    routes = FeatureView(
        name="routes",
        entities=[origin, destination],
        ttl=ttl,
        source=source("routes"),
        schema=[Field(name="route_uses", dtype=Float64)],
    )
    service = FeatureService(name="parcels_v3", features=[routes, lateness[["late_share"]]])
    return [carrier, origin, destination, lateness, routes, service]
