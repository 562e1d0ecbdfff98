"""`pilotline plan`: exit codes, the promised JSON keys, what a person reads, what can be pasted."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.plan_cli import number, whole
from pipelines.plan_text import BAR, bar, table

FITS = ["plan", "serve", "--params", "70e9", "--gpus", "4", "--gpu-memory-gib", "40"]
TOO_LARGE = ["plan", "serve", "--params", "70b", "--gpus", "1", "--gpu-memory-gib", "24"]


def _json(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = main([*argv, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, found


def test_serve_prints_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """tp, pp, replicas, weights, cache, context, reasons; feasible exits 0."""
    code, found = _json(FITS, capsys)
    assert code == 0
    assert (found["tp"], found["pp"], found["replicas"]) == (4, 1, 1)
    assert found["weights_gib"] == pytest.approx(140e9 / 4 / 2**30, rel=0.01)
    assert {"kv_cache_gib", "max_model_len", "reasons"} <= set(found)


def test_infeasible_exits_3_and_says_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """The first lines hold the answer."""
    assert main(TOO_LARGE) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("does not fit: 70B")
    assert "would fit" in lines[1]


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "serve"],
        ["plan", "serve", "--params", "seven", "--gpus", "1", "--gpu-memory-gib", "80"],
        ["plan", "serve", "--params", "7e9", "--gpus", "1.5", "--gpu-memory-gib", "80"],
        ["plan", "serve", "--params", "7e9", "--gpus", "1", "--gpu", "H1000"],
        ["plan", "serve", "--config", "no/such/config.json", "--gpus", "1", "--gpu-memory-gib", "80"],
        ["plan", "serve", "--recipe", "nothing", "--gpus", "1", "--gpu-memory-gib", "80"],
        ["plan", "serve", "--params", "7e9", "--model", "llama-9", "--gpus", "1", "--gpu-memory-gib", "80"],
        ["plan", "train", "--gpus", "8", "--gpu", "H100-80GB"],
        ["plan", "train", "--params", "7e9", "--gpus", "64", "--gpu", "H100", "--pp", "2", "--tp", "4", "--dp", "4"],
        ["plan", "train", "--recipe", "nothing", "--gpu", "H100"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, no plan."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1


def test_the_text_shows_bars_reasons_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """What a person needs without --json."""
    assert (
        main(
            ["plan", "serve", "--weights-gb", "350", "--nodes", "12", "--gpus-per-node", "4", "--gpu-memory-gib", "40"]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "TP 4 x PP 4, 3 replicas: 48 of 48 GPUs" in text
    assert "█" in text
    assert "replica 0: node 0 GPU 0-3; node 1 GPU 0-3; node 2 GPU 0-3; node 3 GPU 0-3" in text
    assert "LeaderWorkerSet of size 4" in text
    assert "--distributed-executor-backend ray" in text
    assert "not given" in text


def test_emit_prints_only_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that a shell takes."""
    assert main([*FITS, "--emit", "vllm", "--served-name", "my org/model"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    words = shlex.split(line)
    assert words[:3] == ["vllm", "serve", "my org/model"]
    assert words[words.index("--tensor-parallel-size") + 1] == "4"


def test_a_recipes_model_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """The laptop model's shape, so nothing of it is assumed."""
    code, found = _json(["plan", "serve", "--recipe", "laptop", "--gpus", "1", "--gpu", "L4"], capsys)
    assert code == 0
    assert found["max_model_len"] == 512
    assert not [line for line in found["assumed"] if "layers" in line]  # type: ignore[attr-defined]


def test_train_prints_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Strategy, ZeRO stage, offload, TP, PP, DP, micro-batch, peak, reasons; 13B on eight GPUs of 80 GiB is ZeRO."""
    code, found = _json(["plan", "train", "--params", "13e9", "--gpus", "8", "--gpu-memory-gib", "80"], capsys)
    assert code == 0
    assert {"strategy", "offload", "dp", "micro_batch", "predicted_peak_gib", "reasons"} <= set(found)
    assert found["zero_stage"] in (2, 3)
    assert (found["offload"], found["tp"], found["pp"]) == ("none", 1, 1)


def test_train_that_does_not_fit_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    """The states alone of 70B are 1,120 GB."""
    argv = ["plan", "train", "--params", "70e9", "--gpus", "8", "--gpu-memory-gib", "80", "--offload", "none"]
    assert main(argv) == 3
    assert capsys.readouterr().out.startswith("does not fit: full training")


def test_train_text_names_memory_speed_and_what_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars, tokens/s with its band, hours and cost of the asked tokens."""
    argv = ["plan", "train", "--model", "llama-3-8b", "--gpus", "8", "--gpu", "H100-80GB", "--tokens", "10b"]
    assert main([*argv, "--price-per-gpu-hour", "2.5"]) == 0
    text = capsys.readouterr().out
    for words in ("optimizer", "█", "tokens/s a GPU (80 % band", "hours", "cost", "why not"):
        assert words in text


def test_train_emits_a_deepspeed_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON alone, with the plan's batch; a plan that cuts the model has none and says so."""
    argv = ["plan", "train", "--params", "13e9", "--gpus", "8", "--gpu", "H100-80GB", "--emit", "deepspeed"]
    assert main(argv) == 0
    config = json.loads(capsys.readouterr().out)
    batch = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 8
    assert config["train_batch_size"] == batch
    assert config["zero_optimization"]["stage"] in (2, 3)
    assert main([*argv, "--tp", "4"]) == 2
    assert "not a DeepSpeed configuration" in capsys.readouterr().err


def test_help_names_units(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory is in GiB, time in ms."""
    with pytest.raises(SystemExit):
        main(["plan", "serve", "--help"])
    text = capsys.readouterr().out
    assert "--gpu-memory-gib" in text
    assert "--itl-ms" in text


def test_planning_imports_no_engine() -> None:
    """A plan is arithmetic: neither torch nor pandas is loaded for it."""
    code = (
        "import sys; from pipelines.cli import main; "
        "main(['plan', 'serve', '--params', '7e9', '--gpus', '1', '--gpu-memory-gib', '80', '--json']); "
        "print([name for name in ('torch', 'pandas', 'numpy', 'kfp', 'mlflow') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_numbers_are_read_as_people_write_them() -> None:
    """13e9, 13b and 13B are the same."""
    assert number("13e9") == number("13b") == number("13B") == 13e9
    assert whole("128k") == 128_000


def test_bars_are_in_proportion() -> None:
    """Full is forty cells, half is twenty, and a little is still seen."""
    assert (len(bar(1.0)), len(bar(0.5)), bar(0.0), bar(1e-9)) == (BAR, BAR // 2, "", "▏")
    assert bar(7.0) == bar(1.0)


def test_tables_align_numbers_to_the_right() -> None:
    """Each column is as wide as its widest cell."""
    lines = table(("n", "word"), [(5, "a"), (1234, "bcd")])
    assert lines == ["      n  word", "      5  a", "  1,234  bcd"]
