"""Shared by all tests: the project's environment, optional engines that CI insists on, homes of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from pipelines.run import keep_environment
from tests.fakes.ledger_places import ledger_url, postgres

__all__ = ["ledger_url", "postgres"]  # fixtures

keep_environment()
REQUIRED = {name for name in os.environ.get("PILOTLINE_REQUIRE", "").split(",") if name}
REAL_CSV = PROJECT_ROOT.parent / "shared" / "data" / "cfpb_complaints_2023.csv"

PROGRAMS = {  # marker → the program that shows it is there
    "chromium": "chromium",
    "redis": "redis-server",
    "slurm": "slurmctld",
    "promtool": "promtool",
    "gpu": "nvidia-smi",
}


def _has(name: str) -> bool:
    if name == "vllm":
        return (PROJECT_ROOT / ".venv-vllm" / "bin" / "vllm").exists() or "PILOTLINE_VLLM" in os.environ
    if name in PROGRAMS:
        return shutil.which(PROGRAMS[name]) is not None
    if name == "postgres":
        return any(Path("/usr/lib/postgresql").glob("*/bin/postgres")) or shutil.which("postgres") is not None
    if name == "kfp":
        return "KFP_ENDPOINT" in os.environ
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason, unless PILOTLINE_REQUIRE asks for it."""
    for item in items:
        for name in (*PROGRAMS, "vllm", "postgres", "kfp"):
            if item.get_closest_marker(name) and name not in REQUIRED and not _has(name):
                item.add_marker(pytest.mark.skip(reason=f"{name} is not on this machine"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home of the test's own."""
    return Home.at(tmp_path / "home")


@pytest.fixture(scope="session")
def real_csv() -> Path:
    """The real complaints; tests that ask for them say so where the file is absent."""
    if not REAL_CSV.exists():
        pytest.skip("the real complaints file is not beside this checkout (../shared/data)")
    return REAL_CSV
