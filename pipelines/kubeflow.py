"""The way into Kubeflow Pipelines: upload a version, start a run, keep one recurring run.

Everything is looked up before it is made, so that the same call twice leaves one pipeline, one version, one active
run and one schedule. Whether steps are cached is set when the file is compiled: the server ignores the setting of a
run that names a version.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.digest import file_digest, value_digest
from components.core.errors import UserError
from components.core.home import safe_name
from components.training.backends.pools import pool_for
from pipelines.compile import Package, compile_retrain, read_package
from pipelines.cron import check_cron
from pipelines.gpu_pools import for_cluster, on_pool
from pipelines.kubeflow_client import NAMESPACE, answering, connect
from pipelines.kubeflow_lookup import active_run, described, ensure_version, recurring_runs, replace

if TYPE_CHECKING:
    from components.core.recipe import Recipe

SCHEDULED_DAY = "[[ScheduledTime.2006-01-02]]"  # Go's reference date: the server writes the scheduled day, UTC
SCHEDULED_SECOND = "[[ScheduledTime]]"  # 20060102150405, UTC
KINDS: dict[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}


@dataclass(frozen=True)
class Submission:
    """A run of a pipeline version; `started` is False where the same run was already active."""

    pipeline_id: str
    version_id: str
    version_name: str
    experiment_id: str
    run_id: str
    url: str
    uploaded: bool
    started: bool


@dataclass(frozen=True)
class Schedule:
    """The one recurring run of its name; `replaced` lists the ids of those it took the place of."""

    pipeline_id: str
    version_id: str
    version_name: str
    experiment_id: str
    recurring_run_id: str
    name: str
    cron: str
    url: str
    uploaded: bool
    created: bool
    replaced: tuple[str, ...] = ()


def submit(
    host: str,
    package: Path,
    pipeline_name: str,
    version_name: str,
    arguments: Mapping[str, Any],
    experiment: str,
    *,
    run_name: str = "",
    namespace: str = "",
    service_account: str = "",
) -> Submission:
    """Upload the compiled file as a version and start a run of it.

    Args:
        host: endpoint, for example http://127.0.0.1:8888; a bearer token is taken from $KFP_TOKEN.
        package: the compiled file.
        pipeline_name: pipeline to add the version to; made where it is not there.
        version_name: git-<sha>; where that name holds other content, the content's digest is appended.
        arguments: pipeline parameters by name.
        experiment: experiment to run in; made where it is not there.
        run_name: also the idempotency key: a run of this name that is still active is returned, not doubled.
        namespace: the namespace of a multi-user installation.
        service_account: Kubernetes service account of the run's pods.

    Raises:
        UserError: the file, an argument or the host's answer says what to mend; nothing was sent for the first two.
        TransientError: the host cannot be reached or fails.
    """
    compiled = read_package(package)
    check_arguments(compiled, arguments)
    client = connect(host, namespace)
    with _speaking(host):
        pipeline_id, version_id, version_name, uploaded = ensure_version(
            client, package, compiled, pipeline_name, version_name, namespace
        )
        found = client.create_experiment(experiment, namespace=namespace or None)
        run_name = run_name or f"{pipeline_name}-{version_name}-{value_digest(dict(arguments))[:8]}"
        run = active_run(client, found.experiment_id, run_name)
        started = run is None
        if run is None:
            run = client.run_pipeline(
                found.experiment_id,
                run_name,
                params=dict(arguments),
                pipeline_id=pipeline_id,
                version_id=version_id,
                service_account=service_account or None,
            )
    url = f"{host.rstrip('/')}/#/runs/details/{run.run_id}"
    return Submission(
        pipeline_id, version_id, version_name, found.experiment_id, run.run_id, url, uploaded, started=started
    )


def schedule(
    host: str,
    package: Path,
    pipeline_name: str,
    version_name: str,
    arguments: Mapping[str, Any],
    experiment: str,
    cron: str,
    *,
    name: str = "",
    max_concurrency: int = 1,
    no_catchup: bool = True,
    namespace: str = "",
    service_account: str = "",
) -> Schedule:
    """Upload the version and keep one recurring run of it, in place of any of the same name.

    The old one is disabled before the new one is made and deleted after, so that two never fire together; where
    making the new one fails the old one is enabled again.

    Args:
        cron: six fields, seconds first.
        arguments: as in `submit`; a text may hold SCHEDULED_DAY or SCHEDULED_SECOND, which the server replaces.
        name: the schedule's name, `<pipeline>-schedule` where empty.
        max_concurrency: runs at a time, 1 to 10.
        no_catchup: after an outage start the latest interval only.

    Raises:
        UserError, TransientError: as in `submit`; a bad cron is refused before any call.
    """
    cron = check_cron(cron)
    if not 1 <= max_concurrency <= 10:
        raise UserError(f"max_concurrency {max_concurrency}: Kubeflow Pipelines takes 1 to 10")
    compiled = read_package(package)
    check_arguments(compiled, arguments)
    name = safe_name(name or f"{pipeline_name}-schedule", "schedule name")
    client = connect(host, namespace)
    with _speaking(host):
        pipeline_id, version_id, version_name, uploaded = ensure_version(
            client, package, compiled, pipeline_name, version_name, namespace
        )
        found = client.create_experiment(experiment, namespace=namespace or None)
        wanted = {
            "pipeline_version_id": version_id,
            "cron": cron,
            "parameters": dict(arguments),
            "max_concurrency": str(max_concurrency),
            "no_catchup": no_catchup,
            "mode": "ENABLE",
        }
        present = recurring_runs(client, found.experiment_id, name)
        kept = next((item for item in present if described(item) == wanted), None)
        others = [item for item in present if item is not kept]

        def create() -> Any:
            return client.create_recurring_run(
                found.experiment_id,
                name,
                cron_expression=cron,
                max_concurrency=max_concurrency,
                no_catchup=no_catchup,
                params=dict(arguments),
                pipeline_id=pipeline_id,
                version_id=version_id,
                enabled=True,
                service_account=service_account or None,
            )

        current = replace(client, others, create if kept is None else lambda: kept)
    return Schedule(
        pipeline_id=pipeline_id,
        version_id=version_id,
        version_name=version_name,
        experiment_id=found.experiment_id,
        recurring_run_id=current.recurring_run_id,
        name=name,
        cron=cron,
        url=f"{host.rstrip('/')}/#/recurringrun/details/{current.recurring_run_id}",
        uploaded=uploaded,
        created=kept is None,
        replaced=tuple(item.recurring_run_id for item in others),
    )


def submit_retrain(recipe: Recipe, host: str, profile: str, experiment: str, cluster_home: str) -> dict[str, Any]:
    """`pilotline submit`: compile the retraining pipeline, upload it as git-<sha> and start a run of the recipe."""
    recipe = for_cluster(recipe, profile or recipe.resources.profile)
    _check_cluster_home(cluster_home, recipe)
    with _retrain(recipe, profile) as (package, version_name, arguments):
        key = value_digest([recipe.digest, cluster_home, file_digest(package)])[:12]
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        arguments |= {"home": cluster_home, "run_id": f"{recipe.name}-{moment}", "recipe": recipe.to_json()}
        name = f"{recipe.name}-{version_name}-{key}"
        return asdict(
            submit(
                host,
                package,
                _pipeline_name(),
                version_name,
                arguments,
                experiment,
                run_name=name,
                namespace=os.environ.get(NAMESPACE, ""),
            )
        )


def schedule_retrain(
    recipe: Recipe, host: str, profile: str, experiment: str, cluster_home: str, cron: str
) -> dict[str, Any]:
    """`pilotline schedule`: a recurring run whose data interval ends on the scheduled day and whose id is its time.

    A server that does not fill in the scheduled time (kubeflow/pipelines#12494) starts runs whose id and date are no
    id and no date: the first step refuses them, and nothing is trained on a wrong interval.
    """
    check_cron(cron)
    if "[[" in recipe.to_json():
        raise UserError("recipe: a value holds '[[', which Kubeflow Pipelines takes for a macro; write it otherwise")
    recipe = for_cluster(recipe, profile or recipe.resources.profile)
    timed = recipe.model_copy(update={"source": recipe.source.model_copy(update={"until": SCHEDULED_DAY})})
    _check_cluster_home(cluster_home, recipe)
    with _retrain(recipe, profile) as (package, version_name, arguments):
        run_id = f"{recipe.name}-{SCHEDULED_SECOND}"
        arguments |= {"home": cluster_home, "run_id": run_id, "recipe": timed.to_json()}
        name = f"{_pipeline_name()}-{recipe.name}"
        return asdict(
            schedule(
                host,
                package,
                _pipeline_name(),
                version_name,
                arguments,
                experiment,
                cron,
                name=name,
                namespace=os.environ.get(NAMESPACE, ""),
            )
        )


def check_arguments(package: Package, arguments: Mapping[str, Any]) -> None:
    """Check arguments against the compiled file's inputs as the server will; UserError names the first misfit."""
    inputs = package.parameters
    for name, value in arguments.items():
        if name not in inputs:
            raise UserError(f"argument {name!r}: pipeline {package.name} has none of that name, only {sorted(inputs)}")
        kind = inputs[name]["parameterType"]
        fits = isinstance(value, KINDS.get(kind, (object,))) and (kind == "BOOLEAN" or not isinstance(value, bool))
        if not fits:
            raise UserError(f"argument {name!r}: {kind.lower()} is wanted, got {type(value).__name__}")
    needed = [name for name, about in inputs.items() if "defaultValue" not in about and not about.get("isOptional")]
    if missing := sorted(set(needed) - set(arguments)):
        raise UserError(f"argument {missing[0]!r}: pipeline {package.name} needs it and has no default")


def _check_cluster_home(cluster_home: str, recipe: Recipe) -> None:
    """Every pod mounts the shared claim at one place: a home elsewhere would be lost with the pod."""
    mount = pool_for(on_pool(recipe.resources)).volume.mount
    if cluster_home != mount and not cluster_home.startswith(f"{mount}/"):
        raise UserError(
            f"--cluster-home {cluster_home!r}: the shared volume is mounted at {mount}; name a folder there"
        )


@contextlib.contextmanager
def _retrain(recipe: Recipe, profile: str) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The compiled retraining pipeline in a passing folder, its version name and the arguments that come from code."""
    from components.core.people import RUN, Policy, identify
    from pipelines.code_version import code_version, git_revision

    who = identify()
    Policy.of(recipe).allow(who.name, RUN)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "pipeline.yaml"
        compile_retrain(recipe, package, profile or recipe.resources.profile, with_recipe=False)
        arguments: dict[str, Any] = {"code_version": code_version(recipe), "engine": recipe.serving.engine}
        arguments["started_by"] = who.name
        yield package, f"git-{git_revision()}", arguments


def _pipeline_name() -> str:
    from pipelines.retrain import NAME

    return NAME


@contextlib.contextmanager
def _speaking(host: str) -> Iterator[None]:
    """Errors in our words, and the client's own chatter away from standard output."""
    with contextlib.redirect_stdout(io.StringIO()), answering(host):
        yield
