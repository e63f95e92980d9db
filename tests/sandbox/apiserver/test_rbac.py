"""RBAC beyond tests/contract: escalation by bindings, service accounts, non-resource paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.sandbox.apiserver.conftest import Answer, Running

GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{GROUP}/v1"
HOME = f"{RBAC}/namespaces/default"
Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def bob(server: Running) -> Ask:
    """A user who may read the ConfigMap `mine` and write the role bindings of the namespace default."""
    token = server.server.tokens.add("bob")
    own = [
        rule("configmaps", "get", names=["mine"]),
        rule("rolebindings", "create", "patch", group=GROUP),
        rule("clusterroles", "bind", group=GROUP, names=["view"]),
    ]
    for name, rules in (("bob", own), ("weak", own[:1])):
        server.ask("POST", f"{HOME}/roles", {"metadata": {"name": name}, "rules": rules})
    assert server.ask("POST", f"{HOME}/rolebindings", binding("bob", "Role", "bob")).code == 201
    return lambda *arguments, **options: server.ask(*arguments, **options, token=token)


def rule(resource: str, *verbs: str, group: str = "", names: Sequence[str] = ()) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), "resourceNames": list(names)}


def binding(user: str, kind: str, role: str, subject: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [subject or {"kind": "User", "apiGroup": GROUP, "name": user}],
    }


def test_a_binding_of_more_than_one_holds_is_refused(bob: Ask) -> None:
    """Unless the user has the verb bind; a missing role is an error."""

    def bind(kind: str, role: str) -> Answer:
        body = {"apiVersion": f"{GROUP}/v1", "kind": "RoleBinding", **binding("eve", kind, role)}
        return bob(
            "PATCH", f"{HOME}/rolebindings/eve-{role}?fieldManager=bob", body, kind="application/apply-patch+yaml"
        )

    assert bind("Role", "weak").code == 201
    assert bind("ClusterRole", "cluster-admin").code == 403
    assert bind("ClusterRole", "view").code == 201
    missing = bind("Role", "none")
    assert (missing.code, missing.body["message"]) == (404, 'roles.rbac.authorization.k8s.io "none" not found')


def test_access_reviews_of_paths(bob: Ask, server: Running) -> None:
    """Every authenticated user may read discovery."""
    for ask, path, allowed in ((bob, "/apis/apps", True), (bob, "/metrics", False), (server.ask, "/metrics", True)):
        spec = {"nonResourceAttributes": {"verb": "get", "path": path}}
        answer = ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": spec})
        assert answer.body["status"]["allowed"] is allowed


def test_service_accounts_are_bound_by_name_and_by_group(server: Running) -> None:
    """A service account's token is in the groups of its namespace."""
    token = server.server.tokens.add("system:serviceaccount:default:robot")
    assert server.ask("GET", "/api/v1/nodes", token=token).code == 403
    for subject in (
        {"kind": "ServiceAccount", "name": "robot", "namespace": "default"},
        {"kind": "Group", "name": "system:serviceaccounts:default"},
    ):
        body = binding("robot", "ClusterRole", "view", subject)
        assert server.ask("POST", f"{RBAC}/clusterrolebindings", body).code == 201
        assert server.ask("GET", "/api/v1/nodes", token=token).code == 200
        server.ask("DELETE", f"{RBAC}/clusterrolebindings/robot-view")
        assert server.ask("GET", "/api/v1/nodes", token=token).code == 403
