"""What a checkpoint costs: the stall of a save against DeepSpeed's own, the share of training time, the verification.

    python benchmarks/bench_checkpoint.py [--rounds N] [--hidden N] [--stage N] [--json]

Two ranks train one small model. Round by round the same state is saved by DeepSpeed's blocking `save_checkpoint`,
which neither syncs, digests nor publishes, and by ours, whose copy stops training and whose writing goes on beside it.
A stall is the time that the slower rank waits. The share of training time is what a save costs in all, its stall and
the slower steps while it is written, over the recipe's default number of steps; told in wall time and in CPU seconds
of all ranks, of which the latter hold on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

STALL_TARGET, SHARE_TARGET, VERIFY_TARGET = 0.5, 0.03, 1.0
STEPS = 12  # of a round's training


def main(argv: list[str]) -> int:
    """Measure and print; exit 1 where a target is missed."""
    options = _options(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        _prepare(root, options)
        _torchrun(root, options)
        found = json.loads((root / "found.json").read_text())
        found["verify_gb_per_cpu_second"] = _verification(root / "gigabyte")
    if options.json:
        print(json.dumps(found))
    else:
        _show(found)
    held = found["stall_ratio"] <= STALL_TARGET and found["cpu_share"] < SHARE_TARGET
    return 0 if held and found["verify_gb_per_cpu_second"] > VERIFY_TARGET else 1


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def _prepare(root: Path, options: argparse.Namespace) -> None:
    """A job folder with a Llama of some ten million parameters."""
    import pandas as pd

    from components.core.records import TrainingSetRef
    from components.models.spec import spec_for
    from components.training.job import Job
    from tests.fakes.training_case import publish_training_set, rows, tiny_recipe

    size = {"hidden_size": options.hidden, "layers": 6, "heads": 6, "intermediate_size": options.hidden * 8 // 3}
    recipe = tiny_recipe(
        model=size | {"vocabulary": 2000, "text_tokens": 64, "max_positions": 128},
        training={
            "zero_stage": options.stage,
            "steps": 10_000,
            "batch_size": 32,
            "checkpoint_every_steps": 10_000,
            "checks": 1,
            "language_model_weight": 1.0,
            "keep_checkpoints": 1,
        },
    )
    draw = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(4000)])
    frames = {}
    for at, name in enumerate(("train", "validation", "test")):
        frames[name] = rows(500, at)
        frames[name]["text"] = [" ".join(draw.choice(words, 40)) for _ in range(500)]
    source = publish_training_set(root / "set", frames)
    job = Job(root / "job", "bench", recipe)
    job.prepared.mkdir(parents=True)
    parts = [pd.read_parquet(source / f"{name}.parquet") for name in ("train", "validation")]
    spec_for("causal_lm").preparation.prepare(recipe, TrainingSetRef.read(source), *parts, job.prepared)
    job.write()


def _torchrun(root: Path, options: argparse.Namespace) -> None:
    from components.core.processes import free_port

    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += [f"--master-port={free_port()}", str(Path(__file__)), "--rank", str(root), str(options.rounds)]
    subprocess.run(command, env=env, check=True, timeout=1800, stdout=subprocess.DEVNULL)


def _rank(root: Path, rounds: int) -> None:
    """One rank: warm up, then rounds of steps alone, DeepSpeed's save, and ours with steps beside its writing."""
    import torch
    from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

    from components.core.recipe import Training
    from components.training.job import Job
    from components.training.worker import Rank

    torch.set_num_threads(1)
    rank = Rank(Job.read(root / "job" / "job.json"))
    rank.resume()
    rank.meter.start()
    _steps(rank, 3)
    rows: dict[str, list[float]] = {name: [] for name in ("alone", "alone_cpu", "theirs", "ours", "beside", "ours_cpu")}
    rank.saver.save()  # the first of each kind meets fresh memory
    rank.saver.join()
    _blocking(rank, root, TorchCheckpointEngine())
    for _ in range(rounds):
        wall, cpu = _steps(rank, STEPS)
        rows["alone"].append(wall)
        rows["alone_cpu"].append(cpu)
        rows["theirs"].append(_blocking(rank, root, TorchCheckpointEngine()))
        rank.engine.wait()
        began = time.process_time()
        rank.saver.save()
        wall, _cpu = _steps(rank, STEPS)
        rank.saver.join()
        rows["ours"].append(rank.saver.stalls[-1])
        rows["beside"].append(wall)
        rows["ours_cpu"].append(time.process_time() - began)
    sums = {"alone_cpu", "ours_cpu"}
    every = {}
    for name, mine in rows.items():
        seen = [rank.engine.gather(np.array([value]), rank.engine.ranks) for value in mine]
        every[name] = [float(values.sum() if name in sums else values.max()) for values in seen]
    if rank.chief:
        size = sum(path.stat().st_size for path in (root / "job").glob("step-*/**/*") if path.is_file())
        count = sum(p.numel() for p in rank.average.network.parameters())
        default = Training().checkpoint_every_steps
        (root / "found.json").write_text(json.dumps(_figures(every, size, count, default)))
    rank.engine.wait()
    rank.engine.close()


