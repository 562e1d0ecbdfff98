"""Features of complaint triage: what was known about a company and a state when a complaint was received.

An outcome (response, timeliness, days to be sent) counts as known `label_delay_days` after the complaint was received.
Rates are smoothed towards the rate over all complaints known at that moment; no history gives no value.
See components/features/repository.py for the convention that this file follows.
"""

from collections.abc import Callable
from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, OnDemandFeatureView, ValueType
from feast.data_source import DataSource
from feast.types import Float64

project = "complaints"
OWNER = "complaint-triage"
WINDOWS = (7, 30, 90, 365)


def definitions(
    source: Callable[[str], DataSource], ttl: timedelta, request: Callable[..., OnDemandFeatureView]
) -> list[Entity | FeatureView | OnDemandFeatureView | FeatureService]:
    """Entities, feature views and the feature services.

    Args:
        source: gives the data source of a history table, made by the SQL file of that name.
        ttl: how long a value lives; 0 for ever.
        request: gives the on-demand view that the function of its name in on_demand.py computes.
    """
    company = _entity("company", "The company complained about, by its name in the export.")
    state = _entity("state", "The consumer's state, as a two-letter code.")
    company_history = FeatureView(
        name="company_history",
        entities=[company],
        ttl=ttl,
        source=source("company_history"),
        schema=[
            _feature("company_complaint_count", "complaints", "Complaints whose outcome is known."),
            _feature("company_relief_rate", "share", "Share closed with relief, with 10 pseudo-complaints."),
            _feature("company_untimely_rate", "share", "Share answered late, with 10 pseudo-complaints."),
            _feature("company_days_to_send", "days", "Mean days until a complaint was sent to the company."),
        ],
        description="What is known about a company's complaints.",
        owner=OWNER,
        tags={"grain": "one row a company and day on which an outcome became known"},
    )
    state_history = FeatureView(
        name="state_history",
        entities=[state],
        ttl=ttl,
        source=source("state_history"),
        schema=[
            _feature("state_complaint_count", "complaints", "Complaints whose outcome is known."),
            _feature("state_relief_rate", "share", "Share closed with relief, with 10 pseudo-complaints."),
            _feature("state_untimely_rate", "share", "Share answered late, with 10 pseudo-complaints."),
        ],
        description="What is known about the complaints from a state.",
        owner=OWNER,
        tags={"grain": "one row a state and day on which an outcome became known"},
    )
    company_windows = FeatureView(
        name="company_windows",
        entities=[company],
        ttl=ttl,
        source=source("company_windows"),
        schema=[
            *(field for days in WINDOWS for field in _window("company", days)),
            *(_feature(f"company_days_to_send_{days}d", "days", f"Mean, last {days} days.") for days in WINDOWS),
            _feature("company_products_365d", "products", "Products complained about in the last 365 days."),
            _feature(
                "company_product_concentration_365d",
                "share",
                "Herfindahl's index of the products of the last 365 days: 1 where there is one product.",
            ),
        ],
        description="What became known about a company's complaints in the last days.",
        owner=OWNER,
        tags={"grain": "one row a company and moment at which a window changes"},
    )
    state_windows = FeatureView(
        name="state_windows",
        entities=[state],
        ttl=ttl,
        source=source("state_windows"),
        schema=[field for days in WINDOWS for field in _window("state", days)],
        description="What became known about the complaints from a state in the last days.",
        owner=OWNER,
        tags={"grain": "one row a state and moment at which a window changes"},
    )
    complaint_request = request(
        "complaint_request",
        [
            _feature("narrative_words", "words", "Words of the narrative; none where there is no narrative."),
            _feature("narrative_masked_share", "share", "Share of the narrative's words that the publisher masked."),
            _feature("narrative_digit_share", "share", "Share of the narrative's characters that are digits."),
            _feature("received_weekday", "days since Monday", "Weekday on which the complaint was received, 0 to 6."),
        ],
        description="What the complaint itself says, as it is received.",
        owner=OWNER,
        tags={"grain": "one request"},
    )
    views: dict[str, list[FeatureView | OnDemandFeatureView]] = {"v1": [company_history, state_history]}
    views["v2"] = [*views["v1"], company_windows, state_windows, complaint_request]
    services = [
        FeatureService(
            name=f"complaint_triage_{version}",
            features=used,
            description=f"Features for deciding whether a complaint will close with relief: {what}.",
            owner=OWNER,
            tags={"label": "closed with monetary or non-monetary relief"},
        )
        for (version, used), what in zip(
            views.items(), ("totals", "totals, trailing windows, the complaint itself"), strict=True
        )
    ]
    return [company, state, *views["v2"], *services]


def _window(entity: str, days: int) -> list[Field]:
    return [
        _feature(f"{entity}_complaints_{days}d", "complaints", f"Outcomes that became known in the last {days} days."),
        _feature(f"{entity}_relief_rate_{days}d", "share", f"Share closed with relief, last {days} days, smoothed."),
        _feature(f"{entity}_untimely_rate_{days}d", "share", f"Share answered late, last {days} days, smoothed."),
    ]


def _entity(name: str, description: str) -> Entity:
    return Entity(name=name, join_keys=[name], value_type=ValueType.STRING, description=description, owner=OWNER)


def _feature(name: str, unit: str, description: str) -> Field:
    return Field(name=name, dtype=Float64, description=description, tags={"unit": unit, "owner": OWNER})
