"""Stacks that want the same, and tools that declare a stack's resource."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.operator import queue
from gpu_provision.operator.client import managed_by, warn_if_declared_elsewhere
from gpu_provision.operator.queue import OverlapChecker, StackClaim, find_overlaps
from gpu_provision.operator.stack import FINALIZER, HOME, stack_of
from gpu_provision.operator.status import Reason


def a_stack(name: str, since: int, *nodes: str, namespace: str = "", **metadata: Any) -> dict[str, Any]:
    pools = {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"never": "there"}}}
    cluster = {"namespace": namespace or f"home-of-{name}"}
    listed = [{"name": node, "pool": "gpu"} for node in nodes]
    made = stack_of({"name": name, "cluster": cluster, "pools": pools, "nodes": listed})
    created = f"2026-11-22T09:00:0{since}Z"
    return {**made, "metadata": {"name": name, "uid": name, "generation": 1, "creationTimestamp": created, **metadata}}


def told(*stacks: dict[str, Any]) -> dict[str, str]:
    found = OverlapChecker().look(stacks, [])
    assert {problem.reason for problem in found.values()} <= {Reason.OVERLAP}
    return {name: problem.message for name, problem in found.items()}


def test_namespace_has_one_stack() -> None:
    """Operands have the same names in each: two stacks would undo each other."""
    found = told(a_stack("old", 1, "n1", namespace="gpus"), a_stack("young", 2, "n2", namespace="gpus"))
    assert found.keys() == {"young"}
    assert "stack old owns the namespace gpus" in found["young"]
    assert "spec.cluster.namespace" in found["young"]


def test_stack_owns_the_namespace_that_it_is_in() -> None:
    old = a_stack("old", 1, "n1", namespace="elsewhere", annotations={HOME: "gpus"})
    assert told(old, a_stack("young", 2, "n2", namespace="gpus")).keys() == {"young"}
    assert told(old, a_stack("young", 2, "n2", namespace="elsewhere")) == {}


def test_long_list_of_nodes_is_cut() -> None:
    nodes = [f"n{number:04}" for number in range(5000)]
    found = told(a_stack("old", 1, *nodes), a_stack("young", 2, *nodes))
    assert found["young"].endswith("n0009 and 4990 more")


def test_stack_in_removal_still_owns_its_nodes() -> None:
    """Another one begins when it is gone, or both would write on them."""
    going = {"deletionTimestamp": "2026-11-22T10:00:00Z"}
    old = a_stack("old", 1, "n1", finalizers=[FINALIZER], **going)
    assert told(old, a_stack("young", 2, "n1")).keys() == {"young"}
    assert told(a_stack("old", 1, "n1", **going), a_stack("young", 2, "n1")) == {}


def test_inventory_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader judges at every event, and a large one takes a second."""
    read: list[str] = []

    def counted(stack: dict[str, Any]) -> Any:
        read.append(stack["metadata"]["name"])
        return inventory_of(stack)

    inventory_of = queue.inventory_of
    monkeypatch.setattr(queue, "inventory_of", counted)
    looking, stacks = OverlapChecker(), [a_stack("a", 1, "n1"), a_stack("b", 2, "n1")]
    for _ in range(3):
        assert looking.look(stacks, []).keys() == {"b"}
    assert read == ["a", "b"]
    looking.look([stacks[0], a_stack("b", 2, "n2", generation=2)], [])
    assert read == ["a", "b", "b"]


def test_error_about_one_stack_is_left_to_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory_of = queue.inventory_of

    def fail_for_one(stack: dict[str, Any]) -> Any:
        return {}["not thought of"] if stack["metadata"]["name"] == "broken" else inventory_of(stack)

    monkeypatch.setattr(queue, "inventory_of", fail_for_one)
    assert told(a_stack("broken", 0, "n1"), a_stack("old", 1, "n1"), a_stack("young", 2, "n1")).keys() == {"young"}


