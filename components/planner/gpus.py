"""Known accelerators: memory, peak rates and links, each a published fact; unknown ones need their memory stated."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from components.core.errors import UserError

TABLE = Path(__file__).parent / "facts" / "gpus.csv"
SAME = 0.08  # by how much a stated memory may differ from the table's: 79.2, 80 and 81.9 name one card
MOST = 2.1  # times a chip's memory that cards of it have been seen with
SLICE = re.compile(r"\bmig\b|\d+g\.\d+gb", re.IGNORECASE)  # part of a chip is another chip
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*G(?:i?B)?\b", re.IGNORECASE)
AROUND = re.compile(
    r"^\s*\d+\s*[x*×]\s*|\d+(?:\.\d+)?\s*g(?:i?b)?\b|\b(?:sxm\d?|hbm\d?e?|gpus?|tensor core|edition|generation|oam)\b"
)
RATES = ("_tflops", "_gb_s")  # how columns of rates end
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
    note: str = ""  # what was assumed about it

    @property
    def is_known(self) -> bool:
        """Whether its speed is known, so that throughput can be estimated."""
        return self.bf16_tflops is not None

    @property
    def no_bf16(self) -> bool:
        """Whether it is older than bf16 arithmetic."""
        return self.name.startswith(("V100", "T4", "RTX2080TI"))

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
    said = memory_gib if memory_gib is not None else _memory_in(name)
    found = _find(name, said)
    if found is None and memory_gib is None:
        near = difflib.get_close_matches(_key(name), list(_names()), n=1, cutoff=0.5 if said is None else 0.9)
    if found is None and (said is None or (memory_gib is None and near and not SLICE.search(name))):
        hint = f"; did you mean {_names()[near[0]].name}?" if near else ""
        raise UserError(f"GPU {name!r} is unknown: give its memory in GiB{hint} (known: {', '.join(known())})")
    if found is None:
        note = "" if memory_gib is not None else f"memory of {name} not given: {said:g} GiB assumed (as its name says)"
        return Gpu(name, said or 0.0, LEFT * (said or 0.0), note=note)
    if said is None:
        return _commonest(found)
    if min(abs(found.memory_gib - said), abs(found.usable_gib - said)) > SAME * said:
        return _resized(found, said)
    return found


def _commonest(gpu: Gpu) -> Gpu:
    """A chip whose memory was not said, with a note where it is sold with another memory too."""
    chip = gpu.name.partition("-")[0]
    sizes = sorted({other.memory_gib for other in _table() if other.name.partition("-")[0] == chip} - {gpu.memory_gib})
    if not sizes or gpu.name.count("-") > 1:
        return gpu
    others = ", ".join(f"{size:g}" for size in sizes)
    return replace(gpu, note=f"memory of {chip} not given: {gpu.memory_gib:g} GiB assumed (others have {others})")


def known() -> list[str]:
    """Names in the table."""
    return [gpu.name for gpu in _table()]


def _resized(gpu: Gpu, memory_gib: float) -> Gpu:
    """The same chip with other memory, as vendors and clouds build some."""
    note = f"{gpu.name} with {memory_gib:g} GiB instead of {gpu.memory_gib:g}: the rates of the whole chip are assumed"
    if memory_gib > MOST * gpu.memory_gib:
        note += ", though no such card is known"
    return replace(gpu, memory_gib=memory_gib, usable_gib=LEFT * memory_gib, note=note)


def _find(name: str, memory_gib: float | None) -> Gpu | None:
    """The chip of a name as it stands, or without the words that vendors, clouds and reports put around it."""
    if SLICE.search(name):
        return None
    plain = _key(AROUND.sub(" ", name.lower()))
    for key in (_key(name), plain):
        if memory_gib is not None and (sized := _names().get(f"{key}{memory_gib:.0f}gb")):
            return sized
        if found := _names().get(key):
            return found
    return None


def _memory_in(name: str) -> float | None:
    """The memory that a name states, such as 40 of `A100 40GB`."""
    found = MEMORY.findall(name)
    return float(found[-1]) if found else None


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
            rate: dict[str, Any] = {k: float(row[k]) if row[k] else None for k in row if k.endswith(RATES)}
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
