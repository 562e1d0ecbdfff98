"""Choosing the engine and its command line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from components.core.errors import UserError
from components.core.processes import OWNER, end, owned_by, owner_token, spawn, wait_until
from components.core.recipe import Serving
from components.serving import engines
from components.serving.engine import Launch
from components.serving.engines import choose, cores_for, find_vllm
from components.serving.reference import ReferenceEngine
from components.serving.vllm import VllmEngine


def _launch(arm: str = "stable", cores: tuple[int, ...] = (0,), **settings: object) -> Launch:
    return Launch(arm, Path("/m"), ("tiny-v3", "tiny"), 8101, 512, cores, Serving.model_validate(settings))


def _installation(root: Path, version: str) -> Path:
    executable = root / "bin" / "vllm"
    executable.parent.mkdir(parents=True)
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    (root / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    return executable


def test_auto_takes_vllm_where_it_is_installed_and_reads_its_version_without_starting_it(tmp_path: Path) -> None:
    """The version comes from the metadata beside the command."""
    executable = _installation(tmp_path, "0.32.0+cpu")
    found = choose("auto", {"PILOTLINE_VLLM": str(executable)})
    assert (found.engine.name, found.engine.label) == ("vllm", "vllm 0.32.0+cpu")


def test_auto_falls_back_to_reference_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM is nowhere the reason is one line that names it."""
    monkeypatch.setattr(engines, "PROJECT_ROOT", tmp_path)
    found = choose("auto", {"PATH": str(tmp_path)})
    assert found.engine.name == "reference"
    assert "vLLM is not installed" in found.reason
    assert "\n" not in found.reason


def test_vllm_asked_for_and_absent_is_an_error_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never falls back silently when it was asked for by name."""
    monkeypatch.setattr(engines, "PROJECT_ROOT", tmp_path)
    with pytest.raises(UserError, match=r"make setup.*--engine reference"):
        choose("vllm", {"PATH": str(tmp_path)})


def test_a_variable_that_points_at_nothing_executable_is_an_error(tmp_path: Path) -> None:
    """A wrong $PILOTLINE_VLLM is not passed over: absent, a folder, a file that is no program."""
    plain = tmp_path / "plain"
    plain.touch(0o644)
    for given in (tmp_path / "absent", tmp_path, plain):
        with pytest.raises(UserError, match="PILOTLINE_VLLM"):
            find_vllm({"PILOTLINE_VLLM": str(given)})


def test_an_unknown_engine_is_refused() -> None:
    """Names are a closed set."""
    with pytest.raises(UserError, match="auto, vllm or reference"):
        choose("sglang")


def test_vllm_on_a_cpu_binds_each_arm_to_its_cores_and_stays_offline() -> None:
    """Two cores: stable on 0, canary on 1; whole GiB of cache; no hub, no telemetry."""
    engine = VllmEngine(Path("/v/bin/vllm"), "0.32.0+cpu")
    stable = engine.environment(_launch(cores=tuple(cores_for("stable", [0, 1])), kv_cache_gib=1.5))
    canary = engine.environment(_launch("canary", tuple(cores_for("canary", [0, 1]))))
    assert (stable["VLLM_CPU_OMP_THREADS_BIND"], canary["VLLM_CPU_OMP_THREADS_BIND"]) == ("0", "1")
    assert stable["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert {stable[name] for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")} == {"1"}


def test_vllm_command_says_everything_and_listens_on_loopback_only() -> None:
    """Model, unique name with its alias, port, type, length and sequences are explicit."""
    command = VllmEngine(Path("/v/bin/vllm"), "0.32.0+cpu").command(_launch(max_sequences=7))
    assert command[:6] == ["/v/bin/vllm", "serve", "/m", "--served-model-name", "tiny-v3", "tiny"]
    pairs = dict(pairwise(command))
    wanted = {"--host": "127.0.0.1", "--port": "8101", "--dtype": "float32", "--max-model-len": "512"}
    assert {name: pairs[name] for name in wanted} == wanted
    assert pairs["--max-num-seqs"] == "7"
    assert {"--enforce-eager", "--enable-request-id-headers"} <= set(command)


def test_on_a_cpu_no_worker_process_spins_beside_the_engine() -> None:
    """Two servers on two cores answer in time only where the worker lives in the engine's own process."""
    engine, launch = VllmEngine(Path("/v/bin/vllm"), "0.32.0+cpu", 0), _launch(cores=(0, 1))
    assert ("--distributed-executor-backend", "uni") in list(pairwise(engine.command(launch)))
    environment = engine.environment(launch)
    assert (environment["VLLM_ENABLE_V1_MULTIPROCESSING"], environment["OMP_NUM_THREADS"]) == ("0", "2")
    on_gpu = VllmEngine(Path("/v/bin/vllm"), "0.32.0", 1)
    assert "--distributed-executor-backend" not in on_gpu.command(launch)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in on_gpu.environment(launch)


