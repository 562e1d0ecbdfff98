"""Twenty rules on a million rows: our engines beside the same checks by hand and beside other tools.

    python benchmarks/bench_contract.py [--rows 1000000] [--large 10000000] [--repeats 3]

Each run is a process of its own, so that its processor time and its peak of memory are its own; imports are not
counted. The best of the repeats stands, the tools take turns. `--large 0` leaves out the size at which memory matters.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contract_rows import CATEGORIES, write_contract
from components.core.paths import PROJECT_ROOT

NAMES = "ours query gx ours_gx gx_complete datacontract"


def main() -> None:
    """Run the tools in turns and print what they took, with the targets."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--large", type=int, default=10_000_000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--tools", default=NAMES, help=f"of {NAMES}")
    options.add_argument("--one", default="", help=argparse.SUPPRESS)
    options.add_argument("--folder", default="", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        print(json.dumps(_measure(args.one, Path(args.folder))))
        return
    with tempfile.TemporaryDirectory() as name:
        _compare(Path(name), args)
    if args.large:
        with tempfile.TemporaryDirectory() as name:
            _grow(Path(name), args)


def _compare(folder: Path, args: argparse.Namespace) -> None:
    _prepare(folder, args.rows)
    best: dict[str, dict[str, float]] = {}
    for _ in range(args.repeats):
        for tool in args.tools.split():
            seen = _run(tool, folder)
            if tool not in best or seen["cpu"] < best[tool]["cpu"]:
                best[tool] = seen
    print(f"{args.rows} rows, {(folder / 'rows.parquet').stat().st_size / 2**20:.0f} MiB of Parquet")
    for tool, seen in best.items():
        print(f"  {TITLES[tool]:62} {seen['cpu']:7.2f} CPU s {seen['mib']:6.0f} MiB")
    for above, below, target in RATIOS:
        if above in best and below in best:
            ratio = best[above]["cpu"] / best[below]["cpu"]
            print(f"  {TITLES[above]} / {TITLES[below]}: {ratio:.2f} (target {target})")


def _grow(folder: Path, args: argparse.Namespace) -> None:
    """The same at a tenth and at the whole of the large size: time by row, and the peak of memory."""
    times = []
    for rows in (args.large // 10, args.large):
        _prepare(folder, rows)
        for tool in ("ours", "ours_csv", "ours_split") if rows < args.large else ("ours", "ours_split"):
            seen = _run(tool, folder)
            times += [(rows, tool, seen["cpu"])]
            size = (folder / "rows.parquet").stat().st_size / 2**20
            told = (
                f"{seen['cpu']:.2f} CPU s, {1e6 * seen['cpu'] / rows:.3f} s a million rows, peak {seen['mib']:.0f} MiB"
            )
            print(f"{rows} rows ({size:.0f} MiB), {TITLES[tool]}: {told} (target under 1024)")
    for tool in ("ours", "ours_split"):
        small, large = (cpu for _, name, cpu in times if name == tool)
        print(f"{TITLES[tool]}: ten times the rows take {large / small:.1f} times as long (target 10)")


def _prepare(folder: Path, rows: int) -> None:
    code = (
        "import sys, pathlib, benchmarks.contract_rows as c; c.write_rows(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(folder / "rows.parquet"), str(rows)]
    subprocess.run(command, cwd=PROJECT_ROOT, check=True, capture_output=True)
    write_contract(folder / "contract.yaml", folder / "rows.parquet")


def _run(tool: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_contract", "--one", tool, "--folder", str(folder)]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _measure(tool: str, folder: Path) -> dict[str, float]:
    """Processor seconds of the work, with this process's peak of memory in MiB."""
    work = TOOLS[tool](folder)
    before = _cpu()
    told = work()
    return {"cpu": _cpu() - before, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "broken": told}


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _ours(folder: Path, engine: str = "duckdb") -> Callable[[], int]:
    import duckdb  # noqa: F401 - imports are not counted
    import pandas as pd  # noqa: F401 - Arrow imports it

    from components.contract.engines import duckdb_engine, duckdb_queries  # noqa: F401
    from components.contract.validate import check

    if engine == "great_expectations":
        from components.contract.engines import expectations  # noqa: F401

    def work() -> int:
        verdict = check(folder / "contract.yaml", folder / "rows.parquet", engine)
        assert verdict.passed, verdict.reason
        return verdict.quarantined

    return work


def _ours_csv(folder: Path) -> Callable[[], int]:
    import pandas as pd  # noqa: F401 - Arrow imports it

    from components.contract.engines import duckdb_engine  # noqa: F401
    from components.contract.validate import check

    path, source = folder / "rows.csv", folder / "rows.parquet"
    code = f"import duckdb; duckdb.execute(\"COPY (FROM '{source}') TO '{path}' (HEADER, DELIMITER ',')\")"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def work() -> int:
        verdict = check(folder / "contract.yaml", path, "duckdb")
        assert verdict.passed, verdict.reason
        return verdict.quarantined

    return work


def _ours_split(folder: Path) -> Callable[[], int]:
    """A whole step: one row in a hundred breaks a warning, and clean rows and quarantine are written."""
    from components.contract.engines import duckdb_engine  # noqa: F401
    from components.contract.engines.batch import snapshot_batch
    from components.contract.engines.choose import measured
    from components.contract.engines.split import split
    from components.contract.judge import judge, setting_aside
    from components.contract.standard.contract import load

    text = (folder / "contract.yaml").read_text()
    few = text.replace("^[0-9X]{5}$", "^[0-9X]{3}([1-9][0-9]|[0-9][1-9])$")  # not 00 at the end
    severity = "    customProperties:\n    - property: ruleSeverity\n      value: warning\n"
    (folder / "split.yaml").write_text(few.replace("  - name: zip\n", f"  - name: zip\n{severity}"))
    contract, batch = load(folder / "split.yaml"), snapshot_batch(folder / "rows.parquet")

    def work() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            seen, _ = measured(contract, batch, Path(name), "duckdb")
            aside = seen.marks.of_any(setting_aside(contract.rules, seen.observations, seen.rows))
            judgement = judge(contract, batch.names, seen.rows, seen.observations, aside)
            assert judgement.passed, judgement.reason
            assert judgement.quarantined
            split(batch, seen.marks, judgement, contract.rules, Path(name))
            return judgement.quarantined

    return work


def _query(folder: Path) -> Callable[[], int]:
    """The same checks as one query by hand."""
    import duckdb

    categories = ", ".join(f"'{name}'" for name in CATEGORIES)
    tags = ", ".join(f"'tag {number}'" for number in range(5))
    query = f"""
        SELECT count(*) - count(id), count(id) - count(DISTINCT id), count_if(NOT regexp_matches(id, '^K[0-9]{{9}}$')),
               count(*) - count(day), count_if(coalesce(try_strptime(day, '%Y-%m-%d') < DATE '2011-12-01', true)),
               count(*) - count(moment), count_if(try_strptime(moment, '%Y-%m-%dT%H:%M:%S') IS NULL),
               count(*) - count(category), count_if(category NOT IN ({categories})),
               count(*) - count(state), count_if(NOT regexp_matches(state, '^[A-Z]{{2}}$')),
               count(*) - count(zip), count_if(NOT regexp_matches(zip, '^[0-9X]{{5}}$')),
               count(*) - count(amount), count_if(NOT coalesce(TRY_CAST(amount AS DOUBLE) BETWEEN 0 AND 10000, false)),
               count_if(NOT coalesce(TRY_CAST(age AS BIGINT) BETWEEN 0 AND 120, false)),
               count_if(tag <> '' AND tag NOT IN ({tags})), count_if(timely NOT IN ('true', 'false')),
               count(*) - count(text), count_if(length(text) NOT BETWEEN 3 AND 4000)
        FROM read_parquet('{folder / "rows.parquet"}')"""
    connection = duckdb.connect(config={"threads": 2})

    def work() -> int:
        row: Any = connection.execute(query).fetchone()
        assert not sum(row), row
        return 0

    return work


def _gx(folder: Path, result_format: str) -> Callable[[], int]:
    """The same checks with Great Expectations on pandas by hand: numbers and times are converted by pandas first."""
    import os

    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    import great_expectations.expectations as gxe
    import pandas as pd
    from great_expectations.data_context.types.base import ProgressBarsConfig

    expectations = [
        *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in PRESENT),
        gxe.ExpectColumnValuesToBeUnique(column="id"),
        gxe.ExpectColumnValuesToMatchRegex(column="id", regex="^K[0-9]{9}$"),
        gxe.ExpectColumnValuesToBeBetween(column="day", min_value=pd.Timestamp("2011-12-01")),
        gxe.ExpectColumnValuesToBeInSet(column="category", value_set=CATEGORIES),
        gxe.ExpectColumnValuesToMatchRegex(column="state", regex="^[A-Z]{2}$"),
        gxe.ExpectColumnValuesToMatchRegex(column="zip", regex="^[0-9X]{5}$"),
        gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0, max_value=10000),
        gxe.ExpectColumnValuesToBeBetween(column="age", min_value=0, max_value=120),
        gxe.ExpectColumnValuesToBeInSet(column="tag", value_set=[f"tag {number}" for number in range(5)]),
        gxe.ExpectColumnValuesToNotBeNull(column="tag", mostly=0.8),
        gxe.ExpectColumnValuesToBeInSet(column="timely", value_set=["true", "false"]),
        gxe.ExpectColumnValueLengthsToBeBetween(column="text", min_value=3, max_value=4000),
        gxe.ExpectTableRowCountToBeBetween(min_value=101),
    ]

    def work() -> int:
        frame = pd.read_parquet(folder / "rows.parquet")
        frame = frame.replace("", None)
        for name in ("day", "moment"):
            frame[name] = pd.to_datetime(frame[name], errors="coerce", format="ISO8601")
        for name in ("amount", "age"):
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
        batch = asset.add_batch_definition_whole_dataframe("rows")
        suite = context.suites.add(gx.ExpectationSuite(name="rows", expectations=expectations))
        run = context.validation_definitions.add(gx.ValidationDefinition(name="rows", data=batch, suite=suite))
        result = run.run(batch_parameters={"dataframe": frame}, result_format=result_format)
        assert result.success
        return 0

    return work


def _datacontract(folder: Path) -> Callable[[], int]:
    """`datacontract test` on the same file; what it cannot evaluate on texts it leaves out or fails."""
    from datacontract.data_contract import DataContract

    def work() -> int:
        run = DataContract(data_contract_file=str(folder / "contract.yaml"), server="local").test()
        return sum(str(check.result).endswith("failed") for check in run.checks)

    return work


PRESENT = ("id", "day", "moment", "category", "state", "zip", "amount", "text")
TOOLS: dict[str, Callable[[Path], Callable[[], int]]] = {
    "ours": _ours,
    "ours_csv": _ours_csv,
    "ours_split": _ours_split,
    "ours_gx": lambda folder: _ours(folder, "great_expectations"),
    "query": _query,
    "gx": lambda folder: _gx(folder, "SUMMARY"),
    "gx_complete": lambda folder: _gx(folder, "COMPLETE"),
    "datacontract": _datacontract,
}
TITLES = {
    "ours": "contract check, DuckDB",
    "ours_csv": "contract check of CSV, DuckDB",
    "ours_split": "the step with its clean rows and quarantine, DuckDB",
    "ours_gx": "contract check, Great Expectations",
    "query": "one DuckDB query by hand",
    "gx": "Great Expectations on pandas by hand",
    "gx_complete": "Great Expectations by hand, naming broken rows",
    "datacontract": "datacontract test",
}
RATIOS = (
    ("ours", "query", "at most 2"),
    ("gx", "ours", "at least 5"),
    ("datacontract", "ours", "at least 2"),
    ("ours_gx", "gx_complete", "at most 1.2"),
)


if __name__ == "__main__":
    main()
