"""Recipe sections about people: who may do what, whose approval a promotion needs, and where lineage is told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from components.core.sections.base import Natural, Positive, Section

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}$")]  # also system:serviceaccount:ns:name


class Roles(Section):
    """Who may do what. Without a name everybody may do everything; with one, whoever is not listed only reads."""

    runs: tuple[Name, ...] = ()  # start runs, and roll back
    approves: tuple[Name, ...] = ()  # approve and reject, promote by hand, and roll back
    reads: tuple[Name, ...] = ()  # for the access rights made of it; everybody who reaches the home can read


class Approval(Section):
    """Whose approval a candidate needs, after gate and canary, before it becomes champion."""

    required: Annotated[Natural, Field(le=20)] = 0  # people who have to approve; 0 promotes without
    approvers: tuple[Name, ...] = ()  # these only; else whoever has the role `approves`
    expires_hours: Annotated[Positive, Field(le=24 * 366)] = 72.0  # then the candidate has to be judged again
    requester_may_approve: bool = False  # whether one who started the run counts


class Lineage(Section):
    """Where OpenLineage events are sent; "" takes $OPENLINEAGE_URL; nothing is sent without either."""

    url: Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$")] = ""
    namespace: Annotated[str, Field(pattern=r"^[^\s]{1,128}$")] = "pilotline"
    timeout_seconds: Annotated[Positive, Field(le=10.0)] = 2.0  # for one event; a run never waits longer for it
