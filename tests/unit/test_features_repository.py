"""What a recipe may ask of a feature service, and that asking is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from components.core.errors import UserError
from components.features.repository import RequestView, Service, View, check_service
from tests.fakes.feature_rows import ROOT

SHOPS = View("shops", "shops", ("shop",), ("sales", "returns"))
TOWNS = View("towns", "towns", ("town", "country"), ("people",))
BASKET = RequestView("basket", ("text", "voucher", "shop", "event_timestamp"), ("words",))
SERVICE = Service("s1", ("sales", "people"), (SHOPS, TOWNS))


def test_keys_and_references_of_features() -> None:
    """Only the keys of the views that hold the features are needed, and a feature has one reference."""
    service = Service("s1", ("sales", "people", "words"), (SHOPS, TOWNS), (BASKET,))
    assert service.join_keys == ("shop", "town", "country")
    assert service.keys_of(["people"]) == ("town", "country")
    assert service.keys_of(["words"]) == ()
    assert [service.reference(name) for name in service.features] == ["shops:sales", "towns:people", "basket:words"]
    assert (service.request_inputs, service.asked_of_request(["sales"])) == (BASKET.inputs, ())


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (("shop",), "feature 'shop' is named like entity or request input 'shop'"),
        (("Shop",), "feature 'Shop' is named like entity or request input 'shop'"),
        (("sales", "Sales"), "feature 'Sales' is named like feature 'sales'"),
        (("text",), "the name 'text' is reserved"),
        (("group:a",), "the name 'group:a' is reserved"),
        (("request:a",), "the name 'request:a' is reserved"),
    ],
)
def test_names_that_cannot_stand_in_one_table_are_refused(features: tuple[str, ...], words: str) -> None:
    """Features, keys and our own columns are columns of the training set, and SQL does not tell case apart."""
    service = Service("s1", features, (View("shops", "shops", ("shop",), features),))
    with pytest.raises(UserError, match=words):
        check_service(service, {"shop": "Shop"}, features)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request": {}}, "takes 'voucher', which no request carries; add it to .features.request."),
        ({"request": {"vouchers": "V"}}, "did you mean 'vouchers'"),
        ({"text_column": ""}, "takes the text; name its source column: model.text_column"),
        ({"request": {"voucher": "V", "sales": "S"}}, "feature 'sales' is named like entity or request input 'sales'"),
    ],
)
def test_what_a_function_takes_has_to_be_in_the_request(change: dict[str, object], words: str) -> None:
    """A function's parameter is an entity of the service, a request input of the recipe, the text or the time."""
    service = Service("s1", ("sales", "words"), (SHOPS,), (BASKET,))
    given = {"request": {"voucher": "V"}, "text_column": "T"}
    check_service(service, {"shop": "Shop"}, ["words"], **given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=words):
        check_service(service, {"shop": "Shop"}, ["words"], **given | change)  # type: ignore[arg-type]


def test_a_model_input_that_is_unknown_or_stands_twice_is_refused() -> None:
    """With the nearest one, and the entity that is not mapped with the one that was meant."""
    keys = {"shop": "Shop", "town": "T", "country": "C"}
    with pytest.raises(UserError, match="'sale' is not in feature service s1; did you mean 'sales'"):
        check_service(SERVICE, keys, ["sale"])
    with pytest.raises(UserError, match="'sales' stands there twice"):
        check_service(SERVICE, keys, ["sales", "people", "sales"])
    with pytest.raises(UserError, match=r"joins on 'town'; add town = .*\(there is 'towns'\)"):
        check_service(SERVICE, {"shop": "Shop", "towns": "T", "country": "C"}, ["sales"])


def test_importing_the_step_imports_no_engine() -> None:
    """Feast costs six seconds, so it is imported when the step works."""
    code = (
        "import sys, components.features.component, components.features.featurise, components.features.online;"
        "sys.exit(any(name in sys.modules for name in ('feast', 'ibis', 'torch', 'mlflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