def claim(stack: str, since: int, *nodes: str, namespace: str = "") -> StackClaim:
    return StackClaim(f"2026-11-22T09:00:0{since}Z", stack, frozenset(nodes), namespace or f"home-of-{stack}")


A, B = claim("a", 1, "n1"), claim("b", 2, "n1", "n2")


@pytest.mark.parametrize(
    ("claims", "yields"),
    [
        ([A, claim("b", 2, "n2")], {}),
        ([B, A], {"b": "stack a owns nodes that b wants, too: n1"}),
        ([claim("b", 1, "n1"), A], {"b": "stack a owns nodes that b wants, too: n1"}),
        ([A, B, claim("c", 3, "n2")], {"b": "stack a owns nodes that b wants, too: n1"}),
    ],
    ids=["side by side", "the older keeps", "of one second", "what gives way hinders no other"],
)
def test_older_stack_keeps_what_both_want(claims: list[StackClaim], yields: dict[str, str]) -> None:
    assert find_overlaps(claims) == yields


def managed_stack(manager: str = "gpu-provision", **metadata: Any) -> dict[str, Any]:
    """A stack whose spec a field manager has set."""
    fields = {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    return {"metadata": {"name": "prod", "managedFields": [fields], **metadata}, "spec": {}}


FLUX = {"kustomize.toolkit.fluxcd.io/name": "gpu", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
HELM = {"meta.helm.sh/release-name": "gpu", "meta.helm.sh/release-namespace": "infra"}
OF_FLUX = {"helm.toolkit.fluxcd.io/name": "gpu", "helm.toolkit.fluxcd.io/namespace": "flux-system"}
TRACKED = {"argocd.argoproj.io/tracking-id": "gpu-stacks:gpu-provision.io/GPUStack:/prod"}


@pytest.mark.parametrize(
    ("stack", "who"),
    [
        (managed_stack(annotations=TRACKED), "Argo CD's application gpu-stacks"),
        (managed_stack(labels={"argocd.argoproj.io/instance": "gpu"}), "Argo CD's application gpu"),
        (managed_stack(labels=FLUX), "Flux's Kustomization flux-system/gpu"),
        (managed_stack(labels=OF_FLUX, annotations=HELM), "Flux's HelmRelease flux-system/gpu"),
        (managed_stack(annotations=HELM), "Helm's release infra/gpu"),
        (managed_stack(labels={"app.kubernetes.io/instance": "gpu"}), "Argo CD or Helm, as gpu"),
        (managed_stack("Terraform"), "the field manager Terraform"),
        (managed_stack("argocd-controller", annotations=TRACKED), "Argo CD's application gpu-stacks"),
    ],
)
def test_other_declaring_tool_is_known_by_name(stack: dict[str, Any], who: str) -> None:
    """So that its reader knows where to look."""
    assert managed_by(stack) == who


@pytest.mark.parametrize("manager", ["gpu-provision", "kubectl-edit", "kubectl-client-side-apply", "kubectl"])
def test_a_person_with_kubectl_brings_nothing_back(manager: str) -> None:
    """Nor do we."""
    stack = managed_stack(manager, labels={"team": "ml"}, annotations=None)
    assert managed_by(stack) == ""
    assert warn_if_declared_elsewhere(stack, "destroy") == ()


def test_what_comes_of_it_is_told_with_the_way_out() -> None:
    stack = managed_stack(labels=FLUX)
    told = [warn_if_declared_elsewhere(stack, each) for each in ("release", "destroy", "take over")]
    assert [(each.code, each.where, each.severity.value) for (each,) in told] == [
        ("GP435", "gpustack/prod", "warning")
    ] * 3
    (release,), (removal,), (taking,) = told
    assert "gpu-provision.io/on-delete: keep" in release.fix
    assert "installs the stack again" in removal.consequence
    assert "set back" in taking.what
