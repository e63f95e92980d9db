"""RBAC: what bindings grant is allowed, nothing else, and nobody grants more than they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sandbox.apiserver.conftest import Answer, Running

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MAPS = "/api/v1/namespaces/{}/configmaps"
APPLY = "application/apply-patch+yaml"
Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def bob(server: Running) -> Ask:
    """Somebody who may work with ConfigMaps called `mine` and the roles of the namespace default."""
    token = server.server.tokens.add("bob")
    rules = [
        rule("configmaps", "list"),
        rule("configmaps", "create", "get", "patch", names=["mine"]),
        rule("roles", "create", "patch", group="rbac.authorization.k8s.io"),
        rule("rolebindings", "create", "patch", group="rbac.authorization.k8s.io"),
        rule("pods/log", "get"),
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


def test_what_is_bound_is_allowed_and_nothing_else(bob: Ask) -> None:
    """403 names user, verb, resource and scope, as on a real server."""
    assert bob("GET", "/api/v1/nodes").code == 200
    assert bob("GET", MAPS.format("default")).code == 200
    refused = bob("GET", MAPS.format("kube-system"))
    assert (refused.code, refused.body["message"]) == (
        403,
        (
            'configmaps is forbidden: User "bob" cannot list resource "configmaps" in API group "" '
            'in the namespace "kube-system"'
        ),
    )
    assert bob("GET", "/api/v1/nodes?watch=true").code == 403
    assert bob("GET", "/api/v1/nodes/n1").code == 403
    assert bob("GET", "/apis").code == 200


def test_a_namespaces_own_object_belongs_to_the_namespace(bob: Ask, server: Running) -> None:
    """A Role of the namespace can grant reading it."""
    assert bob("GET", "/api/v1/namespaces/default").code == 403
    body = {"metadata": {"name": "itself"}, "rules": [rule("namespaces", "get")]}
    server.ask("POST", f"{RBAC}/namespaces/default/roles", body)
    grant(server, "namespaces/default/rolebindings", "itself", {"kind": "Role", "name": "itself"})
    assert bob("GET", "/api/v1/namespaces/default").code == 200
    assert bob("GET", "/api/v1/namespaces/kube-system").code == 403


def test_a_name_restricts_all_but_creation_by_post(bob: Ask) -> None:
    """A POST names nothing; an apply does, so that even creating can be restricted to a name."""
    assert bob("POST", MAPS.format("default"), {"metadata": {"name": "mine"}}).code == 403
    assert apply(bob, "configmaps", "v1", "ConfigMap", "mine", data={"a": "b"}).code == 201
    assert apply(bob, "configmaps", "v1", "ConfigMap", "other").code == 403
    assert bob("DELETE", f"{MAPS.format('default')}/mine").code == 403


def apply(ask: Ask, plural: str, version: str, kind: str, name: str, **parts: Any) -> Answer:
    """Apply an object in the namespace default."""
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, **parts}
    return ask("PATCH", f"{prefix}/namespaces/default/{plural}/{name}?fieldManager=bob", body, kind=APPLY)


def role(ask: Ask, name: str, *rules: dict[str, Any]) -> Answer:
    """Apply a Role in the namespace default."""
    return apply(ask, "roles", "rbac.authorization.k8s.io/v1", "Role", name, rules=list(rules))


def test_nobody_grants_what_they_do_not_hold(bob: Ask) -> None:
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


def test_nobody_binds_what_they_do_not_hold(bob: Ask) -> None:
    """A binding grants what its role grants; a role that does not exist cannot be compared."""
    role(bob, "weaker", rule("configmaps", "get", names=["mine"]))
    assert bind(bob, "Role", "weaker").code == 201
    assert bind(bob, "ClusterRole", "cluster-admin").code == 403
    missing = bind(bob, "Role", "nobody")
    assert (missing.code, missing.body["message"]) == (404, 'roles.rbac.authorization.k8s.io "nobody" not found')


def bind(ask: Ask, kind: str, name: str) -> Answer:
    """Apply a RoleBinding to eve in the namespace default."""
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    parts = {"roleRef": reference, "subjects": [subject]}
    return apply(ask, "rolebindings", "rbac.authorization.k8s.io/v1", "RoleBinding", f"eve-{name}", **parts)


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ({"verb": "list", "resource": "nodes"}, True),
        ({"verb": "get", "resource": "configmaps", "namespace": "default", "name": "mine"}, True),
        ({"verb": "get", "resource": "configmaps", "namespace": "default"}, False),
        ({"verb": "get", "resource": "pods", "subresource": "log", "namespace": "default"}, True),
        ({"verb": "get", "resource": "pods", "namespace": "default"}, False),
    ],
)
def test_may_i_is_answered_by_the_same_rules(bob: Ask, wanted: dict[str, str], *, allowed: bool) -> None:
    """Questions tell what requests would meet."""
    body = {"spec": {"resourceAttributes": wanted}}
    answer = bob("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert (answer.code, answer.body["status"]["allowed"]) == (201, allowed)


def test_may_i_about_paths(bob: Ask, server: Running) -> None:
    """Discovery is for everybody who is known."""
    path, spec = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"verb": "get", "path": "/apis/apps"}
    assert bob("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]
    spec = {"verb": "get", "path": "/metrics"}
    assert not bob("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]
    assert server.ask("POST", path, {"spec": {"nonResourceAttributes": spec}}).body["status"]["allowed"]


def test_what_may_i_lists_the_rules_of_a_namespace(bob: Ask, server: Running) -> None:
    """Those of the cluster stand in every namespace's answer, also in that of one that does not exist."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    here = bob("POST", path, {"spec": {"namespace": "default"}}).body["status"]
    nowhere = bob("POST", path, {"spec": {"namespace": "none"}}).body["status"]
    assert rule("nodes", "list") in here["resourceRules"]
    assert rule("nodes", "list") in nowhere["resourceRules"]
    assert rule("pods/log", "get") in here["resourceRules"]
    assert rule("pods/log", "get") not in nowhere["resourceRules"]
    assert here["incomplete"] is False
    everything = server.ask("POST", path, {"spec": {"namespace": "none"}}).body["status"]["resourceRules"]
    assert {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]} in everything
    assert bob("POST", path, {"spec": {}}).code == 400


def test_service_accounts_are_meant_by_name_and_by_group(server: Running) -> None:
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
