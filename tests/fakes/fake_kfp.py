"""A small faithful stand-in for the Kubeflow Pipelines API server (v2beta1 REST), on loopback.

It answers the calls that a client makes to publish and start pipelines: health, pipelines, versions (multipart
upload), experiments, runs and recurring runs. Like the real server it parses an upload as a PipelineSpec, refuses a
name twice, checks arguments against the pipeline's inputs, wants exactly one trigger, pages its lists and answers
errors as google.rpc.Status. Every call is recorded in `calls`. It schedules and executes nothing.
"""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

BASE = "/apis/v2beta1"
NOT_FOUND, INVALID, EXISTS, UNAUTHENTICATED, UNAVAILABLE = 5, 3, 6, 16, 14
HTTP = {NOT_FOUND: 404, INVALID: 400, EXISTS: 409, UNAUTHENTICATED: 401, UNAVAILABLE: 503}
PIPELINE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
JSON_TYPES = {
    "STRING": str,
    "BOOLEAN": bool,
    "NUMBER_INTEGER": (int, float),
    "NUMBER_DOUBLE": (int, float),
    "LIST": list,
    "STRUCT": dict,
}


class RefusedError(Exception):
    """An error answer: a google.rpc code and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True)
class Call:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    authorization: str


@dataclass
class FakeKfp:
    """The server's state; `token` and `multi_user` change what it asks of a client."""

    token: str = ""
    multi_user: bool = False
    page_limit: int = 100
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    recurring: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[tuple[str, str, int]] = field(
        default_factory=list
    )  # (method, path pattern, google.rpc code), used once
    lock: threading.RLock = field(default_factory=threading.RLock)

    def changes(self) -> list[str]:
        """The calls that change something, as 'METHOD path' without ids."""
        return [f"{call.method} {_nameless(call.path)}" for call in self.calls if call.method != "GET"]

    def answer(self, call: Call) -> Any:
        """The JSON answer of a call; RefusedError where the real server refuses."""
        with self.lock:
            self.calls.append(call)
            if self.token and call.authorization != f"Bearer {self.token}":
                raise RefusedError(UNAUTHENTICATED, "Request header error: there is no valid user identity")
            for fault in [f for f in self.faults if f[0] == call.method and re.search(f[1], call.path)][:1]:
                self.faults.remove(fault)
                raise RefusedError(fault[2], "planted fault")
            for method, pattern, name in ROUTES:
                match = re.fullmatch(BASE + pattern, call.path)
                if match and method == call.method:
                    return getattr(self, name)(call, *match.groups())
            raise RefusedError(NOT_FOUND, f"no route {call.method} {call.path}")

    # -- health, pipelines and versions

    def healthz(self, _call: Call) -> Any:
        return {"multi_user": self.multi_user, "pipeline_store": "database"}

    def list_pipelines(self, call: Call) -> Any:
        return self._page(call, "pipelines", list(self.pipelines.values()))

    def create_pipeline(self, call: Call) -> Any:
        name = (call.body or {}).get("name") or (call.body or {}).get("display_name") or ""
        if not name:
            raise RefusedError(INVALID, "pipeline's name cannot be empty")
        if any(item["name"] == name for item in self.pipelines.values()):
            raise RefusedError(EXISTS, f"Failed to create a new pipeline. The name {name} already exists")
        shown = (call.body or {}).get("display_name") or name
        return self._keep(self.pipelines, "pipeline_id", {"name": name, "display_name": shown})

    def upload_pipeline(self, call: Call) -> Any:
        spec, platform = _parse_upload(call.body)
        name = call.query.get("name") or spec["pipelineInfo"]["name"]
        made = self.create_pipeline(Call("POST", call.path, {}, {"name": name}, call.authorization))
        self._add_version(made["pipeline_id"], name, spec, platform)
        return made

    def upload_version(self, call: Call) -> Any:
        pipeline_id = call.query.get("pipelineid", "")
        self._get(self.pipelines, pipeline_id, "Pipeline")
        spec, platform = _parse_upload(call.body)
        return self._add_version(pipeline_id, call.query.get("name", ""), spec, platform)

    def list_versions(self, call: Call, pipeline_id: str) -> Any:
        self._get(self.pipelines, pipeline_id, "Pipeline")
        own = [item for item in self.versions.values() if item["pipeline_id"] == pipeline_id]
        return self._page(call, "pipeline_versions", own)

    def get_version(self, _call: Call, _pipeline_id: str, version_id: str) -> Any:
        return self._get(self.versions, version_id, "PipelineVersion")

    # -- experiments, runs and recurring runs

    def list_experiments(self, call: Call) -> Any:
        return self._page(call, "experiments", list(self.experiments.values()))

    def create_experiment(self, call: Call) -> Any:
        name = call.body.get("display_name", "")
        if not name or any(item["display_name"] == name for item in self.experiments.values()):
            raise RefusedError(EXISTS if name else INVALID, f"experiment name {name!r} is empty or exists")
        return self._keep(self.experiments, "experiment_id", {"display_name": name})

    def create_run(self, call: Call) -> Any:
        body = dict(call.body)
        self._get(self.experiments, body.get("experiment_id", ""), "Experiment")
        self._check_inputs(body)
        return self._keep(self.runs, "run_id", body | {"state": "PENDING", "storage_state": "AVAILABLE"})

    def list_runs(self, call: Call) -> Any:
        return self._page(call, "runs", self._of_experiment(call, self.runs))

    def create_recurring(self, call: Call) -> Any:
        body = dict(call.body)
        self._get(self.experiments, body.get("experiment_id", ""), "Experiment")
        self._check_inputs(body)
        trigger = body.get("trigger") or {}
        if len([name for name in ("cron_schedule", "periodic_schedule") if trigger.get(name)]) != 1:
            raise RefusedError(INVALID, "exactly one of cron_schedule and periodic_schedule is needed")
        cron = (trigger.get("cron_schedule") or {}).get("cron", "0 0 0 * * *")
        if len(cron.split()) != 6:
            raise RefusedError(INVALID, f"Schedule cron is not a valid 6-field cron expression: {cron}")
        if not 1 <= int(body.get("max_concurrency") or 0) <= 10:
            raise RefusedError(INVALID, "The max concurrency of the recurring run must be between 1 and 10")
        return self._keep(self.recurring, "recurring_run_id", body | {"status": f"{body['mode']}D"})

    def list_recurring(self, call: Call) -> Any:
        return self._page(call, "recurringRuns", self._of_experiment(call, self.recurring))

    def switch_recurring(self, _call: Call, recurring_id: str, verb: str) -> Any:
        found = self._get(self.recurring, recurring_id, "Job")
        found["mode"], found["status"] = verb.upper(), f"{verb.upper()}D"
        return {}

    def delete_recurring(self, _call: Call, recurring_id: str) -> Any:
        self._get(self.recurring, recurring_id, "Job")
        del self.recurring[recurring_id]
        return {}

    # -- what they share

    def _check_inputs(self, body: dict[str, Any]) -> None:
        """The server's check of a run's parameters against the version's inputs."""
        reference = body.get("pipeline_version_reference") or {}
        version = self._get(self.versions, reference.get("pipeline_version_id", ""), "PipelineVersion")
        spec = version["pipeline_spec"].get("pipeline_spec", version["pipeline_spec"])
        inputs = spec["root"].get("inputDefinitions", {}).get("parameters", {})
        given = (body.get("runtime_config") or {}).get("parameters") or {}
        for name, about in inputs.items():
            if name not in given and not about.get("isOptional") and "defaultValue" not in about:
                raise RefusedError(
                    INVALID, f"parameter {name} is not optional, yet has neither default value nor user value"
                )
            if name in given and not isinstance(given[name], JSON_TYPES[about["parameterType"]]):
                raise RefusedError(INVALID, f"input parameter {name} requires type {about['parameterType'].lower()}")
        if extra := sorted(set(given) - set(inputs)):
            raise RefusedError(INVALID, f"parameter(s) provided are not required or optional: {', '.join(extra)}")

    def _add_version(self, pipeline_id: str, name: str, spec: dict[str, Any], platform: dict[str, Any]) -> Any:
        own = [item for item in self.versions.values() if item["pipeline_id"] == pipeline_id]
        if not name or any(item["name"] == name for item in own):
            raise RefusedError(
                EXISTS if name else INVALID, f"pipeline version name {name!r} is empty or already exists"
            )
        stored = {"pipeline_spec": spec, "platform_spec": platform} if platform else spec
        item = {"pipeline_id": pipeline_id, "name": name, "display_name": name, "pipeline_spec": stored}
        return self._keep(self.versions, "pipeline_version_id", item)

    def _of_experiment(self, call: Call, items: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = call.query.get("experiment_id")
        return [item for item in items.values() if not wanted or item["experiment_id"] == wanted]

    def _page(self, call: Call, attribute: str, items: list[dict[str, Any]]) -> Any:
        for predicate in json.loads(call.query.get("filter") or "{}").get("predicates", []):
            if predicate["operation"] not in ("EQUALS", 1) or predicate["key"] not in ("display_name", "name"):
                raise RefusedError(INVALID, f"filter {predicate} is not supported")
            items = [item for item in items if item[predicate["key"]] == predicate["stringValue"]]
        size = min(int(call.query.get("page_size") or 20), self.page_limit)
        start = int(call.query.get("page_token") or 0)
        answer: dict[str, Any] = {attribute: items[start : start + size], "total_size": len(items)}
        if start + size < len(items):
            answer["next_page_token"] = str(start + size)
        return answer if items else {}

    def _keep(self, items: dict[str, dict[str, Any]], key: str, values: dict[str, Any]) -> dict[str, Any]:
        moment = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=len(self.calls))
        made = {key: str(uuid.uuid4())} | values | {"created_at": moment.isoformat().replace("+00:00", "Z")}
        items[made[key]] = made
        return made

    def _get(self, items: dict[str, dict[str, Any]], key: str, kind: str) -> dict[str, Any]:
        if key not in items:
            raise RefusedError(NOT_FOUND, f"{kind} {key} not found")
        return items[key]