def test_two_arms_on_one_gpu_share_its_memory_and_on_two_get_one_each() -> None:
    """A canary never takes the memory that stable needs."""
    one, two = VllmEngine(Path("/v"), "0.32.0", gpus=1), VllmEngine(Path("/v"), "0.32.0", gpus=2)
    pairs = dict(pairwise(one.command(_launch())))
    assert 2 * float(pairs["--gpu-memory-utilization"]) < 0.9
    visible = [two.environment(_launch(arm))["CUDA_VISIBLE_DEVICES"] for arm in ("stable", "canary")]
    assert visible == ["0", "1"]
    assert "VLLM_CPU_OMP_THREADS_BIND" not in two.environment(_launch())


@pytest.mark.parametrize(("config", "served"), [
    ({"hidden_size": 64, "num_attention_heads": 2}, True),
    ({"hidden_size": 64, "num_attention_heads": 4}, False),
    ({"hidden_size": 576, "num_attention_heads": 9}, True),
    ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, True),
])  # fmt: skip
def test_a_head_size_without_a_cpu_kernel_is_refused_before_the_launch(
    config: dict[str, int], served: bool, tmp_path: Path
) -> None:
    """vLLM would start, say it is healthy, and die on the first request."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = VllmEngine(Path("/v"), "0.32.0+cpu")
    if served:
        engine.preflight(tmp_path)
    else:
        with pytest.raises(UserError, match="head size 16"):
            engine.preflight(tmp_path)
    VllmEngine(Path("/v"), "0.32.0", gpus=1).preflight(tmp_path)


def test_the_reference_engine_runs_in_this_python_with_both_names() -> None:
    """Same served names as vLLM, so that callers need not know which engine answers."""
    command = ReferenceEngine().command(_launch(cores=(0, 1)))
    assert command[-3:] == ["--served-model-name", "tiny-v3", "tiny"]
    assert dict(pairwise(command))["--threads"] == "2"


@pytest.mark.vllm
def test_a_process_that_vllm_named_anew_is_still_found_as_the_homes(tmp_path: Path) -> None:
    """vLLM's engine core outlives a killed server; it must be known as a leftover by its environment."""
    executable = find_vllm()
    assert executable is not None
    rename = "import setproctitle, time; setproctitle.setproctitle('VLLM::EngineCore' + 200 * 'x'); time.sleep(60)"
    environment = VllmEngine.at(executable).environment(_launch()) | {OWNER: owner_token(tmp_path)}
    process = spawn([str(executable.parent / "python"), "-c", rename], log=tmp_path / "log", env=environment)
    try:
        assert wait_until(lambda: "VLLM::" in Path(f"/proc/{process.pid}/cmdline").read_text(), 20.0, every=0.05)
        assert process.pid in owned_by(tmp_path)
    finally:
        end(process, 1.0)
