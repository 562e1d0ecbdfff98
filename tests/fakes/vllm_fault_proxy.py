"""A process between the router and a real model server, that spoils the answers on demand.

    python -m tests.fakes.vllm_fault_proxy --port PORT --upstream URL [--fault KIND[:NUMBER]] [--healthy REQUESTS]

Faults: `error` (500), `slow:SECONDS`, `stall` (head and half of the answer, then silence; of a stream its first event),
`garbage` (half of the answer as if it were whole), `wrong_model`, and `same_prompt` (the model server is asked the same
prompt whatever was asked). They begin after so many healthy completions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from components.core.paths import PROJECT_ROOT
from components.serving.engine import Launch

SAME_PROMPT = (1, 20, 21)
FOR_EVER = 3600.0
KEPT = ("content-type", "x-request-id")


@dataclass
class SpoilingEngine:
    """A `components.serving.engine.Engine` whose process is this proxy, before a model server that runs already.

    `upstreams`: served name → URL. `faults` and `healthy`: by arm, as of the arm's start.
    """

    upstreams: Mapping[str, str]
    label: str
    faults: dict[str, str] = field(default_factory=dict)
    healthy: dict[str, int] = field(default_factory=dict)
    name: str = "vllm"

    def preflight(self, model_dir: Path) -> None:
        """The model server has it loaded."""

    def check_head_size(self, size: int, where: str) -> None:
        """The model server has looked."""

    def command(self, launch: Launch) -> list[str]:
        """This module."""
        upstream = self.upstreams[launch.served_names[0]]
        fault = ["--fault", self.faults.get(launch.arm, ""), "--healthy", str(self.healthy.get(launch.arm, 0))]
        module = [sys.executable, "-m", "tests.fakes.vllm_fault_proxy"]
        return [*module, "--port", str(launch.port), "--upstream", upstream, *fault]

    def environment(self, launch: Launch) -> dict[str, str]:
        """The project's root on the path."""
        return {"PYTHONPATH": str(PROJECT_ROOT)}


class Proxy:
    """Hands requests on to one model server."""

    def __init__(self, client: aiohttp.ClientSession, fault: str, healthy: int) -> None:
        self._client, self._healthy = client, healthy
        self._fault, _, number = fault.partition(":")
        self._number = float(number or 0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request, spoilt or not."""
        fault = self._next_fault() if request.method == "POST" else ""
        body = await request.read()
        if fault == "error":
            return web.json_response(
                {"error": {"message": "EngineCore encountered an issue.", "code": 500}}, status=500
            )
        if fault == "slow":
            await asyncio.sleep(self._number)
        if fault == "same_prompt":
            body = json.dumps(json.loads(body) | {"prompt": list(SAME_PROMPT)}).encode()
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        async with self._client.request(request.method, request.path_qs, data=body, headers=headers) as answer:
            if answer.content_type == "text/event-stream":
                return await self._stream(request, answer, fault)
            return await self._whole(request, answer, fault)

    def _next_fault(self) -> str:
        if self._healthy > 0:
            self._healthy -= 1
            return ""
        return self._fault

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse, fault: str) -> web.StreamResponse:
        given = web.StreamResponse(status=answer.status, headers={"content-type": answer.headers["content-type"]})
        await given.prepare(request)
        async for chunk in answer.content.iter_any():
            await given.write(chunk)
            if fault == "stall":
                await asyncio.sleep(FOR_EVER)
        await given.write_eof()
        return given

    async def _whole(self, request: web.Request, answer: aiohttp.ClientResponse, fault: str) -> web.StreamResponse:
        content, kind = await answer.read(), {"content-type": answer.headers.get("content-type", "text/plain")}
        if fault == "stall":
            given = web.StreamResponse(status=answer.status, headers=kind | {"content-length": str(len(content))})
            await given.prepare(request)
            await given.write(content[: len(content) // 2])
            await asyncio.sleep(FOR_EVER)
        if fault == "garbage":
            content = content[: len(content) // 2]
        if fault == "wrong_model":
            content = json.dumps(json.loads(content) | {"model": "somebody-else"}).encode()
        return web.Response(status=answer.status, body=content, headers=kind)


async def _serve(port: int, upstream: str, fault: str, healthy: int) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(upstream, timeout=timeout, connector=connector) as client:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", Proxy(client, fault, healthy).handle)
        runner = web.AppRunner(app, handle_signals=False, keepalive_timeout=75.0, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main() -> int:
    """Serve until SIGTERM, which ends it at once, whatever is under way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--healthy", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.upstream, given.fault, given.healthy))
    return 0


if __name__ == "__main__":
    sys.exit(main())
