"""Whether an initial model's weights are all there, all used and all numbers: a loader fills gaps at random."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from components.core.errors import UserError
from components.models.reach import INDEX

WHY = {
    "missing_keys": "its weights lack",
    "unexpected_keys": "its config has no place for",
    "mismatched_keys": "of another shape than its config says:",
}
MOST_NAMED = 3


def check_index(folder: Path) -> None:
    """Refuse an index of shards that names a file of elsewhere, or none that is there, before anything opens it.

    A link in the directory is followed: the hub's cache is made of them.

    Raises:
        UserError: it does, or it is no index.
    """
    path = folder / INDEX
    if not path.is_file():
        return
    try:
        shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"model.initial {path}: is no index of shards; bring the model here again") from error
    there = {found.name for found in folder.glob("*.safetensors")}
    if other := [shard for shard in shards if not isinstance(shard, str) or shard not in there]:
        raise UserError(
            f"model.initial {path}: names {ascii(other[0])[:100]}, which is no .safetensors file of that directory; "
            "put the shard there"
        )


def check_loaded(network: Any, told: Mapping[str, Iterable[Any]], folder: Path) -> None:
    """Refuse a network of which a weight was not in the files, or was not used, or is not finite.

    Args:
        network: what was loaded.
        told: transformers' loading information: missing_keys, unexpected_keys and mismatched_keys (name, shapes).

    Raises:
        UserError: there is such a weight; all such weights would be random, or left out, in silence.
    """
    import torch

    check_told(told, folder)
    _refuse_broken(
        [name for name, weight in network.named_parameters() if not bool(torch.isfinite(weight).all())], folder
    )


def check_told(told: Mapping[str, Iterable[Any]], folder: Path) -> None:
    """The part of `check_loaded` that needs no weight; UserError where one is absent, left over or of another shape."""
    for kind, why in WHY.items():
        if names := sorted(key if isinstance(key, str) else str(key[0]) for key in told.get(kind, ())):
            raise UserError(
                f"model.initial {folder}: {why} {_named(names)}; config.json and weights have to be of one model"
            )


def check_finite(folder: Path) -> None:
    """UserError where a tensor of the directory's safetensors is not finite everywhere; one is in memory at a time."""
    import torch
    from safetensors import safe_open

    broken = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                tensor = weights.get_tensor(name)
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
                    broken.append(name)
    _refuse_broken(broken, folder)


def _refuse_broken(names: list[str], folder: Path) -> None:
    if names:
        raise UserError(
            f"model.initial {folder}: {_named(names)} is not finite everywhere (NaN or infinity); take other weights"
        )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ascii(", ".join(names[:MOST_NAMED]))[1:-1] + more
