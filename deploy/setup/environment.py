"""Make the project's environments from the lock files; a finished one is left alone.

    python3 -m deploy.setup.environment [requirements] [project] [serving]

Without an argument all three: the locked requirements in `.venv`, the project itself (editable) in it, and vLLM in
`.venv-vllm` where the platform can have it. Standard library only: it runs before anything is installed.
Exit codes: 0 done; 1 an installation failed; 2 this machine cannot (the line says what to do).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.setup import machine, stamp
from deploy.setup.locks import LockError, digest, read_pins
from deploy.setup.pip_runs import PipError, python_of, run_pip
from deploy.setup.torch_build import install_torch
from deploy.setup.vllm_build import RECIPE, install_vllm

PARTS = ("requirements", "project", "serving")
MAIN_LOCK = "requirements.lock"
CUDA_LOCK = "requirements-cuda.lock"
VLLM_LOCKS = {"vllm-cpu": "requirements-vllm.lock", "vllm-cuda": "requirements-vllm-cuda.lock"}
# GiB an environment takes when installed, with a little room for pip's unpacking.
ROOM_GIB = {"cpu": 4, "plain": 4, "cuda": 12, "vllm-cpu": 3, "vllm-cuda": 14}
GIB = 1 << 30


class SetupError(Exception):
    """This machine cannot be set up; the message says what to do."""


@dataclass(frozen=True)
class Place:
    """Where things are and what was chosen for this machine."""

    root: Path
    choice: machine.Choice
    require_vllm: bool = False

    @property
    def main(self) -> Path:
        return self.root / ".venv"

    @property
    def vllm(self) -> Path:
        return self.root / ".venv-vllm"


def main(arguments: list[str]) -> int:
    """Set up the named parts (all without a name) and return the exit code."""
    root = Path(__file__).resolve().parents[2]
    try:
        parts = _parts(arguments)
        _check_python()
        place = Place(root, _choose(), "vllm" in os.environ.get("PILOTLINE_REQUIRE", "").split(","))
        with _alone(root / ".setup.lock"):
            for part in parts:
                {"requirements": requirements, "project": project, "serving": serving}[part](place)
    except (SetupError, LockError, ValueError) as error:
        return _fail(f"{error}", 2)
    except (PipError, OSError) as error:
        return _fail(f"{error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run it again and it starts where it has to", 130)
    return 0


def requirements(place: Place) -> None:
    """The locked requirements in `.venv`, torch first. Raises PipError, LockError, SetupError."""
    lock, cuda_lock = place.root / MAIN_LOCK, place.root / CUDA_LOCK
    pins = read_pins(lock)
    made_from = digest(place.choice.torch, lock, *([cuda_lock] if place.choice.torch == "cuda" else []))

    def install() -> None:
        _say(f"installing {len(pins)} locked packages into .venv (torch: {place.choice.torch} build)")
        _install_tools(place.main, pins)
        install_torch(place.main, place.choice.torch, pins["torch"], cuda_lock)
        # Without build isolation a source distribution is built with the locked setuptools instead of whatever the
        # index has today; DS_* keep DeepSpeed from compiling or looking for CUDA at that moment.
        quiet = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        run_pip(
            place.main, ["install", "--no-deps", "--no-build-isolation", "-r", str(lock)], len(pins), extra_env=quiet
        )

    bring_up_to_date(
        place.main,
        _base(place.main, place.choice.torch),
        "requirements",
        made_from,
        install,
        ROOM_GIB[place.choice.torch],
    )


def project(place: Place) -> None:
    """The project itself, editable, in `.venv`, then pip's own consistency check. Raises PipError."""
    made_from = digest(place.root / "pyproject.toml", place.root / MAIN_LOCK)

    def install() -> None:
        run_pip(
            place.main,
            [
                "install",
                "--no-deps",
                "--no-build-isolation",
                "--config-settings",
                "editable_mode=compat",
                "-e",
                str(place.root),
            ],
        )
        run_pip(place.main, ["check"])

    bring_up_to_date(place.main, _base(place.main, place.choice.torch), "project", made_from, install, 0)


