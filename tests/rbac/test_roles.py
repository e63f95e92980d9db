"""Rules and permissions: one says what the other does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.model.cluster import Permission
from gpu_provision.rbac.roles import RbacSubject, grants, permissions_of, roles, rules_of
from tests import data_file

LIST_PODS = Permission("list", "", "pods")


def test_rules_grant_just_the_permissions_that_they_were_made_of() -> None:
    """Resources that are alike share one."""
    wanted = {LIST_PODS, LIST_PODS._replace(resource="nodes"), Permission("get", "", "nodes", name="n1")}
    rules = rules_of({*wanted, Permission("list", "", "nodes", name="n1")})
    assert rules == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["n1"]},
    ]
    assert set(permissions_of(rules)) == wanted
    wanted |= {Permission("get", "", "pods/log")}
    wanted |= {Permission(verb, "apps", "daemonsets", name=name) for verb, name in (("get", "a"), ("patch", "a"))}
    wanted |= {Permission("get", "apps", resource, name="b") for resource in ("daemonsets", "deployments")}
    assert set(permissions_of(rules_of(wanted))) == wanted


OF_A_LOG = Permission("get", "", "pods/log", "here", "p")


@pytest.mark.parametrize("case", data_file.document(Path(__file__).with_suffix(".yaml").read_text()))
def test_a_rule_grants_as_the_server_reads_it(case: dict[str, Any]) -> None:
    wanted = OF_A_LOG if case["wanted"] == "log" else LIST_PODS
    assert grants(case["rule"], wanted) is case["is_granted"]


WANTED = [
    Permission("list", "", "nodes"),
    Permission("create", "", "pods", "here"),
    Permission("list", "", "nodes", "here"),
    Permission("list", "", "nodes", "here", "n1"),
]
BOB = RbacSubject("User", "bob")


@pytest.mark.parametrize(
    ("wanted", "subjects", "kinds"),
    [
        (WANTED, [BOB], ["Namespace", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
        (WANTED, [], ["Namespace", "ClusterRole", "Role"]),
        ([Permission("create", "", "pods", "kube-system")], [], ["ClusterRole", "Role"]),
    ],
    ids=["bound", "without a subject", "in a namespace that every cluster has"],
)
def test_roles_come_in_the_order_to_apply_them(
    wanted: list[Permission], subjects: list[RbacSubject], kinds: list[str]
) -> None:
    found = roles("r", wanted, subjects)
    assert [item["kind"] for item in found] == kinds
    of_namespace = [item["rules"] for item in found if item["kind"] == "Role"]
    alone = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    assert of_namespace == [alone], "what holds everywhere is left out"
    bare = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here"}}
    assert all(item == bare for item in found if item["kind"] == "Namespace")


def test_a_binding_names_accounts_users_and_groups() -> None:
    binding = roles("r", WANTED, [BOB, RbacSubject("ServiceAccount", "robot", "ci")])[2]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": "ci"},
    ]
