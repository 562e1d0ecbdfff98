"""A Kubernetes API server's objects without a cluster: loopback HTTP, driven by the real `kubernetes` client.

    with KubernetesApi(namespaces=("serving",)) as api:
        client.CoreV1Api(api.client()).create_namespaced_service("serving", body)

Held to what adapters rely on: 404 for absent objects, namespaces and resources; 409 for a name that exists, for a
write with an old resourceVersion and for a precondition that does not hold; one resourceVersion counter for all;
`generation` grows with the spec only; `status` is written through its subresource only; server-side `uid`; managed
fields name each writer; owned objects go with their owner; lists by label and name; watch from a resourceVersion
with 410 for one that was compacted; merge, JSON and strategic patches (lists merge by `name`), no apply.

Not here: admission, defaulting, finalizers, quotas, paging. A test plays the controllers: `on_change` sees every
write as it is made, `set_status` reports. `fail` makes requests fail; `rules` holds a client to a Role's rules.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

Object = dict[str, Any]
Key = tuple[str, str, str, str]  # group/version, plural, namespace, name


@dataclass(frozen=True)
class Resource:
    """One kind as the API serves it; `scoped` is whether its objects live in a namespace."""

    version: str
    plural: str
    kind: str
    scoped: bool = True


RESOURCES = (
    Resource("v1", "namespaces", "Namespace", False),
    Resource("v1", "nodes", "Node", False),
    Resource("v1", "pods", "Pod"),
    Resource("v1", "services", "Service"),
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "secrets", "Secret"),
    Resource("v1", "events", "Event"),
    Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("apps/v1", "deployments", "Deployment"),
    Resource("batch/v1", "jobs", "Job"),
    Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
    Resource("gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute"),
    Resource("gateway.networking.k8s.io/v1", "gateways", "Gateway"),
    Resource("keda.sh/v1alpha1", "scaledobjects", "ScaledObject"),
    Resource("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob"),
    Resource("trainer.kubeflow.org/v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", False),
    Resource("kueue.x-k8s.io/v1beta1", "workloads", "Workload"),
    Resource("kueue.x-k8s.io/v1beta1", "localqueues", "LocalQueue"),
)
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
MERGE, STRATEGIC, JSON_PATCH = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Fault:
    """The next `times` requests of these verbs whose path contains `path` are answered with this status.

    `before` runs instead of a failure where given: another writer that comes in between, for example.
    """

    verbs: tuple[str, ...]
    path: str
    status: int
    times: int = 1
    before: Callable[[], object] | None = None


@dataclass
class KubernetesApi:
    """The server; a context manager. `requests` lists (verb, path) of every call, `writer` names direct writes."""

    namespaces: Sequence[str] = ("default",)
    resources: Sequence[Resource] = RESOURCES
    validate: Callable[[Object], Sequence[str]] | None = None  # what is wrong with an object; 422 where anything is
    on_change: Callable[[str, Object], None] | None = None  # (ADDED, MODIFIED or DELETED, object), in the request
    rules: Sequence[Mapping[str, Sequence[str]]] | None = None  # a Role's rules: HTTP calls beyond them get 403
    requests: list[tuple[str, str]] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)  # (group, resource, verb) of all calls under `rules`
    logs: dict[tuple[str, str], str] = field(default_factory=dict)  # (namespace, pod) → text
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing listens yet."""
        self._lock = threading.Condition(threading.RLock())
        self._objects: dict[Key, Object] = {}
        self._history: list[tuple[int, str, Key, Object]] = []
        self._version, self._compacted, self._closing = 100, 0, False
        self._server: ThreadingHTTPServer | None = None
        for name in self.namespaces:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def __enter__(self) -> Self:
        """Listen on a free loopback port."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening; open watches end."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def url(self) -> str:
        """Base URL."""
        assert self._server is not None, "used outside its context"
        return f"http://127.0.0.1:{self._server.server_port}"

    def client(self) -> Any:
        """A `kubernetes.client.ApiClient` that talks to this server."""
        from kubernetes import client

        settings = client.Configuration(host=self.url)
        settings.proxy = None
        return client.ApiClient(settings)

    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig for this server, as a mapping."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": "double", "user": {}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
            "current-context": "double",
        }

    def fail(self, verbs: str, path: str, status: int, times: int = 1) -> None:
        """Let the next requests fail; `verbs` as "PATCH" or "GET PUT", `path` a part of the URL's path."""
        self.faults.append(Fault(tuple(verbs.split()), path, status, times))

    def interrupt(self, verbs: str, path: str, act: Callable[[], object]) -> None:
        """Run `act` once, just before the next such request is looked at."""
        self.faults.append(Fault(tuple(verbs.split()), path, 0, 1, act))

    def resource(self, version: str, plural: str) -> Resource:
        """The resource; ApiError 404 where the server has no such kind."""
        for resource in self.resources:
            if (resource.version, resource.plural) == (version, plural):
                return resource
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def of_kind(self, version: str, kind: str) -> Resource:
        """The resource of a kind."""
        for resource in self.resources:
            if (resource.version, resource.kind) == (version, kind):
                return resource
        raise ApiError(404, "NotFound", f"no kind {kind} in {version}")

    # What a test does itself; the HTTP handler goes through the same methods.

    def create(self, body: Object, namespace: str = "", writer: str = "test") -> Object:
        """Create; ApiError 404 (namespace), 409 (exists), 422 (invalid)."""
        with self._lock:
            resource = self.of_kind(str(body.get("apiVersion")), str(body.get("kind")))
            made = copy.deepcopy(body)
            about = made.setdefault("metadata", {})
            if "name" not in about and about.get("generateName"):
                about["name"] = about["generateName"] + uuid.uuid4().hex[:5]
            key = self._key(resource, about.get("namespace") or namespace, about.get("name", ""))
            if about.get("resourceVersion"):
                raise ApiError(400, "BadRequest", "resourceVersion should not be set on objects to be created")
            if resource.scoped and ("v1", "namespaces", "", key[2]) not in self._objects:
                raise ApiError(404, "NotFound", f'namespaces "{key[2]}" not found')
            if key in self._objects:
                raise ApiError(409, "AlreadyExists", f'{resource.plural} "{key[3]}" already exists')
            self._check(made)
            made.pop("status", None)
            about |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
            if resource.scoped:
                about["namespace"] = key[2]
            return self._store("ADDED", key, made, writer)

    def get(self, version: str, plural: str, name: str, namespace: str = "") -> Object:
        """Read; ApiError 404."""
        with self._lock:
            resource = self.resource(version, plural)
            key = self._key(resource, namespace, name)
            if key not in self._objects:
                raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
            return copy.deepcopy(self._objects[key])

    def list(self, version: str, plural: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All of a kind, in order of name; everywhere where no namespace is given."""
        with self._lock:
            self.resource(version, plural)
            return [
                copy.deepcopy(found)
                for key, found in sorted(self._objects.items())
                if key[:2] == (version, plural) and namespace in ("", key[2]) and _selected(found, labels)
            ]

    def replace(self, body: Object, namespace: str = "", part: str = "", writer: str = "test") -> Object:
        """Replace the object, or its status where `part` is "status"; ApiError 404, 409 (old resourceVersion)."""
        with self._lock:
            resource = self.of_kind(str(body.get("apiVersion")), str(body.get("kind")))
            about = body.get("metadata", {})
            old = self.get(resource.version, resource.plural, about["name"], about.get("namespace") or namespace)
            asked = about.get("resourceVersion")
            if asked and asked != old["metadata"]["resourceVersion"]:
                raise ApiError(
                    409, "Conflict", f'Operation cannot be fulfilled on {resource.plural} "{about["name"]}": the '
                    "object has been modified; please apply your changes to the latest version and try again"
                )  # fmt: skip
            return self._update(resource, old, copy.deepcopy(body), part, writer)

    def patch(
        self, version: str, plural: str, name: str, patch: Any, namespace: str = "", kind: str = MERGE,
        part: str = "", writer: str = "test",
    ) -> Object:  # fmt: skip
        """Patch the object or its status; ApiError 404, 409 (resourceVersion in the patch), 415, 422."""
        with self._lock:
            old = self.get(version, plural, name, namespace)
            if kind == JSON_PATCH:
                new = _json_patched(old, patch)
            elif kind == MERGE:
                new = _merged(old, patch)
            elif kind == STRATEGIC:
                if version.partition("/")[0] not in ("v1", "apps", "batch", "policy"):
                    raise ApiError(415, "UnsupportedMediaType", "custom kinds take merge and JSON patches")
                new = _merged(old, patch, by_name=True)
            else:
                raise ApiError(415, "UnsupportedMediaType", f"{kind} is not supported here")
            return self.replace(new, namespace, part, writer)

    def delete(
        self, version: str, plural: str, name: str, namespace: str = "", preconditions: Mapping[str, str] | None = None
    ) -> Object:
        """Delete it and what it owns; ApiError 404, 409 (precondition)."""
        with self._lock:
            old = self.get(version, plural, name, namespace)
            for field_, wanted in (preconditions or {}).items():
                if wanted and old["metadata"].get(field_) != wanted:
                    raise ApiError(409, "Conflict", f"precondition failed: {field_}")
            key = self._key(self.resource(version, plural), namespace, name)
            self._store("DELETED", key, old, "")
            self._collect(old["metadata"]["uid"])
            return old

    def set_status(self, version: str, plural: str, name: str, status: Object, namespace: str = "") -> Object:
        """Report as a controller does: merged into the object's status."""
        return self.patch(version, plural, name, {"status": status}, namespace, part="status", writer="controller")

    def compact(self) -> None:
        """Forget the history: a watch from an earlier resourceVersion is answered with 410."""
        with self._lock:
            self._compacted, self._history = self._version, []

    def changes(self, version: str, plural: str, namespace: str, since: int, seconds: float) -> Any:
        """Yield (type, object) of changes after `since` until the time is over; ERROR 410 where it was compacted."""
        until, sent = time.monotonic() + seconds, since
        while True:
            with self._lock:
                if sent < self._compacted:
                    gone = ApiError(410, "Expired", f"too old resource version: {since} ({self._compacted})")
                    yield "ERROR", _status(gone)
                    return
                fresh = [change for change in self._history if change[0] > sent]
                if not fresh:
                    left = until - time.monotonic()
                    if left <= 0 or self._closing:
                        return
                    self._lock.wait(left)
                    continue
            for number, event, key, body in fresh:
                sent = number
                if key[:2] == (version, plural) and namespace in ("", key[2]):
                    yield event, copy.deepcopy(body)

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        with self._lock:
            return self._version

    def _key(self, resource: Resource, namespace: str, name: str) -> Key:
        if not NAME.fullmatch(name) or len(name) > 253:
            raise ApiError(422, "Invalid", f"metadata.name: Invalid value: {name!r}")
        return resource.version, resource.plural, namespace if resource.scoped else "", name

    def _check(self, body: Object) -> None:
        if self.validate and (wrong := list(self.validate(body))):
            raise ApiError(422, "Invalid", f"{body['kind']} is invalid: {'; '.join(wrong)}")

    def _update(self, resource: Resource, old: Object, new: Object, part: str, writer: str) -> Object:
        kept = copy.deepcopy(old)
        if part == "status":
            kept["status"] = new.get("status", {})
        else:
            self._check({key: value for key, value in new.items() if key != "status"})
            fixed = {key: old["metadata"].get(key) for key in ("uid", "generation", "creationTimestamp", "namespace")}
            status = {"status": old["status"]} if "status" in old else {}
            new.pop("status", None)
            kept = new | status
            kept["metadata"] = new["metadata"] | {key: value for key, value in fixed.items() if value is not None}
            kept["metadata"]["managedFields"] = old["metadata"].get("managedFields", [])
            spec = {key: value for key, value in kept.items() if key not in ("metadata", "status")}
            if spec != {key: value for key, value in old.items() if key not in ("metadata", "status")}:
                kept["metadata"]["generation"] += 1
        same = {k: v for k, v in kept["metadata"].items() if k not in ("resourceVersion", "managedFields")} == {
            k: v for k, v in old["metadata"].items() if k not in ("resourceVersion", "managedFields")
        }
        if same and {**kept, "metadata": 0} == {**old, "metadata": 0}:
            return copy.deepcopy(old)  # a write that changes nothing leaves the resourceVersion
        key = self._key(resource, old["metadata"].get("namespace", ""), old["metadata"]["name"])
        return self._store("MODIFIED", key, kept, writer, part)

    def _store(self, event: str, key: Key, body: Object, writer: str, part: str = "") -> Object:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        if event == "DELETED":
            del self._objects[key]
        else:
            wrote = {"manager": writer, "operation": "Update", "apiVersion": key[0], "time": _now()}
            wrote |= {"subresource": part} if part else {}
            fields = [one for one in body["metadata"].get("managedFields", []) if one["manager"] != writer]
            body["metadata"]["managedFields"] = [*fields, wrote]
            self._objects[key] = copy.deepcopy(body)
        self._history.append((self._version, event, key, copy.deepcopy(body)))
        self._lock.notify_all()
        if self.on_change:
            self.on_change(event, copy.deepcopy(body))
        return copy.deepcopy(body)

    def _collect(self, uid: str) -> None:
        """Background deletion: what names this owner and no other that lives goes too."""
        for key, found in list(self._objects.items()):
            owners = [owner["uid"] for owner in found["metadata"].get("ownerReferences", [])]
            living = {one["metadata"]["uid"] for one in self._objects.values()}
            if uid in owners and not living & set(owners) and key in self._objects:
                self.delete(key[0], key[1], key[3], key[2])


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                _Call(api, self, body).answer()
            except ApiError as error:
                self.send(error.code, _status(error))
            except (ValueError, KeyError, TypeError) as error:
                self.send(400, _status(ApiError(400, "BadRequest", f"{type(error).__name__}: {error}")))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

        def send(self, code: int, value: Any) -> None:
            content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            with suppress(ConnectionError):
                self.send_response(code)
                self.send_header("content-type", "text/plain" if isinstance(value, str) else "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler


class _Call:
    """One request: its path taken apart, then answered."""

    def __init__(self, api: KubernetesApi, http: Any, body: bytes) -> None:
        self.api, self.http, self.verb = api, http, http.command
        url = urlsplit(http.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.watching = self.query.get("watch", "").lower() in ("true", "1")
        self.body: Any = json.loads(body) if body else None
        words = [unquote(word) for word in url.path.strip("/").split("/")]
        api.requests.append((self.verb, url.path))
        self._fault(url.path)
        if words[0] == "api":
            self.version, rest = words[1], words[2:]
        elif words[0] == "apis" and len(words) > 3:
            self.version, rest = "/".join(words[1:3]), words[3:]
        else:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        self.namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            self.namespace, rest = rest[1], rest[2:]
        self.plural, self.name, self.part = (*rest, "", "")[:3]
        self.resource = api.resource(self.version, self.plural)
        self.writer = self.query.get("fieldManager") or http.headers.get("user-agent", "unknown").split("/")[0]
        self._permit()

    def _fault(self, path: str) -> None:
        for fault in self.api.faults:
            if fault.times > 0 and self.verb in fault.verbs and fault.path in path:
                fault.times -= 1
                if fault.before is None:
                    raise ApiError(fault.status, "InternalError", "planted failure")
                fault.before()
                return

    def _permit(self) -> None:
        """Role-based access as the API server judges it: group, resource (with subresource), verb, name."""
        if self.api.rules is None:
            return
        group = self.version.rpartition("/")[0]
        resource = f"{self.plural}/{self.part}" if self.part else self.plural
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(self.verb)
        verb = verb or ("get" if self.name else "watch" if self.watching else "list")
        self.api.used.add((group, resource, verb))
        for rule in self.api.rules:
            names = rule.get("resourceNames")
            if (
                group in rule.get("apiGroups", ()) and resource in rule.get("resources", ())
                and verb in rule.get("verbs", ()) and (not names or self.name in names)
            ):  # fmt: skip
                return
        raise ApiError(403, "Forbidden", f'cannot {verb} resource "{resource}" in API group "{group}"')

    def answer(self) -> None:
        """Do it."""
        api, at = self.api, (self.version, self.plural, self.name, self.namespace)
        if self.verb == "GET" and self.part == "log":
            api.get(*at)
            self.http.send(200, api.logs.get((self.namespace, self.name), ""))
        elif self.verb == "GET" and self.name:
            self.http.send(200, api.get(*at))
        elif self.verb == "GET" and self.watching:
            self._watch()
        elif self.verb == "GET":
            self._list()
        elif self.verb == "POST" and not self.name:
            self._same_kind()
            self.http.send(201, api.create(self.body, self.namespace, self.writer))
        elif self.verb == "PUT":
            self._same_kind()
            self.http.send(200, api.replace(self.body, self.namespace, self.part, self.writer))
        elif self.verb == "PATCH":
            kind = self.http.headers.get("content-type", "").split(";")[0]
            self.http.send(200, api.patch(*at[:3], self.body, self.namespace, kind, self.part, self.writer))
        elif self.verb == "DELETE" and self.name:
            conditions = (self.body or {}).get("preconditions")
            self.http.send(200, api.delete(*at, conditions))
        else:
            raise ApiError(405, "MethodNotAllowed", f"{self.verb} is not supported on the requested resource")

    def _same_kind(self) -> None:
        about = self.body.get("metadata", {})
        if (self.body.get("apiVersion", self.version), self.body.get("kind", self.resource.kind)) != (
            self.version, self.resource.kind,
        ):  # fmt: skip
            raise ApiError(400, "BadRequest", "the object's kind is not the one of the URL")
        if about.get("namespace", self.namespace) != self.namespace or (self.name and about.get("name") != self.name):
            raise ApiError(400, "BadRequest", "the object's name or namespace does not match the one of the URL")
        self.body |= {"apiVersion": self.version, "kind": self.resource.kind}

    def _list(self) -> None:
        items = self._chosen(self.api.list(self.version, self.plural, self.namespace))
        about = {"resourceVersion": str(self.api.version)}
        kind = f"{self.resource.kind}List"
        self.http.send(200, {"apiVersion": self.version, "kind": kind, "metadata": about, "items": items})

    def _chosen(self, items: list[Object]) -> list[Object]:
        found = [item for item in items if _selected(item, self.query.get("labelSelector", ""))]
        for term in filter(None, self.query.get("fieldSelector", "").split(",")):
            path, _, value = term.partition("=")
            found = [item for item in found if _at(item, path) == value.lstrip("=")]
        return found

    def _watch(self) -> None:
        since = int(self.query.get("resourceVersion") or 0)
        seconds = float(self.query.get("timeoutSeconds") or 30)
        self.http.send_response(200)
        self.http.send_header("content-type", "application/json")
        self.http.send_header("transfer-encoding", "chunked")
        self.http.end_headers()
        with suppress(ConnectionError):
            if not since:
                since = self.api.version
                for item in self._chosen(self.api.list(self.version, self.plural, self.namespace)):
                    self._event("ADDED", item)
            for kind, item in self.api.changes(self.version, self.plural, self.namespace, since, seconds):
                if kind == "ERROR" or self._chosen([item]):
                    self._event(kind, item)
            self.http.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, item: Object) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self.http.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.http.wfile.flush()


def _status(error: ApiError) -> Object:
    about = {"message": error.message, "reason": error.reason, "code": error.code}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"} | about


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _at(item: Object, path: str) -> Any:
    value: Any = item
    for word in path.split("."):
        value = value.get(word, "") if isinstance(value, dict) else ""
    return value


def _selected(item: Object, selector: str) -> bool:
    """Label selectors: a=b, a==b, a!=b, a, !a, a in (b,c), a notin (b,c)."""
    labels = item["metadata"].get("labels", {})
    for term in filter(None, (part.strip() for part in re.split(r",(?![^(]*\))", selector))):
        if among := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
            name, how, values = among.groups()
            if (labels.get(name) in {value.strip() for value in values.split(",")}) != (how == "in"):
                return False
        elif "!=" in term:
            name, value = term.split("!=")
            if labels.get(name) == value:
                return False
        elif "=" in term:
            name, value = re.split("==?", term)
            if labels.get(name) != value:
                return False
        elif (term.lstrip("!") in labels) == term.startswith("!"):
            return False
    return True


def _merged(old: Any, patch: Any, by_name: bool = False) -> Any:
    """JSON merge patch (RFC 7396); `by_name` merges lists of named things as strategic patches do."""
    if by_name and isinstance(old, list) and isinstance(patch, list) and all(_named(one) for one in [*old, *patch]):
        found = {one["name"]: one for one in old}
        for one in patch:
            found[one["name"]] = _merged(found.get(one["name"], {}), one, by_name)
        return list(found.values())
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value, by_name)
    return result


def _named(value: Any) -> bool:
    return isinstance(value, dict) and "name" in value


def _json_patched(old: Object, operations: Sequence[Mapping[str, Any]]) -> Object:
    """RFC 6902: add, replace, remove and test."""
    new: Any = copy.deepcopy(old)
    for step in operations:
        *path, last = [word.replace("~1", "/").replace("~0", "~") for word in step["path"].split("/")[1:]]
        place = new
        try:
            for word in path:
                place = place[int(word)] if isinstance(place, list) else place[word]
            name = (len(place) if last == "-" else int(last)) if isinstance(place, list) else last
            if step["op"] == "test" and place[name] != step["value"]:
                raise ApiError(422, "Invalid", f"testing value {step['path']} failed")
            if step["op"] in ("remove", "replace"):
                place.pop(name) if step["op"] == "remove" else place.__getitem__(name)
            if step["op"] == "add" and isinstance(place, list):
                place.insert(name, step["value"])
            elif step["op"] in ("add", "replace"):
                place[name] = step["value"]
        except (KeyError, IndexError) as error:
            raise ApiError(422, "Invalid", f"no {step['path']}") from error
    result: Object = new
    return result
