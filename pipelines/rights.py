"""The recipe's roles as access rights of a cluster: Kubernetes RoleBindings and MLflow permissions. Pure."""

from __future__ import annotations

from typing import Any

from components.core.people import Policy
from components.core.recipe import Recipe

API = "rbac.authorization.k8s.io"
ROLES = ("runs", "approves", "reads")
# MLflow cannot tell a new version from a moved alias: whoever runs or approves edits the model. The ledger decides who
# is champion, and aliases are repaired from it.
MLFLOW = {"runs": "EDIT", "approves": "EDIT", "reads": "READ"}


def kubernetes_rights(recipe: Recipe, namespace: str = "pilotline") -> list[dict[str, Any]]:
    """A RoleBinding for each role that names somebody, to the roles of deploy/kubernetes/roles/roles.yaml."""
    policy = Policy.of(recipe)
    return [
        {
            "apiVersion": f"{API}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"pilotline-{role}-people", "namespace": namespace},
            "roleRef": {"apiGroup": API, "kind": "Role", "name": f"pilotline-{role}"},
            "subjects": [_subject(name) for name in getattr(policy, role)],
        }
        for role in ROLES
        if getattr(policy, role)
    ]


def mlflow_rights(recipe: Recipe) -> list[dict[str, str]]:
    """Arguments of MLflow's `create_registered_model_permission` and `create_experiment_permission`, the most each has.

    Each has username, permission, and name (of model and experiment).
    """
    policy = Policy.of(recipe)
    most: dict[str, str] = {}
    for role in ("reads", "runs", "approves"):
        most |= dict.fromkeys(getattr(policy, role), MLFLOW[role])
    model = recipe.model.name
    return [{"username": name, "permission": right, "name": model} for name, right in sorted(most.items())]


def _subject(name: str) -> dict[str, str]:
    """A service account where the name is one (system:serviceaccount:NAMESPACE:NAME), else a user."""
    parts = name.split(":")
    if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4:
        return {"kind": "ServiceAccount", "namespace": parts[2], "name": parts[3]}
    return {"kind": "User", "apiGroup": API, "name": name}
