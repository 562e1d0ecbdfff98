"""The vLLM server: its command line and environment, on CPU cores or on GPUs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import UserError
from components.serving.engine import Launch

# Attention head sizes of vLLM's CPU kernels; the server starts with others and dies on the first request.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
KEEP_ALIVE_SECONDS = 75
ADAPTERS_AT_ONCE = 2  # stable and canary; others wait in memory
GPU_MEMORY_SHARE = 0.40  # an arm's share where both arms live on one GPU


@dataclass(frozen=True)
class VllmEngine:
    """A vLLM installation; `gpus` is 0 for a CPU build."""

    executable: Path
    version: str
    gpus: int = 0
    name: str = "vllm"
    serves_adapters = True

    @classmethod
    def at(cls, executable: Path) -> VllmEngine:
        """Look at an installation without importing it (that takes ten seconds)."""
        version = _installed_version(executable)
        return cls(executable, version, 0 if "cpu" in version else _count_gpus())

    @property
    def label(self) -> str:
        """Name and version."""
        return f"vllm {self.version}"

    def preflight(self, model_dir: Path) -> None:
        """UserError where the CPU kernels have no code for the model's head size."""
        config = json.loads((model_dir / "config.json").read_text())
        heads = config.get("num_attention_heads")
        size = config.get("head_dim") or (config["hidden_size"] // heads if heads else None)
        if size is not None:
            self.check_head_size(size, str(model_dir))

    def check_head_size(self, size: int, where: str) -> None:
        """UserError where the CPU kernels have no code for this head size; said before anything is trained."""
        if not self.gpus and size not in CPU_HEAD_SIZES:
            raise UserError(
                f"{where}: attention head size {size} is not served by {self.label} on a CPU "
                f"(it has {', '.join(map(str, CPU_HEAD_SIZES))}); choose model.hidden_size / model.heads accordingly"
            )

    def command(self, launch: Launch) -> list[str]:
        """`vllm serve` with everything said explicitly."""
        settings = launch.settings
        options = {
            "--host": "127.0.0.1",
            "--port": str(launch.port),
            "--dtype": settings.dtype,
            "--max-model-len": str(launch.max_model_len),
            "--max-num-seqs": str(settings.max_sequences),
        }
        if self.gpus == 1:
            options["--gpu-memory-utilization"] = str(GPU_MEMORY_SHARE)
        flat = [word for option in options.items() for word in option]
        names = ["--served-model-name", *launch.served_names]
        flags = ["--enforce-eager", "--enable-request-id-headers"]
        if not self.gpus:
            flags += ["--distributed-executor-backend", "uni"]
        if launch.adapter_rank:
            flags += ["--enable-lora", "--max-lora-rank", str(launch.adapter_rank)]
            flags += ["--max-loras", str(ADAPTERS_AT_ONCE), "--max-cpu-loras", str(2 * ADAPTERS_AT_ONCE)]
        return [str(self.executable), "serve", str(launch.model_dir), *names, *flat, *flags]

    def environment(self, launch: Launch) -> dict[str, str]:
        """No telemetry, no hub, and each arm on hardware of its own where there is enough.

        On a CPU the worker lives in the engine's process: with one of its own, both wait for each other by spinning
        for a second after every message, and two servers on two cores then answer in a second instead of 15 ms.
        vLLM honours that only with its multiprocessing switched off and leaves the number of threads to us.
        """
        common = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
            "SPT_NOENV": "1",  # else vLLM's process titles overwrite the environment by which leftovers are found
            "PYTHONDONTWRITEBYTECODE": "",  # compiled modules are kept: they halve the next start
        }
        if launch.adapter_rank:  # on loopback, and not among the paths that the router lets through
            common["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.gpus > 1:
            return common | {"CUDA_VISIBLE_DEVICES": "0" if launch.arm == "stable" else "1"}
        if self.gpus:
            return common
        return common | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": str(len(launch.cores)),
            "VLLM_CPU_OMP_THREADS_BIND": core_ranges(launch.cores),
            "VLLM_CPU_KVCACHE_SPACE": str(math.ceil(launch.settings.kv_cache_gib)),  # whole GiB only
        }


def core_ranges(cores: Sequence[int]) -> str:
    """Cores as vLLM and taskset write them: [0, 1, 2, 5] is '0-2,5'."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def _installed_version(executable: Path) -> str:
    """From the distribution's metadata beside the command; "unknown" where it is somewhere else."""
    for folder in (executable.parent, executable.resolve().parent):
        for info in sorted(folder.parent.glob("lib*/python3*/site-packages/vllm-*.dist-info")):
            if found := re.fullmatch(r"vllm-(.+)\.dist-info", info.name):
                return found.group(1)
    return "unknown"


def _count_gpus() -> int:
    """NVIDIA devices of this machine."""
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
