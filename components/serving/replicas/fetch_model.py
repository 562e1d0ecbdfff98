"""Copy a registered model to the pod's own disk and check what was copied; the model server reads that copy alone.

    python -m components.serving.replicas.fetch_model --source DIR --digest HEX --to DIR

Runs as the replica's init container: a model whose files are not those that the digest names is never loaded, and
whoever changes the shared directory later changes nothing here. Exit 0, or 3 where the digest does not hold.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from components.core.errors import IntegrityError, one_line
from components.models.files import check_files, model_digest


def fetch_model(source: Path, digest: str, target: Path) -> None:
    """Copy the model's files into the existing, empty folder `target` and check the copy.

    Raises:
        IntegrityError: not a model directory, or not the one that the digest names; nothing is left in `target`.
    """
    for left in target.iterdir():  # a container that was restarted begins again
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    for path in check_files(source):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    found = model_digest(target)
    if found != digest:
        for path in check_files(target):
            path.unlink()
        raise IntegrityError(f"{source}: its files have digest {found[:12]}, {digest[:12]} was registered")


def main() -> int:
    """The init container's process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--digest", required=True)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    try:
        fetch_model(given.source, given.digest, given.to)
    except IntegrityError as error:
        print(one_line(error), file=sys.stderr)
        return IntegrityError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
