"""In which order a stack goes, and what of it stays."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components import COMPONENTS
from gpu_provision.destroy import findings
from gpu_provision.destroy.findings import eviction_warnings
from gpu_provision.destroy.nodes import gpu_users
from gpu_provision.destroy.plan import DestroyPlan, StackObjects, plan_destroy, takes_gpus, waves
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.plan import Action
from gpu_provision.planning.applyset import STACK
from gpu_provision.planning.prepare import prepare
from tests.components.builders import fleet, inventory
from tests.destroy.builders import OURS, entry, node, stack

_, DESIRED = prepare(inventory(), fleet())
APPLIED = [item for items in DESIRED.values() for item in items if item["kind"] not in {"Node", "Pod"}]
NFD = ObjectRef("v1", "Namespace", "", "node-feature-discovery")


def live(manifest: Manifest, *managers: str, **metadata: Any) -> Manifest:
    """Return a manifest as the server has it, by the books of us and of others."""
    own = [("metadata", "labels", key) for key in manifest["metadata"].get("labels", {})]
    books = [entry(OURS, *own), *(entry(manager) for manager in managers)]
    uid = str(ref_of(manifest))
    return {**manifest, "metadata": {**manifest["metadata"], "uid": uid, "managedFields": books, **metadata}}


def left(*items: Manifest, **fields: Any) -> StackObjects:
    """Return a reading with these members."""
    return StackObjects(cluster="test", members={ref_of(item): item for item in items}, **fields)


def everything(**fields: Any) -> StackObjects:
    """Return a reading of the whole stack."""
    return left(*map(live, APPLIED), **fields)


def refs(plan: DestroyPlan) -> list[str]:
    """Return what is written, in order."""
    return [str(change.ref) for change in plan.changes]


def test_whatever_requires_a_component_goes_before_it() -> None:
    position = {name: number for number, wave in enumerate(waves()) for name in wave}
    assert position.keys() == {component.name for component in COMPONENTS}
    assert all(position[component.name] < position[name] for component in COMPONENTS for name in component.requires)


def test_access_to_gpus_goes_first_and_the_ground_last() -> None:
    """Nothing is written twice, and nothing is forgotten."""
    plan = plan_destroy(everything(nodes=(node(),)), stack(brings_nfd=True), crds=True)
    order = refs(plan)
    assert len(order) == len(set(order)) == len(APPLIED) + 1
    first = next(number for number, ref in enumerate(order) if ref.startswith("DaemonSet"))
    assert "device-plugin" in order[first]
    last_daemon = max(number for number, ref in enumerate(order) if ref.startswith(("DaemonSet", "Deployment")))
    assert (
        last_daemon
        < order.index("Node n1")
        < order.index("ConfigMap node-feature-discovery/node-feature-discovery-worker-conf")
    )
    assert [ref for ref in order[-2:] if ref.startswith("Namespace")] == order[-2:]
    assert plan.stages[-1].is_last
    assert plan.kept == ()
    assert takes_gpus(plan)


def test_definitions_stay_unless_they_are_asked_for() -> None:
    plan = plan_destroy(everything(), stack(), crds=False)
    assert [finding.code for finding in plan.kept] == [codes.CRDS_KEPT]
    assert not [ref for ref in refs(plan) if ref.startswith("CustomResourceDefinition")]


@pytest.mark.parametrize("kind", ["Namespace", "RuntimeClass", "CustomResourceDefinition"])
def test_what_others_have_made_loses_our_labels_alone(kind: str) -> None:
    """Programs of the cluster that write to everything are not meant."""
    item = next(item for item in APPLIED if item["kind"] == kind)
    plan = plan_destroy(left(live(item, "helm", "kube-controller-manager")), stack(), crds=True)
    (change,) = plan.changes
    assert change.action is Action.UPDATE
    assert change.manifest == {
        "metadata": {"uid": str(ref_of(item)), "labels": dict.fromkeys(item["metadata"]["labels"])}
    }
    assert [(finding.code, finding.evidence) for finding in plan.kept] == [
        (codes.NOT_OURS_ALONE, "field managers: helm")
    ]
    (alone,) = plan_destroy(left(live(item, "kube-controller-manager")), stack(), crds=True).changes
    assert alone.action is Action.DELETE


def test_a_namespace_with_something_of_others_stays() -> None:
    plan = plan_destroy(everything(foreign={NFD: ("Secret x/y",)}), stack(), crds=True)
    assert [change.action for change in plan.changes if change.ref == NFD] == [Action.UPDATE]
    assert [(finding.where, finding.evidence) for finding in plan.kept] == [(str(NFD), "Secret x/y")]


def test_what_is_on_its_way_out_is_not_deleted_again() -> None:
    """But the pods of what is gone are awaited."""
    going = live(APPLIED[0], deletionTimestamp="now")
    assert plan_destroy(left(going), stack(), crds=True).stages == ()
    pod = {"metadata": {"name": "p", "labels": {STACK: "prod", "gpu-provision.io/component": "driver"}}, "spec": {}}
    pod = {**pod, "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"ownerReferences": [{"uid": "gone", "kind": "DaemonSet", "name": "d"}]}
    plan = plan_destroy(left(pods={ref_of(pod): pod}), stack(), crds=True)
    assert [(stage.changes, stage.components) for stage in plan.stages] == [((), frozenset({"driver"}))]


def _pod(name: str, where: str, **spec: Any) -> Manifest:
    owner = [{"kind": spec.pop("owner"), "name": "o", "controller": True}] if "owner" in spec else []
    metadata = {"name": name, "namespace": "x", "uid": name, "ownerReferences": owner}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}} if spec.pop("gpu", False) else {}}
    return {"metadata": metadata, "spec": {"nodeName": where, "containers": [container], **spec}, "status": {}}


def test_gpu_users_are_found_by_all_that_gives_a_gpu() -> None:
    """On our nodes; not a monitor of every node, which would be back at once, nor a pod that is waiting for a node."""
    pods = [
        _pod("asks", "n1", gpu=True),
        _pod("class", "n1", runtimeClassName="nvidia"),
        _pod("daemon", "n2", gpu=True, owner="DaemonSet"),
        _pod("monitor", "n2", runtimeClassName="nvidia", owner="DaemonSet"),
        _pod("plain", "n1"),
        _pod("elsewhere", "n3", gpu=True),
        _pod("waits", "", gpu=True),
    ]
    found = gpu_users(pods, ["n1", "n2"])
    assert {name: [pod["metadata"]["name"] for pod in each] for name, each in found.items()} == {
        "n1": ["asks", "class"],
        "n2": ["daemon"],
    }


_GOING = {"deletionTimestamp": "11:00"}


@pytest.mark.parametrize(
    ("metadata", "status", "cause"),
    [
        ({"ownerReferences": [{"kind": "DaemonSet", "name": "d"}]}, {}, "the garbage collector"),
        ({"deletionTimestamp": "12:00", "finalizers": ["a", "b"]}, {}, "waits for the finalizer a, b"),
        ({"deletionTimestamp": "12:00"}, {"node": "away"}, "its node away is not ready"),
        ({"deletionTimestamp": "12:00"}, {"node": "well"}, "is terminating since 12:00"),
        (
            {"deletionTimestamp": "12:00"},
            {"conditions": [{"type": "NamespaceContentRemaining", "status": "True", "message": "a pod remains"}]},
            "a pod remains",
        ),
    ],
)
def test_the_first_cause_is_reported(metadata: dict[str, Any], status: dict[str, Any], cause: str) -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    nodes = {"away": {"metadata": {"name": "away"}}, "well": {"metadata": {"name": "well", **_GOING}, **ready}}
    item = {"metadata": metadata, "spec": {"nodeName": status.pop("node", "")}, "status": status}
    assert cause in findings.why_there(item, nodes)


LABELS = {"app": "train"}


def job(name: str, *, owner: str = "Job", labels: dict[str, str] | None = None, going: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": "ml", "name": name, "uid": name, "labels": labels or {}}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "train", "controller": True}]
    if going:
        metadata["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    return {"metadata": metadata, "spec": {"containers": []}}


def budget(allowed: int, *, namespace: str = "ml") -> dict[str, Any]:
    spec = {"selector": {"matchLabels": LABELS}}
    return {
        "metadata": {"namespace": namespace, "name": "train"},
        "spec": spec,
        "status": {"disruptionsAllowed": allowed},
    }


def test_pods_without_a_controller_are_named() -> None:
    """Those that are on their way out already are not."""
    (lost,) = eviction_warnings([job("a"), job("b", owner=""), job("c", owner="", going=True)], [])
    assert (lost.code, lost.where) == (codes.UNMANAGED_PODS, "Pod ml/b")
    assert "a pod that has no controller, which would start it again" in lost.what


def test_a_budget_of_zero_blocks_the_removal() -> None:
    """One that lets some go may, and one that lets all go, or is of others, does not."""
    pods = [job(name, labels=LABELS) for name in "ab"]
    (held,) = eviction_warnings(pods, [budget(0)])
    assert (held.code, held.where) == (codes.BUDGET_HOLDS, "PodDisruptionBudget ml/train")
    assert (held.what, held.consequence[:20]) == ("the budget lets no pod go right now", "the removal will wai")
    (slowed,) = eviction_warnings(pods, [budget(1)])
    assert (slowed.what, slowed.consequence[:20]) == (
        "the budget lets 1 of 2 pods go right now",
        "the removal may wait",
    )
    assert not list(eviction_warnings(pods, [budget(2), budget(0, namespace="web")]))
    assert not list(eviction_warnings([job("a")], [budget(0)]))
