"""A rollout's state in the ledger: one writer by its lease, every entry once, nothing after an abort was asked for.

Entries of kind `rollout` carry `rollout` (which one), `event` and what belongs to it:

begin    a controller begins, or begins again; `start` counts them
state    it enters `state`; the key holds start and state, so that entering twice writes once
memory   evidence within a stage, for the next controller
passed   the stage of a state is proved, with its rules: it stands also where the controller ends later
abort    a person asks for the way back; written without the lease, by whoever asks first
end      how it ended, with the report: from then on the same rollout returns it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from components.core.errors import PolicyRefusal, UserError, one_line
from components.core.ledger import Entry, Lease, Ledger
from components.core.records import RolloutEvent, RolloutReport, RuleResult
from components.rollout import states

KIND = "rollout"
LEASE_SECONDS, LEASE_WAIT_SECONDS = 30.0, 5.0


@dataclass(frozen=True)
class About:
    """Which rollout it is: of which version of a model, beside which champion ("" for none), asked for by which run."""

    run_id: str
    name: str
    version: str
    digest: str
    stable_version: str
    stable_digest: str
    recipe_digest: str

    @property
    def id(self) -> str:
        """Names the rollout: the same input finds the same one."""
        stable = f"{self.stable_version or 'none'}@{self.stable_digest[:12]}"
        return f"{self.run_id}/{self.name}/{self.version}@{self.digest[:12]}/{stable}/{self.recipe_digest[:12]}"


@dataclass(frozen=True)
class Abort:
    """Who asked for the way back, and why."""

    who: str
    reason: str


class AbortedError(Exception):
    """A person asked for the way back; raised in the controller, which then goes it."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort.reason)
        self.abort = abort


def lease_name(name: str) -> str:
    """What the one controller of a model's rollout holds."""
    return f"rollout of {name}"


@contextmanager
def hold(ledger: Ledger, about: About, order: Sequence[str], wait: float = LEASE_WAIT_SECONDS) -> Iterator[Journal]:
    """Become the one controller of this model's rollouts.

    Another rollout of the model that its controller left half way is ended first: its candidate has no traffic, because
    this one begins with all of it on stable.

    Raises:
        TransientError: another controller lives.
    """
    with ledger.hold(lease_name(about.name), LEASE_SECONDS, wait) as lease:
        for entries in rollouts(ledger).values():
            left = about_of(entries)
            if left.name == about.name and left.id != about.id and is_open(entries):
                Journal(ledger, left, lease, ()).leave(f"left in state {state_of(entries)}; another rollout began")
        yield Journal(ledger, about, lease, order)


