"""Rows from a named generator: `generator://NAME?key=value`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from components.core.errors import UserError
from components.tables.values import text_array

SCHEME = "generator://"


def generate(uri: str, generators: Mapping[str, Callable[..., Any]]) -> pa.Table:
    """The generator's frame as text columns; None and NaN become null.

    Raises:
        UserError: no such generator or parameter (with the nearest name), or a value that does not fit.
    """
    parts = urlsplit(uri)
    name = (parts.netloc + parts.path).strip("/")
    if name not in generators:
        raise UserError(f"{uri}: no generator {name!r}{_nearest(name, generators)}")
    make = generators[name]
    arguments = _arguments(uri, parts.query, inspect.signature(make))
    try:
        frame = make(**arguments)
    except ValueError as error:
        raise UserError(f"{uri}: {error}") from error
    columns = {
        str(column): text_array(frame[column].astype(object).where(frame[column].notna(), None), str(column), uri)
        for column in frame.columns
    }
    return pa.table(columns)


def _arguments(uri: str, query: str, signature: inspect.Signature) -> dict[str, int | float | str]:
    """Values typed as the parameters' defaults are."""
    found: dict[str, int | float | str] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        if key not in signature.parameters:
            raise UserError(f"{uri}: no parameter {key!r}{_nearest(key, signature.parameters)}")
        if key in found:
            raise UserError(f"{uri}: parameter {key!r} is given twice; give it once")
        kind = type(signature.parameters[key].default)
        try:
            found[key] = kind(text) if kind in (int, float) else text
        except ValueError as error:
            raise UserError(f"{uri}: parameter {key}={text!r} is no {kind.__name__}; give a number") from error
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
