"""The serving stack of a cluster for a run: what the recipe's pool and [serving.cluster] name, put together.

`settle` makes the ledger's champion the one version that answers there; the last step of a run calls it, and whoever
approved, promoted or rolled back a version outside of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import TransientError, UserError
from components.core.publish import write_atomic
from pipelines.cluster_placement import cluster_of, longest_seconds

if TYPE_CHECKING:
    from components.core.home import Home
    from components.core.recipe import Recipe
    from components.serving.cluster_client import Control
    from components.serving.cluster_stack import ClusterStack
    from components.serving.router.gateway import HttpRoute

    Check = Callable[[Path], None]

SCORING = "pilotline-scoring"
SCORING_PORT, CONTROL_PORT = 8080, 8081
NOTE = "serving/cluster.json"  # in a run's folder
SETTLE_WAIT_SECONDS, SETTLE_SPARE_SECONDS = 30.0, 120.0


@contextmanager
def open_cluster(
    recipe: Recipe, home: Home, run_id: str, training_set: Path | None, api: Any = None
) -> Iterator[ClusterStack]:
    """The cluster's stack, for whoever leads this model's rollout; what it serves goes on when this ends.

    Where the last rollout's candidate is champion by now, and still behind the canary's arm, it becomes stable first.

    Raises:
        UserError: no cluster to reach, the home is not on the pool's share, or the manifests were not applied.
        TransientError: the cluster's API or the scoring service does not answer.
    """
    from components.registry.trust import check_before_serving
    from components.serving.cluster import connect
    from components.serving.control import CANARY

    if run_id:
        write_atomic(home.run(run_id) / NOTE, recipe.to_json())
    check = check_before_serving(home.ledger_url)
    with stack_of(recipe, home, run_id, training_set, api or connect(), check) as opened:
        champion = _champion(home, recipe.model.name)
        if champion and opened.serves(CANARY, *champion):
            opened.take_over()
        yield opened


def cluster_recipe(home: Home, run_id: str) -> Recipe | None:
    """The recipe by which a run serves in a cluster; None where it serves on its own machine, or never did."""
    from components.core.recipe import parse_recipe

    path = home.run(run_id) / NOTE
    return parse_recipe(path.read_text()) if path.exists() else None


def stack_of(
    recipe: Recipe, home: Home, run_id: str, training_set: Path | None, client: Any, check: Check | None
) -> ClusterStack:
    """The stack by the recipe's names, not entered yet; `client` is a `kubernetes.client.ApiClient`."""
    from components.serving.cluster_stack import ClusterStack
    from components.serving.replicas.kubernetes import KubernetesReplicas

    names = recipe.serving.cluster
    return ClusterStack(
        recipe=recipe,
        run_id=run_id,
        training_set=training_set,
        replicas=KubernetesReplicas(client, cluster_of(recipe, home)),
        router=_router(recipe, client),
        control=control_of(recipe, home),
        scoring_url=names.scoring_url or f"http://{SCORING}.{names.namespace}.svc:{SCORING_PORT}",
        check=check,
    )


def settle(home: Home, recipe: Recipe, api: Any = None) -> str:
    """Make the ledger's champion the one version that answers in the cluster; one line on what was done.

    Where nothing is champion nothing is served: a candidate that nobody promoted, or approved, has no users. Under the
    rollout's lease, so that no rollout is under way meanwhile.

    Raises:
        TransientError: a rollout of this model is under way, or the cluster does not do it.
        As `open_cluster`, and IntegrityError where the champion's run is not in this home.
    """
    from components.core.ledger import Ledger
    from components.rollout.journal import lease_name
    from components.serving.control import ARMS
    from pipelines.serving_versions import servable

    name = recipe.model.name
    champion = _champion(home, name)
    seconds = recipe.serving.start_timeout_seconds + SETTLE_SPARE_SECONDS
    with closing(Ledger(home.ledger_url)) as ledger, ledger.hold(lease_name(name), seconds, SETTLE_WAIT_SECONDS):
        if champion is None:
            with open_cluster(recipe, home, "", None, api) as stack:
                for arm in reversed(ARMS):
                    stack.stop(arm)
            return f"no version of {name} is champion: nothing is served in the cluster"
        served = servable(home, name, *champion)
        with open_cluster(served.recipe, home, served.run_id, served.training_set, api) as stack:
            stack.settle(served.model_dir, served.version, served.digest, served.golden)
    return f"version {served.version} of {name} answers in the cluster, alone"


