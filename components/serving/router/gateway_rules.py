"""The rules of the HTTPRoute: written for arms and weights, and read back from it, as plain values.

Gateway API picks the rule by the match that says most: an exact path, then the method, then the number of headers;
among equals the first in the list. So a named arm comes before any other value of the header, and both before weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from components.core.errors import IntegrityError
from components.serving.control import ARMS, CANARY, STABLE
from components.serving.router.interface import ALL_ON_STABLE, ALLOWED, ARM_HEADER, Backend

UNKNOWN_ARM, WEIGHTED = "arm-unknown", "weighted"

Rule = Mapping[str, Any]


@dataclass(frozen=True)
class Split:
    """Where each arm points, and the weights in percent."""

    arms: Mapping[str, Backend | None]
    weights: Mapping[str, int]

    @classmethod
    def empty(cls) -> Split:
        """No arm, all on stable."""
        return cls(dict.fromkeys(ARMS), dict(ALL_ON_STABLE))

    def with_arm(self, arm: str, backend: Backend | None) -> Split:
        """The arm points elsewhere; a canary taken away gives its weight back to stable."""
        weights = ALL_ON_STABLE if (arm, backend) == (CANARY, None) else self.weights
        return replace(self, arms={**self.arms, arm: backend}, weights=dict(weights))


def rules_of(split: Split, timeout_seconds: float) -> list[dict[str, Any]]:
    """The route's rules.

    An arm without a replica has a rule without a backend: the gateway answers such a request itself, with an error,
    and so it does where the header names no arm.
    """
    timeouts = {"request": f"{max(1, round(timeout_seconds * 1000))}ms"}
    rules = [
        {
            "name": _arm_rule(arm),
            "matches": _matches({"type": "Exact", "name": ARM_HEADER, "value": arm}),
            "backendRefs": _refs([(split.arms.get(arm), 1)]),
            "timeouts": timeouts,
        }
        for arm in ARMS
    ]
    anything = {"type": "RegularExpression", "name": ARM_HEADER, "value": ".*"}
    rules.append({"name": UNKNOWN_ARM, "matches": _matches(anything), "backendRefs": []})
    shares = [(split.arms.get(arm), split.weights[arm]) for arm in ARMS]
    rules.append({"name": WEIGHTED, "matches": _matches(None), "backendRefs": _refs(shares), "timeouts": timeouts})
    return rules


def split_of(rules: Sequence[Rule]) -> Split:
    """Read arms and weights back.

    Raises:
        IntegrityError: the rules are not of this shape.
    """
    found = {str(rule.get("name")): rule for rule in rules}
    if set(found) != {*map(_arm_rule, ARMS), UNKNOWN_ARM, WEIGHTED}:
        raise IntegrityError(f"the route's rules {sorted(found)} are not those of a rollout; apply the manifests again")
    arms = {arm: _backend(found[_arm_rule(arm)]) for arm in ARMS}
    weights = {(ref["name"], ref.get("port")): int(ref.get("weight", 1)) for ref in found[WEIGHTED]["backendRefs"]}
    canary = arms[CANARY]
    share = weights.get((canary.host, canary.port), 0) if canary else 0
    total = sum(weights.values())
    percent = round(100 * share / total) if total else 0
    return Split(arms, {STABLE: 100 - percent, CANARY: percent})


def _arm_rule(arm: str) -> str:
    return f"arm-{arm}"


def _matches(header: dict[str, str] | None) -> list[dict[str, Any]]:
    headers = {"headers": [header]} if header else {}
    return [{"path": {"type": "Exact", "value": path}, "method": method} | headers for path, method in ALLOWED]


def _refs(shares: Sequence[tuple[Backend | None, int]]) -> list[dict[str, Any]]:
    """Everything that the API server would fill in is said, so that what is read back equals what was written."""
    return [
        {"group": "", "kind": "Service", "name": backend.host, "port": backend.port, "weight": weight}
        for backend, weight in shares
        if backend is not None
    ]


def _backend(rule: Rule) -> Backend | None:
    refs = rule.get("backendRefs") or []
    return Backend(refs[0]["name"], int(refs[0]["port"])) if refs else None
