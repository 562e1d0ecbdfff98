"""A Gateway API HTTPRoute as router: the manifests make it, this adapter patches its rules and nothing else.

Each patch names the resourceVersion that was read, so two writers cannot overwrite each other unseen. That a change is
in force is known from the API alone: the spec read back, and what gateways report in `status.parents`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.core.errors import PilotlineError, PolicyRefusal, TransientError, UserError, one_line
from components.core.processes import wait_until
from components.serving.cluster import CALL_SECONDS, FIELD_MANAGER, ConflictError, call
from components.serving.control import CANARY, STABLE
from components.serving.router.gateway_rules import Split, rules_of, split_of
from components.serving.router.interface import ALL_ON_STABLE, Backend, RouterHealth, checked_arm, checked_weights

GROUP, VERSION, PLURAL = "gateway.networking.k8s.io", "v1", "httproutes"
TRIES = 6
WAIT_SECONDS = 0.05  # doubled after each try
ACCEPT_SECONDS = 10.0
CONDITIONS = ("Accepted", "ResolvedRefs")

Route = Mapping[str, Any]


class HttpRoute:
    """One HTTPRoute, a `Router`."""

    def __init__(
        self,
        api: Any,
        namespace: str,
        name: str,
        url: str,
        timeout_seconds: float,
        accept_seconds: float = ACCEPT_SECONDS,
    ) -> None:
        """Nothing is asked before the first call.

        Args:
            api: a `kubernetes.client.ApiClient`.
            url: where callers in the cluster reach the gateway.
            timeout_seconds: of a request through the gateway.
            accept_seconds: how long a gateway may take to accept a change.
        """
        self._api, self._namespace, self._name, self._url = api, namespace, name, url
        self._timeout, self._accept = timeout_seconds, accept_seconds
        self._what = f"HTTPRoute {namespace}/{name}"
        self._ours: list[Any] = []  # rules as last seen, and those that were sent and may have arrived

    @property
    def url(self) -> str:
        """Where callers in the cluster reach the gateway."""
        return self._url

    def set_arm(self, arm: str, backend: Backend | None) -> None:
        """Point an arm at a Service of the route's namespace, or at nothing; read back when this returns."""
        checked_arm(arm)
        way_back = (arm, backend) == (CANARY, None)
        self._change(lambda split: split.with_arm(arm, backend), way_back)

    def arms(self) -> dict[str, Backend | None]:
        """Where each arm points."""
        return dict(_split(self._read()).arms)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Percent for each arm of the requests without an arm header; read back when this returns."""

        def change(split: Split) -> Split:
            return Split(split.arms, checked_weights(weights, split.arms[CANARY]))

        both = {arm: weight for arm, weight in weights.items() if weight}
        self._change(change, both == {STABLE: 100})

    def weights(self) -> dict[str, int]:
        """The weights of the route."""
        return dict(_split(self._read()).weights)

    def active(self, arm: str) -> int | None:  # noqa: ARG002 - no gateway tells; replicas drain themselves
        """Not told by the API."""
        return None

    def health(self) -> RouterHealth:
        """Whether the route is as last set and a gateway accepted it; no word of any gateway is not healthy."""
        try:
            found = self._read()
            self._refuse_others(found)
            weights = _split(found).weights
        except PilotlineError as error:
            return RouterHealth(False, one_line(error))
        state, reason = acceptance(found)
        return RouterHealth(
            state == "accepted", f"{self._what}: {reason}; {STABLE} {weights[STABLE]} %, {CANARY} {weights[CANARY]} %"
        )

    def close(self) -> None:
        """Close connections; the route stays and goes on serving."""
        self._api.close()

    def _change(self, change: Callable[[Split], Split], way_back: bool) -> None:
        last: TransientError | None = None
        for attempt in range(TRIES):
            if attempt:
                time.sleep(WAIT_SECONDS * 2**attempt)
            try:
                self._try(change, way_back)
            except TransientError as error:  # a conflict, or an API server that stumbles: look again, then decide
                last = error
                continue
            self._await_accepted()
            return
        raise TransientError(f"{self._what}: not changed in {TRIES} tries; {one_line(last or TransientError(''))}")

    def _try(self, change: Callable[[Split], Split], way_back: bool) -> None:
        found = self._read()
        if not way_back:
            self._refuse_others(found)
        split = self._adopted(found) if way_back else _split(found)
        rules = rules_of(change(split), self._timeout)
        if found["spec"].get("rules") != rules:
            self._ours.append(rules)
            self._patch(found["metadata"]["resourceVersion"], rules)
        if self._read()["spec"].get("rules") != rules:
            raise ConflictError(f"{self._what}: other rules are read back than were written")
        self._ours = [rules]

    def _adopted(self, found: Route) -> Split:
        """What to go back from: the route as it is, or as last set here where that cannot be read.

        IntegrityError where neither can: with stable's place unknown, going back would send everybody to nobody.
        """
        try:
            return _split(found)
        except PilotlineError:
            return split_of(self._ours[0])

    def _read(self) -> dict[str, Any]:
        where = (GROUP, VERSION, self._namespace, PLURAL, self._name)
        found: dict[str, Any] = call(
            self._what, lambda: self._custom().get_namespaced_custom_object(*where, _request_timeout=CALL_SECONDS)
        )
        if not self._ours:
            self._ours = [found["spec"].get("rules")]
        return found

    def _patch(self, version: str, rules: Sequence[Any]) -> None:
        body = {"metadata": {"resourceVersion": version}, "spec": {"rules": rules}}
        where = (GROUP, VERSION, self._namespace, PLURAL, self._name, body)
        call(
            self._what,
            lambda: self._custom().patch_namespaced_custom_object(
                *where, field_manager=FIELD_MANAGER, _request_timeout=CALL_SECONDS
            ),
        )

    def _custom(self) -> Any:
        from kubernetes import client

        return client.CustomObjectsApi(self._api)

    def _refuse_others(self, found: Route) -> None:
        """PolicyRefusal where the rules are neither those last seen nor any sent since."""
        rules = found["spec"].get("rules")
        if rules in self._ours:
            return
        raise PolicyRefusal(
            f"{self._what}: changed by {_writer(found)} since this rollout wrote it ({_told(self._ours[0])} became "
            f"{_told(rules)}); nothing was changed here, abort the rollout or end the other writer"
        )

    def _await_accepted(self) -> None:
        """Wait until every gateway that reports on the route accepts this generation; TransientError where not."""
        state, reason = "pending", ""

        def settled() -> bool:
            nonlocal state, reason
            state, reason = acceptance(self._read())
            return state in ("accepted", "unreported")

        if not wait_until(settled, self._accept, every=0.1):
            raise TransientError(f"{self._what}: {reason} after {self._accept:.0f} s; see `kubectl describe httproute`")


def gateway_url(api: Any, namespace: str, name: str, listener: str) -> str:
    """Where callers in the cluster reach a Gateway's listener, by the address in its status.

    Raises:
        NotFoundError: no such Gateway. UserError: it has no such listener.
        TransientError: no controller gave it an address yet.
    """
    from kubernetes import client

    what, where = f"Gateway {namespace}/{name}", (GROUP, VERSION, namespace, "gateways", name)
    ask = client.CustomObjectsApi(api).get_namespaced_custom_object
    found: Any = call(what, lambda: ask(*where, _request_timeout=CALL_SECONDS))
    ports = [one["port"] for one in found["spec"].get("listeners", []) if one["name"] == listener]
    if not ports:
        raise UserError(f"{what}: has no listener {listener}; apply deploy/kubernetes/serving, or set serving.cluster")
    told = found.get("status", {}).get("addresses", [])
    if not told:
        raise TransientError(f"{what}: has no address yet; does its class have a controller (`kubectl describe`)?")
    host = str(told[0]["value"])
    return f"http://{f'[{host}]' if ':' in host else host}:{ports[0]}"


def _split(found: Route) -> Split:
    """Arms and weights of the route; a new one has the API server's default rule, which sends nobody anywhere."""
    rules = found["spec"].get("rules") or []
    return split_of(rules) if any("name" in rule or rule.get("backendRefs") for rule in rules) else Split.empty()