def settle_champion(home: Home, name: str = "") -> str:
    """As `settle`, by the recipe of the champion itself, for whoever changed it outside of a run.

    Raises:
        UserError: nothing is champion, several models are and none is named, or it is not served in a cluster.
    """
    from pipelines.serving_versions import champion_of, servable

    recipe = servable(home, *champion_of(home, name)).recipe
    if recipe.serving.backend != "kubernetes":
        raise UserError(
            f"{recipe.model.name} is served by this machine (serving.backend local); `pilotline serve up` follows the "
            "ledger by itself"
        )
    return settle(home, recipe)


def settle_after(home: Home, run_id: str, recipe: Recipe) -> None:
    """The last step of a run that rolled out in a cluster: promoted or not, users meet the champion alone.

    Raises:
        As `settle`; the step fails then, visibly, and is tried again.
    """
    reached = (home.run(run_id) / "steps" / "rollout.json").exists()
    if recipe.serving.backend == "kubernetes" and reached:
        print(settle(home, recipe), file=sys.stderr, flush=True)


def to_stable(home: Home, recipe: Recipe, first: bool, api: Any = None) -> str:
    """After a controller died: draws back to stable, then the gateway's weights, then the canary ends; one line.

    Args:
        first: the rollout was of a first version, which has no champion to go back to: it serves nobody then.

    Raises:
        TransientError: stable does not live, so no traffic was sent to it; or it is not known to be in force.
    """
    from components.serving.cluster import connect
    from components.serving.control import CANARY, STABLE

    client = api or connect()
    if not first:
        _draws_off(recipe, home)
    with stack_of(recipe, home, "", None, client, None) as stack:
        if first:
            stack.stop(STABLE)
            return "the first version serves nobody in the cluster"
        if not stack.alive(STABLE):
            raise TransientError(
                "stable does not live in the cluster; `pilotline serve settle` starts the champion, then abort again"
            )
        stack.set_weight(0)
        stack.set_shadow(False)
        stack.stop(CANARY)
        return f"the cluster answers from version {stack.version(STABLE)} alone"


def _draws_off(recipe: Recipe, home: Home) -> None:
    """At once, also where the cluster's API is away; not where stable is not served."""
    from components.serving.cluster_client import HeldState
    from components.serving.control import STABLE

    with closing(control_of(recipe, home)) as control:
        held = HeldState(control)
        held.read()
        if STABLE in held.state.arms:
            held.change(weight=0.0, shadow=False)


def control_of(recipe: Recipe, home: Home) -> Control:
    """The control port of the scoring service's pod, with the home's key.

    Raises:
        UserError: the pod, which makes the key, has not been up with this home.
    """
    from components.serving.cluster_client import Control
    from components.serving.cluster_control import FOLDER, KEY, control_key

    names, folder = recipe.serving.cluster, home.root / FOLDER
    if not (folder / KEY).exists():
        raise UserError(
            f"{folder / KEY}: absent, so the scoring service has not run on this home; "
            "kubectl apply -k deploy/kubernetes/serving/overlays/production"
        )
    url = names.control_url or f"http://{SCORING}-control.{names.namespace}.svc:{CONTROL_PORT}"
    return Control(url, control_key(folder))


def _router(recipe: Recipe, client: Any) -> HttpRoute:
    from components.serving.cluster_arms import patiently
    from components.serving.router.gateway import HttpRoute, gateway_url

    names = recipe.serving.cluster
    where = (names.namespace, names.gateway, names.listener)
    url = names.gateway_url or patiently(lambda: gateway_url(client, *where))
    return HttpRoute(client, names.namespace, names.route, url, longest_seconds(recipe))


def _champion(home: Home, name: str) -> tuple[str, str] | None:
    from components.core.ledger import Ledger
    from components.registry.champions import champion

    with closing(Ledger(home.ledger_url)) as ledger:
        found = champion(name, ledger)
    return (found.version, found.digest) if found else None
