"""A save's state, first copied into memory and then written: the copy stops training, the writing need not.

`MemoryStaging` has the methods that DeepSpeed asks of a checkpoint engine. Its `save` copies; `write` later writes
what was copied with torch's format, and takes each file's digest in the same pass.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from components.core.errors import IntegrityError

Files = dict[str, dict[str, Any]]


class MemoryStaging:
    """Takes what DeepSpeed would write.

    Args:
        trusted: gives a context in which torch may read the engine's own types from a checkpoint; all else in a
            file than tensors, containers and these is refused (`weights_only`).
    """

    def __init__(self, trusted: Any) -> None:
        self.name = "MemoryStaging"
        self._trusted = trusted
        self._taken: list[tuple[Path, Any]] = []
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def take(self) -> list[tuple[Path, Any]]:
        """What was saved since the last call: path and copied state of each file."""
        taken, self._taken = self._taken, []
        return taken

    def create(self, info: Any) -> None:
        """DeepSpeed announces a save."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """DeepSpeed makes the folders before it saves."""
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        """Copy a file's state into memory."""
        self._taken.append((Path(path), Copier(self._buffers, path.rpartition("/")[2]).copied(state_dict)))

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read a file that was verified before; only tensors, containers and the engine's own types are built.

        Raises:
            IntegrityError: it holds something else; its digest may match, so reading it again helps nobody.
        """
        try:
            with self._context():
                return torch.load(path, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise IntegrityError(
                f"{path}: holds more than tensors and plain values, and was not read; put a good copy back, or remove"
                " the checkpoint's folder"
            ) from error

    def commit(self, info: Any) -> bool:  # noqa: ARG002 - DeepSpeed's signature
        """DeepSpeed has handed over all files."""
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """The first rank writes what all ranks share."""
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        """To DeepSpeed a save is over when `save` returns."""
        return False

    def set_commit_info(self, info: Any) -> None:
        """Nothing is kept."""

    def get_commit_info(self) -> None:
        """Nothing is kept."""

    def cleanup(self) -> None:
        """Nothing is left open."""

    def preserves_storage_sharing(self) -> bool:
        """A copy holds the elements of a view alone, so DeepSpeed need not clone views first."""
        return False

    def _context(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._trusted()
        return context


class Copier:
    """Copies nested state so that later steps of training do not change it.

    Tensors go to buffers that the next save of the same file uses again (fresh memory costs more than the copy);
    a tensor that occurs twice is copied once.
    """

    def __init__(self, buffers: dict[tuple[str, int], torch.Tensor], name: str) -> None:
        self._buffers, self._name = buffers, name
        self._seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def copied(self, value: Any) -> Any:
        """The copy of a state; containers keep their kind."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            twin = copy.copy(value)
            for key, item in value.items():
                twin[key] = self.copied(item)  # type: ignore[index]
            return twin
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.copied, value))
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(self.copied, value))
        return copy.copy(value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        place = (source.untyped_storage().data_ptr(), source.storage_offset(), source.shape, source.stride())
        key = (*place, source.dtype, source.device)
        if key not in self._seen or not source.numel():
            buffer = self._buffer(source)
            buffer.copy_(source)
            self._seen[key] = buffer
        return self._seen[key]

    def _buffer(self, source: torch.Tensor) -> torch.Tensor:
        place = (self._name, len(self._seen))
        buffer = self._buffers.get(place)
        if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
            pinned = source.device.type == "cuda"
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
            self._buffers[place] = buffer
        return buffer


def write(path: Path, state: Any) -> dict[str, Any]:
    """Write a state in torch's format, synced; returns {"bytes", "sha256"} of the file."""
    with path.open("wb") as stream:
        hashed = _Hashed(stream)
        torch.save(state, hashed)
        stream.flush()
        os.fsync(stream.fileno())
    return {"bytes": hashed.count, "sha256": hashed.sha.hexdigest()}


class _Hashed:
    """A stream that digests what goes through; torch's zip writer only ever appends."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.sha, self.count = stream, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self.sha.update(data)
        self._stream.write(data)
        self.count += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
