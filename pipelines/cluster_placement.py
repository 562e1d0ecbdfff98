"""Where a cluster's replicas run and what each of them gets: the recipe's pool and [serving.cluster] as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.core.errors import UserError

if TYPE_CHECKING:
    from components.core.home import Home
    from components.core.recipe import Recipe
    from components.serving.replicas.manifests import ClusterServing, Placement
    from components.training.backends.pools import Pool


def cluster_of(recipe: Recipe, home: Home) -> ClusterServing:
    """The cluster's side of every replica.

    Raises:
        UserError: as `placement_of`, and where the home is not on the share that pods mount.
    """
    from components.core.image import IMAGE
    from components.serving.replicas.manifests import ClusterServing

    asked, (pool, place) = recipe.serving.cluster, placement_of(recipe)
    if not home.root.is_relative_to(pool.volume.mount):
        raise UserError(
            f"home {home.root}: serving.backend kubernetes reads models from the share {pool.volume.claim}, mounted at "
            f"{pool.volume.mount}; run with --home {pool.volume.mount}, or name your mount in resources.pool.volume"
        )
    return ClusterServing(
        namespace=asked.namespace,
        image=asked.image,
        tools_image=IMAGE,
        claim=pool.volume.claim,
        mount=pool.volume.mount,
        placement=place,
        longest_request_seconds=longest_seconds(recipe),
        replicas=asked.replicas,
        most_replicas=asked.most_replicas,
        waiting_per_replica=asked.waiting_per_replica,
        autoscaler=asked.autoscaler,
        prometheus_url=asked.prometheus_url,
    )


def placement_of(recipe: Recipe) -> tuple[Pool, Placement]:
    """Where replicas run and what each gets: of the pool that training lands on, or of serving.cluster.accelerator.

    Raises:
        UserError: no such pool, GPUs that its nodes do not have, or an option that a cluster's replicas cannot honour.
    """
    from components.serving.replicas.manifests import Placement
    from components.training.backends.pools import pool_for

    asked, resources = recipe.serving.cluster, recipe.resources
    if recipe.serving.adapter_base:
        raise UserError(
            "serving.adapter_base: a cluster's replicas serve whole models; leave it empty, or serve locally"
        )
    if asked.most_replicas < asked.replicas:
        raise UserError(f"serving.cluster.most_replicas {asked.most_replicas}: less than replicas {asked.replicas}")
    pool = pool_for(resources.model_copy(update={"accelerator": asked.accelerator}) if asked.accelerator else resources)
    gpus = (asked.gpus or 1) if pool.has_gpus else 0
    if asked.gpus and not pool.has_gpus:
        raise UserError(f"serving.cluster.gpus {asked.gpus}: pool {pool.name} has none; name another accelerator")
    if gpus > pool.gpus_per_node and pool.has_gpus:
        raise UserError(f"serving.cluster.gpus {gpus}: a node of pool {pool.name} has {pool.gpus_per_node}; take fewer")
    units = gpus or 1
    place = Placement(
        gpus=gpus,
        cpu=str(pool.cpu_per_gpu * units),
        memory=f"{pool.host_memory_gib_per_gpu * units}Gi",
        shm=f"{pool.shm_gib_per_gpu * units}Gi",
        resource=pool.resource or "nvidia.com/gpu",
        node_selector=pool.node_selector,
        tolerations=[{key: value for key, value in one.model_dump().items() if value} for one in pool.tolerations],
    )
    return pool, place


def longest_seconds(recipe: Recipe) -> float:
    """Of a request through the gateway: a live stream, whose first byte may take as long as a decision.

    A decision itself is bounded by the scoring service.
    """
    return recipe.serving.request_timeout_seconds + recipe.serving.stream_seconds
