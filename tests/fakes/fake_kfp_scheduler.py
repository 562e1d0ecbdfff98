"""One tick of Kubeflow Pipelines' scheduler on the fake server: fills in the macros and starts the run, or does not.

The macros are those of the server's parameter formatter: [[ScheduledTime]], [[ScheduledTime.LAYOUT]] with Go's
reference date as the layout, and [[Index]]; anything else in double brackets stays as it is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from tests.fakes.fake_kfp import FakeKfp

DEFAULT_LAYOUT = "20060102150405"
GO_LAYOUT = (("2006", "%Y"), ("01", "%m"), ("02", "%d"), ("15", "%H"), ("04", "%M"), ("05", "%S"))
ACTIVE = ("PENDING", "RUNNING")


def tick(fake: FakeKfp, recurring_run_id: str, scheduled: datetime, expands: bool = True) -> dict[str, Any] | None:
    """The run that is started for this time; None where the schedule is disabled or has enough runs active.

    Args:
        fake: the server.
        recurring_run_id: whose turn it is.
        scheduled: the scheduled time.
        expands: False for a server that leaves macros as they are (kubeflow/pipelines#12494).
    """
    schedule = fake.recurring[recurring_run_id]
    own = [run for run in fake.runs.values() if run.get("recurring_run_id") == recurring_run_id]
    if schedule["mode"] != "ENABLE" or sum(run["state"] in ACTIVE for run in own) >= int(schedule["max_concurrency"]):
        return None
    parameters = {
        name: _expand(value, scheduled.astimezone(UTC), len(own) + 1) if expands and isinstance(value, str) else value
        for name, value in schedule["runtime_config"]["parameters"].items()
    }
    run = {
        "run_id": f"tick-{len(fake.runs)}",
        "display_name": f"{schedule['display_name']}-{len(own) + 1}",
        "experiment_id": schedule["experiment_id"],
        "recurring_run_id": recurring_run_id,
        "runtime_config": {"parameters": parameters},
        "state": "RUNNING",
    }
    fake.runs[run["run_id"]] = run
    return run


def _expand(text: str, scheduled: datetime, index: int) -> str:
    def said(match: re.Match[str]) -> str:
        name, _, layout = match.group(1).partition(".")
        if name == "ScheduledTime":
            layout = layout or DEFAULT_LAYOUT
            for go, python in GO_LAYOUT:
                layout = layout.replace(go, python)
            return scheduled.strftime(layout)
        return str(index) if name == "Index" else match.group(0)

    return re.sub(r"\[\[(.*?)\]\]", said, text)
