"""The operator comes into a cluster in which somebody else has been before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_provision.cluster.client import Cluster, connect
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.findings import RunFailed
from gpu_provision.operator.definition import DEFINITION, NAME, definition
from gpu_provision.operator.installing import MANAGER, install
from gpu_provision.operator.manifests import Shape, manifests
from gpu_provision.operator.stack import HOME, STACK, stack_of
from gpu_provision.operator.stacks import hold, let_go
from tests.sandbox.apiserver.conftest import Running

KUBECTL = "kubectl-client-side-apply"
ROLE = ObjectRef("rbac.authorization.k8s.io/v1", "ClusterRole", "", "gpu-provision-operator")


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    """An empty API server."""
    running = Running(tmp_path, [])
    yield connect(str(running.server.kubeconfig))
    running.stop()


def installed(cluster: Cluster, **terms: Any) -> tuple[str, ...]:
    """Install what has no controller; return the kinds and names of what was written."""
    return tuple(map(str, install(cluster, Shape(), [], seconds=30, **terms)))


def versions(cluster: Cluster) -> dict[ObjectRef, str]:
    """Return the version of everything that makes up the operator and is there."""
    refs = map(ref_of, manifests(Shape()))
    found = {ref: cluster.get(ref) for ref in refs}
    return {ref: live["metadata"]["resourceVersion"] for ref, live in found.items() if live}


def other_rights() -> dict[str, Any]:
    """Return the role as somebody else applies it: with less in it."""
    role = copy.deepcopy(next(item for item in manifests(Shape()) if ref_of(item) == ROLE))
    role["rules"] = role["rules"][1:]
    return role


def test_what_somebody_has_applied_alike_is_shared(cluster: Cluster) -> None:
    """Nobody undoes anything, and a second installation finds nothing to do."""
    for item in manifests(Shape()):
        cluster.apply(item, manager=KUBECTL)
    installed(cluster)
    assert installed(cluster) == ()


def test_what_somebody_has_applied_otherwise_is_told_before_anything_is_written(cluster: Cluster) -> None:
    """With who it was, and both ways out."""
    installed(cluster)
    cluster.apply(other_rights(), manager=KUBECTL, take_back=True)
    before = versions(cluster)
    with pytest.raises(RunFailed) as refused:
        installed(cluster)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("GP396", str(ROLE))
    assert KUBECTL in finding.what
    assert ".rules" in finding.evidence
    assert "--take-over" in finding.fix
    assert versions(cluster) == before


def test_it_is_taken_over_if_that_is_asked_for(cluster: Cluster) -> None:
    installed(cluster)
    cluster.apply(other_rights(), manager=KUBECTL, take_back=True)
    assert installed(cluster, take_over=True) == (str(ROLE),)
    assert installed(cluster) == ()


def older(cluster: Cluster) -> None:
    """Install the definition of a version that knows one more key, and a stack that has it."""
    made = definition()
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["legacy"] = {"type": "string"}
    cluster.apply(made, manager=MANAGER)
    cluster.create({**stack_of({"name": "old"}), "spec": {"legacy": "x", "release": "26.7.0"}})


def test_a_key_that_a_stack_would_lose_stops_the_installation_of_another_version(cluster: Cluster) -> None:
    """The API server would drop it, and nobody would be told."""
    older(cluster)
    with pytest.raises(RunFailed) as refused:
        installed(cluster)
    (finding,) = refused.value.findings
    assert (finding.code, finding.where) == ("GP395", "gpustack/old spec.legacy")
    assert "kubectl edit gpustack old" in finding.fix
    stack = ObjectRef(*STACK, "", "old")
    assert cluster.read(stack)["spec"]["legacy"] == "x"
    cluster.merge(stack, {"spec": {"legacy": None}})
    assert f"{DEFINITION.kind} {NAME}" in installed(cluster)


def test_the_definition_keeps_its_rules_on_a_server_that_knows_them(cluster: Cluster) -> None:
    installed(cluster)
    assert "x-kubernetes-validations" in str(cluster.read(ObjectRef(*DEFINITION, "", NAME)))


def test_a_stack_is_held_once_with_where_it_is_installed(cluster: Cluster) -> None:
    """What it declares later does not change that."""
    installed(cluster)
    stack = ref_of(cluster.create(stack_of({"name": "main"})))
    hold(cluster, stack, "gpus")
    first = cluster.read(stack)["metadata"]
    assert first["annotations"][HOME] == "gpus"
    hold(cluster, stack, "elsewhere")
    assert cluster.read(stack)["metadata"] == first
    cluster.merge(stack, {"metadata": {"annotations": {HOME: None}}})
    hold(cluster, stack, "gpus")
    assert cluster.read(stack)["metadata"]["annotations"][HOME] == "gpus"
    cluster.delete(stack)
    assert cluster.get(stack)
    let_go(cluster, stack)
    assert cluster.get(stack) is None
