"""Roles that can be applied as they are printed."""

from __future__ import annotations

from gpu_provision.model.access import Permission
from gpu_provision.planning.roles import Subject, roles

WANTED = [
    Permission("list", "", "nodes"),
    Permission("create", "", "pods", "here"),
    Permission("list", "", "nodes", "here"),
]
BOB = Subject("User", "bob")


def test_namespaces_come_first_and_every_role_before_its_binding() -> None:
    kinds = [item["kind"] for item in roles("r", WANTED, [BOB])]
    assert kinds == ["Namespace", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


def test_a_namespace_comes_without_settings_that_would_be_taken_from_the_stack() -> None:
    (namespace, *_) = roles("r", WANTED, [])
    assert namespace == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here"}}


def test_a_namespace_that_every_cluster_has_is_left_alone() -> None:
    found = roles("r", [Permission("create", "", "pods", "kube-system")], [])
    assert [item["kind"] for item in found] == ["ClusterRole", "Role"]


def test_without_a_subject_there_is_nothing_to_bind() -> None:
    assert [item["kind"] for item in roles("r", WANTED, [])] == ["Namespace", "ClusterRole", "Role"]


def test_a_binding_names_service_accounts_by_namespace_and_others_by_group() -> None:
    binding = roles("r", WANTED, [BOB, Subject("ServiceAccount", "robot", "ci")])[2]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": "ci"},
    ]
