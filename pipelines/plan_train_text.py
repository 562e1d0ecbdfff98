"""A training plan as a page of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.planner.architecture import Assumption
from pipelines.plan_text import assumed, folded, listed, memory_bars, table

MOST_ROWS = 6


def train_text(plan: Mapping[str, Any]) -> str:
    """The plan for a person: the answer first, then memory, speed, reasons, what else was looked at."""
    lines = [
        *(part for line in _answer(plan) for part in folded(line)),
        "",
        "  memory of one GPU   GiB",
        *_memory(plan),
        *_speed(plan),
    ]
    lines += listed("why", plan["reasons"])
    lines += _alternatives(plan)
    lines += listed("watch", plan["warnings"])
    lines += assumed([str(Assumption(**item)) for item in plan["assumed"]])
    return "\n".join(lines)


def _answer(plan: Mapping[str, Any]) -> list[str]:
    card = "" if plan["gpu"] == "unnamed" else f" {plan['gpu']}"
    what = f"{plan['method']} training in {plan['precision']} with {plan['optimizer']}"
    where = f"{plan['gpus']} GPU{'s' * (plan['gpus'] > 1)}{card} of {plan['usable_gib']:.1f} GiB usable"
    word = "fits" if plan["feasible"] else "does not fit"
    split = " x ".join(f"{name.upper()} {plan[name]}" for name in ("tp", "pp", "dp"))
    extra = "".join(f" x {name.upper()} {plan[name]}" for name in ("cp", "ep") if plan[name] > 1)
    offload = "" if plan["offload"] == "none" else f", {plan['offload']} offloaded"
    return [
        f"{word}: {what} on {where}",
        f"  {plan['strategy']} (ZeRO stage {plan['zero_stage']}{offload}), {split}{extra}",
        f"  micro-batch {plan['micro_batch']} x accumulation {plan['accumulation']}, global batch "
        f"{plan['global_batch']} of {plan['seq']} tokens, {plan['checkpointing']} checkpointing",
    ]


def _memory(plan: Mapping[str, Any]) -> list[str]:
    bars = memory_bars(plan["memory_parts_gib"], plan["usable_gib"], {})
    band = plan["predicted_peak_gib_band"]
    peak = f"peak {plan['predicted_peak_gib']:.1f} GiB, 80 % band {band['low']:.1f} to {band['high']:.1f}"
    return [*bars, f"  {peak}, of {plan['usable_gib']:.1f} usable"]


def _speed(plan: Mapping[str, Any]) -> list[str]:
    if plan["no_estimate"]:
        return ["", *folded(f"speed: no estimate, {plan['no_estimate']}")]
    speed, band = plan["tokens_per_second_per_gpu"], plan["tokens_per_second_per_gpu_band"]
    lines = [
        f"{speed:,.0f} tokens/s a GPU (80 % band {band['low']:,.0f} to {band['high']:,.0f}), "
        f"{speed * plan['gpus']:,.0f} in all; MFU {plan['mfu']:.0%}, exchange {plan['communication_share']:.0%}, "
        f"pipeline bubble {plan['bubble_share']:.0%} of a step"
    ]
    for name in ("hours", "cost"):
        if plan[name] is not None:
            ends = plan[f"{name}_band"]
            lines.append(f"{name} {plan[name]:,.1f} (80 % band {ends['low']:,.1f} to {ends['high']:,.1f})")
    return listed("speed", lines)


def _alternatives(plan: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            item["strategy"],
            item["tp"],
            item["pp"],
            item["micro_batch"],
            item["predicted_peak_gib"],
            "" if item["tokens_per_second_per_gpu"] is None else f"{item['tokens_per_second_per_gpu']:,.0f}",
            item["reason"],
        )
        for item in plan["alternatives"][:MOST_ROWS]
    ]
    if not rows:
        return []
    header = ("strategy", "TP", "PP", "micro", "GiB", "tokens/s", "why not")
    return ["", "what else was looked at", *table(header, rows)]
