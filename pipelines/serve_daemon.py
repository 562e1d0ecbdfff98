"""The process behind `pilotline serve up`: the ledger's champion answers, whichever it is at the moment.

python -m pipelines.serve_daemon --home DIR --engine E --port N [--name MODEL]

It looks at the ledger every second. A new champion (promoted, approved, or brought back) is started beside the old one,
has to score its golden request as registered, and takes over without a lost request; the old one stays
warm for the recipe's time and is then drained. A replica, Envoy or scoring service that dies is started again, a few
times, with growing waits; where all of them live and no request is scored for a while, all of them are.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from components.core.errors import PilotlineError, TransientError, UserError, one_line
from components.core.home import Home
from components.core.processes import adopt
from pipelines.serving_state import STARTING, UP, ServiceState, folder, forget_state, is_ready, write_state
from pipelines.serving_versions import Servable, champion_of, servable

if TYPE_CHECKING:
    from components.serving.replicas.local import LocalReplica
    from components.serving.stack import LocalStack

LOOK_SECONDS = 1.0
FIRST_WAIT_SECONDS, MOST_RESTARTS, CALM_SECONDS = 1.0, 5, 600.0
AGAIN_SECONDS = 30.0  # before a champion that could not be started is tried again
PROBE_EVERY_SECONDS, PROBE_SECONDS = 5.0, 10.0
PATIENCE_SECONDS, PATIENCE_TIMEOUTS = 30.0, 3.0  # without one scored request, though all processes live


class Service:
    """One home's service; `run` returns when its process is told to end."""

    def __init__(self, home: Home, name: str, engine: str, port: int) -> None:
        import psutil

        self._home, self._name, self._engine, self._port = home, name, engine, port
        self._restarts, self._since_restart = 0, time.monotonic()
        self._warm: tuple[LocalReplica, float] | None = None
        self._retry_at, self._was_up = 0.0, False
        self._probed_at, self._unready_since = time.monotonic(), math.inf
        me = psutil.Process()
        self._state = ServiceState(me.pid, me.create_time(), port, engine, STARTING, time.time())

    def run(self) -> None:
        """Serve until SIGTERM; opens the stack again where a change or a death asks for it.

        Raises:
            PilotlineError: nothing can be served, or too much died in too short a time.
        """
        while True:
            served = self._champion()
            try:
                with self._open(served) as stack:
                    stack.start("stable", served.model_dir, served.version, served.digest, served.golden)
                    self._say(served)
                    why = self._follow(stack, served)
            except (TransientError, UserError) as error:  # of whatever died while something else was being started
                if not self._was_up:
                    raise
                self._wait(why := one_line(error))
            print(f"the stack is opened again: {why}", flush=True)

    def _follow(self, stack: LocalStack, served: Servable) -> str:
        """Keep the champion answering; returns why the stack has to be opened again."""
        while True:
            time.sleep(LOOK_SECONDS)
            self._cool()
            if broken := stack.problem():
                self._wait(broken)
                stack.mend()
                self._say(served)
            if not stack.alive("stable"):
                self._wait(f"the replica of version {served.version} died")
                stack.start("stable", served.model_dir, served.version, served.digest, served.golden)
                self._say(served)
            if hung := self._hung(served):
                self._wait(hung)
                return hung
            if self._unready_since < math.inf:
                continue
            wanted = self._wanted(served)
            if wanted is None:
                continue
            if not _fits(served, wanted):
                return f"version {wanted.version} is served otherwise than version {served.version}"
            if self._swap(stack, wanted):
                served = wanted

    def _hung(self, served: Servable) -> str:
        """Why nothing was scored for longer than is borne, though every process lives; "" where something is."""
        now, borne = time.monotonic(), self.patience(served)
        if now - self._probed_at >= min(PROBE_EVERY_SECONDS, borne):
            wrong = is_ready(self._state, min(PROBE_SECONDS, borne))
            self._probed_at = time.monotonic()
            if self._unready_since < math.inf or wrong:
                self._problem(f"not ready: {wrong}" if wrong else "")
            self._unready_since = min(self._unready_since, now) if wrong else math.inf
        return f"no request was scored for {borne:.0f} s" if now - self._unready_since > borne else ""

    def patience(self, served: Servable) -> float:
        """Seconds for which a stack may score nothing."""
        return max(PATIENCE_SECONDS, PATIENCE_TIMEOUTS * served.recipe.serving.request_timeout_seconds)

    def _champion(self) -> Servable:
        return servable(self._home, *champion_of(self._home, self._name))

    def _wanted(self, served: Servable) -> Servable | None:
        """The champion, where it is another version and its time has come; what cannot be looked up is said."""
        try:
            found = champion_of(self._home, served.name)
            if found[1:] == (served.version, served.digest):
                self._problem("")
                return None
            return servable(self._home, *found) if time.monotonic() >= self._retry_at else None
        except PilotlineError as error:
            self._problem(one_line(error))
            return None

    def _swap(self, stack: LocalStack, wanted: Servable) -> bool:
        """Start the new champion beside the old one and let it take over; the old one goes on where that fails."""
        try:
            if (warm := self._taken_warm(wanted)) is not None:
                stack.bring_back(warm)
            else:
                stack.start("canary", wanted.model_dir, wanted.version, wanted.digest, wanted.golden)
            self._link(wanted)
            old = stack.take_over()
        except PilotlineError as error:
            with suppress(PilotlineError):
                stack.stop("canary")
            self._retry_at = time.monotonic() + AGAIN_SECONDS
            self._problem(f"version {wanted.version} is champion and cannot be served: {one_line(error)}")
            return False
        self._cool(at_once=True)
        self._warm = (old, time.monotonic() + wanted.recipe.rollout.warm_seconds)
        self._say(wanted)
        return True

    def _taken_warm(self, wanted: Servable) -> LocalReplica | None:
        """The replica that is still warm, where it is the version wanted: the way back needs no start."""
        if self._warm is None:
            return None
        spec = self._warm[0].replica.spec
        if (spec.version, spec.digest) != (wanted.version, wanted.digest) or not self._warm[0].alive:
            return None
        replica, self._warm = self._warm[0], None
        return replica

    def _cool(self, at_once: bool = False) -> None:
        """End the old replica when its warm time is over; it was drained when it lost its arm."""
        if self._warm is not None and (at_once or time.monotonic() >= self._warm[1]):
            self._warm[0].stop(lambda: 0)
            self._warm = None

    def _wait(self, why: str) -> None:
        """Back off before something is started again; TransientError after too many deaths in a short time."""
        if time.monotonic() - self._since_restart > CALM_SECONDS:
            self._restarts = 0
        if self._restarts >= MOST_RESTARTS:
            raise TransientError(f"{why}, {self._restarts} times in {CALM_SECONDS:.0f} s; look at the logs beside")
        seconds = FIRST_WAIT_SECONDS * 2**self._restarts
        self._restarts, self._since_restart = self._restarts + 1, time.monotonic()
        print(f"{why}; started again in {seconds:.0f} s", flush=True)
        self._state = replace(self._state, state=STARTING, restarts=self._restarts, problem=why)
        write_state(self._home, self._state)
        time.sleep(seconds)

    @contextmanager
    def _open(self, served: Servable) -> Iterator[LocalStack]:
        try:
            with self.stack(served) as opened:
                yield opened
        finally:
            self._cool(at_once=True)

    def stack(self, served: Servable) -> LocalStack:
        """The serving stack of a version, its signature checked before each start of a replica; not entered yet."""
        from components.registry.trust import check_before_serving
        from components.serving.engines import choose
        from components.serving.stack import LocalStack

        asked = served.recipe.serving.engine if self._engine == "auto" else self._engine
        return LocalStack(
            recipe=served.recipe,
            home=self._home,
            run_id=served.run_id,
            training_set=self._link(served),
            choice=choose(asked),
            port=self._port,
            check=check_before_serving(self._home.ledger_url),
            place=folder(self._home),
        )

    def _link(self, served: Servable) -> Path:
        """Where the scoring service finds the newest features: a link, replaced by rename."""
        link = folder(self._home) / "training_set"
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_name("training_set.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(served.training_set.absolute())
        fresh.replace(link)
        return link

    def _say(self, served: Servable) -> None:
        self._state = replace(
            self._state, state=UP, problem="", since=time.time(), name=served.name, version=served.version,
            digest=served.digest, run_id=served.run_id,
        )  # fmt: skip
        write_state(self._home, self._state)
        self._was_up, self._probed_at, self._unready_since = True, time.monotonic(), math.inf
        print(f"version {served.version} of {served.name} answers on port {self._port}", flush=True)

    def _problem(self, text: str) -> None:
        if text != self._state.problem:
            self._state = replace(self._state, problem=text)
            write_state(self._home, self._state)


def _fits(served: Servable, wanted: Servable) -> bool:
    """Whether the running scoring service can serve it: same features, model family, labels and settings."""
    one, other = served.recipe, wanted.recipe
    same = one.serving == other.serving and one.model == other.model and one.features == other.features
    return same and served.source == wanted.source


def main(arguments: Sequence[str] | None = None, service: type[Service] = Service) -> int:
    """Serve until SIGTERM; the exit status is the error's where nothing can be served."""
    parser = argparse.ArgumentParser(prog="pipelines.serve_daemon", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args(arguments)
    from pipelines.run import keep_environment

    keep_environment()
    home = Home.at(given.home)
    adopt(folder(home))  # a run of this home ends what carries the home's own token
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # survives its terminal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        service(home, given.name, given.engine, given.port).run()
    except PilotlineError as error:
        print(one_line(error), file=sys.stderr, flush=True)
        return error.exit_code
    except SystemExit:
        forget_state(home)
        raise
    return 0


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: the way down is not interrupted
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
