"""Random contracts and random rows for hypothesis: every schema, type and library rule, and texts of near misses."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fakes.contract_oracle import PATTERNS

NASTY = [
    "",
    " ",
    "None",
    "N/A",
    "null",
    "\t",
    "a\n",
    "\n",
    "\0",
    "a\0b",
    "é",
    "e\u0301",
    "😀",
    "a😀c",
    "\u2028",
    "ſ",
    "'",
    '"',
    "%",
    "\\",
]
POOLS: dict[str, list[str]] = {
    "string": [
        *NASTY,
        "a",
        "b",
        "abc",
        "a-c",
        "a\nc",
        "yes",
        "YES",
        "yeſ",
        "42",
        "٤٢",
        "4\n",
        "ab b",
        "bb",
        "aaaaaaaaaa",
        "x" * 300,
    ],
    "integer": [
        *NASTY[:9],
        "0",
        "-0",
        "+7",
        "007",
        "7",
        "9",
        "10",
        "-1",
        "1.0",
        "1e2",
        "٣",
        " 1",
        "1_0",
        "9" * 18,
        "9" * 19,
        "9" * 38,
        "9" * 39,
        "0" * 60 + "7",
        "-" + "9" * 38,
        "nan",
    ],
    "number": [
        *NASTY[:9],
        "0",
        "-0.0",
        "1.",
        ".5",
        "0.1",
        "0.3",
        "0.30000000000000004",
        "1e2",
        "1E+2",
        "1e",
        "1e999",
        "-1e999",
        "1e-400",
        "nan",
        "inf",
        "NaN",
        "9007199254740993",
        "0x1p3",
        "1_0",
        " 1",
        "٣",
        "9" * 400,
    ],
    "boolean": [*NASTY[:8], "true", "false", "True", "FALSE", "1", "0"],
    "date": [
        *NASTY[:8],
        "2024-02-29",
        "2023-02-29",
        "2025-01-02",
        "2025-01-02",
        "2025-1-2",
        "01/02/25",
        "02/29/23",
        "02/29/24",
        "01/02/68",
        "01/02/69",
        "13/01/25",
        "2.1.2025",
        "02.01.2025",
        "31.2.2025",
        "20250102",
        "20250230",
        "Jan 2, 2025",
        "jan 2, 2025",
        "Feb 30, 2025",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        " 2025-01-02",
        "2025-01-02 ",
        "2025-01-02\n",
        "٢٠٢٥-01-02",
        "2025-01-02T00:00:00",
        "10000-01-01",
    ],
    "timestamp": [
        *NASTY[:8],
        "2025-01-02T03:04:05",
        "2025-01-02 03:04:05",
        "2025-01-02T03:04:05Z",
        "2025-01-02T03:04:05+02:00",
        "2025-01-02T03:04:05-0230",
        "2025-01-02T03:04:05+19:00",
        "2025-01-02T03:04:05+02:60",
        "2025-01-02T03:04:05.123456789",
        "2025-01-02T03:04:05.123+01",
        "2025-01-02T24:00:00",
        "2025-01-02T03:04:60",
        "2025-02-30T00:00:00",
        "2025-01-02 03:04",
        "02/01/2025 3:04 pm",
        "02/01/2025 13:04 PM",
        "02/01/2025 12:04 AM",
        "02/01/2025 03:04 Pm",
        "0000-01-01T00:00:00",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-18:00",
        "2025-01-02",
    ],
    "time": [
        *NASTY[:8],
        "03:04:05",
        "3:04:05",
        "24:00:00",
        "23:59:60",
        "03:04",
        "03:04:05.5",
        "03:04:05.1234567",
        "٠٣:04:05",
    ],
}
FORMATS = {
    "date": ["yyyy-MM-dd", "[MM/dd/yy][yyyy-MM-dd]", "d.M.yyyy", "yyyyMMdd", "MMM d, yyyy"],
    "timestamp": ["yyyy-MM-dd HH:mm[:ss]", "dd/MM/yyyy h:mm a", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"],
    "time": ["HH:mm", "HH:mm:ss"],
}
BOUNDS: dict[str, list[Any]] = {
    "integer": [-1, 0, 7, 10, 10**18, 10**20],
    "number": [-1, 0, 0.1, 0.3, 100, 1e300],
    "date": ["0001-01-01", "2000-01-01", "2025-01-02", "2068-01-02"],
    "timestamp": ["2000-01-01", "2025-01-02T03:04:05", "2025-01-02T01:04:05+00:00"],
    "time": ["00:00:00", "03:04:05", "12:00:00"],
}
SEVERITIES = st.sampled_from(["error", "error", "warning", "info"])
OPERATORS = [
    "mustBe",
    "mustNotBe",
    "mustBeGreaterThan",
    "mustBeGreaterOrEqualTo",
    "mustBeLessThan",
    "mustBeLessOrEqualTo",
    "mustBeBetween",
    "mustNotBeBetween",
]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A contract's document with one table of one to four columns; the loader may refuse it as contradictory."""
    kinds = draw(st.lists(st.sampled_from(list(POOLS)), min_size=1, max_size=4))
    properties = [draw(_properties(f"c{number}", kind)) for number, kind in enumerate(kinds)]
    key = draw(st.sets(st.integers(0, len(kinds) - 1), max_size=2))
    for position, number in enumerate(sorted(key), start=1):
        properties[number] |= {"primaryKey": True, "primaryKeyPosition": position}
    table: dict[str, Any] = {"name": "rows", "properties": properties}
    names = [one["name"] for one in properties]
    quality = []
    if draw(st.booleans()):
        quality.append(
            {"metric": "rowCount", **draw(_limits(0, 8)), "severity": draw(st.sampled_from(["error", "info"]))}
        )
    if draw(st.booleans()):
        some = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        quality.append({"metric": "duplicateValues", "arguments": {"properties": some}, **draw(_counted())})
    if quality:
        table["quality"] = quality
    table["customProperties"] = [
        {"property": "maxQuarantinePercent", "value": draw(st.sampled_from([0, 10, 50, 99, 100]))}
    ]
    about = {"apiVersion": "v3.2.0", "kind": "DataContract", "id": "random", "version": "1.0.0", "status": "active"}
    return about | {"schema": [table]}


