"""The Makefile, the CI script and the image's Dockerfile keep their promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "images" / "Dockerfile"


def test_make_without_a_target_lists_every_target() -> None:
    """Each phony target is in the help with a text, and the fixed names are there."""
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    listing = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = {line.split()[0] for line in listing.splitlines() if len(line.split()) > 1}
    assert listed == phony
    assert {"setup", "run", "demo", "test", "test-full", "lint", "bench", "clean", "help"} <= phony


def test_every_target_that_runs_code_makes_the_environment_first() -> None:
    """A fresh clone needs one command only."""
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "demo", "test", "test-full", "bench"):
        assert re.search(rf"^{target}: setup\b", makefile, re.MULTILINE), target


@pytest.mark.parametrize(("lint", "tests", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_ci_fails_where_lint_or_tests_fail_and_runs_both(tmp_path: Path, lint: int, tests: int, code: int) -> None:
    """Both always run, chromium and vLLM are required, and the exit code tells the truth."""
    calls = tmp_path / "calls"
    _program(
        tmp_path / "make", f'echo "$1 $PILOTLINE_REQUIRE" >> {calls}\n[ "$1" = lint ] && exit {lint}\nexit {tests}'
    )
    for name in ("chromium", "chromedriver", "redis-server", "locale-gen", "pg_ctlcluster", "slurmctld", "promtool"):
        _program(tmp_path / name, "exit 0")
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == code, result.stderr
    required = "chromium,vllm,redis,postgres,slurm,promtool"
    assert calls.read_text().splitlines() == [f"lint {required}", f"test {required}"]


def test_the_dockerfile_passes_the_linter() -> None:
    """hadolint has nothing to say, not even for style."""
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([str(hadolint), str(DOCKERFILE)], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_image_copies_what_exists_runs_as_nobody_and_installs_nothing_late() -> None:
    """Every copied path is in the repository and let through the ignore file; the last stage has a user and no pip."""
    text = DOCKERFILE.read_text()
    allowed = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split()
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert "components" in copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in allowed, name
    last_stage = text[text.rindex("\nFROM") :]
    assert re.search(r"^USER (?!0|root)\S+$", last_stage, re.MULTILINE)
    assert "pip" not in last_stage.replace("pipelin", "")


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
