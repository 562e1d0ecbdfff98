"""History tables whole against what their newest interval alone would cost, and the whole feature step's share.

    python benchmarks/bench_features_history.py [--rows 1000000]

Complaints over three years, 3000 companies of uneven size. CPU seconds of this process (DuckDB's threads included).
"New week" is what an incremental computation could not go below for the trailing windows: the same SQL on the rows
that reach into the last week's windows (the longest window and the delay before it), whose older rows are thrown away.
"""

from __future__ import annotations

import argparse
import resource
from contextlib import closing
from datetime import timedelta

import numpy as np
import pandas as pd
import pyarrow as pa

from components.core.paths import PROJECT_ROOT
from components.features import history
from components.features.history import Rows

REPO = PROJECT_ROOT / "feature_repo" / "complaints"
TABLES = ("company_history", "state_history", "company_windows", "state_windows")
START, DAYS, DELAY, LONGEST = pd.Timestamp("2022-01-01", tz="UTC"), 1095, 30, 365


def main() -> None:
    """Measure and print a line a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    count = parser.parse_args().rows
    rows = complaints(count)
    end = rows.typed["event_timestamp"].max()
    reach = end - timedelta(days=7 + LONGEST + DELAY)
    late = part(rows, rows.typed["event_timestamp"] >= reach)
    for table in TABLES:
        whole, made = cpu_seconds(rows, table)
        week, _ = cpu_seconds(late, table)
        print(f"{table}: {count} rows whole {whole:.1f} CPU s ({made} rows out), new week at least {week:.1f} CPU s")


def cpu_seconds(rows: Rows, table: str) -> tuple[float, int]:
    """CPU seconds of one table, what DuckDB is handed included, and its number of rows."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    with closing(history._connect(rows)) as connection:
        connection.execute(history._view(rows, None))
        made: pa.Table = connection.execute((REPO / f"{table}.sql").read_text()).to_arrow_table()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, made.num_rows


def complaints(count: int) -> Rows:
    """Rows as history tables see them."""
    draw = np.random.default_rng(3)
    event = START + pd.to_timedelta(np.sort(draw.integers(0, DAYS, count)), unit="D")
    day = pd.Series(event).dt.strftime("%Y-%m-%d")
    relief = draw.random(count) < 0.1
    clean = pd.DataFrame(
        {
            "Date received": day,
            "Date sent to company": day,
            "Company": np.char.add("Company ", (draw.pareto(0.7, count).astype(np.int64) % 3000).astype(str)),
            "State": draw.choice(["TX", "CA", "FL", "NY", "WA"], count),
            "Product": draw.choice(["Mortgage", "Card", "Loan", "Reporting"], count),
            "Timely response?": np.where(draw.random(count) < 0.05, "No", "Yes"),
            "Company response to consumer": np.where(relief, "Closed with monetary relief", "Closed"),
        }
    )
    typed = pd.DataFrame(
        {
            "row_id": [str(at) for at in range(count)],
            "event_timestamp": pd.Series(event).astype("datetime64[us, UTC]"),
            "label": relief.astype(np.int8),
        }
    )
    return Rows(clean, typed, "Company response to consumer", DELAY, ("%Y-%m-%d",))


def part(rows: Rows, where: pd.Series) -> Rows:
    """Some of the rows."""
    clean, typed = (frame[where.to_numpy()].reset_index(drop=True) for frame in (rows.clean, rows.typed))
    return Rows(clean, typed, rows.label_column, rows.label_delay_days, rows.time_formats)


if __name__ == "__main__":
    main()
