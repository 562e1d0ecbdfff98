"""The scoring service: the HTTP face of a decision. `create_app` builds it, `serve` runs it.

Annotations are evaluated here: FastAPI reads those of the handlers, whose types depend on the recipe.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from components.core.errors import TransientError, UserError
from components.core.recipe import Recipe, Serving, parse_recipe
from components.serving.admission import Counting, Doorkeeper, Shedding, clients_of_environment
from components.serving.api import (
    BatchAnswer,
    ChatCompletion,
    Completion,
    DecisionAnswer,
    FeedbackAnswer,
    observed_wrongly,
    request_models,
)
from components.serving.deciding import Decider, OnlineFeatures
from components.serving.decision_log import ConflictingFeedbackError, DecisionLog, Keeping, UnknownDecisionError
from components.serving.decision_log.keys import SubjectKeys
from components.serving.decisions import DECISIONS, Decisions, QuickDecisions
from components.serving.passthrough import PassThrough
from components.serving.problems import PROBLEM_JSON, BodyLimit, ProblemError, install_problems
from components.serving.rules import Patience, Rules
from components.serving.service_metrics import ServiceMeters
from components.serving.tracing import Tracing

if TYPE_CHECKING:
    from fastapi import FastAPI

CONNECTIONS = 256
KEEP_ALIVE_SECONDS = 30

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class ServiceConfig:
    """What the service process is started with, as a JSON file.

    `instance` is repeated by /healthz, so that the starter knows its own service; `training_set` names the online
    features. `host` is what it listens on: in a pod its network policy and the gateway decide who gets there.
    """

    instance: str
    run_id: str
    port: int
    router_url: str
    state_path: str
    log_path: str
    training_set: str
    recipe: str
    host: str = "127.0.0.1"

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; UserError where it does not fit."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"scoring service config {path}: {error}; `pilotline serve up` writes it") from error

    @property
    def parsed_recipe(self) -> Recipe:
        """The recipe."""
        return parse_recipe(self.recipe)


def create_app(config: ServiceConfig, features: OnlineFeatures) -> "FastAPI":
    """The application; it opens the decision log when it starts and writes it out when it stops."""
    import aiohttp
    from fastapi import BackgroundTasks, FastAPI, Request
    from fastapi.responses import Response, StreamingResponse

    recipe = config.parsed_recipe
    serving = recipe.serving
    meters = ServiceMeters()
    request_model, feedback_model = request_models(recipe)
    tracing, clients = Tracing(), clients_of_environment()
    held: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(_: "FastAPI") -> AsyncIterator[None]:
        log = _open_log(config, serving)
        client = aiohttp.ClientSession(
            config.router_url,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the decider bounds the time
        )
        seed, patience = f"{recipe.rollout.seed}:{config.run_id}", Patience(serving.canary_seconds)
        timeout = serving.request_timeout_seconds
        decider = Decider(
            client, features, log, Path(config.state_path), seed=seed, timeout_seconds=timeout, model=recipe.model.name,
            rules=Rules.of(recipe), sticky=recipe.rollout.sticky, tracing=tracing, patience=patience,
        )  # fmt: skip
        passing = PassThrough(
            client, decider, timeout_seconds=timeout, stream_seconds=serving.stream_seconds, subject=serving.subject,
            patience=patience,
        )  # fmt: skip
        held.update(log=log, decider=decider, passing=passing)
        await decider.refresh()
        gc.collect()
        gc.freeze()  # what is there from the start is not looked through again while requests wait
        watcher = asyncio.create_task(decider.watch())
        try:
            yield
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
            await passing.close()
            await decider.close()
            await client.close()
            await asyncio.to_thread(log.close)
            await asyncio.to_thread(tracing.close)

    app = FastAPI(title="Pilotline scoring service", version="1", lifespan=lifespan, redirect_slashes=False)
    deciding = Decisions(request_model, lambda: held["decider"], meters, tracing)
    app.add_middleware(QuickDecisions, decisions=deciding)  # innermost: the others have looked at the request
    app.add_middleware(Shedding, most=serving.max_in_flight)
    app.add_middleware(BodyLimit)
    app.add_middleware(Doorkeeper, clients=clients)
    app.add_middleware(Counting, count=meters.problem)
    install_problems(app)
    errors: dict[int | str, dict[str, Any]] = {
        status: {"content": {PROBLEM_JSON: {}}, "description": text}
        for status, text in (
            (400, "not JSON"), (401, "no known key"), (403, "not for this client"), (404, "not found"),
            (408, "too slow"), (409, "in conflict"), (413, "too large"), (422, "does not fit the schema"),
            (429, "too many at once"), (503, "nothing can answer"),
        )
    }  # fmt: skip

    @app.post(DECISIONS, responses=errors, response_model=DecisionAnswer | BatchAnswer)
    @_reads(request_model)
    async def decisions(body: Any, request: Request, background: BackgroundTasks) -> Response:
        """Decide on one row, or on up to 64 `items`."""
        content, outcomes = await deciding.answer(body, request.scope)
        background.add_task(deciding.mirror, outcomes)
        return Response(content, media_type="application/json", background=background)

    async def passed_on(path: str, body: Any, request: Request) -> Response:
        client = request.scope.get("state", {}).get("client", "")
        if body.model != recipe.model.name:
            raise ProblemError(404, f"no such model here; ask for {recipe.model.name}")
        try:
            with tracing.span(f"POST {path}", headers=dict(request.headers)):
                passed, opened = await held["passing"].open(path, body.model_dump(exclude_none=True), client)
        except TransientError as error:
            raise ProblemError(503, str(error)) from error
        if opened is None:
            raise ProblemError(503, f"no arm could answer ({passed.failure})", request_id=passed.request_id)
        headers = {"x-request-id": passed.request_id, "x-pilotline-answered-by": passed.arm}
        stream = held["passing"].stream(passed, opened)
        return StreamingResponse(stream, opened.status, headers, opened.content_type)

    @app.post("/v1/completions", responses=errors)
    async def completions(body: Completion, request: Request) -> Response:
        """Go on with a text, as OpenAI's API; `stream` answers with server-sent events."""
        return await passed_on("/v1/completions", body, request)

    @app.post("/v1/chat/completions", responses=errors)
    async def chat(body: ChatCompletion, request: Request) -> Response:
        """Go on with a conversation, as OpenAI's API; `stream` answers with server-sent events."""
        return await passed_on("/v1/chat/completions", body, request)

    @app.post("/v1/feedback", responses=errors)
    @_reads(feedback_model)
    async def feedback(body: Any) -> FeedbackAnswer:
        """Say what turned out to be true of a decision; `observed_at` is ISO 8601 with a time zone, since then."""
        log: DecisionLog = held["log"]
        if wrong := observed_wrongly(body.decision_id, body.observed_at):
            raise ProblemError(422, wrong)
        try:
            observed_at = body.observed_at.isoformat()
            done = log.feedback(decision_id=body.decision_id, label=body.label, observed_at=observed_at)
            await asyncio.wrap_future(done)
        except UnknownDecisionError as error:
            raise ProblemError(404, "no decision with this id") from error
        except ConflictingFeedbackError as error:
            raise ProblemError(409, f"this decision already has the label {error}") from error
        except TransientError as error:
            raise ProblemError(503, str(error)) from error
        return FeedbackAnswer(decision_id=body.decision_id, status="recorded")

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """Alive, and the state in force."""
        state = held["decider"].in_force.state
        arms = {name: {"version": arm.version, "digest": arm.digest} for name, arm in state.arms.items()}
        about = {"generation": state.generation, "weight": state.weight, "shadow": state.shadow, "arms": arms}
        about["instance"] = config.instance
        return {"status": "ok", "state_error": held["decider"].state_error, **about}

    @app.get("/readyz", responses={503: errors[503]})
    async def readyz() -> dict[str, str]:
        """Ready: an arm scores a request through the router, and the decision log is being written."""
        failure = "decision log: not written" if not held["log"].healthy else await held["decider"].probe()
        if failure:
            raise ProblemError(503, f"not ready: {failure}")
        return {"status": "ready"}

    @app.get("/in-flight")
    async def in_flight() -> dict[str, list[dict[str, Any]]]:
        """Requests that are being decided on, by the `x-request-id` of their callers, with arm, weight and age."""
        return {"requests": held["decider"].in_flight.told()}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(meters.text(held["decider"], held["log"]), media_type="text/plain; version=0.0.4")

    return app


