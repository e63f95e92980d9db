"""Which permissions are lacking, by the word of the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_provision.kube.client import GrantedRules, KubeClient, connect
from gpu_provision.model.cluster import ObjectRef, Permission
from gpu_provision.model.findings import Finding, ForbiddenError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.rbac import permissions, review
from gpu_provision.rbac.review import missing_permissions
from gpu_provision.rbac.roles import RbacSubject, roles
from gpu_provision.reconcile.plan import read_and_plan
from gpu_provision.reconcile.session import Session
from tests import data_file
from tests.components.builders import inventory
from tests.sandbox.apiserver.conftest import Running

LIST, GET = Permission("list", "", "nodes"), Permission("get", "", "pods/log", "here")
RULE = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}


class Fake:
    """Answers questions about rights; what it has no answer to is refused."""

    def __init__(
        self, rules: Mapping[str, GrantedRules], allowed: tuple[Permission, ...] = (), *, mute: bool = False
    ) -> None:
        """``mute`` refuses every question about a single permission."""
        self._rules, self._allowed, self._mute = rules, allowed, mute
        self.asked: list[object] = []

    def rules(self, namespace: str) -> GrantedRules:
        self.asked.append(namespace)
        if namespace not in self._rules:
            raise ForbiddenError(Finding(code="GP303", what="no"))
        return self._rules[namespace]

    def can_i(self, wanted: Permission) -> bool:
        self.asked.append(wanted)
        if self._mute:
            raise ForbiddenError(Finding(code="GP303", what="no"))
        return wanted in self._allowed


def granted(*rules: dict[str, Any], incomplete: bool = False) -> GrantedRules:
    return GrantedRules(rules, incomplete)


OTHER, LISTING = Permission("delete", "", "nodes"), GET._replace(resource="nodes", verb="list")
ALL = granted(RULE)


@pytest.mark.parametrize(
    ("fake", "wanted", "missing", "questions"),
    [
        (Fake({"": ALL, "here": ALL}), (LIST, LIST, GET, LISTING), (GET,), ["", "here"]),
        (Fake({"": granted(), "here": ALL}), (LIST,), (LIST,), [""]),
        (Fake({"": granted(RULE, incomplete=True)}, (GET,)), (LIST, OTHER), (OTHER,), ["", OTHER]),
        (Fake({}, (LIST,)), (LIST, GET), (GET,), ["", "here", LIST, GET]),
        (Fake({}, mute=True), (LIST, GET), (), ["", "here", LIST, GET]),
    ],
    ids=[
        "one question per namespace",
        "what holds in a namespace does not hold everywhere",
        "a webhook, as of managed clusters, is asked about the rest",
        "a server that lists no rules is asked about each",
        "one that cannot be asked at all is believed: the request itself will tell",
    ],
)
def test_what_is_missing_and_what_was_asked(
    fake: Fake, wanted: tuple[Permission, ...], missing: tuple[Permission, ...], questions: list[object]
) -> None:
    assert missing_permissions(cast("KubeClient", fake), wanted) == missing
    assert sorted(fake.asked, key=str) == sorted(questions, key=str)


def test_no_question_is_about_a_namespace_that_does_not_exist() -> None:
    fake = Fake({"": ALL})
    assert missing_permissions(cast("KubeClient", fake), [LISTING, GET], namespaces={"there"}) == (GET,)
    assert fake.asked == [""]


STACK: Inventory = replace(inventory(), nodes=())
OPERANDS = STACK.cluster.namespace
RBAC = "rbac.authorization.k8s.io"
As = Callable[..., KubeClient]


@pytest.fixture
def account(server: Running, tmp_path: Path, request: pytest.FixtureRequest) -> As:
    def make(*lacking: Permission) -> KubeClient:
        name = _name_of(request)
        administrator = connect(str(server.server.kubeconfig))
        wanted = permissions.for_apply(STACK) - set(lacking)
        for item in roles(name, wanted, [RbacSubject("User", name)]):
            administrator.apply(item, manager="administrator")
        server.server.write_kubeconfig(tmp_path / "kubeconfig", name)
        return connect(str(tmp_path / "kubeconfig"))

    return make


def _name_of(request: pytest.FixtureRequest) -> str:
    return re.sub("[^a-z]+", "-", request.node.name)[:60].strip("-")


def missing_finding(cluster: KubeClient) -> Finding | None:
    found = read_and_plan(cluster, STACK)
    return review.missing_for_run(
        cluster, STACK, found.plan, found.desired, namespaces=found.observed.namespaces, refused=found.dry_run_refusal
    )


@pytest.mark.parametrize(
    "case", data_file.document(Path(__file__).with_suffix(".yaml").read_text().replace("OPERANDS", OPERANDS))
)
def test_a_single_missing_permission_is_named(
    account: As, request: pytest.FixtureRequest, case: dict[str, Any]
) -> None:
    """Verb, resource, name and namespace; also one that a role of the stack passes on. By the server's account name."""
    finding = missing_finding(account(Permission(*case["lacking"])))
    assert finding is not None
    assert (finding.code, finding.evidence) == ("GP310", f"it may not\n    {case['told']}")
    name = _name_of(request)
    assert finding.what == f"user {name} lacks a permission that this needs; nothing was written to the cluster"
    assert finding.fix.endswith(f"gpu-provision rbac -i FILE --user {name} | kubectl apply -f -")


