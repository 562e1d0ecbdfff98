"""What a recipe may ask of a feature service, and that asking is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from components.core.errors import UserError
from components.features.repository import Service, View, check_service
from tests.fakes.feature_rows import ROOT

SHOPS = View("shops", "shops", ("shop",), ("sales", "returns"))
TOWNS = View("towns", "towns", ("town", "country"), ("people",))
SERVICE = Service("s1", ("sales", "people"), (SHOPS, TOWNS))


def test_keys_and_references_of_features() -> None:
    """Only the keys of the views that hold the features are needed, and a feature has one reference."""
    assert SERVICE.join_keys == ("shop", "town", "country")
    assert SERVICE.keys_of(["people"]) == ("town", "country")
    assert SERVICE.reference("people") == "towns:people"


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (("sales_y",), "'sales_y' ends in _y"),
        (("shop",), "'shop' ends in _y or is named like an entity"),
        (("text",), "the name 'text' is reserved"),
        (("group:a",), "the name 'group:a' is reserved"),
    ],
)
def test_names_that_a_join_would_mix_up_are_refused(features: tuple[str, ...], words: str) -> None:
    """Feast drops columns that end in _y and confuses a feature with an entity of its name."""
    service = Service("s1", features, (View("shops", "shops", ("shop",), features),))
    with pytest.raises(UserError, match=words):
        check_service(service, {"shop": "Shop"}, features)


def test_importing_the_step_imports_no_engine() -> None:
    """Feast costs six seconds, so it is imported when the step works."""
    code = (
        "import sys, components.features.component, components.features.featurise, components.features.online;"
        "sys.exit(any(name in sys.modules for name in ('feast', 'ibis', 'torch', 'mlflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