ROUTES = (
    ("GET", r"/healthz", "healthz"),
    ("GET", r"/pipelines", "list_pipelines"),
    ("POST", r"/pipelines", "create_pipeline"),
    ("POST", r"/pipelines/upload", "upload_pipeline"),
    ("POST", r"/pipelines/upload_version", "upload_version"),
    ("GET", r"/pipelines/([^/]+)/versions", "list_versions"),
    ("GET", r"/pipelines/([^/]+)/versions/([^/]+)", "get_version"),
    ("GET", r"/experiments", "list_experiments"),
    ("POST", r"/experiments", "create_experiment"),
    ("GET", r"/runs", "list_runs"),
    ("POST", r"/runs", "create_run"),
    ("GET", r"/recurringruns", "list_recurring"),
    ("POST", r"/recurringruns", "create_recurring"),
    ("POST", r"/recurringruns/([^/:]+):(enable|disable)", "switch_recurring"),
    ("DELETE", r"/recurringruns/([^/:]+)", "delete_recurring"),
)


@contextmanager
def fake_kfp(**settings: Any) -> Iterator[FakeKfp]:
    """A running server on a free loopback port; ends with the context."""
    fake = FakeKfp(**settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(fake: FakeKfp) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                body = _body(raw, self.headers.get("Content-Type", ""))
                status, answer = (
                    200,
                    fake.answer(Call(self.command, address.path, query, body, self.headers.get("Authorization", ""))),
                )
            except RefusedError as error:
                status = HTTP[error.code]
                answer = {"error": error.message, "code": error.code, "message": error.message, "details": []}
            sent = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of http.server

        def log_message(self, *_args: Any) -> None:
            """Nothing on standard error."""

    return Handler


def _body(raw: bytes, kind: str) -> Any:
    """A JSON body, the file of a multipart upload as bytes, or None."""
    if kind.startswith("multipart/form-data"):
        parser = email.parser.BytesParser(policy=email.policy.HTTP)
        message = parser.parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + raw)
        for part in message.iter_parts() if isinstance(message, email.message.EmailMessage) else []:
            if part.get_param("name", header="content-disposition") == "uploadfile":
                return part.get_payload(decode=True)
        raise RefusedError(INVALID, "Failed to read pipeline from file: uploadfile is missing")
    try:
        return json.loads(raw) if raw else None
    except ValueError as error:
        raise RefusedError(INVALID, f"invalid JSON: {error}") from error


def _parse_upload(raw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The uploaded documents as the server stores them; RefusedError where they are no pipeline."""
    spec: dict[str, Any] = {}
    platform: dict[str, Any] = {}
    try:
        for document in yaml.safe_load_all(raw):
            if document and "pipelineInfo" in document and not spec:
                message = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
                spec = json_format.MessageToDict(message)
            elif document and "platforms" in document and not platform:
                platform = json_format.MessageToDict(json_format.ParseDict(document, pipeline_spec_pb2.PlatformSpec()))
            elif document:
                raise RefusedError(INVALID, "multiple pipeline specs provided, or a document that is none")
    except (yaml.YAMLError, json_format.ParseError, TypeError, AttributeError) as error:
        raise RefusedError(INVALID, f"invalid v2 pipeline spec: {error}") from error
    if not spec or not spec.get("root"):
        raise RefusedError(INVALID, "no pipeline spec is provided")
    if spec.get("schemaVersion") != "2.1.0" or not PIPELINE_NAME.fullmatch(spec["pipelineInfo"]["name"]):
        raise RefusedError(INVALID, "invalid v2 pipeline spec: schema version or name")
    return spec, platform


def _nameless(path: str) -> str:
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", path.removeprefix(BASE))