def serve(config: ServiceConfig, features: OnlineFeatures) -> None:
    """Run the service until SIGTERM, on loopback where the configuration says nothing else."""
    import uvicorn

    app = create_app(config, features)
    uvicorn.run(app, host=config.host, port=config.port, **server_options())


def server_options() -> dict[str, Any]:
    """How uvicorn runs the application: bounded headers, time to finish what is being answered."""
    from components.serving.slow_headers import BoundedHeaders

    times = {"timeout_keep_alive": 75, "timeout_graceful_shutdown": 30}
    return {"log_level": "warning", "http": BoundedHeaders, **times}


def _open_log(config: ServiceConfig, serving: Serving) -> DecisionLog:
    path = Path(config.log_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = SubjectKeys.at(path.parent) if serving.subject else None
    keeping = Keeping(serving.keep_text, serving.subject, keys)
    seconds, days = 60.0 * serving.log_part_minutes, serving.log_days
    return DecisionLog(path, config.run_id, keeping, store=serving.log_store, part_seconds=seconds, days=days)


def _reads(model: Any) -> Callable[[Handler], Handler]:
    """Tell FastAPI the type of a handler's `body`, which is made from the recipe."""

    def marked(handler: Handler) -> Handler:
        handler.__annotations__["body"] = model
        return handler

    return marked
