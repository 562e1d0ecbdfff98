"""What a contract says about silent drift of meaning, in customProperties.

On the schema object or a property:
    driftOfMeaning: error     every finding refuses the batch, also one that is only told otherwise
    driftOfMeaning: warning   findings are told and refuse nothing
    driftOfMeaning: off       nothing is compared
On the schema object:
    driftHistory: 5           accepted snapshots to compare with
    driftRowCountFactor: 10   a row count more than this many times higher or lower refuses the batch
    driftNullSharePoints: 10  a share of rows without a value this many points outside the earlier ones refuses it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from components.contract.standard.yaml_file import Node

MODES = ("error", "warning", "off")


@dataclass(frozen=True)
class DriftSettings:
    """How findings count; `mode` and `modes` (by column) are error, warning or off, "" for the default.

    row_count_factor is None where the band is learned from the history alone; null_share_points are of a hundred.
    """

    mode: str = ""
    modes: tuple[tuple[str, str], ...] = ()
    history: int = 5
    row_count_factor: float | None = None
    null_share_points: float = 10.0

    def mode_of(self, column: str) -> str:
        """The mode of a column: its own, else the table's."""
        return dict(self.modes).get(column, self.mode)


def drift_settings(table: Node, properties: Sequence[Node]) -> DriftSettings:
    """Read the settings; UserError with the place where one makes no sense."""
    custom = table.custom()
    modes = tuple((str(node.value.get("name")), mode) for node in properties if (mode := _mode(node)))
    return DriftSettings(
        mode=_mode(table),
        modes=modes,
        history=int(_number(table, custom, "driftHistory", 5, 1, 100, whole=True) or 5),
        row_count_factor=_number(table, custom, "driftRowCountFactor", None, 1.01, 1e6),
        null_share_points=_number(table, custom, "driftNullSharePoints", 10.0, 0.1, 100) or 10.0,
    )


def _mode(node: Node) -> str:
    mode = node.custom().get("driftOfMeaning", "")
    if mode is False:  # YAML reads a bare `off` as false
        mode = "off"
    if mode not in ("", *MODES):
        node.at("customProperties").fail(f"driftOfMeaning {mode!r}; write {', '.join(MODES)}")
    return str(mode)


def _number(
    node: Node,
    custom: dict[str, object],
    name: str,
    default: float | None,
    low: float,
    high: float,
    whole: bool = False,
) -> float | None:
    value = custom.get(name, default)
    if value is None and name not in custom:
        return None
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        kind = "a whole number" if whole else "a number"
        node.at("customProperties").fail(f"{name} {value!r}; write {kind} from {low:g} to {high:g}")
    return float(value)  # type: ignore[arg-type]
