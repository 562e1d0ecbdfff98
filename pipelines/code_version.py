"""Which code ran: a digest over the project's own sources, and git's revision where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from components.core.digest import file_digest, value_digest
from components.core.paths import PROJECT_ROOT, find
from components.core.recipe import Recipe

SOURCES = ("components", "pipelines", "requirements.lock")
ENDINGS = {".py", ".sql", ".toml", ".yaml", ".html", ".css", ".js", ".lock"}


def code_version(recipe: Recipe) -> str:
    """`src-` and 16 hex digits over components/, pipelines/, the lock, the contracts and the feature repository."""
    roots = [PROJECT_ROOT / name for name in SOURCES]
    named = [find(recipe.contract.path, "contract"), find(recipe.features.repo, "feature repository")]
    named += [find(recipe.contract.training, "training contract")] if recipe.contract.training else []
    files = {f"{root.name}/{name}": digest for root in [*roots, *named] for name, digest in _digests(root).items()}
    return f"src-{value_digest(files)[:16]}"


def git_revision() -> str:
    """The short git revision, with `-dirty` where files differ from it; `unversioned` outside a checkout."""
    try:
        revision = _git("rev-parse", "--short=12", "HEAD")
        return f"{revision}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else revision
    except (OSError, subprocess.CalledProcessError):
        return "unversioned"


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=PROJECT_ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _digests(root: Path) -> dict[str, str]:
    if root.is_file():
        return {"": file_digest(root)}
    paths = (path for path in sorted(root.rglob("*")) if path.suffix in ENDINGS and path.is_file())
    return {path.relative_to(root).as_posix(): file_digest(path) for path in paths}
