"""JSON lines: one object a line. Numbers keep the digits that the file has."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from components.core.errors import UserError
from components.tables.decode import Decoded
from components.tables.values import as_text


class _Literal(str):
    """A number as it is written."""

    __slots__ = ()


class _TwiceError(ValueError):
    """A key that an object holds two times."""


def read(source: Decoded) -> pa.Table:
    """Objects as rows; columns in the order in which keys first appear, a key that an object lacks is null there.

    Raises:
        UserError: a line that is no JSON object, a key twice in an object, bytes not in the declared encoding.
    """
    columns: dict[str, list[str | None]] = {}
    rows = 0
    try:
        for line, text in enumerate(source.text, start=1):
            if not text.strip():
                continue
            for name, value in _object(text, line, source.uri).items():
                if name not in columns:
                    columns[name] = [None] * rows
                columns[name].append(value)
            rows += 1
            for cells in columns.values():
                if len(cells) < rows:
                    cells.append(None)
    except UnicodeDecodeError:
        raise source.undecodable() from None
    if not rows:
        raise UserError(f"{source.uri}: holds no JSON object; give one object a line")
    return pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


def _object(text: str, line: int, uri: str) -> dict[str, str | None]:
    try:
        value = json.loads(
            text, parse_float=_Literal, parse_int=_Literal, parse_constant=_Literal, object_pairs_hook=_once
        )
        if not isinstance(value, dict):
            hint = "; a JSON array is not JSON lines" if text.lstrip().startswith("[") else ""
            raise ValueError(f"not an object{hint}")
        nested = [name for name, item in value.items() if isinstance(item, dict | list)]
        plain = json.loads(text) if nested else {}  # numbers inside nested JSON stay numbers
        cells = {name: as_text(plain[name] if name in nested else item) for name, item in value.items()}
        for cell in (*cells, *cells.values()):
            (cell or "").encode()  # a lone surrogate is no text
        return cells
    except _TwiceError as error:
        raise UserError(f"{uri}: line {line} holds the key {str(error)!r} twice; rename one") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{uri}: line {line} is no JSON object ({error}); give one whole object a line") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _TwiceError(name)
        found[name] = value
    return found