@st.composite
def rows_of(draw: st.DrawFn, document: dict[str, Any], most: int = 12) -> list[dict[str, str | None]]:
    """Rows for the document's columns, each from a few texts of its own, so that some repeat."""
    cells: dict[str, st.SearchStrategy[str | None]] = {}
    for one in document["schema"][0]["properties"]:
        pool = POOLS[one.get("logicalType", "string")] + [str(item["value"]) for item in one.get("enum", [])]
        few = draw(st.lists(st.sampled_from([None, *pool]), min_size=1, max_size=5))
        cells[one["name"]] = st.one_of(st.sampled_from(few), st.sampled_from(few), st.sampled_from(pool))
    return draw(st.lists(st.fixed_dictionaries(cells), min_size=0, max_size=most))


@st.composite
def _properties(draw: st.DrawFn, name: str, kind: str) -> dict[str, Any]:
    one: dict[str, Any] = {"name": name, "logicalType": kind}
    options = draw(_options(kind))
    if options:
        one["logicalTypeOptions"] = options
    for key in ("required", "unique"):
        if draw(st.integers(0, 4)) == 0:
            one[key] = True
    if draw(st.integers(0, 3)) == 0:
        one["enum"] = [
            {"value": text}
            for text in draw(st.lists(st.sampled_from(POOLS[kind]), min_size=1, max_size=5, unique=True))
        ]
    one["customProperties"] = [{"property": "ruleSeverity", "value": draw(SEVERITIES)}]
    quality = draw(st.lists(_quality(kind), max_size=3))
    if quality:
        one["quality"] = quality
    return one


@st.composite
def _options(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if kind == "string":
        low, high = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
        if draw(st.booleans()):
            options["minLength"] = low
        if draw(st.booleans()):
            options["maxLength"] = high
        if draw(st.booleans()):
            options["pattern"] = draw(st.sampled_from(list(PATTERNS)))
        return options
    if kind in FORMATS and draw(st.booleans()):
        options["format"] = draw(st.sampled_from(FORMATS[kind]))
    if kind in BOUNDS:
        low, high = sorted(
            draw(st.tuples(st.integers(0, len(BOUNDS[kind]) - 1), st.integers(0, len(BOUNDS[kind]) - 1)))
        )
        if draw(st.booleans()):
            options[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = BOUNDS[kind][low]
        if draw(st.booleans()):
            options[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = BOUNDS[kind][high]
    if kind in ("integer", "number") and draw(st.integers(0, 3)) == 0:
        options["multipleOf"] = draw(st.sampled_from([7, 3] if kind == "integer" else [0.1, 0.5, 3]))
    return options


@st.composite
def _quality(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    metric = draw(st.sampled_from(["nullValues", "missingValues", "invalidValues", "invalidValues", "duplicateValues"]))
    rule: dict[str, Any] = {"metric": metric}
    texts = st.lists(st.sampled_from(POOLS[kind]), min_size=1, max_size=4, unique=True)
    if metric == "missingValues":
        rule["arguments"] = {"missingValues": draw(texts) + draw(st.sampled_from([[], [None], [""]]))}
    if metric == "invalidValues":
        pattern = {"pattern": draw(st.sampled_from(list(PATTERNS)))}
        rule["arguments"] = draw(st.sampled_from([pattern, {"validValues": draw(texts)}]))
    return rule | draw(_counted(percent=metric != "duplicateValues"))


@st.composite
def _counted(draw: st.DrawFn, percent: bool = False) -> dict[str, Any]:
    """A limit on a count of broken rows; a warning allows none."""
    severity = draw(SEVERITIES)
    if severity == "warning":
        return {"mustBe": 0, "severity": severity}
    if percent and draw(st.booleans()):
        return {**draw(_limits(0, 100)), "unit": "percent", "severity": severity}
    return {**draw(_limits(0, 5)), "severity": severity}


@st.composite
def _limits(draw: st.DrawFn, low: int, high: int) -> dict[str, Any]:
    operator = draw(st.sampled_from(OPERATORS))
    one = draw(st.integers(low, high))
    return {operator: [one, one + draw(st.integers(1, high))] if operator.endswith("Between") else one}
