"""DeepSpeed's converter to its universal form, as a process that unpickles nothing but tensors and plain values.

The converter calls torch.load(weights_only=False) on what it is given. Here every call, whatever it asks for, builds
only tensors, containers and the few types of DeepSpeed's own that a checkpoint holds; anything else ends the process
with status REFUSED before its code could run. Run as `python -m components.training.conversion` with the converter's
arguments.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from components.core.errors import one_line
from components.training.engine import engine_module, trusted_types
from components.training.universal import REFUSED

CONVERTER = "deepspeed.checkpoint.ds_to_universal"


def load_nothing_else() -> None:
    """From here on torch.load of this process, and of those that it forks, is `weights_only`."""
    usual = torch.load
    torch.serialization.add_safe_globals(trusted_types())

    def load(*args: Any, **options: Any) -> Any:
        return usual(*args, **(options | {"weights_only": True}))

    torch.load = load


def first_refused(folder: Path) -> str:
    """The first `.pt` file that holds more than state, with the reason; empty where all are only that."""
    for path in sorted(folder.rglob("*.pt")):
        try:
            torch.load(path, map_location="cpu", mmap=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            what = "holds more than tensors and plain values, or is cut short"
            return f"{path.relative_to(folder)}: {what} ({one_line(error)[:100]})"
    return ""


def main(folder: Path) -> int:
    """Convert; 0, or REFUSED with the file's name as the last line."""
    converter = engine_module(CONVERTER)
    load_nothing_else()
    multiprocessing.set_start_method("fork")  # the converter's own workers load with the same rule
    if refused := first_refused(folder):
        print(refused, file=sys.stderr, flush=True)
        return REFUSED
    converter.main(converter.parse_arguments())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[sys.argv.index("--input_folder") + 1])))
