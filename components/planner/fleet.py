"""Replicas on a fleet of equal nodes: which GPUs of which node each pipeline stage takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from components.core.errors import UserError
from components.core.records import Record

MOST_GPUS = 131_072
MOST_PLACED = 1024  # replicas whose GPUs are listed: the next ones repeat the pattern


@dataclass(frozen=True)
class Fleet:
    """Equal nodes of equal GPUs."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Stage(Record):
    """One pipeline stage: its tensor-parallel group lies inside one node, unless it is wider than a node."""

    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Placement(Record):
    """One replica."""

    replica: int
    stages: tuple[Stage, ...]

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes that it touches, in order."""
        return tuple(sorted({stage.node for stage in self.stages}))


def fleet_of(gpus: int | None, nodes: int | None, gpus_per_node: int | None) -> Fleet:
    """A fleet from any two of its numbers, or from GPUs alone (eight a node); UserError where they contradict."""
    for name, value in (("gpus", gpus), ("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if value is not None and not 1 <= value <= MOST_GPUS:
            raise UserError(f"{name} is {value:g}; a whole number from 1 to {MOST_GPUS:,} is needed")
    if gpus is None and gpus_per_node is None:
        raise UserError("give the number of GPUs, or nodes and GPUs a node")
    per_node = gpus_per_node or (gpus // nodes if gpus and nodes and gpus % nodes == 0 else min(gpus or 1, 8))
    if gpus is not None and nodes is None and gpus < per_node:
        return Fleet(1, gpus)  # a part of one node
    count = nodes or (math.ceil(gpus / per_node) if gpus else 1)
    if gpus is not None and count * per_node != gpus:
        given = f"{nodes} nodes" if nodes else "whole nodes"
        raise UserError(f"{gpus} GPUs are not {given} of {per_node}; say --nodes and --gpus-per-node alike")
    if count * per_node > MOST_GPUS:
        raise UserError(f"{count} nodes of {per_node} GPUs are more than the {MOST_GPUS:,} that a plan is made for")
    return Fleet(count, per_node)


def most_replicas(fleet: Fleet, tp: int, pp: int) -> int:
    """Replicas that the fleet holds with every tensor-parallel group inside a node, or on whole nodes."""
    if tp > fleet.gpus_per_node:
        return fleet.nodes // math.ceil(tp / fleet.gpus_per_node) // pp
    return fleet.nodes * _groups_used(fleet, tp, pp) // pp


def place(fleet: Fleet, tp: int, pp: int, replicas: int) -> tuple[Placement, ...]:
    """Fill node by node, so that the stages of a replica are neighbours and a small replica stays in one node."""
    if replicas > most_replicas(fleet, tp, pp):
        raise UserError(
            f"{replicas} replicas of {tp * pp} GPUs do not fit {fleet.nodes} nodes of {fleet.gpus_per_node}"
        )
    listed = min(replicas, MOST_PLACED)
    groups = list(islice(_groups(fleet, tp, _groups_used(fleet, tp, pp)), listed * pp))
    return tuple(
        Placement(replica=n, stages=tuple(stage for group in groups[n * pp : (n + 1) * pp] for stage in group))
        for n in range(listed)
    )


def _groups_used(fleet: Fleet, tp: int, pp: int) -> int:
    """Tensor-parallel groups of a node without those that would split a replica which fits one node."""
    in_node = fleet.gpus_per_node // tp
    return in_node if pp > in_node or in_node % pp == 0 else in_node - in_node % pp


def _groups(fleet: Fleet, tp: int, in_node: int) -> Iterator[tuple[Stage, ...]]:
    """Tensor-parallel groups, `in_node` of each node; one wider than a node is a tuple of several stages."""
    size = fleet.gpus_per_node
    if tp > size:
        span = math.ceil(tp / size)
        for first in range(0, fleet.nodes - span + 1, span):
            yield tuple(Stage(node=first + n, gpus=tuple(range(min(size, tp - n * size)))) for n in range(span))
        return
    for node in range(fleet.nodes):
        for start in range(0, in_node * tp, tp):
            yield (Stage(node=node, gpus=tuple(range(start, start + tp))),)
