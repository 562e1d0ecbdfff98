"""Processes of bench_serving: a model server of 20 ms, a plain FastAPI+httpx pass-through, a service with no log.

python -m benchmarks.serving_stub --port PORT --served-model-name NAME [ALIAS...]     the stub
python -m benchmarks.serving_stub --port PORT --plain URL                             the pass-through
python -m benchmarks.serving_stub --config FILE                                       the service without its log

Annotations are evaluated here: FastAPI reads those of the handler.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.paths import PROJECT_ROOT
from components.serving.engine import Launch
from tests.fakes.fake_model_server import FakeEngine, fake_logprobs

STUB_SECONDS = 0.020


@dataclass
class StubEngine(FakeEngine):
    """An engine of the serving stack that starts the stub."""

    name: str = "stub"
    label: str = "stub of 20 ms"

    def command(self, launch: Launch) -> list[str]:
        """This module."""
        module = [sys.executable, "-m", "benchmarks.serving_stub"]
        return [*module, "--port", str(launch.port), "--served-model-name", *launch.served_names]

    def environment(self, launch: Launch) -> dict[str, str]:
        """The project's root on the path."""
        return {"PYTHONPATH": str(PROJECT_ROOT)}


class Stub:
    """ASGI: answers completions after 20 ms, and what a replica's start asks for."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/v1/models":
            found: dict[str, Any] = {"object": "list", "data": [{"id": name} for name in self.names]}
        elif scope["method"] == "POST":
            asked = json.loads(body)
            if scope["path"] == "/tokenize":
                found = {"count": 1, "tokens": [1], "max_model_len": 4096}
            else:
                await asyncio.sleep(STUB_SECONDS)
                found = answer(asked)
        else:
            found = {}
        content = json.dumps(found).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """A completion with the log probabilities that were asked for."""
    labels = asked.get("logprob_token_ids") or [0, 1]
    top = {f"token_id:{token}": value for token, value in fake_logprobs(asked["prompt"], labels).items()}
    logprobs = {"text_offset": [0], "token_logprobs": [-0.1], "tokens": ["token_id:3"], "top_logprobs": [top]}
    choice = {"index": 0, "text": "?", "logprobs": logprobs, "finish_reason": "length"}
    usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 1, "total_tokens": len(asked["prompt"]) + 1}
    return {"id": "c", "object": "text_completion", "model": asked["model"], "choices": [choice], "usage": usage}


def plain(url: str) -> Any:
    """The pass-through that one would write first: FastAPI before, httpx behind."""
    import httpx
    from fastapi import FastAPI, Request

    app = FastAPI()
    client = httpx.AsyncClient(base_url=url, timeout=10.0, trust_env=False)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        return (await client.post("/v1/completions", json=await request.json())).json()

    return app


def without_log(config: Path) -> None:
    """The scoring service with a log that keeps nothing."""
    from components.serving import scoring_service
    from components.serving.decision_log import DecisionLog
    from tests.fakes.serving_case import FixedFeatures

    DecisionLog.decision = lambda *_, **__: None  # type: ignore[method-assign]
    scoring_service.serve(scoring_service.ServiceConfig.read(config), FixedFeatures())


def main() -> None:
    """Run one of them until SIGTERM."""
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--served-model-name", nargs="+", default=["stub"])
    parser.add_argument("--plain", default="")
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    if given.config:
        without_log(given.config)
        return
    app = plain(given.plain) if given.plain else Stub(given.served_model_name)
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