def test_escalate_and_bind_replace_holding_the_permissions(account: As, server: Running) -> None:
    """Escalate and bind, on the names of the stack's roles."""
    cluster = account(*permissions.stack_permissions(STACK) - permissions.for_own_requests(STACK))
    finding = missing_finding(cluster)
    assert finding is not None
    assert "update, patch nodes/status in the whole cluster" in finding.evidence
    rules = [{"apiGroups": [RBAC], "resources": ["roles", "clusterroles"], "verbs": ["escalate", "bind"]}]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "over-it-all"}, "rules": rules}
    administrator = connect(str(server.server.kubeconfig))
    administrator.apply(role, manager="administrator")
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "over-it-all"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "over-it-all"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": cluster.whoami()}],
    }
    administrator.apply(binding, manager="administrator")
    assert missing_finding(cluster) is None


def test_the_right_to_patch_pods_is_asked_for_with_reason(account: As) -> None:
    """An account with the rights of an earlier version goes on until the plan has such a change."""
    reading = read_and_plan(account(), STACK)
    pod = Change(component="driver", action=Action.UPDATE, ref=ObjectRef("v1", "Pod", OPERANDS, "driver-x"))
    changed = replace(reading.plan, changes=(*reading.plan.changes, pod))
    before, after = (set(review.required_for_run(STACK, each, reading.desired)) for each in (reading.plan, changed))
    assert after - before == {Permission("patch", "", "pods", OPERANDS, "driver-x")}


def test_service_accounts_are_given_rights_as_such(server: Running, tmp_path: Path) -> None:
    server.server.write_kubeconfig(tmp_path / "kubeconfig", "system:serviceaccount:ci:robot")
    with pytest.raises(ForbiddenError) as caught:
        Session(STACK, _cluster=connect(str(tmp_path / "kubeconfig"))).cluster_plan()
    assert "--service-account ci:robot | kubectl apply" in caught.value.findings[0].fix


def test_a_refusal_that_no_rule_explains_stays_as_it_is(account: As) -> None:
    """Such as that of a proxy before the server."""
    refusal = ForbiddenError(Finding(code="GP303", what="a permission is missing", evidence="the proxy says no"))
    assert review.missing_for_reading(account(), STACK, refusal) is refusal
    stranger = ForbiddenError(Finding(code="GP302", what="who is that"))
    assert review.missing_for_reading(account(), STACK, stranger) is stranger


class Server(Fake):
    """Says who asks, and grants nothing."""

    name, server, user = "prod", "https://prod:6443", "ada"

    def whoami(self) -> str:
        return "ada"


@pytest.mark.parametrize("platform", ["", "openshift"])
def test_a_right_on_openshift_is_named_with_the_others(platform: str) -> None:
    """The printed roles are those of the platform that the inventory names."""
    stack = inventory()
    stack = replace(stack, cluster=replace(stack.cluster, platform=platform))
    refused = 'imagestreams.image.openshift.io "driver-toolkit" is forbidden: User "ada" cannot get it'
    cluster = cast("KubeClient", Server({}))
    error = review.missing_for_reading(
        cluster, stack, ForbiddenError(Finding(code="GP303", what="no", evidence=refused))
    )
    (finding,) = error.findings
    assert finding.code == "GP310"
    assert 'get imagestreams.image.openshift.io "driver-toolkit" in the whole cluster' in finding.evidence
    hint = "set cluster.platform: openshift, and let an administrator run: gpu-provision rbac"
    assert finding.fix.startswith(hint) is not bool(platform)
