"""Known accelerators: memory, peak rates and links, each a published fact; unknown ones need their memory stated."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from components.core.errors import UserError

TABLE = Path(__file__).parent / "facts" / "gpus.csv"
LEFT = 0.985  # of the stated memory, what the driver leaves to a process on a GPU that is not in the table


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Rates are dense TFLOP/s, None where unknown.

    `link_gb_s` is one direction inside a node; `network_gb_s` what machines with this GPU usually have between nodes,
    a GPU and direction.
    """

    name: str
    memory_gib: float
    usable_gib: float
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    bandwidth_gb_s: float | None = None
    link: str = "unknown"
    link_gb_s: float | None = None
    network_gb_s: float | None = None
    source: str = "stated by the user"

    @property
    def is_known(self) -> bool:
        """Whether its speed is known, so that throughput can be estimated."""
        return self.bf16_tflops is not None

    def peak_tflops(self, precision: str) -> float | None:
        """Dense peak for a precision; a format without its own units runs at the next wider one's rate."""
        if precision.startswith("nvfp4") and self.fp4_tflops:
            return self.fp4_tflops
        if "fp8" in precision or precision.startswith("nvfp4"):
            return self.fp8_tflops or self.bf16_tflops
        return self.bf16_tflops


def gpu_for(name: str | None, memory_gib: float | None = None) -> Gpu:
    """The accelerator of a name, or one of which only the memory is known.

    Args:
        name: as in the table or one of its other names, whatever the case, spaces and vendor prefix.
        memory_gib: nominal memory; replaces or selects the table's where both are given.

    Raises:
        UserError: an unknown name without memory, neither, or a memory that is no positive number.
    """
    if memory_gib is not None and not 0.1 <= memory_gib <= 4096:
        raise UserError(f"GPU memory is {memory_gib:g} GiB; give the memory of one GPU in GiB, such as 80")
    if not name:
        if memory_gib is None:
            raise UserError("give the GPU's name or its memory in GiB")
        return Gpu("unnamed", memory_gib, LEFT * memory_gib)
    found = _find(name, memory_gib)
    if found is not None and memory_gib is not None and abs(found.memory_gib - memory_gib) > 0.08 * memory_gib:
        return _resized(found, memory_gib)
    if found is not None:
        return found
    if memory_gib is None:
        near = difflib.get_close_matches(_key(name), list(_names()), n=1, cutoff=0.5)
        hint = f"; did you mean {_names()[near[0]].name}?" if near else ""
        raise UserError(f"GPU {name!r} is unknown: give its memory in GiB{hint} (known: {', '.join(known())})")
    return Gpu(name, memory_gib, LEFT * memory_gib)


def known() -> list[str]:
    """Names in the table."""
    return [gpu.name for gpu in _table()]


def _resized(gpu: Gpu, memory_gib: float) -> Gpu:
    """The same chip with other memory (a MIG slice is another chip: name it by its memory only)."""
    return Gpu(
        gpu.name, memory_gib, LEFT * memory_gib, gpu.bf16_tflops, gpu.fp8_tflops, gpu.fp4_tflops,
        gpu.bandwidth_gb_s, gpu.link, gpu.link_gb_s, gpu.network_gb_s, gpu.source,
    )  # fmt: skip


def _find(name: str, memory_gib: float | None) -> Gpu | None:
    key = _key(name)
    found = _names().get(key)
    if found is None or memory_gib is None:
        return found
    sized = _names().get(f"{key}{memory_gib:.0f}gb")
    return sized or found


@cache
def _names() -> dict[str, Gpu]:
    return {_key(name): gpu for gpu, others in _rows() for name in (gpu.name, *others)}


@cache
def _table() -> tuple[Gpu, ...]:
    return tuple(gpu for gpu, _ in _rows())


@cache
def _rows() -> tuple[tuple[Gpu, tuple[str, ...]], ...]:
    rows = []
    with TABLE.open(newline="") as stream:
        for row in csv.DictReader(stream):
            rate = {k: float(row[k]) if row[k] else None for k in row if k.endswith(("_tflops", "_gb_s"))}
            gpu = Gpu(
                name=row["name"],
                memory_gib=float(row["memory_gib"]),
                usable_gib=float(row["usable_gib"]),
                link=row["link"],
                source=row["source"],
                **rate,
            )
            rows.append((gpu, tuple(row["aliases"].split("|"))))
    return tuple(rows)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\b(nvidia|amd|instinct|tesla|geforce)\b", "", name.lower()))