def acceptance(found: Route) -> tuple[str, str]:
    """accepted, refused, pending or unreported, with the reason in words: `status.parents` of this generation."""
    generation = found["metadata"].get("generation", 0)
    parents = found.get("status", {}).get("parents", [])
    if not parents:
        return "unreported", "no gateway reports on it"
    for parent in parents:
        told = {condition["type"]: condition for condition in parent.get("conditions", [])}
        for name in CONDITIONS:
            condition = told.get(name)
            by = parent.get("controllerName", "a gateway")
            if condition is None or condition.get("observedGeneration", 0) < generation:
                return "pending", f"{by} has not yet looked at generation {generation}"
            if condition["status"] != "True":
                why = f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
                return "refused", f"{by} says {name} {condition['status']} ({why})"
    return "accepted", f"accepted by {', '.join(str(parent.get('controllerName')) for parent in parents)}"


def _writer(found: Route) -> str:
    """Who wrote the rules last, other than we, by what the API server keeps of each writer; times are whole seconds."""
    others = [
        one
        for one in found["metadata"].get("managedFields", [])
        if one.get("manager") != FIELD_MANAGER and one.get("subresource") != "status" and _wrote_rules(one)
    ]
    if not others:
        return "another writer"
    newest = max(str(one.get("time", "")) for one in others)
    names = sorted({repr(one.get("manager")) for one in others if str(one.get("time", "")) == newest})
    return f"{' or '.join(names)} at {newest}"


def _wrote_rules(one: Route) -> bool:
    fields = one.get("fieldsV1")
    return fields is None or "f:rules" in fields.get("f:spec", {})


def _told(rules: Any) -> str:
    """Rules in a few words."""
    if not rules:
        return "no rules"
    try:
        split = split_of(rules)
    except PilotlineError:
        return "other rules"
    where = {arm: backend.host if backend else "nothing" for arm, backend in split.arms.items()}
    return ", ".join(f"{arm} {split.weights[arm]} % to {where[arm]}" for arm in where)


__all__ = ["ALL_ON_STABLE", "Backend", "HttpRoute", "acceptance", "gateway_url"]