def _steps(rank: Any, count: int) -> tuple[float, float]:
    rank.engine.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        rank.one_step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _blocking(rank: Any, root: Path, engine: Any) -> float:
    """DeepSpeed's own save of the same state; seconds that this rank waits."""
    import torch

    del torch
    ours, rank.engine._engine.checkpoint_engine = rank.engine._engine.checkpoint_engine, engine
    rank.engine.wait()
    began = time.perf_counter()
    rank.engine._engine.save_checkpoint(str(root / "theirs"), tag="blocking")
    took = time.perf_counter() - began
    rank.engine._engine.checkpoint_engine = ours
    rank.engine.wait()
    if rank.chief:
        shutil.rmtree(root / "theirs")
    rank.engine.wait()
    return took


def _figures(rows: dict[str, list[float]], size: int, parameters: int, default: int) -> dict[str, Any]:
    median = {name: float(np.median(values)) for name, values in rows.items()}
    extra = median["ours"] + max(0.0, median["beside"] - median["alone"])
    extra_cpu = max(0.0, median["ours_cpu"] - median["alone_cpu"])
    ratios = [ours / theirs for ours, theirs in zip(rows["ours"], rows["theirs"], strict=True)]
    return {
        "parameters": parameters,
        "checkpoint_mb": size / 1e6,
        "stall_seconds": median["ours"],
        "deepspeed_stall_seconds": median["theirs"],
        "stall_ratio": float(np.median(ratios)),
        "stall_ratios": np.round(ratios, 3).tolist(),
        "step_seconds": median["alone"] / STEPS,
        "every_steps": default,
        "wall_share": extra / (default * median["alone"] / STEPS),
        "cpu_share": extra_cpu / (default * median["alone_cpu"] / STEPS),
    }


def _verification(root: Path) -> float:
    """Gigabytes a CPU second of checking a published checkpoint of 1 GB, with one reader, its files in the cache."""
    from components.core.digest import file_digest
    from components.core.records import CheckpointRef
    from components.training.checkpoints import check, checkpoint_folder, publish_checkpoint

    staging = root / ".step-000001.1.staging"
    staging.mkdir(parents=True)
    block = np.random.default_rng(0).bytes(250_000_000)
    for number in range(4):
        (staging / f"shard-{number}").write_bytes(block)
    CheckpointRef(digest="k", step=1, world_size=2, zero_stage=1, recipe_digest="r").write(staging)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in staging.iterdir()}
    publish_checkpoint(staging, checkpoint_folder(root, 1), files, {"key": "k", "step": 1})
    speeds = []
    for _ in range(3):
        began = time.process_time()
        check(checkpoint_folder(root, 1), 1, "k")
        speeds.append(1.0 / (time.process_time() - began))
    return float(np.median(speeds))


def _show(found: dict[str, Any]) -> None:
    def line(what: str, value: str, target: str, held: bool) -> None:
        print(f"  {what:<58} {value:>10}  (target {target}: {'held' if held else 'MISSED'})")

    print(f"{found['parameters'] / 1e6:.1f}M parameters, 2 ranks, a checkpoint of {found['checkpoint_mb']:.0f} MB")
    print(
        f"  stall of a save: {found['stall_seconds'] * 1e3:.0f} ms ours, "
        f"{found['deepspeed_stall_seconds'] * 1e3:.0f} ms DeepSpeed's; a step {found['step_seconds'] * 1e3:.0f} ms"
    )
    ratio, share, speed = found["stall_ratio"], found["cpu_share"], found["verify_gb_per_cpu_second"]
    line("stall, ours / DeepSpeed's blocking save", f"{ratio:.2f}", f"{STALL_TARGET:g}", ratio <= STALL_TARGET)
    cadence = f"share of training, a save every {found['every_steps']} steps"
    line(f"{cadence}, CPU seconds", f"{share:.2%}", f"{SHARE_TARGET:.0%}", share < SHARE_TARGET)
    wall = found["wall_share"]
    line(f"{cadence}, wall", f"{wall:.2%}", f"{SHARE_TARGET:.0%}", wall < SHARE_TARGET)
    line("verification, GB a CPU second of one core", f"{speed:.2f}", f"{VERIFY_TARGET:g}", speed > VERIFY_TARGET)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
