"""States of each component on each node, from live objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning.states import LABELS_PENDING, NO_NODE, evaluate_states
from gpu_provision.planning.upgrades import OUTDATED
from gpu_provision.planning.verdicts import NEVER_RUN
from tests.components.builders import UBUNTU_22, fleet, inventory_with, nfd_labels, node, with_spec
from tests.planning.builders import (
    GPU_NODES,
    VALIDATED,
    Stack,
    labelled,
    outdated,
    relabelled,
    terminating,
    validation_pod,
    with_node,
    without_node,
)


def state(stack: Stack, component: str, node: str = "t4-1") -> NodeState:
    return evaluate_states(stack.situation)[component, node]


def test_a_cluster_as_declared_is_ready_everywhere() -> None:
    found = evaluate_states(Stack().situation)
    assert {item.state for item in found.values()} == {State.READY}, found
    assert {node for _, node in found} == {"", *GPU_NODES}, "nodes without a GPU have no state"


def test_nothing_exists_in_an_empty_cluster() -> None:
    stack = Stack(facts=fleet())
    stack.members, stack.pods, stack.passed = {}, {}, {}
    found = evaluate_states(stack.situation)
    assert found["driver", ""].state is State.PENDING
    assert "is missing" in found["driver", ""].reason
    assert found["driver", "t4-1"].reason == "no pod on this node yet"
    assert found["node_labels", "t4-1"].reason == LABELS_PENDING
    assert found["driver_validation", "t4-1"].reason == NEVER_RUN


def test_a_node_that_has_not_joined_fails_once() -> None:
    stack = Stack(facts=without_node(labelled(), "t4-2"))
    found = {component: item for (component, node), item in evaluate_states(stack.situation).items() if node == "t4-2"}
    assert {item.reason for item in found.values()} == {NO_NODE}
    assert [name for name, item in found.items() if item.state is State.FAILED] == ["nfd"]


PODS = [
    ("ready", lambda pod: pod, State.READY, ""),
    ("outdated", outdated, State.PROGRESSING, OUTDATED),
    ("of another template with the same installation", relabelled, State.READY, ""),
    ("terminating", terminating, State.PROGRESSING, "Terminating"),
    (
        "outdated and terminating",  # nothing more can be done about it, so its deadline must run
        lambda pod: terminating(outdated(pod)),
        State.PROGRESSING,
        "the previous pod is still terminating",
    ),
    ("starting", lambda pod: {**pod, "status": {"phase": "Pending"}}, State.PROGRESSING, "Pending"),
]


@pytest.mark.parametrize(("change", "expected", "reason"), [case[1:] for case in PODS], ids=[case[0] for case in PODS])
def test_a_daemon_is_as_its_pod(change: Any, expected: State, reason: str) -> None:
    stack = Stack()
    stack.put(change(stack.pod("driver", "t4-1")))
    found = state(stack, "driver")
    assert (found.state, found.reason) == (expected, reason)
    assert state(stack, "driver", "t4-2").state is State.READY


def test_feature_discovery_is_ready_once_its_labels_are_on_the_node() -> None:
    """MIG needs them; its container is ready before."""
    (own,) = (node for node in labelled().nodes if node.name == "t4-1")
    found = {key: value for key, value in own.labels.items() if "cuda" not in key}
    stack = Stack(facts=with_node(labelled(), "t4-1", labels=found))
    assert (item := state(stack, "gfd")).state is State.PROGRESSING
    assert item.reason == "has not labelled the node yet"
    assert state(stack, "gfd", "t4-2").state is State.READY


def test_a_ready_pod_counts_next_to_a_terminating_one() -> None:
    stack = Stack()
    old = terminating(outdated(stack.pod("toolkit", "t4-1")))
    stack.put({**old, "metadata": {**old["metadata"], "name": "old"}})
    assert state(stack, "toolkit").state is State.READY


@pytest.mark.parametrize("component", ["driver", "gfd"])
def test_a_node_that_is_not_ready_says_so(component: str) -> None:
    stack = Stack(facts=with_node(labelled(), "t4-1", ready=False))
    stack.put({**stack.pod(component, "t4-1"), "status": {"phase": "Running"}})
    assert state(stack, component).reason == "Running; the node is NotReady"
    stack.remove(stack.pod(component, "t4-1"))
    assert state(stack, component).reason == "no pod on this node yet; the node is NotReady"


@pytest.mark.parametrize(
    ("pools", "fields", "reason"),
    [
        ({"any": {"gpu": {}}}, {}, "has not labelled new-1 yet"),
        ({"any": {"gpu": {}}}, {"labels": nfd_labels(gpu=False)}, ""),
        ({"any": {"gpu": {}}}, {"ready": False}, ""),
        ({"any": {"gpu": {}}, "cpu": {"node_selector": {"fleet": "cpu"}}}, {"labels": {"fleet": "cpu"}}, ""),
        ({}, {}, ""),
    ],
)
def test_nodes_that_a_pool_for_any_gpus_may_get_are_awaited(
    pools: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    """Node Feature Discovery says which of them have a GPU."""
    chosen = inventory_with({"pools": pools})
    known = labelled(chosen=chosen)
    stack = Stack(chosen, replace(known, nodes=(*known.nodes, node("new-1", **fields))))
    schedule_workers(stack, 1)
    assert state(stack, "nfd", "").reason == reason


@pytest.mark.parametrize(("scheduled", "reason"), [(None, "is not observed yet"), (50, "has no pod on some nodes yet")])
def test_discovery_without_pods_is_awaited(scheduled: int | None, reason: str) -> None:
    chosen = inventory_with({"pools": {"any": {"gpu": {}}}})
    stack = Stack(chosen, labelled(chosen=chosen))
    schedule_workers(stack, scheduled)
    assert state(stack, "nfd", "").reason.endswith(reason)


def schedule_workers(stack: Stack, count: int | None) -> None:
    """Let the DaemonSet of Node Feature Discovery want so many pods; None: it is not observed."""
    ref = next(ref for ref in stack.members if ref.name == "node-feature-discovery-worker" and ref.kind == "DaemonSet")
    status = {} if count is None else {"observedGeneration": 1, "desiredNumberScheduled": count}
    live = stack.members[ref]
    stack.members[ref] = {**live, "metadata": {**live["metadata"], "generation": 1}, "status": status}


DEPLOYMENTS = [
    ({"observedGeneration": 0}, "is not observed yet"),
    ({"observedGeneration": 1}, "0 of 1 replicas available"),
    ({"observedGeneration": 1, "availableReplicas": 1}, "0 of 1 replicas available"),
    ({"observedGeneration": 1, "availableReplicas": 0, "updatedReplicas": 1}, "0 of 1 replicas available"),
]


@pytest.mark.parametrize(("status", "reason"), DEPLOYMENTS)
def test_a_deployment_is_ready_when_its_new_pods_are_available(status: dict[str, int], reason: str) -> None:
    """Old pods that still serve do not count."""
    stack = Stack()
    ref = next(ref for ref in stack.members if ref.kind == "Deployment")
    stack.members[ref] = {**stack.members[ref], "status": status}
    found = state(stack, "nfd", "")
    assert found.state is State.PROGRESSING
    assert found.reason.endswith(reason)


@pytest.mark.parametrize("status", [{}, {"conditions": None}])
def test_a_definition_must_be_established(status: dict[str, Any]) -> None:
    """A new definition has null there."""
    stack = Stack()
    ref = next(ref for ref in stack.members if ref.kind == "CustomResourceDefinition")
    stack.members[ref] = {**stack.members[ref], "status": status}
    assert "is not established" in state(stack, "nfd", "").reason


def test_a_missing_gpu_is_reported_once_labels_are_written() -> None:
    facts = with_node(fleet(), "t4-1", labels=nfd_labels(UBUNTU_22, gpu=False))
    stack = Stack(facts=labelled(facts))
    assert state(stack, "node_labels").state is State.PROGRESSING
    assert "1 x T4" in state(stack, "node_labels").reason
    assert "NFD sees no NVIDIA device" in state(stack, "node_labels").reason


def validation(stack: Stack, node: str = "t4-1") -> Manifest:
    """The manifest of one validation, whose result is forgotten."""
    del stack.passed["device_plugin_validation", node]
    return next(item for item in stack.validations() if node in item["metadata"]["name"])


SLOW = "failed to create containerd task: failed to create shim task: context deadline exceeded: unknown"
NO_DEVICE = "failed to create containerd task: unresolvable CDI devices nvidia.com/gpu=0"


def not_started(message: str) -> dict[str, Any]:
    """Return a pod's status whose container the runtime could not start."""
    times = {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": VALIDATED}
    ended = {"exitCode": 128, "reason": "StartError", "message": message, **times}
    return {"containerStatuses": [{"name": "c", "ready": False, "state": {"terminated": ended}}]}


VALIDATIONS = [
    ("Pending", {}, State.PROGRESSING, "Pending"),
    ("Succeeded", {}, State.READY, ""),
    ("Failed", {}, State.FAILED, "the validation failed: no CUDA-capable device"),
    ("Failed", {"reason": "Evicted", "message": "low on disk"}, State.PROGRESSING, "Evicted: low on disk"),
    ("Failed", {"reason": "UnexpectedAdmissionError"}, State.PROGRESSING, "UnexpectedAdmissionError"),
    ("Failed", not_started(SLOW), State.PROGRESSING, f"c: exit 128 ({SLOW})"),
    ("Failed", not_started(NO_DEVICE), State.FAILED, f"the validation failed: {NO_DEVICE}"),
]


@pytest.mark.parametrize(("phase", "status", "expected", "reason"), VALIDATIONS)
def test_a_validation_is_as_its_pod(phase: str, status: dict[str, Any], expected: State, reason: str) -> None:
    """A pod that its node turned away has shown nothing."""
    stack = Stack()
    stack.put(validation_pod(validation(stack), phase, **status))
    found = state(stack, "device_plugin_validation")
    assert (found.state, found.reason) == (expected, reason)


@pytest.mark.parametrize(("offered", "reason"), [(7, "offers 7"), (None, "offers 0"), (8, "")])
def test_a_node_has_to_offer_its_gpus(offered: int | None, reason: str) -> None:
    stack = Stack(facts=with_node(labelled(), "h100-1", gpus_allocatable=offered))
    found = state(stack, "device_plugin_validation", "h100-1")
    assert (found.state is State.READY) == (not reason)
    assert reason in found.reason


@pytest.mark.parametrize("offered", [4, 10])
def test_a_shared_gpu_is_offered_as_often_as_declared(offered: int) -> None:
    """A node that does not read its configuration yet is not ready."""
    chosen = with_spec("device_plugin", config_name="sharing", config_default="four")
    four = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
    facts = replace(labelled(chosen=chosen), config_maps={"sharing": {"four": four}})
    stack = Stack(chosen, with_node(facts, "t4-1", gpus_allocatable=offered))
    expected = State.READY if offered == 4 else State.PENDING
    assert state(stack, "device_plugin_validation").state is expected


@pytest.mark.parametrize("read", [{}, {"sharing": {"other": ""}}])
def test_gpus_of_an_unknown_configuration_may_be_shared(read: dict[str, dict[str, str]]) -> None:
    chosen = with_spec("device_plugin", config_name="sharing", config_default="four")
    facts = replace(labelled(chosen=chosen), config_maps=read)
    stack = Stack(chosen, with_node(facts, "t4-1", gpus_allocatable=10))
    assert state(stack, "device_plugin_validation").state is State.READY


def test_a_kept_off_operand_has_no_state_on_that_node() -> None:
    facts = labelled()
    node = next(node for node in facts.nodes if node.name == "t4-1")
    off = {**node.labels, "nvidia.com/gpu.deploy.dcgm-exporter": "false"}
    stack = Stack(facts=with_node(facts, "t4-1", labels=off))
    assert ("dcgm_exporter", "t4-1") not in evaluate_states(stack.situation)
    assert ("dcgm_exporter", "t4-2") in evaluate_states(stack.situation)


def test_a_taint_that_keeps_pods_off_is_the_reason() -> None:
    """No pod of a DaemonSet is made on such a node, and its controller reports nothing."""
    taint = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    stack = Stack(facts=with_node(labelled(), "t4-1", taints=(taint,)))
    stack.pods = {ref: pod for ref, pod in stack.pods.items() if pod["spec"].get("nodeName") != "t4-1"}
    assert state(stack, "driver").reason == "the pods do not tolerate the node's taint {team=ml:NoSchedule}"
    stack = Stack(facts=with_node(labelled(), "t4-1", taints=({**taint, "effect": "NoExecute"},)))
    manifest = next(item for item in stack.validations() if "t4-1" in item["metadata"]["name"])
    stack.passed = {}
    stack.pods[ref_of(manifest)] = validation_pod(manifest, "Pending")
    assert "team=ml:NoExecute" in state(stack, "device_plugin_validation").reason
