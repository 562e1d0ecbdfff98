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
SERVED = ["plan", "serve", "--params", "7e9", "--gpu", "H100", "--gpus", "1"]
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
        ["plan", "train", "--recipe", "laptop", "--model", "llama-3-8b", "--gpu", "H100"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--gpus", "1e30"],
        ["plan", "serve", "--params", "7e9", "--gpu", "H100", "--gpus", "1e9"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--gpus", "8", "--gpus-per-node", "3"],
        ["plan", "train", "--params", "1e30", "--gpu", "H100", "--gpus", "8"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--method", "full", "--lora-rank", "8"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--method", "full", "--train-embeddings"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--ep", "4", "--gpus", "8"],
        ["plan", "train", "--params", "7e9", "--gpu", "H100", "--seq-len", "1e99"],
        ["plan", "serve", "--params", "7e9", "--gpu", "H100", "--gpus", "8", "--peak-requests-per-second", "5"],
        ["plan", "serve", "--params", "7e9", "--gpu", "H100", "--gpus", "1", "--itl-ms", "5"],
        [*SERVED, "--requests-per-second", "9", "--peak-requests-per-second", "5"],
        [*SERVED, "--prompt-tokens", "9000", "--max-model-len", "4096"],
        [*SERVED, "--max-num-seqs", "400", "--max-num-batched-tokens", "100"],
        [*SERVED, "--model", "llama-3-70b"],
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
    text = " ".join(capsys.readouterr().out.split())
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


def test_bad_numbers_name_their_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is, not only what."""
    assert main(["plan", "train", "--params", "7e9", "--gpu", "H100", "--micro-batch", "0"]) == 2
    assert "--micro-batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--cp", "2"], "cp", 2),
        (["--experts", "8", "--params", "47e9", "--layers", "32", "--hidden", "4096", "--ep", "4"], "ep", 4),
        (["--accumulation", "4", "--micro-batch", "1"], "accumulation", 4),
        (["--lora-targets", "all"], "method", "lora"),
        (["--train-embeddings"], "method", "lora"),
        (["--strategy", "fsdp_full"], "zero_stage", 3),
        (["--strategy", "fsdp_grad_op"], "zero_stage", 2),
        (["--framework", "NVIDIA/Megatron-LM v0.9"], "framework", "megatron"),
    ],
)
def test_what_is_asked_for_is_in_the_plan(
    flags: list[str], key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every flag reaches it."""
    _, found = _json(["plan", "train", "--params", "7e9", "--gpu", "H100", "--gpus", "8", *flags], capsys)
    assert found[key] == value


def test_rates_and_counter_change_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """A slow network slows, interleaving shortens the bubble, another counter tells another peak."""
    base = ["plan", "train", "--params", "70e9", "--gpu", "H100", "--gpus", "64", "--tp", "4", "--pp", "4"]
    _, plain = _json(base, capsys)
    _, slow = _json([*base, "--link-gb-s", "20", "--network-gb-s", "1"], capsys)
    _, named = _json([*base, "--interconnect", "ethernet-8"], capsys)
    _, woven = _json([*base, "--virtual-stages", "4"], capsys)
    _, tensors = _json([*base, "--memory-counter", "allocated"], capsys)
    pace = "tokens_per_second_per_gpu"
    assert slow[pace] < 0.9 * plain[pace]  # type: ignore[operator]
    assert slow[pace] < named[pace] < plain[pace]  # type: ignore[operator]
    assert woven["bubble_share"] < plain["bubble_share"]  # type: ignore[operator]
    assert tensors["predicted_peak_gib"] < plain["predicted_peak_gib"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "train", "--params", "70e9", "--gpus", "64", "--gpu", "H100", "--tokens", "1e12"],
        ["plan", "train", "--params", "13e9", "--gpus", "8", "--gpu-memory-gib", "80"],
        ["plan", "serve", "--params", "175e9", "--nodes", "12", "--gpus-per-node", "4", "--gpu-memory-gib", "40"],
        [*SERVED, "--requests-per-second", "20"],
        [*TOO_LARGE],
    ],
)
def test_a_page_fits_eighty_columns(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Bars, tables, reasons and the command, which goes on with backslashes."""
    main(argv)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    if "vllm serve" in text:
        command = text[text.index("  vllm serve") :].replace("\\\n", " ")
        assert shlex.split(command)[:3] == ["vllm", "serve", "MODEL"]
        assert "--gpu-memory-utilization" in shlex.split(command)


@pytest.mark.parametrize("argv", [[*TOO_LARGE, "--emit", "vllm"], ["plan", "train", "--params", "1e12", "--gpus", "8",
                                  "--gpu", "H100", "--emit", "deepspeed"]])  # fmt: skip
def test_nothing_is_emitted_for_a_plan_that_does_not_fit(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output stays empty, for it goes into a file or a shell; the line says what would fit."""
    assert main(argv) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gpu", "T4", "--weights", "int4"], ["--dtype", "float16"]),
        (["--gpu", "H100", "--weights", "fp32"], ["--dtype", "float32"]),
        (["--gpu", "H100", "--kv-cache-dtype", "bf16"], ["--kv-cache-dtype", "bfloat16"]),
        (["--gpu", "H100", "--weights", "fp8"], ["--quantization", "fp8"]),
    ],
)
def test_the_command_names_types_as_vllm_does(
    flags: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU without bf16, 32-bit weights, a 16-bit cache."""
    _, found = _json(["plan", "serve", "--model", "llama-3-8b", "--gpus", "1", *flags], capsys)
    arguments = found["vllm_arguments"]
    assert isinstance(arguments, list)
    assert arguments[arguments.index(words[0]) + 1] == words[1]


def test_a_recipe_is_served_with_its_own_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Format and context from the recipe, and no request longer than that."""
    _, found = _json(["plan", "serve", "--recipe", "laptop", "--gpus", "1", "--gpu", "T4"], capsys)
    assert found["weights"] == "fp32"
    speed = found["speed"]
    assert isinstance(speed, list)
    assert speed[0]["prompt_tokens"] + speed[0]["output_tokens"] <= found["max_model_len"]  # type: ignore[operator]
