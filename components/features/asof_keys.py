"""Entity rows' event times and join keys, made comparable to a history's, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from components.core.errors import UserError

_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "whole numbers": kinds.is_integer,
    "numbers": kinds.is_floating,
    "decimals": kinds.is_decimal,
    "texts": lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind),
    "bytes": lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind),
    "booleans": kinds.is_boolean,
    "times": lambda kind: kinds.is_timestamp(kind) or kinds.is_date(kind),
}
_COMPARABLE = {frozenset(pair) for pair in (("whole numbers", "numbers"), ("whole numbers", "decimals"))}


def entity_moments(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Microseconds since 1970 in UTC as int64; a time without a zone is UTC; null stays null.

    Raises:
        UserError: the column does not hold times.
    """
    if kinds.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    if not (kinds.is_timestamp(column.type) or kinds.is_null(column.type)):
        raise UserError(f"entity rows: {name!r} is {column.type}, not a time; give timestamps")
    return column.cast(pa.timestamp("us", tz=getattr(column.type, "tz", None)), safe=False).cast(pa.int64())


def entity_key(column: pa.ChunkedArray, target: pa.DataType, where: str) -> pa.ChunkedArray:
    """A key column as DuckDB can compare it with a history's keys of type `target`, without loss.

    Raises:
        UserError: the types do not compare, or a float key is no whole number where the history has whole numbers.
    """
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kinds.is_null(column.type):
        return column.cast(target)
    mine, theirs = _family(column.type), _family(target)
    if mine == "numbers" and theirs == "whole numbers":  # pandas makes floats of whole numbers with gaps
        return _whole(column, where)
    if mine != theirs and frozenset((mine, theirs)) not in _COMPARABLE:
        raise UserError(f"{where} is {column.type} in the entity rows and {target} in its source; give one type")
    return column


def _whole(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    exact = {16: 2**11, 32: 2**24, 64: 2**53}[column.type.bit_width]
    largest = pc.max(pc.abs(column)).as_py()
    try:
        if largest is not None and largest > exact:
            raise pa.ArrowInvalid("not exact")
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{where} holds fractions, or numbers beyond {exact:,}, as {column.type} in the entity rows, and its "
            "source has whole numbers; give whole numbers"
        ) from error


def _family(kind: pa.DataType) -> str:
    return next((name for name, belongs in _FAMILIES.items() if belongs(kind)), str(kind))
