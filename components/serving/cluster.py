"""The Kubernetes API as serving's adapters use it: the connection, and its errors as ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from components.core.errors import IntegrityError, PolicyRefusal, TransientError, UserError

FIELD_MANAGER = "pilotline-rollout"  # the name that the API server keeps with our writes
CALL_SECONDS = 10.0
IN_POD = "KUBERNETES_SERVICE_HOST"
NO_CLUSTER = (
    "serving.backend kubernetes: no cluster configuration here (no pod, no $KUBECONFIG, no ~/.kube/config); "
    'run it in the cluster, set $KUBECONFIG, or use serving.backend = "local"'
)

Found = TypeVar("Found")


class ConflictError(TransientError):
    """The object was changed since it was read, or exists already; read it again."""


class NotFoundError(UserError):
    """No such object or kind in the cluster."""


def configured(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process could reach a cluster: it runs in a pod, or there is a kubeconfig."""
    given = [Path(part) for part in variables.get("KUBECONFIG", "").split(os.pathsep) if part]
    files = given or [Path(variables.get("HOME", "~")).expanduser() / ".kube" / "config"]
    return bool(variables.get(IN_POD)) or any(path.is_file() for path in files)


def connect(variables: Mapping[str, str] = os.environ) -> Any:
    """A `kubernetes.client.ApiClient`: the pod's own account, else the current context of the kubeconfig.

    Raises:
        UserError: neither is there, or it cannot be read.
    """
    if not configured(variables):
        raise UserError(NO_CLUSTER)
    import yaml
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if variables.get(IN_POD):
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(config_file=variables.get("KUBECONFIG"), client_configuration=settings)
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"cluster configuration: {error}; see `kubectl config view`") from error
    return client.ApiClient(settings)


def call(what: str, request: Callable[[], Found]) -> Found:
    """Make one request; its failures as ours.

    Raises:
        NotFoundError, ConflictError: 404, 409.
        PolicyRefusal: 401, 403: this account may not.
        IntegrityError: 400, 422: the API server finds the object invalid.
        TransientError: everything else, also no answer.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return request()
    except ApiException as error:
        raise _as_ours(what, error) from error
    except (HTTPError, OSError) as error:
        raise TransientError(f"{what}: the cluster's API did not answer ({type(error).__name__}); try again") from error


def _as_ours(what: str, error: Any) -> Exception:
    said = _message(error)
    if error.status == 404:
        return NotFoundError(f"{what}: not in the cluster ({said}); apply deploy/kubernetes/serving first")
    if error.status == 409:
        return ConflictError(f"{what}: {said}")
    if error.status in (401, 403):
        return PolicyRefusal(f"{what}: this account may not ({said}); see deploy/kubernetes/serving/base/access.yaml")
    if error.status in (400, 422):
        return IntegrityError(f"{what}: the cluster refuses the object ({said})")
    return TransientError(f"{what}: the cluster's API answered {error.status} ({said}); try again")


def _message(error: Any) -> str:
    import json

    try:
        return str(json.loads(error.body)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return str(error.reason)[:300]
