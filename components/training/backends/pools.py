"""GPU pools as data: the table in pools.toml, a user's own file over it, and single settings of the recipe."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from components.core.errors import UserError
from components.core.paths import find
from components.core.recipe import Resources
from components.core.sections.base import ClusterName, Natural, NodeLabel, Section

TABLE = Path(__file__).with_name("pools.toml")
DEFAULT_POOL = "a100"
CPU_POOL = "cpu"

Label = Annotated[str, Field(pattern=ClusterName)]
LabelKey = Annotated[str, Field(pattern=NodeLabel)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
VariableValue = Annotated[str, Field(max_length=256, pattern=r"^[^\n\r\x00]*$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@/-]{0,128}$")]  # goes into a Slurm script as it is
Minutes = Annotated[int, Field(ge=1, le=60 * 24 * 365)]


class Toleration(Section):
    """A taint of the pool's nodes that its pods accept."""

    key: LabelKey
    operator: Annotated[str, Field(pattern=r"^(Exists|Equal)$")] = "Exists"
    value: Label = ""
    effect: Annotated[str, Field(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)?$")] = "NoSchedule"


class Secret(Section):
    """A Kubernetes Secret whose keys become environment variables; values never enter a compiled file."""

    name: ObjectName
    keys: dict[str, VariableName]
    optional: bool = False


class Volume(Section):
    """The ReadWriteMany claim that holds the home, and with it the checkpoints, and where pods mount it."""

    claim: ObjectName
    mount: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]{1,200}$")]


class Pool(Section):
    """Nodes of one kind and what training gets on them; units are in the names, `_per_gpu` is per rank on CPUs."""

    name: str
    planner_gpu: str
    node_selector: dict[LabelKey, Label]
    tolerations: tuple[Toleration, ...]
    resource: LabelKey
    gpus_per_node: Annotated[int, Field(ge=0, le=64)]
    memory_gib: Natural
    cpu_per_gpu: Annotated[int, Field(ge=1, le=512)]
    host_memory_gib_per_gpu: Annotated[int, Field(ge=1, le=65536)]
    shm_gib_per_gpu: Annotated[int, Field(ge=1, le=65536)]
    queue: Label
    priority: Label
    topology: LabelKey
    timeout_minutes: Minutes
    retries: Annotated[int, Field(ge=0, le=100)]
    backoff_seconds: Annotated[int, Field(ge=1, le=3600)]
    backoff_factor: Annotated[float, Field(ge=1.0, le=10.0)]
    backoff_max_seconds: Annotated[int, Field(ge=1, le=86400)]
    grace_seconds: Annotated[int, Field(ge=1, le=3600)]
    volume: Volume
    secrets: tuple[Secret, ...]
    runtime: ObjectName
    env: dict[VariableName, VariableValue]
    partition: Word
    qos: Word
    gres: Word
    requeues: Annotated[int, Field(ge=0, le=1000)]

    @property
    def has_gpus(self) -> bool:
        """False for the pool of CPU nodes."""
        return bool(self.resource)


def pools(own: str = "") -> dict[str, Pool]:
    """All pools by name: those of pools.toml with the user's file over them.

    Raises:
        UserError: the file is absent or no pool file; the line names the pool and the setting.
    """
    shipped = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    mine = _read(own) if own else {}
    defaults = shipped["defaults"] | mine.get("defaults", {})
    tables: dict[str, dict[str, Any]] = dict(shipped["pools"])
    for name, settings in mine.get("pools", {}).items():
        tables[name] = tables.get(name, {}) | settings
    where = f"resources.pools {own}" if own else TABLE.name
    return {name: _pool(name, defaults | settings, where) for name, settings in tables.items()}


def pool_for(resources: Resources) -> Pool:
    """The pool that the recipe names, else the default one where GPUs are asked for, else CPU nodes.

    Raises:
        UserError: no such pool, or a setting that is none.
    """
    name = resources.accelerator or (DEFAULT_POOL if resources.gpus or resources.profile == "gpu-pool" else CPU_POOL)
    known = pools(resources.pools)
    if name not in known and not resources.pool:
        near = difflib.get_close_matches(name, known, n=1)
        meant = (
            f"; did you mean {near[0]!r}?"
            if near
            else "; add it to a file of your own and name that in resources.pools"
        )
        raise UserError(f"resources.accelerator {name!r}: no such pool (known: {', '.join(sorted(known))}){meant}")
    if not resources.pool:
        return known[name]
    base = known[name].model_dump() if name in known else {}
    return _pool(name, base | resources.pool, "resources.pool")


def _read(own: str) -> dict[str, Any]:
    path = find(own, "resources.pools")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"resources.pools {own}: not a TOML file ({error}); mend it") from error
    if unknown := set(values) - {"defaults", "pools"}:
        raise UserError(f"resources.pools {own}: unknown table {min(unknown)!r}; write [defaults] and [pools.NAME]")
    tables = [values.get("defaults", {}), values.get("pools", {}), *_tables(values.get("pools", {}))]
    if not all(isinstance(table, dict) for table in tables):
        raise UserError(f"resources.pools {own}: a pool is a table; write [pools.NAME] and its settings below")
    return values


def _tables(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _pool(name: str, settings: dict[str, Any], where: str) -> Pool:
    try:
        return Pool.model_validate(settings | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, Pool.model_fields, n=1, cutoff=0.4)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(Pool.model_fields)}"
            raise UserError(f"{where}: pool {name!r} has an unknown setting {key!r}; {meant}") from error
        said = (
            "is missing; add it"
            if first["type"] == "missing"
            else f"{first['msg']}, got {str(first.get('input'))[:60]!r}"
        )
        raise UserError(f"{where}: pool {name!r}, setting {key!r}: {said}") from error
