"""The stamp in an environment: written last, so that a set-up cut short is seen and done again.

A stamp is a JSON file `pilotline-setup.json` inside the environment:
`base` names what cannot be changed in place (folder, Python, torch build); `done` maps a part to the digest of what
it was made from; `busy` is true while an installation runs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

NAME = "pilotline-setup.json"


@dataclass
class Stamp:
    """What an environment was made from."""

    base: str
    done: dict[str, str] = field(default_factory=dict)
    busy: bool = False


def read(env: Path) -> Stamp | None:
    """The environment's stamp, or None where there is none or it cannot be read."""
    try:
        raw = json.loads((env / NAME).read_text())
        return Stamp(str(raw["base"]), {str(k): str(v) for k, v in raw["done"].items()}, bool(raw["busy"]))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def write(env: Path, stamp: Stamp) -> None:
    """Put the stamp in place by rename, so that it is never seen half-written. Raises OSError."""
    beside = env / f"{NAME}.new"
    with beside.open("w") as stream:
        json.dump({"base": stamp.base, "done": stamp.done, "busy": stamp.busy}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(env / NAME)


def is_current(stamp: Stamp | None, base: str, part: str, made_from: str) -> bool:
    """Whether `part` was finished from exactly these inputs and nothing was cut short since."""
    return stamp is not None and not stamp.busy and stamp.base == base and stamp.done.get(part) == made_from


def must_rebuild(stamp: Stamp | None, base: str, env_exists: bool, runs: bool) -> bool:
    """Whether the folder has to go: cut short, made for another base, or its interpreter does not run.

    An environment without a stamp that runs (made by hand) is adopted.
    """
    if not env_exists:
        return False
    if stamp is None:
        return not runs
    return stamp.busy or stamp.base != base or not runs
