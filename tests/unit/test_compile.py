"""The compiled file: the same bytes every time, a PipelineSpec, nothing installed when a step starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.core.errors import IntegrityError, PolicyRefusal, UserError
from pipelines.compile import compile_pipeline, parse_package, read_package
from tests.fakes.demo_pipeline import careless_demo, demo
from tests.fakes.golden import check_golden

ROOT = Path(__file__).resolve().parents[2]


def test_compiles_to_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    """Two processes with different hash seeds write identical files."""
    code = (
        "import sys; from pathlib import Path; from pipelines.compile import compile_pipeline; "
        "from tests.fakes.demo_pipeline import demo; compile_pipeline(demo('gpu-pool'), Path(sys.argv[1]), 'gpu-pool')"
    )
    written = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.yaml"
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, str(out)], check=True, env=env, cwd=tmp_path, timeout=120)
        written.append(out.read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("profile", ["laptop", "gpu-pool"])
def test_compiled_file_is_the_golden_one(tmp_path: Path, profile: str) -> None:
    """What is compiled today is what was reviewed."""
    out = compile_pipeline(demo(profile), tmp_path / "demo.yaml", profile)
    check_golden(f"demo-{profile}.yaml", out.read_text())


def test_read_package_gives_inputs_and_containers(tmp_path: Path) -> None:
    """The parsed file names the pipeline, its inputs and one container a step."""
    package = read_package(compile_pipeline(demo(), tmp_path / "demo.yaml"))
    assert package.name == "demo-retrain"
    assert package.parameters["source"]["parameterType"] == "STRING"
    assert set(package.executors) == {"exec-ingest", "exec-train"}
    assert package.platform == {}
    assert package.kubernetes == {}


def test_defaults_become_the_parameters_defaults(tmp_path: Path) -> None:
    """A value given at compile time needs no argument when a run is started."""
    out = compile_pipeline(demo(), tmp_path / "demo.yaml", defaults={"source": "s3://bucket/[[x]]"})
    assert read_package(out).parameters["source"]["defaultValue"] == "s3://bucket/[[x]]"


def test_install_at_step_start_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """A component with packages_to_install never becomes a file."""
    out = tmp_path / "careless.yaml"
    with pytest.raises(PolicyRefusal, match=r"careless would run '(ensurepip|pip install)'"):
        compile_pipeline(careless_demo(), out)
    assert list(tmp_path.iterdir()) == []


def test_file_that_does_not_fit_its_profile_is_refused(tmp_path: Path) -> None:
    """A gpu-pool file without a pool and a laptop file with one are both mistakes."""
    with pytest.raises(PolicyRefusal, match="no step names a GPU pool"):
        compile_pipeline(demo("laptop"), tmp_path / "a.yaml", "gpu-pool")
    with pytest.raises(PolicyRefusal, match="carries cluster settings"):
        compile_pipeline(demo("gpu-pool"), tmp_path / "b.yaml", "laptop")


@pytest.mark.parametrize(
    "text",
    ["", "a: 1", "[1, 2]", "pipelineInfo: {name: x}\nroot: {}\nnoSuchField: 1", "a: [", "a: 1\n---\nb: 2\n---\nc: 3"],
)
def test_anything_else_is_not_a_package(text: str) -> None:
    """A file that is not exactly a pipeline and at most one platform is refused."""
    with pytest.raises(IntegrityError, match="not a compiled pipeline"):
        parse_package(text, "x.yaml")


def test_bad_paths_are_one_line(tmp_path: Path) -> None:
    """A missing file, a wrong ending and an unwritable folder say what to do."""
    with pytest.raises(UserError, match="pilotline compile"):
        read_package(tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"ending \.yaml"):
        compile_pipeline(demo(), tmp_path / "demo.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        compile_pipeline(demo(), tmp_path / "file" / "demo.yaml")