class Journal:
    """One rollout in the ledger."""

    def __init__(self, ledger: Ledger, about: About, lease: Lease, order: Sequence[str]) -> None:
        """`order`: the states that it goes through."""
        self.ledger, self.about, self.lease, self._order = ledger, about, lease, (*order, states.DONE)
        self._past = of_rollout(ledger, about.id)
        self.start = 1 + sum(entry.payload["event"] == "begin" for entry in self._past)
        self.state = state_of(self._past)
        self._kept = 0

    @property
    def report(self) -> RolloutReport | None:
        """How it ended, where it did."""
        return report_of(self._past)

    @property
    def lost_in(self) -> tuple[str, ...]:
        """The comparing stages in which earlier controllers ended; what they had seen since the last memory is lost."""
        last: dict[int, str] = {}
        for entry in self._past:
            if entry.payload["event"] in ("state", "passed"):
                last[entry.payload["start"]] = entry.payload["state"]
        return tuple(last[start] for start in sorted(last) if start < self.start and states.compares(last[start]))

    def passed(self, state: str) -> tuple[str, tuple[RuleResult, ...]] | None:
        """The verdict's line and the rules of a stage that an earlier controller proved."""
        for entry in self._past:
            if entry.payload["event"] == "passed" and entry.payload["state"] == state:
                rules = tuple(RuleResult(**rule) for rule in entry.payload["rules"])
                return str(entry.payload["text"]), rules
        return None

    def stopped(self) -> dict[str, Any] | None:
        """The verdict with which an earlier controller was on its way back."""
        for entry in self._past:
            if entry.payload["event"] == "state" and entry.payload["state"] == states.ABORTING:
                found: dict[str, Any] = entry.payload["verdict"]
                return found
        return None

    def abort(self) -> Abort | None:
        """What a person asked for meanwhile, looked up now."""
        return abort_of(self.ledger, self.about.id)

    def ended_elsewhere(self) -> RolloutReport | None:
        """How another ended it, who took over while this controller hung; None where nobody did."""
        return report_of(of_rollout(self.ledger, self.about.id))

    def begin(self, text: str) -> None:
        """A controller takes over."""
        self._write(f"{self.start}:begin", "begin", {"text": text, "about": asdict(self.about)}, abortable=False)

    def enter(self, state: str, text: str, weight: int = 0, **more: Any) -> None:
        """Go to a state; once it is written, the state is entered whatever happens.

        Raises:
            AbortedError: a person asked for the way back; nothing was written. Never for a state of the way back.
            TransientError: another controller took over; nothing was written.
        """
        if not states.may_follow(self.state, state, self._order):
            raise UserError(f"rollout {self.about.id}: {state} does not follow {self.state or 'the beginning'}")
        values = {"state": state, "text": text, "weight": weight, **more}
        self._write(f"{self.start}:{state}", "state", values, abortable=state != states.ABORTING)
        self.state = state

    def prove(self, state: str, text: str, rules: Sequence[RuleResult], memory: dict[str, Any] | None = None) -> None:
        """A stage is proved; `memory` is the judge's evidence until then."""
        told = {"state": state, "text": text, "rules": [asdict(rule) for rule in rules], "memory": memory}
        self._write(f"passed:{state}", "passed", told)

    def remember(self, memory: dict[str, Any]) -> None:
        """Keep the judge's evidence within a stage."""
        self._kept += 1
        self._write(f"{self.start}:memory:{self._kept}", "memory", {"memory": memory})

    def memory(self) -> dict[str, Any] | None:
        """The evidence that earlier controllers kept last; None where there is none."""
        kept = [entry.payload["memory"] for entry in self._past if entry.payload.get("memory")]
        return kept[-1] if kept else None

    def end(self, state: str, report: RolloutReport) -> None:
        """Done or aborted, with the report; raises as `enter`."""
        if not states.may_follow(self.state, state, self._order):
            raise UserError(f"rollout {self.about.id}: {state} does not follow {self.state or 'the beginning'}")
        told = {"state": state, "text": report.reason, "report": report.to_dict()}
        self._write("end", "end", told, abortable=state == states.DONE)
        self.state = state

    def leave(self, why: str, outcome: str = "inconclusive", rules: tuple[RuleResult, ...] = ()) -> RolloutReport:
        """End it without a stack: nothing of its candidate runs any more, or it was never in front of anybody."""
        about = self.about
        report = RolloutReport(
            outcome=outcome,
            reason=why,
            engine="",
            candidate_version=about.version,
            candidate_digest=about.digest,
            stable_version=about.stable_version,
            stable_digest=about.stable_digest,
            rules=rules,
            timeline=self._moves(why),
            requests=0,
            failed_requests=0,
        )
        self.enter(states.ABORTING, why, verdict={"outcome": outcome, "rule": "left", "text": why})
        self.end(states.ABORTED, report)
        return report

    def _moves(self, why: str) -> tuple[RolloutEvent, ...]:
        """The states of earlier controllers as a timeline, and the end."""
        moves = [entry for entry in self._past if entry.payload["event"] in ("begin", "state", "passed")]
        times = [datetime.fromisoformat(entry.time) for entry in moves] or [datetime.now(UTC)]
        events = [
            RolloutEvent(
                seconds=round((at - times[0]).total_seconds(), 3),
                stage=str(entry.payload.get("state", "start")),
                weight=int(entry.payload.get("weight", 0)),
                text=str(entry.payload.get("text", "")),
                verdict="pass" if entry.payload["event"] == "passed" else "",
            )
            for entry, at in zip(moves, times, strict=False)
        ]
        seconds = round((datetime.now(UTC) - times[0]).total_seconds(), 3)
        return (*events, RolloutEvent(seconds=seconds, stage="retreat", weight=0, text=why, verdict=""))

    def _write(self, key: str, event: str, values: dict[str, Any], abortable: bool = True) -> None:
        payload = {"rollout": self.about.id, "event": event, "start": self.start, "token": self.lease.token, **values}

        def guard(entries: list[Entry]) -> None:
            """In the same transaction: whoever asked first, the way back or the next state, has it."""
            if abortable and (asked := _abort_among(entries, self.about.id)):
                raise AbortedError(asked)

        self.ledger.append(KIND, f"{KIND}:{self.about.id}:{key}", payload, guard=guard, fence=self.lease)


