"""The deliveries project with features of the request: what a parcel's request carries beside its route."""

from __future__ import annotations

import shutil
from pathlib import Path

from components.core.recipe import Recipe, parse_recipe
from tests.fakes.feature_rows import delivery_recipe

CODE = '''"""Of the request."""

from datetime import datetime

import numpy as np


def parcel_request(
    text: str, depot_name: str, weight: str, carrier_code: str, event_timestamp: datetime
) -> dict[str, float | None]:
    """Nothing that a parcel does not say itself."""
    return {
        "note_length": len(text),
        "weight_log": float(np.log(float(weight))) if weight else None,
        "is_main_depot": depot_name == "A",
        "carrier_letters": len(carrier_code),
        "sent_hour": event_timestamp.hour,
    }
'''
FEATURES = ("note_length", "weight_log", "is_main_depot", "carrier_letters", "sent_hour")


def request_project(folder: Path, code: str = CODE) -> Path:
    """A copy of the deliveries project with on_demand.py; `folder` must be new."""
    shutil.copytree(delivery_recipe().features.repo, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "features.py"
    fields = ", ".join(f'Field(name="{name}", dtype=Float64, tags={{"unit": "some"}})' for name in FEATURES)
    view = f'    parcel = request("parcel_request", [{fields}], description="Of the parcel.", owner="post")\n'
    text = path.read_text()
    text = text.replace("def definitions(source, ttl: timedelta):", "def definitions(source, ttl: timedelta, request):")
    text = text.replace("    service = FeatureService(", f"{view}    service = FeatureService(")
    text = text.replace('lateness[["late_share"]]])', 'lateness[["late_share"]], parcel])')
    text = text.replace("lateness, routes, service]", "lateness, routes, parcel, service]")
    path.write_text(text)
    (folder / "on_demand.py").write_text(code)
    return folder


def request_recipe(repo: Path, **features: object) -> Recipe:
    """Parcels with a note as their text and a weight that the request carries."""
    values = delivery_recipe().model_dump(mode="json")
    values["features"] |= {
        "repo": str(repo),
        "request": {"depot_name": "depot", "weight": "kg"},
        "model_inputs": ["late_share", *FEATURES],
    } | features
    values["model"] |= {"text_column": "note"}
    return parse_recipe(values)
