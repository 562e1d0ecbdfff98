"""One model server: its files are checked, it is started, and it counts as ready once it has scored a request."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.processes import end, free_port, spawn, tail, wait_until
from components.core.protocols import Served
from components.core.recipe import Serving
from components.models.files import model_digest
from components.models.spec import Renderer, spec_for
from components.serving.engine import Engine, Launch
from components.serving.engines import cores_for
from components.serving.scoring import COMPLETIONS, InvalidAnswerError, label_logprobs, scoring_request

LONGEST_CONTEXT = 2048  # tokens; a longer context than scoring needs only costs cache
PROBE_SECONDS = 30.0
WARM_UP_REQUESTS = 8
DRAIN_SECONDS = 30.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class ReplicaSpec:
    """What a replica is to serve."""

    arm: str
    name: str
    family: str
    model_dir: Path
    version: str
    digest: str
    settings: Serving


class Replica:
    """A started model server; `launch` starts it, `wait_ready` waits until it scores."""

    def __init__(
        self,
        spec: ReplicaSpec,
        engine: Engine,
        renderer: Renderer,
        port: int,
        process: subprocess.Popen[bytes],
        log: Path,
    ) -> None:
        self.spec, self.engine, self.renderer, self.port = spec, engine, renderer, port
        self._process, self.log = process, log
        self._started = time.monotonic()
        self.seconds_to_ready: float | None = None

    @classmethod
    def launch(cls, spec: ReplicaSpec, engine: Engine, log: Path) -> Replica:
        """Check the model's files against the digest and start the server, without waiting for it.

        Call it from a thread that lives as long as the replica: the kernel ends the server with that thread.

        Raises:
            IntegrityError: the files are not those that the digest names; nothing was started.
            UserError: the engine cannot serve this model.
        """
        renderer = checked(spec, engine)
        port = free_port()
        launch = Launch(
            arm=spec.arm,
            model_dir=spec.model_dir.absolute(),
            served_names=(served_name(spec), spec.name),
            port=port,
            max_model_len=context_tokens(spec.model_dir, renderer),
            cores=cores_for(spec.arm),
            settings=spec.settings,
        )
        process = spawn(engine.command(launch), log=log, env=engine.environment(launch))
        return cls(spec, engine, renderer, port, process, log)

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def served(self) -> Served:
        """The record of this replica."""
        spec = self.spec
        return Served(
            arm=spec.arm,
            url=f"http://127.0.0.1:{self.port}",
            served_name=served_name(spec),
            version=spec.version,
            digest=spec.digest,
            model_dir=spec.model_dir,
            engine=self.engine.label,
            pid=self._process.pid,
        )

    def wait_ready(self) -> Served:
        """Wait until a scoring request came back with finite probabilities, then warm up.

        Raises:
            TransientError: the process ended, or it was not ready in time; the log's last lines are in the message.
        """
        limit = self.spec.settings.start_timeout_seconds
        what = f"{self.engine.label} for {served_name(self.spec)}"
        left = limit - (time.monotonic() - self._started)
        ready = wait_until(lambda: not self.alive or self.ready_to_score(), max(0.0, left), every=0.25)
        if not self.alive:
            ended = f"{what} ended with status {self._process.returncode} before it was ready"
            raise TransientError(f"{ended} ({tail(self.log)}); see {self.log}")
        if not ready:
            self.stop(lambda: 0)
            raise TransientError(
                f"{what} was not ready after {limit:.0f} s ({tail(self.log)}); see {self.log} or raise "
                "serving.start_timeout_seconds"
            )
        for _ in range(WARM_UP_REQUESTS):
            self._scores()
        self.seconds_to_ready = time.monotonic() - self._started
        return self.served

    def stop(self, in_flight: Callable[[], int], quiet_seconds: float = 0.0) -> None:
        """Wait until the router has had no request for it in flight for `quiet_seconds`, then end it.

        A request that was decided on before the arm was taken out may reach the router a moment later: one look that
        finds nothing in flight is not enough where there is traffic.
        """
        try:
            if self.alive:
                self.drain(in_flight, quiet_seconds)
        finally:  # also where the router cannot tell
            self.end()

    def end(self) -> None:
        """End the process; may be called again."""
        end(self._process, STOP_SECONDS)

    def drain(self, in_flight: Callable[[], int], quiet_seconds: float) -> bool:
        """Wait until there was nothing in flight for so long, at most DRAIN_SECONDS; whether there was."""
        since = time.monotonic()

        def quiet() -> bool:
            nonlocal since
            if busy := in_flight():
                since = time.monotonic()
            return not self.alive or (not busy and time.monotonic() - since >= quiet_seconds)

        return wait_until(quiet, DRAIN_SECONDS, every=0.05)

    def ready_to_score(self) -> bool:
        """Whether it scores; asked again and again while it starts."""
        return self._scores()

    def _scores(self) -> bool:
        """Whether a scoring request with an empty text comes back with finite label probabilities of this version."""
        import httpx

        nothing = dict.fromkeys(self.renderer.features)
        labels = self.renderer.label_token_ids
        name = served_name(self.spec)
        body = scoring_request(name, self.renderer.token_ids(nothing, ""), labels)
        try:
            answer = httpx.post(
                f"http://127.0.0.1:{self.port}{COMPLETIONS}", json=body, timeout=PROBE_SECONDS, trust_env=False
            )
            answer.raise_for_status()
            self.renderer.score(*label_logprobs(answer.json(), name, labels))
        except (httpx.HTTPError, InvalidAnswerError, IntegrityError, ValueError):
            return False
        return True


def checked(spec: ReplicaSpec, engine: Engine) -> Renderer:
    """The renderer of a version whose files are those that the digest names.

    Raises:
        IntegrityError: they are not. UserError: the engine cannot serve this model.
    """
    found = model_digest(spec.model_dir)
    if found != spec.digest:
        raise IntegrityError(
            f"model {spec.name} version {spec.version} ({spec.model_dir}): its files have digest {found[:12]}, "
            f"{spec.digest[:12]} was registered; restore the files or register the version again"
        )
    engine.preflight(spec.model_dir)
    return spec_for(spec.family).renderer(spec.model_dir)


def served_name(spec: ReplicaSpec) -> str:
    """The name that belongs to this version alone: it labels the server's metrics and is in each answer.

    An adapter's holds its digest too: the name is what its part of the server's prefix cache is known by.
    """
    name = f"{spec.name}-v{spec.version}"
    return f"{name}-{spec.digest[:12]}" if spec.settings.adapter_base else name


def context_tokens(model_dir: Path, renderer: Renderer) -> int:
    """Tokens of prompt and answer: what the model's positions allow, within reason."""
    try:
        config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
        positions = int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{model_dir}: config.json has no max_position_embeddings; train it again") from error
    if renderer.max_tokens + 1 > positions:
        raise UserError(
            f"{model_dir}: prompts have up to {renderer.max_tokens} tokens, the model {positions} positions; "
            "lower model.text_tokens or raise model.max_positions"
        )
    return min(positions, LONGEST_CONTEXT)
