"""A small OpenAI-compatible completions server on transformers: vLLM's endpoints, answer shape and metric names.

python -m components.serving.reference_server --model DIR --served-model-name NAME --port PORT
"""

import argparse
import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.serving.reference_model import BadRequestError, LoadedModel, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

LARGEST_BODY_BYTES = 4 << 20
LATENCY_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)

TokenId = Annotated[int, Field(ge=0, le=2**31)]


class Completion(BaseModel):
    """The part of a completions request that is honoured; other fields are accepted and ignored, as vLLM does."""

    model_config = ConfigDict(extra="ignore")

    model: str
    prompt: str | list[TokenId]
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 16
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 1.0
    seed: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logprob_token_ids: list[TokenId] = Field(default_factory=list, max_length=128)
    return_tokens_as_token_ids: bool = False


class Tokenize(BaseModel):
    """A tokenize request."""

    model: str | None = None
    prompt: str


def create_app(model: LoadedModel, served_names: Sequence[str]) -> "FastAPI":
    """The HTTP application around a loaded model."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from prometheus_client import generate_latest

    app = FastAPI(title="Pilotline reference model server", docs_url=None, redoc_url=None)
    worker = ThreadPoolExecutor(1, "model")  # one forward at a time, off the event loop
    meters = Meters(served_names[0])
    started = int(time.time())

    @app.middleware("http")
    async def count(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        meters.http(request.method, request.url.path, response.status_code)
        if request_id := request.headers.get("x-request-id"):
            response.headers["X-Request-Id"] = request_id
        return response

    async def read(request: Request, kind: type[BaseModel]) -> Any:
        body = await request.body()
        if len(body) > LARGEST_BODY_BYTES:
            raise BadRequestError(f"body larger than {LARGEST_BODY_BYTES} bytes", 413)
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise BadRequestError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from error

    def known(name: str) -> None:
        if name not in served_names:
            raise BadRequestError(f"The model `{name[:80]}` does not exist.", 404)

    @app.exception_handler(BadRequestError)
    async def refused(_: Request, error: BadRequestError) -> JSONResponse:
        about = {"message": str(error), "type": "BadRequestError", "param": None, "code": error.status}
        return JSONResponse({"error": about}, error.status)

    @app.post("/v1/completions")
    async def completions(request: Request) -> JSONResponse:
        asked: Completion = await read(request, Completion)
        known(asked.model)
        prompt = model.encode(asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        with meters.request() as meter:
            steps, finish = await asyncio.get_running_loop().run_in_executor(
                worker, lambda: _complete(model, prompt, asked, meter.first_token)
            )
            meter.finish(finish)
        return JSONResponse(_answer(asked, served_names[0], prompt, steps, finish, model))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        about = {"object": "model", "created": started, "owned_by": "pilotline", "max_model_len": model.max_model_len}
        return {"object": "list", "data": [{"id": name, **about} for name in served_names]}

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        asked: Tokenize = await read(request, Tokenize)
        if asked.model is not None:
            known(asked.model)
        ids = model.encode(asked.prompt)
        return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": None}

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(meters.registry), media_type="text/plain; version=0.0.4")

    return app


def _complete(
    model: LoadedModel, prompt: list[int], asked: Completion, first_token: Callable[[], None]
) -> tuple[list[Step], str]:
    steps: list[Step] = []
    for step in model.generate(prompt, asked.max_tokens, asked.temperature, asked.seed, asked.logprob_token_ids):
        if not steps:
            first_token()
        steps.append(step)
    return steps, "stop" if steps and model.is_end(steps[-1].token) else "length"


def _answer(
    asked: Completion, served: str, prompt: list[int], steps: list[Step], finish: str, model: LoadedModel
) -> dict[str, Any]:
    said = [step.token for step in steps if not model.is_end(step.token)]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(steps), "total_tokens": len(prompt) + len(steps)}
    logprobs = None if asked.logprobs is None else _logprobs(asked, steps, model)
    choice = {"index": 0, "text": model.decode(said), "logprobs": logprobs, "finish_reason": finish}
    return {
        "id": f"cmpl-{uuid.uuid4().hex[:16]}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served,
        "choices": [choice | {"stop_reason": None, "prompt_logprobs": None}],
        "usage": usage,
    }


def _logprobs(asked: Completion, steps: list[Step], model: LoadedModel) -> dict[str, Any]:
    def name(token: int) -> str:
        return f"token_id:{token}" if asked.return_tokens_as_token_ids else model.decode([token])

    assert asked.logprobs is not None
    tops, offsets, position = [], [], 0
    for step in steps:
        top = {name(step.token): step.logprob}
        top |= {name(token): value for token, value in step.top[: asked.logprobs]}
        tops.append(top | {name(token): value for token, value in step.asked})
        offsets.append(position)
        position += len(model.decode([step.token]))
    return {
        "text_offset": offsets,
        "tokens": [name(step.token) for step in steps],
        "token_logprobs": [step.logprob for step in steps],
        "top_logprobs": tops,
    }


class Meters:
    """Prometheus metrics under vLLM's names."""

    def __init__(self, model_name: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        names = ("model_name",)
        about: dict[str, Any] = {"registry": self.registry}
        first = Histogram("vllm:time_to_first_token_seconds", "To the first token.", names,
                          buckets=LATENCY_BUCKETS, **about)  # fmt: skip
        whole = Histogram("vllm:e2e_request_latency_seconds", "Whole request.", names,
                          buckets=LATENCY_BUCKETS, **about)  # fmt: skip
        running = Gauge("vllm:num_requests_running", "Requests in the model.", names, **about)
        waiting = Gauge("vllm:num_requests_waiting", "Requests waiting for the model.", names, **about)
        cache = Gauge("vllm:kv_cache_usage_perc", "Share of the key-value cache in use.", names, **about)
        self._first, self._whole = first.labels(model_name), whole.labels(model_name)
        self._running, self._waiting = running.labels(model_name), waiting.labels(model_name)
        cache.labels(model_name).set(0)  # nothing is kept between requests
        self._success = Counter(
            "vllm:request_success", "Finished requests.", ("finished_reason", "model_name"), registry=self.registry
        )
        self._http = Counter("http_requests", "HTTP answers.", ("method", "handler", "status"), registry=self.registry)
        self._model_name, self._inside = model_name, 0

    def http(self, method: str, path: str, status: int) -> None:
        """Count an HTTP answer; unknown paths share a label, so that callers cannot grow the metric."""
        known = path if path in {"/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics"} else "other"
        self._http.labels(method if known != "other" else "other", known, f"{status // 100}xx").inc()

    @contextmanager
    def request(self) -> "Iterator[RequestMeter]":
        """Around one request to the model."""
        self._move(+1)
        meter = RequestMeter(self._first.observe, self._whole.observe)
        try:
            yield meter
            self._success.labels(meter.reason, self._model_name).inc()
        finally:
            self._move(-1)

    def _move(self, by: int) -> None:
        self._inside += by
        self._running.set(min(1, self._inside))
        self._waiting.set(max(0, self._inside - 1))


class RequestMeter:
    """Times of one request."""

    def __init__(self, first: Callable[[float], None], whole: Callable[[float], None]) -> None:
        self._first, self._whole, self._start = first, whole, time.perf_counter()
        self.reason = "error"

    def first_token(self) -> None:
        """The first token is there."""
        self._first(time.perf_counter() - self._start)

    def finish(self, reason: str) -> None:
        """All tokens are there."""
        self.reason = reason
        self._whole(time.perf_counter() - self._start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the model and serve until SIGTERM; requests in flight are finished first."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="reference_server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="exported model directory")
    parser.add_argument("--served-model-name", nargs="+", required=True, help="unique name, then aliases")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-model-len", type=int, default=2048, help="tokens of prompt and answer together")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while loading; uvicorn sets its own
    model = LoadedModel.load(given.model, given.dtype, given.max_model_len, given.threads)
    app = create_app(model, given.served_model_name)
    config = uvicorn.Config(
        app, given.host, given.port, log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=30
    )
    uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
