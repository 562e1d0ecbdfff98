"""Features of complaint triage: what was known about a company and a state when a complaint was received.

An outcome (response, timeliness, days to be sent) counts as known `label_delay_days` after the complaint was received.
Rates are smoothed towards the rate over all complaints known at that moment; no history gives no value.
See components/features/repository.py for the convention that this file follows.
"""

from collections.abc import Callable
from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, ValueType
from feast.data_source import DataSource
from feast.types import Float64

project = "complaints"
OWNER = "complaint-triage"


def definitions(source: Callable[[str], DataSource], ttl: timedelta) -> list[Entity | FeatureView | FeatureService]:
    """Entities, feature views and the feature service.

    Args:
        source: gives the data source of a history table, made by the SQL file of that name.
        ttl: how long a value lives; 0 for ever.
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
    service = FeatureService(
        name="complaint_triage_v1",
        features=[company_history, state_history],
        description="Features for deciding whether a complaint will close with relief.",
        owner=OWNER,
        tags={"label": "closed with monetary or non-monetary relief"},
    )
    return [company, state, company_history, state_history, service]


def _entity(name: str, description: str) -> Entity:
    return Entity(name=name, join_keys=[name], value_type=ValueType.STRING, description=description, owner=OWNER)


def _feature(name: str, unit: str, description: str) -> Field:
    return Field(name=name, dtype=Float64, description=description, tags={"unit": unit, "owner": OWNER})
