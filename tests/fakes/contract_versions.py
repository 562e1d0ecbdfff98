"""Two versions of a small contract: what the second says otherwise, for the tests of evolution."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from components.contract.evolution.changes import Release
from components.contract.evolution.compare import Comparison, compare

Edit = Callable[[dict[str, Any]], object]
BASE: dict[str, Any] = {
    "apiVersion": "v3.2.0",
    "kind": "DataContract",
    "id": "orders",
    "name": "Orders",
    "version": "1.4.2",
    "status": "active",
    "description": {"purpose": "To be compared."},
    "slaProperties": [
        {"property": "latency", "value": 2, "unit": "d", "element": "orders.day"},
        {"property": "retention", "value": 3, "unit": "y", "element": "orders.day"},
        {"property": "availability", "value": 99.5, "unit": "percent"},
    ],
    "schema": [
        {
            "name": "orders",
            "customProperties": [{"property": "maxQuarantinePercent", "value": 5}],
            "quality": [{"id": "enough", "metric": "rowCount", "mustBeGreaterOrEqualTo": 10}],
            "properties": [
                {
                    "name": "number",
                    "logicalType": "string",
                    "logicalTypeOptions": {"pattern": "^[0-9]{6}$"},
                    "primaryKey": True,
                    "primaryKeyPosition": 1,
                    "required": True,
                    "unique": True,
                },
                {
                    "name": "day",
                    "logicalType": "date",
                    "physicalType": "DATE",
                    "logicalTypeOptions": {"format": "yyyy-MM-dd", "minimum": "2020-01-01"},
                    "required": True,
                },
                {
                    "name": "status",
                    "logicalType": "string",
                    "description": "Where the order stands.",
                    "enum": [{"value": "open"}, {"value": "sent"}, {"value": "lost"}],
                    "quality": [
                        {
                            "id": "status-known",
                            "metric": "missingValues",
                            "arguments": {"missingValues": ["", "?"]},
                            "mustBeLessThan": 20,
                            "unit": "percent",
                        }
                    ],
                },
                {"name": "items", "logicalType": "integer", "logicalTypeOptions": {"minimum": 1, "maximum": 99}},
                {
                    "name": "note",
                    "logicalType": "string",
                    "logicalTypeOptions": {"minLength": 2, "maxLength": 80},
                    "tags": ["pii"],
                    "customProperties": [{"property": "ruleSeverity", "value": "warning"}],
                },
            ],
        }
    ],
}


def column(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A property of the document, to be changed in place."""
    found: dict[str, Any] = next(item for item in columns(document) if item["name"] == name)
    return found


def columns(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The properties, to be changed in place."""
    found: list[dict[str, Any]] = document["schema"][0]["properties"]
    return found


def edited(edit: Edit, version: str = "1.4.2") -> dict[str, Any]:
    """The base with an edit and a version."""
    document = copy.deepcopy(BASE)
    document["version"] = version
    edit(document)
    return document


def write(path: Path, document: dict[str, Any]) -> Path:
    """The document as a file."""
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def difference(folder: Path, new: dict[str, Any], old: dict[str, Any] | None = None) -> Comparison:
    """The comparison of two documents; the base is the old one where none is given."""
    before, after = write(folder / "old.yaml", old or BASE), write(folder / "new.yaml", new)
    return compare(Release.read(before), Release.read(after))
