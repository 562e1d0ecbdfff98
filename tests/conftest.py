"""Shared by all tests: the project's environment, optional engines that CI insists on, homes of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from pipelines.run import keep_environment

keep_environment()
REQUIRED = {name for name in os.environ.get("PILOTLINE_REQUIRE", "").split(",") if name}
REAL_CSV = PROJECT_ROOT.parent / "shared" / "data" / "cfpb_complaints_2023.csv"


def _has(name: str) -> bool:
    if name == "chromium":
        return shutil.which("chromium") is not None
    if name == "vllm":
        return (PROJECT_ROOT / ".venv-vllm" / "bin" / "vllm").exists() or "PILOTLINE_VLLM" in os.environ
    if name == "redis":
        return shutil.which("redis-server") is not None
    if name == "kfp":
        return "KFP_ENDPOINT" in os.environ
    if name == "gpu":
        return shutil.which("nvidia-smi") is not None
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason, unless PILOTLINE_REQUIRE asks for it."""
    for item in items:
        for name in ("chromium", "vllm", "redis", "kfp", "gpu"):
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
