"""The rows and the contract of bench_contract: a snapshot of text columns, and twenty typical rules on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import yaml

CATEGORIES = [f"category {number}" for number in range(12)]
STATES = ["AL", "CA", "FL", "GA", "IL", "MI", "NC", "NJ", "NY", "OH", "PA", "TX", "VA", "WA"]
TEXT_WORDS = 40


def write_rows(path: Path, rows: int) -> None:
    """Rows that hold the contract; their text is random enough that the file is large."""
    categories = ", ".join(f"'{name}'" for name in CATEGORIES)
    states = ", ".join(f"'{name}'" for name in STATES)
    query = f"""
        SELECT 'K' || lpad(i::VARCHAR, 9, '0') AS id,
               strftime(DATE '2020-01-01' + (hash(i) % 1800)::INT, '%Y-%m-%d') AS day,
               strftime(TIMESTAMP '2020-01-01' + to_seconds(i * 7), '%Y-%m-%dT%H:%M:%S') AS moment,
               [{categories}][1 + (hash(i, 1) % {len(CATEGORIES)})::INT] AS category,
               [{states}][1 + (hash(i, 2) % {len(STATES)})::INT] AS state,
               lpad((hash(i, 3) % 100000)::VARCHAR, 5, '0') AS zip,
               ((hash(i, 4) % 1000000) / 100)::DECIMAL(12, 2)::VARCHAR AS amount,
               (hash(i, 5) % 90 + 10)::VARCHAR AS age,
               CASE WHEN hash(i, 6) % 10 = 0 THEN '' ELSE 'tag ' || (hash(i, 7) % 5) END AS tag,
               CASE WHEN hash(i, 8) % 2 = 0 THEN 'true' ELSE 'false' END AS timely,
               array_to_string(list_transform(range({TEXT_WORDS}), lambda w: (hash(i, 9, w) % 99991)::VARCHAR), ' ')
                   AS text
        FROM range({rows}) AS t(i)"""
    with duckdb.connect(config={"memory_limit": "1GB", "threads": 2}) as connection:
        target = str(path).replace("'", "''")
        connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 65536)")


def write_contract(path: Path, data: Path) -> None:
    """Twenty rules: presence, keys, sets, patterns, lengths, dates, times, numbers in ranges, a row count."""
    properties: list[dict[str, Any]] = [
        {"name": "id", "required": True, "unique": True, "logicalTypeOptions": {"pattern": "^K[0-9]{9}$"}},
        {"name": "day", "logicalType": "date", "required": True, "logicalTypeOptions": {"minimum": "2011-12-01"}},
        {"name": "moment", "logicalType": "timestamp", "required": True},
        {"name": "category", "required": True, "enum": [{"value": name} for name in CATEGORIES]},
        {"name": "state", "required": True, "logicalTypeOptions": {"pattern": "^[A-Z]{2}$"}},
        {"name": "zip", "required": True, "logicalTypeOptions": {"pattern": "^[0-9X]{5}$"}},
        {
            "name": "amount",
            "logicalType": "number",
            "required": True,
            "logicalTypeOptions": {"minimum": 0, "maximum": 10000},
        },
        {"name": "age", "logicalType": "integer", "logicalTypeOptions": {"minimum": 0, "maximum": 120}},
        {
            "name": "tag",
            "enum": [{"value": f"tag {number}"} for number in range(5)],
            "quality": [{"metric": "nullValues", "mustBeLessThan": 20, "unit": "percent"}],
        },
        {"name": "timely", "logicalType": "boolean"},
        {"name": "text", "required": True, "logicalTypeOptions": {"minLength": 3, "maxLength": 4000}},
    ]
    for one in properties:
        one |= {"logicalType": one.get("logicalType", "string"), "physicalType": "varchar"}
    about = {"apiVersion": "v3.2.0", "kind": "DataContract", "id": "bench", "version": "1.0.0", "status": "active"}
    servers = [{"server": "local", "type": "local", "path": str(data), "format": "parquet"}]
    quality = [{"metric": "rowCount", "mustBeGreaterThan": 100}]
    table = {"name": "rows", "physicalType": "file", "properties": properties, "quality": quality}
    path.write_text(yaml.safe_dump({**about, "servers": servers, "schema": [table]}, sort_keys=False))
