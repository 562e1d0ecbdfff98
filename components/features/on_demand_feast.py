"""An on-demand view for Feast, computed by a function of the project's on_demand.py. Imports feast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feast import Field, OnDemandFeatureView, RequestSource
from feast.types import String, UnixTimestamp

from components.features.on_demand import OnDemandCode
from components.features.repository import EVENT


class RequestFeatureView(OnDemandFeatureView):
    """An on-demand view whose schema is declared; Feast would call the function with made-up values to infer it."""

    def infer_features(self) -> None:
        """Nothing to infer: every answer is held against the features declared."""


def request_view(code: OnDemandCode, name: str, schema: Sequence[Field], **about: Any) -> OnDemandFeatureView:
    """The view that the function `name` of on_demand.py computes of a request.

    Args:
        code: the project's functions.
        name: of the view and of its function.
        schema: its features, Float64. Feast 0.67 forgets the description and tags of an on-demand view's feature, and
            then does not know the feature again; so they are kept as tags of the view, `<feature>.<tag>`.
        about: description, owner and tags, as Feast has them.

    Raises:
        UserError: there is no such function.
    """
    inputs = code.inputs(name)
    features = tuple(field.name for field in schema)
    made = f"{name}__columns"
    # Feast keeps a function's source in its registry and makes it anew from there: source that stands alone.
    source = (
        f"{code.source}\n\n\ndef {made}(rows):\n"
        "    from components.features.on_demand import columns\n\n"
        f"    return columns({name}, {inputs!r}, {features!r}, rows)\n"
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(code.path), "exec", dont_inherit=True), names)  # noqa: S102 - the project's own code
    kinds = {EVENT: UnixTimestamp}
    tags = {f"{field.name}.{tag}": text for field in schema for tag, text in _said(field).items()}
    asked = [Field(name=one, dtype=kinds.get(one, String)) for one in inputs]
    return RequestFeatureView(
        name=name,
        sources=[RequestSource(name=f"{name}_source", schema=asked)],
        schema=[Field(name=field.name, dtype=field.dtype) for field in schema],
        udf=names[made],
        udf_string=source,
        mode="pandas",
        **about | {"tags": about.get("tags", {}) | tags},
    )


def _said(field: Field) -> dict[str, str]:
    return {"description": field.description, **(field.tags or {})}
