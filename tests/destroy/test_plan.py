"""The order of a removal, and the objects that stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpu_provision.components import COMPONENTS
from gpu_provision.components.labels import COMPONENT
from gpu_provision.components.machine_config import MACHINE_CONFIG
from gpu_provision.destroy.nodes import gpu_users
from gpu_provision.destroy.plan import StackObjects, plan_destroy, waves
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.openshift import MachinePool
from gpu_provision.model.plan import Action
from gpu_provision.planning.applyset import STACK
from gpu_provision.planning.prepare import prepare
from tests.components.builders import fleet, inventory
from tests.destroy.builders import OURS, entry, node, stack

_, DESIRED = prepare(inventory(), fleet())
APPLIED = [item for items in DESIRED.values() for item in items if item["kind"] not in {"Node", "Pod"}]
NFD = ObjectRef("v1", "Namespace", "", "node-feature-discovery")


def live_object(manifest: Manifest, *managers: str, **metadata: Any) -> Manifest:
    """Return a manifest as a live object, with managedFields of gpu-provision and of other managers."""
    own = [("metadata", "labels", key) for key in manifest["metadata"].get("labels", {})]
    books = [entry(OURS, *own), *(entry(manager) for manager in managers)]
    uid = str(ref_of(manifest))
    return {**manifest, "metadata": {**manifest["metadata"], "uid": uid, "managedFields": books, **metadata}}


def stack_objects(*items: Manifest, **fields: Any) -> StackObjects:
    return StackObjects(cluster="test", members={ref_of(item): item for item in items}, **fields)


def all_objects(**fields: Any) -> StackObjects:
    return stack_objects(*map(live_object, APPLIED), **fields)


def test_whatever_requires_a_component_goes_before_it() -> None:
    position = {name: number for number, wave in enumerate(waves()) for name in wave}
    assert position.keys() == {component.name for component in COMPONENTS}
    assert all(position[component.name] < position[name] for component in COMPONENTS for name in component.requires)


def test_access_to_gpus_goes_first_and_the_ground_last() -> None:
    """Nothing is written twice, and nothing is forgotten."""
    plan = plan_destroy(all_objects(nodes=(node({}),)), stack(brings_nfd=True), crds=True)
    order = [str(change.ref) for change in plan.changes]
    assert len(order) == len(set(order)) == len(APPLIED) + 1
    first = next(number for number, ref in enumerate(order) if ref.startswith("DaemonSet"))
    assert "device-plugin" in order[first]
    last_daemon = max(number for number, ref in enumerate(order) if ref.startswith(("DaemonSet", "Deployment")))
    config = order.index("ConfigMap node-feature-discovery/node-feature-discovery-worker-conf")
    assert last_daemon < order.index("Node n1") < config
    assert [ref for ref in order[-2:] if ref.startswith("Namespace")] == order[-2:]
    assert plan.stages[-1].is_last
    assert plan.kept == ()


def test_machine_configs_go_last_and_say_which_nodes_reboot() -> None:
    """A node that reboots with pods of the stack on it would start them again."""
    role = {"machineconfiguration.openshift.io/role": "gpu"}
    metadata = {"name": "99-gpu-gpu-provision", "labels": {**role, COMPONENT: "machine_config"}}
    config = {"apiVersion": MACHINE_CONFIG.api_version, "kind": MACHINE_CONFIG.kind, "metadata": metadata}
    pool = MachinePool(name="gpu", nodes=("gpu-1", "gpu-2"), config_selector={"matchLabels": role})
    objects = stack_objects(*map(live_object, (*APPLIED, config)), machine_pools=(pool,))
    plan = plan_destroy(objects, stack(), crds=True)
    refs = [change.ref for change in plan.changes]
    assert len(refs) == len(set(refs))
    *_, machines, last = plan.stages
    assert last.is_last
    assert [(str(each.ref), each.effects) for each in machines.changes] == [
        ("MachineConfig 99-gpu-gpu-provision", ("reboots 2 nodes of MachineConfigPool gpu, 1 at a time",))
    ]


def test_definitions_stay_unless_they_are_asked_for() -> None:
    plan = plan_destroy(all_objects(), stack(), crds=False)
    assert [finding.code for finding in plan.kept] == [codes.CRDS_KEPT]
    assert "CustomResourceDefinition" not in {change.ref.kind for change in plan.changes}


@pytest.mark.parametrize("kind", ["Namespace", "RuntimeClass", "CustomResourceDefinition"])
def test_what_others_have_made_loses_our_labels_alone(kind: str) -> None:
    """Managers that write to every object do not count."""
    item = next(item for item in APPLIED if item["kind"] == kind)
    plan = plan_destroy(stack_objects(live_object(item, "helm", "kube-controller-manager")), stack(), crds=True)
    (change,) = plan.changes
    assert change.action is Action.UPDATE
    labels = dict.fromkeys(item["metadata"]["labels"])
    assert change.manifest == {"metadata": {"uid": str(ref_of(item)), "labels": labels}}
    (kept,) = plan.kept
    assert (kept.code, kept.evidence) == (codes.SHARED_OBJECT_STAYS, "field managers: helm")
    (alone,) = plan_destroy(stack_objects(live_object(item, "kube-controller-manager")), stack(), crds=True).changes
    assert alone.action is Action.DELETE


def test_a_namespace_with_something_of_others_stays() -> None:
    plan = plan_destroy(all_objects(foreign={NFD: ("Secret x/y",)}), stack(), crds=True)
    assert [change.action for change in plan.changes if change.ref == NFD] == [Action.UPDATE]
    assert [(finding.where, finding.evidence) for finding in plan.kept] == [(str(NFD), "Secret x/y")]


def test_what_is_on_its_way_out_is_not_deleted_again() -> None:
    """A later stage still waits for its pods."""
    going = live_object(APPLIED[0], deletionTimestamp="now")
    assert plan_destroy(stack_objects(going), stack(), crds=True).stages == ()
    marks, owners = {STACK: "prod", "gpu-provision.io/component": "driver"}, [{"uid": "gone"}]
    pod = {"metadata": {"name": "p", "labels": marks, "ownerReferences": owners}, "spec": {}}
    plan = plan_destroy(stack_objects(pods={ObjectRef("v1", "Pod", "", "p"): pod}), stack(), crds=True)
    assert [(stage.changes, stage.components) for stage in plan.stages] == [((), frozenset({"driver"}))]


def _pod(name: str, where: str, *, gpu: bool = False, owner: str = "", **spec: Any) -> Manifest:
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "x", "uid": name, "ownerReferences": owners}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}} if gpu else {}}
    return {"metadata": metadata, "spec": {"nodeName": where, "containers": [container], **spec}, "status": {}}


def test_gpu_users_are_found_by_all_that_gives_a_gpu() -> None:
    """On the stack's nodes, without monitors in DaemonSets and without pending pods."""
    pods = [
        _pod("asks", "n1", gpu=True),
        _pod("class", "n1", runtimeClassName="nvidia"),
        _pod("daemon", "n2", gpu=True, owner="DaemonSet"),
        _pod("monitor", "n2", runtimeClassName="nvidia", owner="DaemonSet"),
        _pod("plain", "n1"),
        _pod("elsewhere", "n3", gpu=True),
        _pod("waits", "", gpu=True),
    ]
    other = copy.deepcopy(node({}))
    other["metadata"]["name"] = "n2"
    plan = plan_destroy(all_objects(nodes=(node({}), other), others=tuple(pods)), stack(), crds=False)
    found = gpu_users(pods, ["n1", "n2"])
    assert {name: [pod["metadata"]["name"] for pod in each] for name, each in found.items()} == {
        "n1": ["asks", "class"],
        "n2": ["daemon"],
    }
    assert plan.users == found
    records = stack_objects(records=all_objects().members, others=tuple(pods), nodes=(node({}),))
    assert plan_destroy(records, stack(), crds=False).users == {}, "no driver goes"
