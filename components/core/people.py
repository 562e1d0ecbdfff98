"""Who somebody is, as far as this machine can tell, and what the recipe lets them do. Decisions here are pure.

On one machine nothing proves who somebody is: `--as` and $PILOTLINE_USER are claims. The operating system's user is
therefore noted beside every claim. In a cluster the service account's access rights decide who can reach the home.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from components.core.errors import PolicyRefusal, UserError
from components.core.home import Home
from components.core.publish import write_atomic
from components.core.recipe import Recipe

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
USER = "PILOTLINE_USER"
JOINERS = "\u200c\u200d"  # invisible, and part of how some languages are written
STARTED_BY = "started_by.json"
RUN, APPROVE, PROMOTE, ROLL_BACK = "run", "approve", "promote by hand", "roll back"
ROLES = {RUN: ("runs",), APPROVE: ("approves",), PROMOTE: ("approves",), ROLL_BACK: ("runs", "approves")}


@dataclass(frozen=True)
class Person:
    """A name, where it comes from (--as, PILOTLINE_USER, operating system), and the operating system's user."""

    name: str
    source: str
    os_user: str

    def to_dict(self) -> dict[str, str]:
        """Plain values, for the ledger."""
        return asdict(self)


@dataclass(frozen=True)
class Policy:
    """What the recipe says about people, as it is kept with each request and promotion."""

    runs: tuple[str, ...] = ()
    approves: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    required: int = 0
    approvers: tuple[str, ...] = ()
    expires_hours: float = 72.0
    requester_may_approve: bool = False

    @classmethod
    def of(cls, recipe: Recipe) -> Policy:
        """The policy of a recipe."""
        return cls(**recipe.roles.model_dump(), **recipe.approval.model_dump())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """Rebuild it from the ledger."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def says_something(self) -> bool:
        """Whether it names anybody or asks for approvals."""
        return self._has_names or self.required > 0 or bool(self.approvers)

    @property
    def words(self) -> str:
        """Who promotes under it."""
        if not self.required:
            return "no approval is asked for"
        named = self.may_approve
        who = f" of {', '.join(named) or 'nobody'}" if named is not None else ""
        return f"{self.required} approval{'s' * (self.required != 1)}{who}"

    def under(self, standing: Policy) -> Policy:
        """This policy where it is not weaker than the one that stands: its people count, and the stricter numbers."""
        if not standing.says_something:
            return self
        people = standing if standing._has_names or standing.approvers else self
        return Policy(
            runs=people.runs,
            approves=people.approves,
            reads=people.reads,
            required=max(self.required, standing.required),
            approvers=people.approvers,
            expires_hours=min(self.expires_hours, standing.expires_hours),
            requester_may_approve=self.requester_may_approve and standing.requester_may_approve,
        )

    @property
    def may_approve(self) -> tuple[str, ...] | None:
        """The names that may approve; None where anybody may."""
        if self.approvers:
            return tuple(name for name in self.approvers if self._has_role(name, APPROVE))
        return self.approves if self._has_names else None

    def allow(self, who: str, action: str) -> None:
        """PolicyRefusal where this person may not do this."""
        if not self._has_role(who, action):
            asked = " or ".join(f"roles.{role}" for role in ROLES[action])
            raise PolicyRefusal(f"{who} may not {action}: not named in the recipe's {asked}; ask one who is")

    def allow_approval(self, who: str, requesters: Sequence[str]) -> None:
        """PolicyRefusal where this person's word does not count for a candidate that `requesters` started."""
        named = self.may_approve
        if named is not None and who not in named:
            raise PolicyRefusal(f"{who} may not approve or reject; {', '.join(named) or 'nobody'} may")
        if who.casefold() in {name.casefold() for name in requesters} and not self.requester_may_approve:
            raise PolicyRefusal(f"{who} started the run and may not approve it; somebody else has to")

    @property
    def _has_names(self) -> bool:
        return bool(self.runs or self.approves or self.reads)

    def _has_role(self, who: str, action: str) -> bool:
        return not self._has_names or any(who in getattr(self, role) for role in ROLES[action])


def identify(given: str | None = None) -> Person:
    """Who asks: `given` (--as), else $PILOTLINE_USER, else the operating system's user; UserError for an odd name."""
    os_user = _os_user()
    claims = (("--as", given), (USER, os.environ.get(USER)), ("operating system", os_user))
    source, name = next((source, name) for source, name in claims if name)
    if not NAME.fullmatch(name):
        raise UserError(f"{source} {name!r}: a person's name has letters, digits and . _ @ : - only, at most 128")
    return Person(name, source, os_user)


def given_reason(reason: str) -> str:
    """A reason in one line, as it is kept; UserError where there is none, or it holds what is not shown as written."""
    text = " ".join(reason.split())
    if not text:
        raise UserError("reason: say why, for the record (--reason)")
    if odd := next((char for char in text if not char.isprintable() and char not in JOINERS), ""):
        raise UserError(f"reason: holds {odd!a}, which is not shown as it is written; write plain text")
    return text[:2000]


def note_start(home: Home, run_id: str, who: Person) -> None:
    """Keep with the run who started it; whoever resumes it is one more."""
    path = home.run(run_id) / STARTED_BY
    known = json.loads(path.read_text()) if path.exists() else []
    if who.to_dict() not in known:
        write_atomic(path, json.dumps([*known, who.to_dict()]))


def starters(home: Home, run_id: str) -> tuple[str, ...]:
    """Who started a run; where nobody noted it (a step alone, a pod), whoever runs this now."""
    path = home.run(run_id) / STARTED_BY
    if not path.exists():
        return (identify().name,)
    return tuple(dict.fromkeys(str(person["name"]) for person in json.loads(path.read_text())))


def _os_user() -> str:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a number without a name
        name = f"uid{os.getuid()}"
    return name if NAME.fullmatch(name) else f"uid{os.getuid()}"
