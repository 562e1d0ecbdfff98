"""The versions behind the two arms in a cluster, and what a controller that died may have left of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from components.core.errors import TransientError, UserError
from components.core.protocols import GoldenRow, Served
from components.core.recipe import Recipe
from components.models.spec import Renderer, spec_for
from components.serving.control import ARMS, ArmState, ServingState
from components.serving.golden import score_rows
from components.serving.replica import ReplicaSpec, served_name
from components.serving.replicas.kubernetes import KubernetesReplica, KubernetesReplicas
from components.serving.replicas.manifests import replica_name
from components.serving.router.gateway import HttpRoute

TRIES, WAIT_SECONDS = 4, 0.3  # where the cluster's API stumbles

Found = TypeVar("Found")


@dataclass(frozen=True)
class ClusterArm:
    """A version behind an arm."""

    replica: KubernetesReplica
    renderer: Renderer

    @classmethod
    def of(cls, replica: KubernetesReplica) -> ClusterArm:
        """With what renders prompts for it."""
        return cls(replica, spec_for(replica.spec.family).renderer(replica.spec.model_dir))

    @property
    def spec(self) -> ReplicaSpec:
        """What it serves."""
        return self.replica.spec

    @property
    def served(self) -> Served:
        """Its record."""
        return self.replica.served

    @property
    def name(self) -> str:
        """Of its objects, whichever arm it is behind."""
        return replica_name(self.spec)

    def serves(self, version: str, digest: str) -> bool:
        """Whether it is this version."""
        return (self.spec.version, self.spec.digest) == (version, digest)

    def behind(self, arm: str) -> ClusterArm:
        """The same replica, from now on behind this arm."""
        self.replica.spec = replace(self.spec, arm=arm)
        return self

    def told(self, recipe: Recipe) -> ArmState:
        """As the scoring service is told of it."""
        spec = self.spec
        model_dir = str(spec.model_dir.absolute())
        return ArmState(
            name=spec.name, version=spec.version, digest=spec.digest, model_dir=model_dir, family=spec.family,
            served_name=served_name(spec), threshold=recipe.serving.threshold,
        )  # fmt: skip

    def prove(self, golden: GoldenRow, url: str, seconds: float) -> None:
        """Ask the golden request through the router; TransientError where it scores otherwise than registered."""
        rows = [{"features": golden.features, "text": golden.text}]
        score = score_rows(self, url, rows, seconds)[0]
        score = score_rows(self, url, rows, seconds)[0] if score is None else score
        what = f"version {self.spec.version} ({self.name})"
        if score is None:
            raise TransientError(f"{what}: it runs, and gave no answer to the golden request through {url}")
        if not abs(score - golden.score) <= golden.tolerance:
            raise TransientError(f"{what}: it scores the golden request {score:.6f}, registered is {golden.score:.6f}")


def taken_over(state: ServingState, recipe: Recipe, replicas: KubernetesReplicas) -> dict[str, ClusterArm]:
    """The arms that the scoring service answers from; UserError where they are of another model."""
    for arm, about in state.arms.items():
        if about.name != recipe.model.name:
            raise UserError(
                f"namespace {recipe.serving.cluster.namespace} serves model {about.name} as {arm}; give model "
                f"{recipe.model.name} a namespace and a route of its own (serving.cluster)"
            )
    specs = {
        arm: ReplicaSpec(arm, about.name, about.family, Path(about.model_dir), about.version, about.digest,
                         recipe.serving)
        for arm, about in state.arms.items()
    }  # fmt: skip
    return {arm: ClusterArm.of(replicas.adopt(spec)) for arm, spec in specs.items()}


def mend_routes(router: HttpRoute, arms: Mapping[str, ClusterArm]) -> None:
    """Point the route where the scoring service's state says: a controller may have died between the two."""
    found = patiently(router.arms)
    for arm in ARMS:
        wanted = arms[arm].replica.backend if arm in arms else None
        if found[arm] != wanted:
            router.set_arm(arm, wanted)


def sweep(replicas: KubernetesReplicas, arms: Mapping[str, ClusterArm]) -> None:
    """Delete Deployments that no arm names: they hold GPUs, and nobody asks them."""
    named = {arm.name for arm in arms.values()}
    for name in patiently(replicas.names):
        if name not in named:
            replicas.remove(name)


def patiently(ask: Callable[[], Found]) -> Found:
    """What the cluster's API says, asked a few times where it stumbles; TransientError where it goes on."""
    for attempt in range(TRIES - 1):
        try:
            return ask()
        except TransientError:
            time.sleep(WAIT_SECONDS * 2**attempt)
    return ask()
