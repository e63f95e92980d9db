"""RBAC beyond tests/contract: escalation by bindings, service accounts, paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sandbox.apiserver.conftest import Answer, Running

RBAC = "/apis/rbac.authorization.k8s.io/v1"
APPLY = "application/apply-patch+yaml"
Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def bob(server: Running) -> Ask:
    """A user who may read the ConfigMap `mine` and write the roles of the namespace default."""
    token = server.server.tokens.add("bob")
    rules = [
        rule("configmaps", "get", names=["mine"]),
        rule("roles", "create", "patch", group="rbac.authorization.k8s.io"),
        rule("rolebindings", "create", "patch", group="rbac.authorization.k8s.io"),
    ]
    server.ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "reader"}, "rules": [rule("nodes", "list")]})
    grant(server, "clusterrolebindings", "bob", {"kind": "ClusterRole", "name": "reader"})
    server.ask("POST", f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "bob"}, "rules": rules})
    grant(server, "namespaces/default/rolebindings", "bob", {"kind": "Role", "name": "bob"})

    def ask(*arguments: Any, **options: Any) -> Answer:
        return server.ask(*arguments, **options, token=token)

    return ask


def rule(resource: str, *verbs: str, group: str = "", names: list[str] | None = None) -> dict[str, Any]:
    """Return one rule of a role."""
    named = {"resourceNames": names} if names else {}
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **named}


def grant(server: Running, collection: str, name: str, role: dict[str, str]) -> None:
    """Bind a role to bob, as the administrator."""
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", **role}
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    assert server.ask("POST", f"{RBAC}/{collection}", body).code == 201


def apply(ask: Ask, plural: str, version: str, kind: str, name: str, **parts: Any) -> Answer:
    """Apply an object in the namespace default."""
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, **parts}
    return ask("PATCH", f"{prefix}/namespaces/default/{plural}/{name}?fieldManager=bob", body, kind=APPLY)


def role(ask: Ask, name: str, *rules: dict[str, Any]) -> Answer:
    """Apply a Role in the namespace default."""
    return apply(ask, "roles", "rbac.authorization.k8s.io/v1", "Role", name, rules=list(rules))


def test_a_role_of_more_than_one_holds_is_refused(bob: Ask) -> None:
    """A role of what one holds is accepted; of more, refused with what is missing."""
    assert role(bob, "weak", rule("configmaps", "get", names=["mine"]), rule("nodes", "list")).code == 201
    refused = role(bob, "strong", rule("configmaps", "get"), rule("secrets", "get", "list"))
    assert refused.code == 403
    assert refused.body["message"] == (
        'roles.rbac.authorization.k8s.io "strong" is forbidden: user "bob" (groups=["system:authenticated"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get", "list"]}'
    )


def test_a_binding_of_more_than_one_holds_is_refused(bob: Ask) -> None:
    """A binding grants what its role grants; a role that does not exist cannot be compared."""
    role(bob, "weaker", rule("configmaps", "get", names=["mine"]))
    assert bind(bob, "Role", "weaker").code == 201
    assert bind(bob, "ClusterRole", "cluster-admin").code == 403
    missing = bind(bob, "Role", "none")
    assert (missing.code, missing.body["message"]) == (404, 'roles.rbac.authorization.k8s.io "none" not found')


def bind(ask: Ask, kind: str, name: str) -> Answer:
    """Apply a RoleBinding to eve in the namespace default."""
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    parts = {"roleRef": reference, "subjects": [subject]}
    return apply(ask, "rolebindings", "rbac.authorization.k8s.io/v1", "RoleBinding", f"eve-{name}", **parts)


def test_access_reviews_of_paths(bob: Ask, server: Running) -> None:
    """Discovery is for every user who is known."""
    path, spec = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"verb": "get", "path": "/apis/apps"}
    assert bob("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]
    spec = {"verb": "get", "path": "/metrics"}
    assert not bob("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]
    assert server.ask("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]


def test_service_accounts_are_bound_by_name_and_by_group(server: Running) -> None:
    """A token of a service account is in the groups of its namespace."""
    token = server.server.tokens.add("system:serviceaccount:default:robot")
    assert server.ask("GET", "/api/v1/nodes", token=token).code == 403
    for name, subject in (
        ("by-name", {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}),
        ("by-group", {"kind": "Group", "name": "system:serviceaccounts:default"}),
    ):
        body = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [subject],
        }
        assert server.ask("POST", f"{RBAC}/clusterrolebindings", body).code == 201
        assert server.ask("GET", "/api/v1/nodes", token=token).code == 200
        server.ask("DELETE", f"{RBAC}/clusterrolebindings/{name}")
        assert server.ask("GET", "/api/v1/nodes", token=token).code == 403
