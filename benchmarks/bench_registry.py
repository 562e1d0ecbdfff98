"""The gate and what a registration writes: CPU time of each. `python -m benchmarks.bench_registry`.

Target: the gate under 50 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.core.home import Home
from components.core.records import Evidence
from components.models.signing import SIGNATURE_FILE, Signer, public_key_at, verify_signature
from components.registry.gate import judge
from components.registry.sbom import bill_of_materials
from tests.fakes.gating import STRICT, full_evidence, handed, interval
from tests.fakes.weights import weights

GATE_LIMIT_MS = 50.0
ATTRIBUTES = 40  # more than eight columns, sixteen intersections and the groups of a recipe
MEGABYTES = 64


def large_evidence() -> Evidence:
    """The strict policy's evidence with as many groups as a recipe can ask for."""
    found = full_evidence()
    part = next(iter(found.slices.values()))
    extra = {f"column {number}": part for number in range(ATTRIBUTES)} | {
        f"column {number}:others": part for number in range(ATTRIBUTES)
    }
    fair = next(iter(found.fairness.values()))
    return replace(
        found,
        slices=found.slices | extra,
        fairness=found.fairness | {f"column {number}": fair for number in range(ATTRIBUTES)},
        baselines=found.baselines | {f"baseline {number}": {"auc": interval(0.5)} for number in range(20)},
    )


def cpu_ms(call: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median and largest CPU milliseconds of a call; the first one, which imports, is not counted."""
    call()
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        taken.append((time.process_time() - started) * 1000)
    return statistics.median(taken), max(taken)


def main() -> None:
    """Print a line a part, and say whether the target holds."""
    evidence = large_evidence()
    said = handed(evidence)
    rows = judge(evidence, STRICT, champion_version="4", handed=said)
    gate = cpu_ms(lambda: judge(evidence, STRICT, champion_version="4", handed=said), 50)
    print(f"gate: {gate[0]:.2f} ms median, {gate[1]:.2f} ms largest of 50, {len(rows)} rules, {ATTRIBUTES} groups")
    print(f"gate under {GATE_LIMIT_MS:g} ms: {'yes' if gate[1] < GATE_LIMIT_MS else 'NO'}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = root / "model"
        model.mkdir()
        (model / "pilotline.json").write_text("{}")
        (model / "model.safetensors").write_bytes(weights("x" * (MEGABYTES << 20)))
        home, signature = Home.at(root / "home"), root / SIGNATURE_FILE
        signed = cpu_ms(lambda: Signer.at(home, {}).sign(model, signature), 5)
        key = public_key_at(home, {})
        checked = cpu_ms(lambda: verify_signature(model, signature, [key]), 5)
        digests = {"model": "a" * 64, "training_set": "b" * 64}
        parts = cpu_ms(lambda: bill_of_materials("m", "1", model, digests, 1, ["x"]), 5)
    print(f"signature of {MEGABYTES} MB: {signed[0]:.0f} ms to sign, {checked[0]:.0f} ms to verify (median CPU of 5)")
    print(f"bill of materials: {parts[0]:.0f} ms (median CPU of 5)")


if __name__ == "__main__":
    main()