def ask_abort(ledger: Ledger, rollout: str, who: str, reason: str) -> Abort:
    """Ask for the way back; the first who asks is who is named.

    Raises:
        PolicyRefusal: the rollout is over.
    """

    def guard(entries: list[Entry]) -> None:
        if end := _end_among(entries, rollout):
            raise PolicyRefusal(f"rollout {rollout} is over ({end.payload['state']}: {end.payload['text']})")

    told = {"rollout": rollout, "event": "abort", "who": who, "reason": " ".join(reason.split())[:500]}
    entry = ledger.append(KIND, f"{KIND}:{rollout}:abort", told, guard=guard)
    return Abort(entry.payload["who"], entry.payload["reason"])


def abort_of(ledger: Ledger, rollout: str) -> Abort | None:
    """Who asked for a rollout's way back, or None."""
    entry = ledger.find(f"{KIND}:{rollout}:abort")
    return Abort(entry.payload["who"], entry.payload["reason"]) if entry else None


def of_rollout(ledger: Ledger, rollout: str) -> list[Entry]:
    """All entries of one rollout, oldest first."""
    return [entry for entry in ledger.entries(KIND) if entry.payload["rollout"] == rollout]


def state_of(entries: Sequence[Entry]) -> str:
    """The last state of these entries of one rollout, "" where it has none yet."""
    told = [entry.payload["state"] for entry in entries if entry.payload["event"] in ("state", "end")]
    return str(told[-1]) if told else ""


def about_of(entries: Sequence[Entry]) -> About:
    """Which rollout these entries of one rollout are about."""
    return next(About(**entry.payload["about"]) for entry in entries if entry.payload["event"] == "begin")


def report_of(entries: Sequence[Entry]) -> RolloutReport | None:
    """How it ended, where it did."""
    ends = [entry for entry in entries if entry.payload["event"] == "end"]
    return RolloutReport.from_dict(ends[-1].payload["report"]) if ends else None


def rollouts(ledger: Ledger) -> dict[str, list[Entry]]:
    """Every rollout's entries, in the order in which the rollouts began."""
    found: dict[str, list[Entry]] = {}
    for entry in ledger.entries(KIND):
        found.setdefault(entry.payload["rollout"], []).append(entry)
    return {name: entries for name, entries in found.items() if entries[0].payload["event"] == "begin"}


def is_open(entries: Sequence[Entry]) -> bool:
    """Whether a rollout has not ended."""
    return state_of(entries) not in states.ENDS


def said(error: BaseException) -> str:
    """An error in words for an entry."""
    return f"{type(error).__name__}: {one_line(error)}"


def _abort_among(entries: Sequence[Entry], rollout: str) -> Abort | None:
    for entry in entries:
        if entry.payload["rollout"] == rollout and entry.payload["event"] == "abort":
            return Abort(entry.payload["who"], entry.payload["reason"])
    return None


def _end_among(entries: Sequence[Entry], rollout: str) -> Entry | None:
    return next((e for e in entries if e.payload["rollout"] == rollout and e.payload["event"] == "end"), None)
