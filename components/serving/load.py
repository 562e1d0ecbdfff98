"""An open-loop load driver: requests leave by the clock, whether earlier ones were answered or not.

Latency counts from the scheduled arrival, so that a server that falls behind shows it (a closed loop would slow down
with it and report less; the coordinated omission problem, G. Tene, "How NOT to Measure Latency"). A request that had no
answer counts with the time it was waited for: leaving it out would make an overload look like speed.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from components.core.errors import UserError
from components.core.protocols import OPEN, Decision
from components.serving.admission import own_headers
from components.serving.scoring import REQUEST_ID_HEADER

MOST_IN_FLIGHT = 256
POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0  # for the service to say what is in flight

Stop = Callable[[Sequence[Decision]], bool]
Row = Mapping[str, Any]


@dataclass
class Drive:
    """Sends rows as decisions; `run` blocks until all are answered, or `stop` or `under_way` said enough."""

    url: str
    rows: Sequence[Row]
    rate: float
    timeout_seconds: float
    stop: Stop | None = None
    under_way: Stop | None = None
    _found: dict[int, Decision] = field(default_factory=dict)
    _sent: dict[int, float] = field(default_factory=dict)  # index → scheduled arrival
    _drawn: dict[int, tuple[str, float]] = field(default_factory=dict)  # of open requests: arm and weight
    _enough: threading.Event = field(default_factory=threading.Event)
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> list[Decision]:
        """Decisions in the order of arrival: one a row, or fewer where `stop` ended the run.

        `stop` sees the decisions in that order up to the first one still unanswered: never in order of completion,
        which would show quick answers first. `under_way` then sees what arrived after those, in the same order: those
        that have ended, and the others as `open`, with the arm for which the service drew them.
        """
        if not self.rate > 0:
            raise ValueError(f"rate {self.rate}: must be positive")
        failed: list[BaseException] = []
        sender = threading.Thread(target=self._send_all, args=(failed,), name="load")
        sender.start()
        try:
            while sender.is_alive():
                sender.join(POLL_SECONDS)
                seen = self._prefix()
                if self._says_enough(seen):
                    self._enough.set()
        finally:
            self._enough.set()
            sender.join()
        if failed:
            raise failed[0]
        return [self._found[index] for index in sorted(self._found)]

    def _says_enough(self, seen: list[Decision]) -> bool:
        if self._enough.is_set():
            return False
        if self.stop is not None and seen and self.stop(seen):
            return True
        return self.under_way is not None and bool(rest := self._rest(len(seen))) and self.under_way(rest)

    def _rest(self, first: int) -> list[Decision]:
        """All that was sent from this index on, in order of arrival; [] where all of it has ended."""
        indices = range(first, len(self._sent))
        if not any(index not in self._found for index in indices):
            return []
        if any(index not in self._drawn and index not in self._found for index in indices):
            self._drawn |= _drawn_at(self.url, self._name)
        now = time.perf_counter()
        return [self._found.get(index) or self._open(index, now) for index in indices]

    def _open(self, index: int, now: float) -> Decision:
        drawn, weight = self._drawn.get(index, ("", 0.0))
        return open_decision(drawn, weight, now - self._sent[index])

    def _prefix(self) -> list[Decision]:
        seen: list[Decision] = []
        while (found := self._found.get(len(seen))) is not None:
            seen.append(found)
        return seen

    def _send_all(self, failed: list[BaseException]) -> None:
        try:
            asyncio.run(self._arrivals())
        except BaseException as error:  # re-raised in the caller's thread
            failed.append(error)

    async def _arrivals(self) -> None:
        import aiohttp

        places = asyncio.Semaphore(MOST_IN_FLIGHT)
        tasks: set[asyncio.Task[None]] = set()
        connector = aiohttp.TCPConnector(limit=MOST_IN_FLIGHT)
        timeout = aiohttp.ClientTimeout(total=None)  # `_one` bounds the time
        async with aiohttp.ClientSession(self.url, connector=connector, timeout=timeout) as client:
            start = time.perf_counter()
            for index, row in enumerate(self.rows):
                arrival = start + index / self.rate
                await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
                await places.acquire()
                if self._enough.is_set():
                    break
                self._sent[index] = arrival
                task = asyncio.create_task(self._one(client, index, row, arrival))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: places.release())
            await asyncio.gather(*tasks)

    async def _one(self, client: Any, index: int, row: Row, arrival: float) -> None:
        import aiohttp

        given = {"text": row.get("text") or "", **row.get("request", {})}
        body = {"entities": dict(row["entities"]), "input": given}
        headers = {"content-type": "application/json", REQUEST_ID_HEADER: f"{self._name}-{index}", **own_headers()}
        status, answer = 0, None
        try:
            async with (
                asyncio.timeout(self.timeout_seconds),
                client.post("/v1/decisions", data=orjson.dumps(body), headers=headers) as response,
            ):
                status, answer = response.status, orjson.loads(await response.read())
        except (TimeoutError, aiohttp.ClientError, ValueError):
            pass
        self._found[index] = as_decision(status, answer, time.perf_counter() - arrival)


def open_decision(drawn: str, weight: float, seconds: float) -> Decision:
    """A request that has not ended: its draw ("" where it is not known yet) and its age."""
    return Decision(
        http_status=0, status=OPEN, label=None, score=None, model_version="", drawn=drawn, answered_by="none",
        weight=weight, seconds=seconds,
    )  # fmt: skip


def _drawn_at(url: str, name: str) -> dict[int, tuple[str, float]]:
    """Arm and weight of a drive's requests that the service is deciding on; {} where it does not say."""
    import httpx

    with suppress(httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        told = httpx.get(f"{url}/in-flight", timeout=LOOK_SECONDS, trust_env=False).json()["requests"]
        ours = [one for one in told if one["request_id"].rpartition("-")[0] == name]
        return {int(one["request_id"].rpartition("-")[2]): (str(one["drawn"]), float(one["weight"])) for one in ours}
    return {}


@dataclass(frozen=True)
class Latencies:
    """Percentiles of all requests, seconds from the scheduled arrival; nearest rank, so each is a measured one.

    Those that had no answer are in them with the time that was waited: where `unanswered` is over one hundredth, the
    99th percentile is at least that.
    """

    requests: int
    unanswered: int
    refused: int
    p50: float
    p95: float
    p99: float
    longest: float

    @classmethod
    def of(cls, decisions: Sequence[Decision]) -> Latencies:
        """Of the decisions of a run; UserError where there is none."""
        if not decisions:
            raise UserError("no request was sent; give rows to send")
        seconds = sorted(decision.seconds for decision in decisions)
        return cls(
            requests=len(seconds),
            unanswered=sum(decision.http_status == 0 for decision in decisions),
            refused=sum(decision.status == "refused" for decision in decisions),
            p50=nearest_rank(seconds, 0.5),
            p95=nearest_rank(seconds, 0.95),
            p99=nearest_rank(seconds, 0.99),
            longest=seconds[-1],
        )


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows for `Drive` from a JSON-lines file of requests: {"entities": {...}, "input": {"text": ..., ...}}.

    Raises:
        UserError: the file cannot be read, or a line is no such object; the line's number, not its content, is told.
    """
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    asked = orjson.loads(line)
                    given = dict(asked.get("input") or {})
                    yield {"entities": dict(asked["entities"]), "text": given.pop("text", ""), "request": given}
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    wanted = 'write {"entities": {...}, "input": {...}}'
                    raise UserError(
                        f"{path}, line {number}: not a request ({type(error).__name__}); {wanted}"
                    ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def as_decision(http_status: int, answer: Any, seconds: float) -> Decision:
    """The answer of the scoring service, or its absence, as a record."""
    about = answer if isinstance(answer, dict) else {}
    about = about.get("decision") or about  # a refusal is a problem document with the decision inside
    known = "decision_id" in about
    model = about.get("model") or {}
    return Decision(
        http_status=http_status,
        status="refused" if not known or http_status != 200 else str(about["status"]),
        label=about.get("label") if known else None,
        score=about.get("score") if known else None,
        model_version=str(model.get("version", "")),
        drawn=str(about.get("drawn", "")),
        answered_by=str(about.get("answered_by", "none")),
        weight=float(about.get("weight", 0.0)),
        seconds=seconds,
        decision_id=str(about.get("decision_id", "")),
        failure=str(about.get("failure", "")) if known else "no answer" if http_status == 0 else f"http_{http_status}",
        model_seconds=about["seconds"]["model"] if known else None,
    )
