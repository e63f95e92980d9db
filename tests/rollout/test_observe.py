"""What a snapshot says of objects as a cluster shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.rollout import states
from gpu_provision.rollout.installation import installation
from gpu_provision.rollout.observe import Declared, Seen, fleet_digest, observe
from gpu_provision.rollout.snapshot import DriverPod, Node, Wanted
from gpu_provision.rollout.states import UpgradeState

READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
STACK, COMPONENT = "gpu-provision.io/stack", "gpu-provision.io/component"


def template(digest: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "d", "env": [{"name": "DRIVER_CONFIG_DIGEST", "value": digest}]}]}}


def node(name: str = "n1", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7", **metadata}, "spec": spec or {}, "status": READY}


def ours(component: str, **parts: Any) -> dict[str, Any]:
    """Return a pod of the stack on node n1."""
    owners = [{"kind": "DaemonSet", "name": "driver", "controller": True}]
    labels = {STACK: "prod", COMPONENT: component, **parts.pop("labels", {})}
    metadata = {"name": component, "uid": f"{component}-1", "labels": labels, "ownerReferences": owners}
    content = template(parts.pop("digest", "old"))["spec"]
    metadata |= parts.pop("metadata", {})
    return {"metadata": metadata, "spec": {**content, "nodeName": "n1"}, "status": parts.pop("status", READY)}


def work(**resources: str) -> dict[str, Any]:
    containers = [{"name": "m", "resources": {"limits": resources}}]
    metadata = {"name": "train", "namespace": "default", "uid": "w-1"}
    return {"metadata": metadata, "spec": {"nodeName": "n1", "containers": containers}, "status": {"phase": "Running"}}


def seen_node(*pods: dict[str, Any], of: dict[str, Any] | None = None) -> Node:
    declared = {"n1": Declared(domain="d", position=3, template=template("new"), version="560")}
    (found,) = observe(declared, Seen(nodes=[of or node()], pods=pods), now=1.0).nodes
    return found


def test_nodes_come_in_the_order_of_the_inventory_and_strangers_are_left_out() -> None:
    """A node that is declared and does not exist is no node."""
    declared = {
        name: Declared(domain="d", position=place, template=template("new")) for place, name in enumerate("cba")
    }
    live = [node("a"), node("c"), node("stranger")]
    snapshot = observe(declared, Seen(nodes=live, pods=()), now=5.0, previous=fleet_digest(declared))
    assert [each.name for each in snapshot.nodes] == ["c", "a"]
    assert snapshot.now == 5.0
    assert snapshot.is_rolling_back, "what is wanted is what was there before"


def test_the_driver_is_compared_by_what_its_installation_depends_on() -> None:
    """The rest of the pod template may differ without a restart."""
    found = seen_node(ours("driver", digest="old"))
    assert found.wanted == Wanted("new", "560")
    assert found.driver == DriverPod(uid="driver-1", digest="old", is_ready=True)
    assert installation({"spec": {"containers": [{"name": "d"}]}}) == ""


def test_state_memory_and_cordon_are_read_off_the_node() -> None:
    """Whose cordon it is stands in the API server's books."""
    books = [
        {"manager": "kubelet", "time": "2026-11-21T09:00:00Z", "fieldsV1": {"f:status": {}}},
        {"manager": "gpu-provision", "time": "2026-11-21T07:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
        {"manager": "kubectl-cordon", "time": "2026-11-21T08:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]
    live = node(
        spec={"unschedulable": True},
        labels={states.STATE: "pod-restart-required"},
        annotations={states.SINCE: "12"},
        managedFields=books,
    )
    found = seen_node(of=live)
    assert found.state is UpgradeState.POD_RESTART_REQUIRED
    assert (found.revision, found.since(), found.is_cordoned) == ("7", 12.0, True)
    assert found.cordoned_by == "kubectl-cordon"
    assert seen_node().cordoned_by == ""


def test_a_driver_pod_that_stays_counts_more_than_one_that_goes() -> None:
    """Both are there for a moment while one is replaced."""
    going = ours("driver", metadata={"uid": "driver-0", "deletionTimestamp": "2026-11-21T08:00:00Z"})
    assert seen_node(going, ours("driver", digest="new")).driver == DriverPod(
        uid="driver-1", digest="new", is_ready=True
    )
    alone = seen_node(going).driver
    assert alone is not None
    assert (alone.is_terminating, alone.is_ready) == (True, False)


@pytest.mark.parametrize(
    ("operand", "plugin", "offered", "offers"),
    [
        ("true", READY, {"nvidia.com/gpu": "1", "cpu": "8"}, True),
        ("true", READY, {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}, True),
        ("true", READY, {"nvidia.com/gpu": "0", "cpu": "8"}, False),
        ("true", {"phase": "Running"}, {"nvidia.com/gpu": "1"}, False),
        ("true", None, {"nvidia.com/gpu": "1"}, False),
        ("paused-for-driver-upgrade", None, {"nvidia.com/gpu": "1"}, False),
        ("false", None, {}, True),
    ],
)
def test_a_node_offers_gpus_with_a_ready_device_plugin(
    operand: str, plugin: dict[str, Any] | None, offered: dict[str, str], *, offers: bool
) -> None:
    """What the kubelet offers may be old for some seconds; where a label keeps the plugin off, nothing is to come."""
    live = node(labels={"nvidia.com/gpu.deploy.device-plugin": operand})
    live["status"] = {**READY, "allocatable": offered}
    pods = [] if plugin is None else [ours("device_plugin", status=plugin)]
    declared = Declared(domain="d", template=template("new"), position=0, has_device_plugin=True)
    for wish, expected in ((declared, offers), (replace(declared, has_device_plugin=False), True)):
        (found,) = observe({"n1": wish}, Seen(nodes=[live], pods=pods), now=1.0).nodes
        assert found.offers_gpus is expected


def test_restarts_are_those_of_containers_that_are_not_ready() -> None:
    """A container that has found its feet is no trouble."""
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "k8s-driver-manager", "ready": True, "restartCount": 20}],
        "containerStatuses": [{"name": "nvidia-driver-ctr", "ready": False, "restartCount": 4}],
    }
    driver = seen_node(ours("driver", status=status)).driver
    assert driver is not None
    assert (driver.restarts, driver.is_held_up) == (4, False)


@pytest.mark.parametrize(("resource", "held_up"), [("nvidia.com/gpu", True), ("cpu", False)])
def test_a_driver_is_held_up_by_gpu_pods_once_its_manager_has_given_up(resource: str, *, held_up: bool) -> None:
    """Such a driver pod was deleted by hand or by a reboot; the reference never empties its node."""
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "k8s-driver-manager", "ready": False, "restartCount": 1}],
    }
    driver = seen_node(ours("driver", status=status), work(**{resource: "1"})).driver
    assert driver is not None
    assert driver.is_held_up is held_up


def test_pods_of_others_are_in_the_way_and_ours_are_not() -> None:
    """The driver manager pauses our operands by itself."""
    found = seen_node(work(**{"nvidia.com/gpu": "1"}), ours("device_plugin"))
    assert [pod.name for pod in found.pods] == ["train"]
