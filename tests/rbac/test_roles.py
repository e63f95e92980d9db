"""Rules and permissions: one says what the other does."""

from __future__ import annotations

import pytest

from gpu_provision.model.cluster import Permission
from gpu_provision.rbac.roles import (
    RbacSubject,
    Rule,
    describe,
    grants,
    permissions_of,
    roles,
    rules_of,
    without_cluster_wide,
)

LIST_PODS = Permission("list", "", "pods")


def test_rules_grant_just_the_permissions_that_they_were_made_of() -> None:
    """Whatever is said together."""
    wanted = {
        LIST_PODS,
        Permission("get", "", "pods/log"),
        Permission("get", "apps", "daemonsets", name="a"),
        Permission("patch", "apps", "daemonsets", name="a"),
        Permission("get", "apps", "daemonsets", name="b"),
        Permission("get", "apps", "deployments", name="b"),
    }
    assert set(permissions_of(rules_of(wanted))) == wanted


def test_alike_resources_share_a_rule() -> None:
    wanted = [
        LIST_PODS,
        Permission("list", "", "nodes"),
        Permission("get", "", "nodes", name="n1"),
        Permission("list", "", "nodes", name="n1"),
    ]
    assert rules_of(wanted) == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["n1"]},
    ]


@pytest.mark.parametrize(
    ("rule", "granted"),
    [
        ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, True),
        ({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}, True),
        ({"apiGroups": [""], "resources": ["*/log"], "verbs": ["get"]}, True),
        ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}, False),
        ({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["list"]}, False),
        ({"apiGroups": ["apps"], "resources": ["pods/log"], "verbs": ["get"]}, False),
        ({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"], "resourceNames": ["p"]}, True),
        ({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"], "resourceNames": ["q"]}, False),
        ({"verbs": ["get"], "nonResourceURLs": ["*"]}, False),
    ],
)
def test_a_rule_grants_as_the_server_reads_it(rule: Rule, *, granted: bool) -> None:
    assert grants(rule, Permission("get", "", "pods/log", "here", "p")) is granted


def test_a_rule_for_one_name_grants_nothing_for_all() -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"], "resourceNames": ["p"]}
    assert not grants(rule, LIST_PODS)


def test_a_pattern_of_subresources_means_no_resource() -> None:
    rule = {"apiGroups": [""], "resources": ["*/"], "verbs": ["list"]}
    assert not grants(rule, LIST_PODS)


def test_a_role_of_a_namespace_leaves_out_what_holds_everywhere() -> None:
    here = [Permission("list", "", "pods", "here"), Permission("list", "", "pods", "here", "p")]
    mine = Permission("delete", "", "pods", "here")
    assert without_cluster_wide([*here, mine], [LIST_PODS]) == [mine]


def test_permissions_are_told_by_scope() -> None:
    wanted = [LIST_PODS, Permission("get", "apps", "daemonsets", "here", "a")]
    assert describe(wanted) == [
        "list pods in the whole cluster",
        'get daemonsets.apps "a" in namespace here',
    ]


WANTED = [
    Permission("list", "", "nodes"),
    Permission("create", "", "pods", "here"),
    Permission("list", "", "nodes", "here"),
]
BOB = RbacSubject("User", "bob")


def test_namespaces_come_first_and_every_role_before_its_binding() -> None:
    kinds = [item["kind"] for item in roles("r", WANTED, [BOB])]
    assert kinds == ["Namespace", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


def test_a_namespace_comes_without_settings() -> None:
    (namespace, *_) = roles("r", WANTED, [])
    assert namespace == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here"}}


def test_a_namespace_that_every_cluster_has_is_left_alone() -> None:
    found = roles("r", [Permission("create", "", "pods", "kube-system")], [])
    assert [item["kind"] for item in found] == ["ClusterRole", "Role"]


def test_without_a_subject_there_is_nothing_to_bind() -> None:
    assert [item["kind"] for item in roles("r", WANTED, [])] == ["Namespace", "ClusterRole", "Role"]


def test_a_binding_names_accounts_users_and_groups() -> None:
    binding = roles("r", WANTED, [BOB, RbacSubject("ServiceAccount", "robot", "ci")])[2]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": "ci"},
    ]
