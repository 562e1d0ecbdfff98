"""OpenLineage events of the steps, where a URL is configured; the one adapter of openlineage-python.

Telling lineage never blocks or fails a run: events go out from a thread, for which a step waits at most
`lineage.timeout_seconds` after its own work. Datasets are named by digest. Texts of errors and addresses of sources are
not sent, since they may hold secrets; a token of the receiver is read from $OPENLINEAGE_API_KEY.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from components.core import records
from components.core.recipe import Recipe
from components.core.records import Record

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

PRODUCER = "https://github.com/OpenLineage/OpenLineage/tree/main/client/python"  # the client that makes the events
PIPELINE = "retrain"
START, COMPLETE, FAIL = "START", "COMPLETE", "FAIL"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Told:
    """What a step read and wrote, as names of datasets."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Lineage:
    """Tells of one step of one run; silent where neither recipe nor environment names a URL."""

    def __init__(self, recipe: Recipe, run_id: str, step: str) -> None:
        self._settings, self._run_id, self._step = recipe.lineage, run_id, step
        self._url = recipe.lineage.url or os.environ.get("OPENLINEAGE_URL", "")
        self._id = str(uuid.uuid4())
        self._queue: queue.Queue[tuple[str, Told, str] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The step begins."""
        if self._url and os.environ.get("OPENLINEAGE_DISABLED", "").lower() not in ("1", "true"):
            self._thread = threading.Thread(target=self._send_all, name="lineage", daemon=True)
            self._thread.start()
            self._queue.put((START, Told(), ""))

    def complete(self, kept: Sequence[Record]) -> None:
        """The step is done and kept these records."""
        self._end(COMPLETE, told_by(kept), "")

    def fail(self, kind: str) -> None:
        """The step failed; the kind of error goes out, not its text."""
        self._end(FAIL, Told(), kind)

    def _end(self, state: str, told: Told, kind: str) -> None:
        if self._thread is None:
            return
        self._queue.put((state, told, kind))
        self._queue.put(None)
        self._thread.join(self._settings.timeout_seconds)
        if self._thread.is_alive():
            logger.warning("lineage: the receiver did not answer in %g s", self._settings.timeout_seconds)

    def _send_all(self) -> None:
        try:
            emit = _sender(self._url, self._settings.timeout_seconds)
            while (item := self._queue.get()) is not None:
                self._send(emit, item)
        except Exception as error:  # an address that is none: the run goes on
            logger.warning("lineage: not told (%s)", type(error).__name__)

    def _send(self, emit: Callable[[RunEvent], object], item: tuple[str, Told, str]) -> None:
        try:
            emit(self._event(*item))
        except Exception as error:  # whatever the receiver does: the run goes on
            logger.warning("lineage: %s of %s not told (%s)", item[0], self._step, type(error).__name__)

    def _event(self, state: str, told: Told, kind: str) -> RunEvent:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, parent_run

        space = self._settings.namespace
        whole = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{space}/{PIPELINE}/{self._run_id}"))
        facets: dict[str, Any] = {
            "parent": parent_run.ParentRunFacet(
                run=parent_run.Run(runId=whole), job=parent_run.Job(namespace=space, name=PIPELINE)
            )
        }
        if kind:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=kind, programmingLanguage="python")
        return RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=self._id, facets=facets),
            job=Job(namespace=space, name=f"{PIPELINE}.{self._step}"),
            producer=PRODUCER,
            inputs=[InputDataset(namespace=space, name=name) for name in told.inputs],
            outputs=[OutputDataset(namespace=space, name=name) for name in told.outputs],
        )


def told_by(kept: Sequence[Record]) -> Told:
    """The datasets that records name: kind and digest."""
    inputs: list[str] = []
    outputs: list[str] = []
    for record in kept:
        read, wrote = _names(record)
        inputs += [f"{kind}/{digest}" for kind, digest in read if digest]
        outputs += [f"{kind}/{digest}" for kind, digest in wrote if digest]
    return Told(tuple(dict.fromkeys(inputs)), tuple(dict.fromkeys(outputs)))


def _names(record: Record) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(kind, digest) of what was read and of what was written."""
    match record:
        case records.SnapshotRef():
            sources = [("source", str(item.get("sha256", ""))) for item in record.inputs]
            return [*sources, ("contract", record.contract_digest)], [("snapshot", record.digest)]
        case records.ContractVerdict():
            read = [("snapshot", record.snapshot_digest), ("contract", record.contract_digest)]
            return read, [("clean_rows", record.clean_digest)]
        case records.TrainingSetRef():
            return [("clean_rows", record.clean_digest)], [("training_set", record.digest)]
        case records.HandOver():
            return [("training_set", record.training_set_digest)], [("hand_over", record.record_digest)]
        case records.ModelRef():
            return [("training_set", record.training_set_digest)], [("model", record.digest)]
        case records.Evidence():
            read = [("model", record.model_digest), ("training_set", record.training_set_digest)]
            return read, [("evidence", record.record_digest)]
        case records.ModelVersionRef():
            read = [("model", record.digest), ("evidence", record.evidence_digest)]
            return read, [("model_version", record.record_digest)]
        case records.RolloutReport():
            read = [("model", record.candidate_digest), ("model", record.stable_digest)]
            return read, [("rollout", record.record_digest)]
        case records.PromotionRef():
            return [("model", record.digest)], [("promotion", record.record_digest)]
    return [], []


def _sender(url: str, seconds: float) -> Any:
    """A function that posts one event, once, within the time."""
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    for name in ("openlineage", "urllib3"):  # they log requests, and with them what may be secret
        logging.getLogger(name).setLevel(logging.CRITICAL)
    key = os.environ.get("OPENLINEAGE_API_KEY", "")
    auth = ApiKeyTokenProvider({"apiKey": key}) if key else TokenProvider({})
    once = {"total": 0, "read": 0, "connect": 0}
    return HttpTransport(HttpConfig(url=url, timeout=seconds, auth=auth, retry=once)).emit
