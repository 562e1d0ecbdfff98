"""Forwards what rank 0 writes, and what the machine does meanwhile, to the tracking run.

Ranks know nothing of MLflow: they append JSON lines, so one tracking run spans all restarts of a job.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from components.core.records import ModelRef

if TYPE_CHECKING:
    from components.tracking.mlflow_tracking import Tracking

EVERY_SECONDS = 3.0


class Forwarder:
    """Reads the progress file from where it stopped and logs points that the tracking run does not have yet."""

    def __init__(self, progress: Path, tracking: Tracking | None, run_id: str) -> None:
        self._progress, self._tracking, self._run_id = progress, tracking, run_id
        self._next = 0.0
        self._sample = 0
        self._sent = -1
        if tracking is not None:
            self._sent = max(tracking.last_step(run_id, name) for name in ("loss", "validation_loss"))
            self._sample = tracking.last_step(run_id, "system/cpu_utilization_percentage") + 1

    def tick(self, pid: int) -> None:
        """Called often while ranks run; forwards every few seconds."""
        now = time.monotonic()
        if self._tracking is None or now < self._next:
            return
        self._next = now + EVERY_SECONDS
        self._tracking.log_metrics(self._run_id, _system(pid), self._sample)
        self._sample += 1
        self._forward(self._points()[:-1])  # the newest step may still get its validation point

    def flush(self) -> None:
        """Forward what is left."""
        if self._tracking is not None:
            self._forward(self._points())

    def finish(self, model: ModelRef, out: Path) -> None:
        """Log final metrics and the record, and end the tracking run."""
        if self._tracking is None:
            return
        self.flush()
        final = {f"final/{name}": value for name, value in model.metrics.items()}
        self._tracking.log_metrics(self._run_id, final, model.steps)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "record.json").write_bytes((out / "record.json").read_bytes())
            (Path(folder) / "curve.json").write_text(json.dumps(list(model.curve)))
            self._tracking.log_artifacts(self._run_id, Path(folder))
        self._tracking.finish(self._run_id, "FINISHED")

    def close(self, status: str) -> None:
        """End the tracking run after a failure; what went wrong before matters more than an error here."""
        if self._tracking is not None:
            with suppress(Exception):
                self._tracking.finish(self._run_id, status)

    def _forward(self, points: list[dict[str, float]]) -> None:
        fresh = [point for point in points if point["step"] > self._sent]
        if fresh and self._tracking is not None:
            self._tracking.log_curve(self._run_id, fresh)
            self._sent = int(fresh[-1]["step"])

    def _points(self) -> list[dict[str, float]]:
        """Whole lines of the progress file, one point a step."""
        merged: dict[float, dict[str, float]] = {}
        with suppress(OSError):
            for line in self._progress.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    point = json.loads(line)
                    merged.setdefault(point["step"], {}).update(point)
        return [merged[step] for step in sorted(merged)]


def _system(pid: int) -> dict[str, float]:
    """CPU use in percent of one core and resident memory in megabytes of a process and all below it."""
    import psutil

    processes = []
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
    seconds = memory = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            memory += process.memory_info().rss / 1e6
    return {
        "system/cpu_utilization_percentage": float(psutil.cpu_percent()),
        "system/job_cpu_seconds": seconds,
        "system/job_memory_megabytes": memory,
        "system/memory_usage_percentage": float(psutil.virtual_memory().percent),
    }
