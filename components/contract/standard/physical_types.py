"""Whether a physical type can hold what the logical type says; an unknown name is told as not checked."""

from __future__ import annotations

import re

from components.contract.standard.rules import Column, Rule
from components.contract.standard.yaml_file import Node

NUMBERS = ("integer", "number")
FAMILIES = (
    (
        "varchar nvarchar varchar2 nvarchar2 char nchar bpchar character text ntext tinytext mediumtext longtext "
        "string clob nclob utf8 large_utf8 byte_array enum",
        ("string", "integer", "number", "boolean", "date", "timestamp", "time"),
    ),
    (
        "smallint integer mediumint bigint hugeint int2 int8 int16 uint8 uint16 uint32 uint64 ubigint uinteger "
        "usmallint utinyint serial bigserial long short decimal numeric bigdecimal bignumeric",
        NUMBERS,
    ),
    ("int int4 int32", (*NUMBERS, "date", "time")),
    ("int64", (*NUMBERS, "timestamp", "time")),
    ("int96", ("timestamp",)),
    ("tinyint bit number", (*NUMBERS, "boolean")),
    ("float float4 float8 float32 float64 double real money", ("number",)),
    ("boolean bool", ("boolean",)),
    ("date date32 date64", ("date",)),
    (
        "timestamp timestamptz timestamp_ntz timestamp_ltz timestamp_tz datetime datetime2 datetimeoffset "
        "smalldatetime",
        ("timestamp", "date"),
    ),
    ("time timetz time32 time64", ("time",)),
    ("uuid json jsonb xml binary varbinary blob bytea bytes", ("string",)),
    ("array list struct map row record variant object super", ()),
)
HOLDS = {name: holds for names, holds in FAMILIES for name in names.split()}
BASE = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*(?:\(\s*([0-9]+))?")


def check_physical_type(property_: Node, logical: str) -> str:
    """The property's physicalType; UserError where a known one cannot hold the logical type or its least length."""
    declared = str(property_.get("physicalType", str, ""))
    base = BASE.match(declared)
    holds = HOLDS.get(base[1].lower()) if base else None
    if base is None or holds is None:
        return declared
    if logical not in holds:
        fitting = ", ".join(sorted(holds)) or "none that a column of texts has"
        property_.at("physicalType").fail(f"{declared} contradicts logicalType {logical}; it holds: {fitting}")
    options = property_.value.get("logicalTypeOptions")
    least = options.get("minLength") if isinstance(options, dict) else None
    if "char" in base[1].lower() and base[2] and isinstance(least, int) and least > int(base[2]):
        property_.at("physicalType").fail(f"{declared} contradicts minLength {least}: no text fits")
    return declared


def physical_rules(property_: Node, column: Column) -> list[Rule]:
    """A note where the property's physicalType is of a name that is not known here: it has a result, and no check."""
    base = BASE.match(column.physical_type)
    if not column.physical_type or (base and base[1].lower() in HOLDS):
        return []
    text = f"{column.physical_type}: declared, not checked on text columns"
    place = property_.at("physicalType").path
    return [Rule("physical type", "note", (column.name,), place, severity="info", description=text)]
