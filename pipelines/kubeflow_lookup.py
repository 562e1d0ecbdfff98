"""What is already on a Kubeflow Pipelines server: versions, runs and schedules found before they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components.core.digest import value_digest
from components.core.errors import UserError
from pipelines.compile import Package

ACTIVE = ("PENDING", "RUNNING", "PAUSED", "CANCELING")


def ensure_version(
    client: Any, package: Path, compiled: Package, pipeline_name: str, version_name: str, namespace: str
) -> tuple[str, str, str, bool]:
    """The version of this name and content, uploaded where it is not there.

    A version is never overwritten: where the name holds other content (the same revision compiled for another
    profile), the content's digest is appended to the name.

    Returns:
        Pipeline id, version id, the version's name, and whether it was uploaded now.
    """
    pipeline_id = _pipeline_id(client, pipeline_name, namespace)
    for name in (version_name, f"{version_name}-{value_digest([compiled.spec, compiled.platform])[:8]}"):
        found = _named(lambda **page: client.list_pipeline_versions(pipeline_id, **page), "pipeline_versions", name)
        if not found:
            made = client.upload_pipeline_version(str(package), name, pipeline_id=pipeline_id)
            return pipeline_id, made.pipeline_version_id, name, True
        if _same_content(found[0].pipeline_spec, compiled):
            return pipeline_id, found[0].pipeline_version_id, name, False
    raise UserError(f"version {name!r} of {pipeline_name} holds other content than its name says; delete it")


def _pipeline_id(client: Any, name: str, namespace: str) -> str:
    found = _named(lambda **page: client.list_pipelines(namespace=namespace or None, **page), "pipelines", name)
    if found:
        return str(found[0].pipeline_id)
    body = client.api_models.V2beta1Pipeline(display_name=name, name=name, namespace=namespace or None)
    return str(client._pipelines_api.pipeline_service_create_pipeline(body).pipeline_id)


def _same_content(stored: Any, compiled: Package) -> bool:
    """Whether the server's copy says the same; the server may wrap it and may have re-ordered it."""
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    stored = stored or {}
    try:
        spec = json_format.ParseDict(stored.get("pipeline_spec", stored), pipeline_spec_pb2.PipelineSpec())
        platform = json_format.ParseDict(stored.get("platform_spec") or {}, pipeline_spec_pb2.PlatformSpec())
    except json_format.ParseError:
        return False
    return (json_format.MessageToDict(spec), json_format.MessageToDict(platform)) == (compiled.spec, compiled.platform)


def active_run(client: Any, experiment_id: str, name: str) -> Any:
    """The run of this name that is not finished, or None."""
    runs = _named(lambda **page: client.list_runs(experiment_id=experiment_id, **page), "runs", name)
    return next((run for run in runs if str(run.state) in ACTIVE), None)


def recurring_runs(client: Any, experiment_id: str, name: str) -> list[Any]:
    """All recurring runs of this name in the experiment."""
    return _named(
        lambda **page: client.list_recurring_runs(experiment_id=experiment_id, **page), "recurring_runs", name
    )


def replace(client: Any, others: list[Any], make: Callable[[], Any]) -> Any:
    """Disable the others, make the new one, delete the others; enable them again where making it fails."""
    for item in others:
        client.disable_recurring_run(item.recurring_run_id)
    try:
        current = make()
    except Exception:
        for item in others:
            if item.mode == "ENABLE":
                client.enable_recurring_run(item.recurring_run_id)
        raise
    for item in others:
        client.delete_recurring_run(item.recurring_run_id)
    return current


def described(item: Any) -> dict[str, Any]:
    """A recurring run as the values that make it the same as another."""
    reference, trigger = item.pipeline_version_reference, item.trigger and item.trigger.cron_schedule
    return {
        "pipeline_version_id": reference.pipeline_version_id if reference else item.pipeline_version_id,
        "cron": trigger.cron if trigger else "",
        "parameters": (item.runtime_config and item.runtime_config.parameters) or {},
        "max_concurrency": str(item.max_concurrency),
        "no_catchup": bool(item.no_catchup),
        "mode": str(item.mode),
    }


def _named(listing: Callable[..., Any], attribute: str, name: str) -> list[Any]:
    """All items of this display name, every page."""
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": name}
    items: list[Any] = []
    token = ""
    while True:
        answer = listing(page_token=token, page_size=100, filter=json.dumps({"predicates": [predicate]}))
        items += getattr(answer, attribute) or []
        token = answer.next_page_token or ""
        if not token:
            return [item for item in items if item.display_name == name]
