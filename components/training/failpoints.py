"""Every place where training writes, by name: a test ends or stops the process there; elsewhere they do nothing.

`PILOTLINE_FAILPOINT=save.shard@1=kill` acts when rank 1 reaches that place (`@launcher`: the process that starts the
ranks), once for the file named by PILOTLINE_FAILPOINT_ONCE; `#3` before the `=` waits for the third time. A function
of this package that writes calls `reached`; a test reads the sources and fails where one does not.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter

POINTS = {
    "launch.lock": "the launcher holds the job's lock file",
    "launch.job": "job.json is written",
    "launch.errors": "errors of an earlier attempt are removed",
    "launch.error": "a rank left its error",
    "launch.prepared": "vocabulary and encoded rows are published",
    "launch.converting": "a checkpoint of another shape is being converted",
    "launch.converted": "the converted checkpoint is published",
    "launch.log": "the reason of a failed attempt is in the log",
    "launch.published": "the step's output is published",
    "rank.init": "a rank has joined the others",
    "rank.beat": "a rank showed that it goes on",
    "rank.step": "an optimizer step is done",
    "rank.progress": "a point of the curve is in the progress file",
    "resume.cleared": "leftovers of a killed save are removed",
    "resume.set_aside": "a damaged checkpoint is set aside",
    "resume.loaded": "all ranks have loaded a checkpoint",
    "save.begin": "the staging folder is there",
    "save.shard": "one file of a rank's share is written",
    "save.extras": "averages, state and record are written",
    "save.part": "a rank's list of its files is written",
    "save.collected": "the lists of all ranks are taken out of the folder",
    "save.sealed": "the manifest is written and not yet published",
    "save.published": "the checkpoint is published",
    "save.pointed": "newest.json names the checkpoint",
    "save.pruned": "older checkpoints are removed",
    "preempt.noted": "preempted.json is written",
    "rollback.noted": "skipped.json names the step to leave out",
    "export.begin": "the export is being written",
    "export.published": "the export is published",
}
VARIABLE, ONCE = "PILOTLINE_FAILPOINT", "PILOTLINE_FAILPOINT_ONCE"
_FORM = re.compile(r"(?P<point>[a-z_.]+)@(?P<who>\d+|launcher)(#(?P<nth>\d+))?=(?P<act>kill|stop|term)")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_seen: Counter[str] = Counter()


def reached(point: str) -> None:
    """This process is at `point`, a key of POINTS."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    assert point in POINTS, point
    match = _FORM.fullmatch(wanted)
    if match is None:
        raise ValueError(f"{VARIABLE}={wanted}: write it as point@rank=kill, for example save.shard@1=kill")
    if match["point"] != point or match["who"] != os.environ.get("RANK", "launcher"):
        return
    _seen[point] += 1
    if _seen[point] >= int(match["nth"] or 1) and _first_time():
        os.kill(os.getpid(), _SIGNALS[match["act"]])


def _first_time() -> bool:
    """Whether no process has acted yet (always, where no file says so)."""
    if not (path := os.environ.get(ONCE)):
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
