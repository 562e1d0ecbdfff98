"""Versions as LoRA adapters on one shared base: what may be served so, and the one vLLM server that serves them.

A version stays what was registered, the merged model: before a server is told of an adapter, base + adapter is compared
with the merged weights, tensor by tensor. Each version has a served name of its own, and with it its own part of the
prefix cache: vLLM 0.32 keys cached blocks by the adapter's name and path, and every request brings its version's salt.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.processes import end, free_port, spawn, tail
from components.models.files import ADAPTER, ADAPTER_FILES, files_digest
from components.serving.control import ARMS
from components.serving.engine import Engine, Launch
from components.serving.engines import cores_for
from components.serving.replica import STOP_SECONDS, Replica, ReplicaSpec, checked, context_tokens, served_name

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for
LOAD_SECONDS = 60.0
ROUNDING = 32.0  # of the merged weights' type, in units of its epsilon at the largest value of a tensor
PLAIN = {"use_dora": False, "use_rslora": False, "bias": "none", "modules_to_save": None, "rank_pattern": {},
         "alpha_pattern": {}, "trainable_token_indices": None, "fan_in_fan_out": False}  # fmt: skip


def check_adapter(base: Path, adapter: Path, model_dir: Path) -> int:
    """The adapter's rank, where base + adapter is the merged model in `model_dir`.

    Raises:
        UserError: base or adapter is not there, or is of a kind that is not served unmerged (rows of new tokens, DoRA).
        IntegrityError: together they are another model.
    """
    try:
        config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text())
        rank, scale = int(config["r"]), float(config["lora_alpha"]) / int(config["r"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{adapter}: no LoRA adapter ({type(error).__name__}); serve the version merged") from error
    if odd_files := sorted({path.name for path in adapter.iterdir()} - set(ADAPTER_FILES)):
        raise IntegrityError(f"{adapter}: {odd_files[0]} is no file of an adapter; remove it or train again")
    odd = sorted(name for name, usual in PLAIN.items() if config.get(name, usual) not in (usual, None))
    if odd or rank > RANKS[-1]:
        raise UserError(
            f"{adapter}: an adapter with {odd[0] if odd else f'rank {rank}'} is not served unmerged; leave "
            "serving.adapter_base empty"
        )
    _compare(base, adapter, model_dir, scale)
    return rank


def _compare(base: Path, adapter: Path, model_dir: Path, scale: float) -> None:
    import torch

    places, merged, low_rank = _where(base), _where(model_dir), dict(_tensors(adapter))
    prefix = "base_model.model."
    adapted = {name.removeprefix(prefix).rpartition(".lora_")[0] for name in low_rank}
    if set(places) != set(merged) or not {f"{name}.weight" for name in adapted} <= set(places):
        raise IntegrityError(f"{base}: has other weights than {model_dir}; it is not the base of this adapter")
    for name, wanted in _tensors(model_dir):
        found = _tensor(places[name], name).float()
        if found.shape != wanted.shape:
            raise UserError(
                f"{base}: {name} has shape {tuple(found.shape)}, the version {tuple(wanted.shape)}: it has tokens of "
                "its own, which are not served unmerged; leave serving.adapter_base empty"
            )
        if (module := name.removesuffix(".weight")) in adapted:
            down, up = (low_rank[f"{prefix}{module}.lora_{side}.weight"].float() for side in "AB")
            found = found + scale * (up @ down)
        most = torch.finfo(wanted.dtype).eps * ROUNDING * float(found.abs().max())
        if not float((found - wanted.float()).abs().max()) <= most:  # written so that NaN differs
            raise IntegrityError(f"{base} + {adapter}: {name} is not that of {model_dir}; restore them or train again")


def _where(folder: Path) -> dict[str, Path]:
    from safetensors import safe_open

    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            found |= dict.fromkeys(opened.keys(), path)
    if not found:
        raise UserError(f"{folder}: no safetensors weights; name a folder in Hugging Face's layout")
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    for name, path in _where(folder).items():
        yield name, _tensor(path, name)


def _tensor(path: Path, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        return opened.get_tensor(name)


class AdapterServer:
    """One server on one base; versions come and go."""

    def __init__(self, engine: Engine, launch: Launch, log: Path) -> None:
        """Starts the process without waiting for it."""
        self.port, self.log = launch.port, log
        self.process: subprocess.Popen[bytes] = spawn(engine.command(launch), log=log, env=engine.environment(launch))
        self._users: Counter[str] = Counter()
        self.replicas = 0  # that answer or will answer from here

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None

    def load(self, name: str, adapter: Path) -> None:
        """Have a version answer under its name; TransientError where the server does not take it."""
        self._users[name] += 1
        if self._users[name] == 1:
            answer = self._ask("load_lora_adapter", lora_name=name, lora_path=str(adapter.absolute()))
            if answer != 200:
                self._users[name] -= 1
                raise TransientError(f"{name}: vLLM did not load its adapter ({answer}; {tail(self.log)})")

    def unload(self, name: str) -> None:
        """Forget a version that nobody asks for any more."""
        self._users[name] -= 1
        if not self._users[name] and self.alive:
            self._ask("unload_lora_adapter", lora_name=name)

    def leave(self) -> None:
        """One replica less; the last one ends the process."""
        self.replicas -= 1
        if self.replicas <= 0:
            end(self.process, STOP_SECONDS)

    def up(self) -> bool:
        """Whether it answers, or has ended."""
        import httpx

        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5.0, trust_env=False).status_code == 200
        return not self.alive

    def _ask(self, path: str, **body: str) -> int:
        import httpx

        with suppress(httpx.HTTPError):
            url = f"http://127.0.0.1:{self.port}/v1/{path}"
            return httpx.post(url, json=body, timeout=LOAD_SECONDS, trust_env=False).status_code
        return 0


Servers = dict[str, AdapterServer]  # by the digest of the base


class AdapterReplica(Replica):
    """A version on a shared server: as a replica of its own, which ends with the last that shares it."""

    server: AdapterServer
    adapter: Path
    loaded, left = False, False

    @classmethod
    def on(cls, spec: ReplicaSpec, engine: Engine, log: Path, servers: Servers) -> Self:
        """Check the version, and start its base's server where there is none, without waiting.

        Raises:
            IntegrityError, UserError: as `Replica.launch`, and where base + adapter is not this version.
        """
        if not getattr(engine, "serves_adapters", False):
            raise UserError(
                f"serving.adapter_base: the {engine.name} engine serves whole models only; use vllm, or leave it empty"
            )
        base, adapter = Path(spec.settings.adapter_base).expanduser(), spec.model_dir.parent / ADAPTER
        renderer = checked(spec, engine)
        rank = check_adapter(base, adapter, spec.model_dir)
        name = files_digest(base)
        if (server := servers.get(name)) is None or not server.alive:
            launch = Launch(
                arm=spec.arm,
                model_dir=base.absolute(),
                served_names=(f"{spec.name}-base",),
                port=free_port(),
                max_model_len=context_tokens(spec.model_dir, renderer),
                cores=sorted({core for arm in ARMS for core in cores_for(arm)}),
                settings=spec.settings,
                adapter_rank=min(room for room in RANKS if room >= rank),
            )
            server = servers[name] = AdapterServer(engine, launch, log)
        made = cls(spec, engine, renderer, server.port, server.process, server.log)
        made.server, made.adapter = server, adapter
        server.replicas += 1
        return made

    def ready_to_score(self) -> bool:
        """Load the adapter once the server answers, then as any replica."""
        if not self.loaded and self.server.up() and self.server.alive:
            self.server.load(served_name(self.spec), self.adapter)
            self.loaded = True
        return self.loaded and super().ready_to_score()

    def end(self) -> None:
        """Leave the server; the last one ends it."""
        if self.left:
            return
        self.left = True
        if self.loaded:
            self.server.unload(served_name(self.spec))
        self.server.leave()
