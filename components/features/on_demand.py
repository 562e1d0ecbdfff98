"""Features of the request itself: plain functions that training and serving call alike, row by row. Needs no Feast.

A feature project may hold `on_demand.py`. Each on-demand view is computed by the function of its name there, which
takes what a request carries by keyword and returns a number (None: no value) for each feature of the view:

    def complaint_request(text: str, event_timestamp: datetime) -> dict[str, float | None]: ...

What a request carries: `text` (the model's text), `event_timestamp` (UTC, with its zone), the entity keys, and the
names under `[features.request]` in the recipe, each with its source column. All but the time are texts, "" where
there is none. The file may import the standard library, numpy and pandas, nothing else.
"""

from __future__ import annotations

import ast
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import IntegrityError, UserError, one_line
from components.features.repository import EVENT, RequestView, nearest

if TYPE_CHECKING:
    import pandas as pd

ON_DEMAND = "on_demand.py"
IMPORTS = ("numpy", "pandas")

Function = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class OnDemandCode:
    """A project's on_demand.py: its text, the digest of its bytes, and what it defines."""

    path: Path
    source: str
    digest: str
    names: Mapping[str, Any]

    def function(self, view: str) -> Function:
        """The function of a view; UserError where there is none, or it does not name what it takes."""
        found = self.names.get(view)
        functions = [name for name, value in self.names.items() if inspect.isfunction(value)]
        if not inspect.isfunction(found):
            raise UserError(f"{self.path}: has no function {view!r}, as its view is called{nearest(view, functions)}")
        taken = inspect.signature(found).parameters.values()
        if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in taken):
            raise UserError(f"{self.path}: {view}() has to name what it takes of the request; leave out * and **")
        return found

    def inputs(self, view: str) -> tuple[str, ...]:
        """What the view's function takes of a request, in order."""
        return tuple(inspect.signature(self.function(view)).parameters)

    def compute(self, view: RequestView, request: Mapping[str, Any]) -> list[float]:
        """The view's features of one request, in order, NaN where there is no value.

        Raises:
            UserError: the request lacks something, or the function fails or returns something else. The message
                never quotes the request.
        """
        if missing := [name for name in view.inputs if name not in request]:
            raise UserError(f"request: {missing[0]!r} is missing; {view.name} takes {', '.join(view.inputs)}")
        return answers(self.function(view.name), view.features, {name: request[name] for name in view.inputs})


def load_on_demand(folder: Path) -> OnDemandCode | None:
    """The on-demand functions of a feature project, None where it has none.

    Raises:
        UserError: the file does not load, or imports what a serving process need not have.
    """
    path = folder / ON_DEMAND
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        source = content.decode("utf-8")
        tree = ast.parse(source, str(path))
    except (UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: is no Python file ({one_line(error)})") from error
    _check_imports(tree, path)
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    try:
        # The project's own code, as its features.py is; compiled from the very bytes that the digest names.
        exec(compile(tree, str(path), "exec", dont_inherit=True), names)  # noqa: S102
    except Exception as error:  # whatever a project's own file raises
        raise UserError(f"{path}: does not load ({type(error).__name__}: {one_line(error)})") from error
    return OnDemandCode(path, source, sha256(content).hexdigest(), names)


def same_code(folder: Path, digest: str, what: str) -> OnDemandCode:
    """The project's on-demand functions, which have to be those that `what` was made with.

    Raises:
        IntegrityError: there are none, or they have another digest.
    """
    code = load_on_demand(folder)
    if code is None or code.digest != digest:
        found = "is not there" if code is None else f"has digest {code.digest[:12]}"
        raise IntegrityError(
            f"{folder / ON_DEMAND}: {found}, but {what} was made with {digest[:12]}; restore that file, or make the "
            "training set and the model again"
        )
    return code


def columns(function: Function, inputs: Sequence[str], features: Sequence[str], rows: pd.DataFrame) -> pd.DataFrame:
    """The function's features of many requests: a float64 column a feature, in the order of the rows.

    Raises:
        UserError: as OnDemandCode.compute, with the number of the row (featurise: in order of time).
    """
    import numpy as np
    import pandas as pd

    taken = [_times(rows[name]) if name == EVENT else rows[name].fillna("").tolist() for name in inputs]
    found = np.empty((len(rows), len(features)))
    for at, values in enumerate(zip(*taken, strict=True) if taken else [()] * len(rows)):
        found[at] = answers(function, features, dict(zip(inputs, values, strict=True)), f" for entity row {at + 1}")
    return pd.DataFrame(found, columns=list(features), index=rows.index)


def answers(function: Function, features: Sequence[str], request: Mapping[str, Any], where: str = "") -> list[float]:
    """The function's numbers for one request, in the order of `features`; UserError as OnDemandCode.compute."""
    name = getattr(function, "__name__", "function")
    try:
        found = function(**request)
    except Exception as error:  # whatever a project's own function raises; its text could quote the request
        raise UserError(f"{ON_DEMAND}: {name}() failed{where} ({type(error).__name__})") from None
    if not isinstance(found, Mapping) or set(found) != set(features):
        got = ", ".join(sorted(map(str, found))) if isinstance(found, Mapping) else type(found).__name__
        raise UserError(f"{ON_DEMAND}: {name}() returned {got}{where}, not its view's features {', '.join(features)}")
    return [_number(found[feature], f"{name}() returned for {feature!r}{where}") for feature in features]


def utc(moment: datetime) -> datetime:
    """The moment in UTC; without a zone it is UTC already."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _times(values: pd.Series) -> list[datetime]:
    return [utc(moment.to_pydatetime()) for moment in values]


def _number(value: Any, what: str) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, numbers.Real):
        raise UserError(f"{ON_DEMAND}: {what} a {type(value).__name__}; return a number or None")
    number = float(value)
    if math.isinf(number):
        raise UserError(f"{ON_DEMAND}: {what} an infinite number; return a finite one or None")
    return number


def _check_imports(tree: ast.Module, path: Path) -> None:
    for node in ast.walk(tree):
        asked = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            asked = ["." * node.level + (node.module or "")]
        for name in asked:
            root = name.partition(".")[0]
            if root not in (*IMPORTS, *sys.stdlib_module_names):
                raise UserError(
                    f"{path}: imports {name!r}; a scoring service has the standard library, {' and '.join(IMPORTS)}"
                )