def serving(place: Place) -> None:
    """vLLM in `.venv-vllm`, or one line saying why the reference engine serves. Raises PipError, SetupError."""
    engine = place.choice.engine
    if engine == "reference":
        return _reference(place, place.choice.reason)
    lock = place.root / VLLM_LOCKS[engine]
    pins = read_pins(lock)
    made_from = digest(engine, RECIPE, lock)

    def install() -> None:
        _say(f"installing {len(pins)} locked packages into .venv-vllm ({engine}: {place.choice.reason})")
        _install_tools(place.vllm, pins)
        install_vllm(place.vllm, engine, pins, lock)

    refused = place.vllm / "unavailable.txt"
    known = refused.read_text().splitlines() if refused.exists() else []
    if len(known) == 2 and known[0] == made_from:
        return _reference(place, known[1])
    try:
        bring_up_to_date(place.vllm, _base(place.vllm, engine), "serving", made_from, install, ROOM_GIB[engine])
    except PipError as error:
        if error.missing is None or place.require_vllm:
            raise
        shutil.rmtree(place.vllm)
        place.vllm.mkdir()
        reason = f"no index offers {error.missing} for this platform"
        if error.lasting:
            # Remembered, so that the next call does not try it all again; `make clean` or a new lock forgets it.
            refused.write_text(f"{made_from}\n{reason}\n")
        _reference(place, reason)
    return None


def bring_up_to_date(
    env: Path, base: str, part: str, made_from: str, install: Callable[[], None], room_gib: int
) -> None:
    """Run `install` unless the environment's stamp says that it was done from the same inputs."""
    known = stamp.read(env)
    if stamp.is_current(known, base, part, made_from) and python_of(env).exists():
        return
    started = time.monotonic()
    if stamp.must_rebuild(known, base, env.exists(), _runs(env)):
        _say(f"{env.name} is unfinished or of another place: making it anew")
        shutil.rmtree(env)
        known = None
    if not env.exists():
        _check_room(env.parent, room_gib)
        _make_venv(env)
    done = dict(known.done) if known else {}
    done.pop(part, None)
    stamp.write(env, stamp.Stamp(base, done, busy=True))
    install()
    stamp.write(env, stamp.Stamp(base, {**done, part: made_from}))
    _say(f"{env.name}: {part} done in {time.monotonic() - started:.0f} s")


def _install_tools(env: Path, pins: dict[str, str]) -> None:
    """The locked pip and setuptools first: the ones that venv brings may be years old."""
    tools = [f"{name}=={pins[name]}" for name in ("pip", "setuptools")]
    run_pip(env, ["install", "--no-deps", *tools])


def _base(env: Path, build: str) -> str:
    return f"{env} python{sys.version_info[0]}.{sys.version_info[1]} {build}"


def _make_venv(env: Path) -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if missing:
        raise SetupError(
            f"this Python has no {missing[0]} module; install it (Debian: apt-get install "
            f"python{version}-venv) or name another one: make PYTHON=/path/to/python3"
        )
    result = subprocess.run([sys.executable, "-m", "venv", str(env)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stdout + result.stderr).strip().splitlines()[-1:]
        raise SetupError(f"python -m venv {env.name} failed: {' '.join(last)}")


def _runs(env: Path) -> bool:
    """Whether the environment's interpreter is of this version and has pip."""
    code = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([str(python_of(env)), "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return result.stdout.strip() == f"{sys.version_info[0]}.{sys.version_info[1]}"


def _check_room(folder: Path, room_gib: int) -> None:
    free_gib = shutil.disk_usage(folder).free / GIB
    if free_gib < room_gib:
        raise SetupError(f"{folder} has {free_gib:.1f} GiB free, {room_gib} GiB are needed; free some space")


def _check_python() -> None:
    if sys.version_info[:2] < machine.OLDEST_PYTHON:
        raise SetupError(
            f"Python 3.11 or newer is needed, {sys.executable} is {sys.version_info[0]}."
            f"{sys.version_info[1]}; name another one: make PYTHON=python3.11"
        )


def _choose() -> machine.Choice:
    return machine.choose(machine.look(), os.environ.get("PILOTLINE_ACCELERATOR", "auto"))


def _parts(arguments: list[str]) -> list[str]:
    unknown = [name for name in arguments if name not in PARTS]
    if unknown:
        raise SetupError(f"no part is named '{unknown[0]}'; there are {', '.join(PARTS)}")
    return arguments or list(PARTS)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock file: two set-ups of one folder run one after the other."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another set-up is running here: waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _reference(place: Place, reason: str) -> None:
    if place.require_vllm:
        raise SetupError(f"vLLM is required here (PILOTLINE_REQUIRE) but cannot be had: {reason}")
    _say(f"{reason}: the reference engine will serve")


def _say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def _fail(text: str, code: int) -> int:
    print(f"setup: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
