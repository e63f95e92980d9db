"""Our checks of a cluster, against hand-made answers of an API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components.labels import COMPONENT
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.inventory import load
from gpu_provision.kube.errors import NotFoundError, UnavailableError
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.findings import Finding, ProvisionError, Refused
from gpu_provision.model.inventory import Inventory
from gpu_provision.verify import cluster as nodes
from gpu_provision.verify.checks import cluster as checks
from gpu_provision.verify.cluster import DeclaredNode, GpuCluster
from tests.planning.builders import Stack, labelled, restarted

NODE = "/api/v1/nodes/good-1"
PODS = "/api/v1/namespaces/gpu-operator-resources/pods"
METRICS = f"{PODS}/dcgm-x:9400/proxy/metrics"
RECORD = "/api/v1/namespaces/gpu-operator-resources/configmaps/sandbox-validations"


class Answering(GpuCluster):
    """A cluster that has an answer by path; others are not found."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        """Keep the answers; an exception is raised."""
        super().__init__(None, namespace="gpu-operator-resources")
        self.answers = answers

    def get(self, path: str, labelSelector: str = "", **_: str) -> Any:  # noqa: N803 - a parameter of the API
        """Answer; pods of the driver and the toolkit there are none."""
        if COMPONENT in labelSelector:
            return {"items": []}
        answer = self.answers.get(path, NotFoundError(Finding(code="GP305", what="not found")))
        if isinstance(answer, ProvisionError):
            raise answer
        return answer

    text = get


@pytest.fixture
def inventory(inventory_file: Path) -> Inventory:
    """The inventory of these tests."""
    return load(inventory_file)


@pytest.fixture
def node(inventory: Inventory) -> DeclaredNode:
    """A node with one GPU."""
    return nodes.listed(inventory)[0]


def live(*, ready: str = "True", gpus: str = "1", **labels: str) -> dict[str, Any]:
    """Return a Node object."""
    conditions = [{"type": "Ready", "status": ready, "message": "kubelet stopped"}]
    return {
        "metadata": {"name": "good-1", "uid": "u", "labels": labels},
        "status": {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus}},
    }


def test_ready_node_passes(node: DeclaredNode) -> None:
    """By the condition of its kubelet."""
    checks.test_the_node_is_ready(node, Answering({NODE: live()}))


def test_node_that_is_not_ready_fails_with_its_kubelets_words(node: DeclaredNode) -> None:
    """They say more than the condition's name."""
    with pytest.raises(AssertionError, match="not Ready: kubelet stopped"):
        checks.test_the_node_is_ready(node, Answering({NODE: live(ready="False")}))


def test_node_that_is_not_there_fails(node: DeclaredNode) -> None:
    """It may go by another name."""
    with pytest.raises(pytest.fail.Exception, match="no node of this name"):
        checks.test_the_node_is_ready(node, Answering({}))


def test_labels_are_compared_one_by_one(node: DeclaredNode, inventory: Inventory) -> None:
    """All that differ are told."""
    found = live(**{"nvidia.com/gpu.present": "false"})
    with pytest.raises(AssertionError, match=r"gpu.present is false, not true; .*inventory is missing, not test"):
        checks.test_the_node_carries_the_labels_of_its_pool(node, inventory, Answering({NODE: found}))


@pytest.mark.parametrize("gpus", ["0", "2"])
def test_other_number_of_allocatable_gpus_fails(node: DeclaredNode, inventory: Inventory, gpus: str) -> None:
    """More are as wrong as fewer, unless GPUs are shared."""
    with pytest.raises(AssertionError, match=f"allocatable nvidia.com/gpu is {gpus}, declared are 1"):
        checks.test_kubernetes_offers_the_declared_gpus(node, inventory, Answering({NODE: live(gpus=gpus)}))


@pytest.mark.parametrize(
    ("found", "passes"), [("595.91.07", True), ("535.183.01", False), ("595.91", False), ("missing", False)]
)
def test_driver_version_is_that_of_the_label(
    node: DeclaredNode,
    inventory: Inventory,
    found: str,
    passes: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """GPU Feature Discovery writes it."""
    labels = {} if found == "missing" else {"nvidia.com/cuda.driver-version.full": found}
    cluster = Answering({NODE: live(**labels)})
    if passes:
        checks.test_the_driver_is_of_the_declared_version(node, inventory, cluster)
        return
    with pytest.raises(AssertionError, match=rf"full is {found}, not 595\.91\.07"):
        checks.test_the_driver_is_of_the_declared_version(node, inventory, cluster)


def test_driver_version_is_nobodys_to_declare_where_the_host_has_its_own(
    node: DeclaredNode, inventory: Inventory
) -> None:
    """``driver.enabled: auto`` has left it there, which the node's labels tell."""
    auto = replace(node, pool=replace(node.pool, driver=replace(node.pool.driver, prefer_host=True)))
    own = {"nvidia.com/gpu.deploy.driver": "pre-installed", "nvidia.com/cuda.driver-version.full": "550.90.07"}
    with pytest.raises(pytest.skip.Exception, match="the driver belongs to the host"):
        checks.test_the_driver_is_of_the_declared_version(auto, inventory, Answering({NODE: live(**own)}))
    own.pop("nvidia.com/gpu.deploy.driver")
    with pytest.raises(AssertionError, match=r"is 550\.90\.07, not 595"):
        checks.test_the_driver_is_of_the_declared_version(auto, inventory, Answering({NODE: live(**own)}))


def exporter(gpus: int) -> str:
    """Return metrics of so many GPUs, as the exporter prints them."""
    lines = [
        f'{name}{{gpu="{number}",UUID="GPU-{number}",device="nvidia{number}"}} 42'
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
        for number in range(gpus)
    ]
    return "\n".join(["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", *lines])


def with_exporter(answer: Any) -> Answering:
    """Return a cluster whose exporter answers so."""
    return Answering({PODS: {"items": [{"metadata": {"name": "dcgm-x"}}]}, METRICS: answer})


def test_exporter_has_metrics_of_every_gpu(node: DeclaredNode, inventory: Inventory) -> None:
    """Counted by the GPUs' numbers, whatever the metrics."""
    checks.test_dcgm_exporter_answers_for_every_gpu(node, inventory, with_exporter(exporter(1)))
    with pytest.raises(AssertionError, match="its metrics are of 2 GPUs, declared are 1"):
        checks.test_dcgm_exporter_answers_for_every_gpu(node, inventory, with_exporter(exporter(2)))


def error(kind: type[ProvisionError], evidence: str) -> ProvisionError:
    """Return what the client makes of an answer."""
    return kind(Finding(code="GP305", what="x", evidence=evidence))


def test_exporter_that_does_not_answer_fails(node: DeclaredNode, inventory: Inventory) -> None:
    """That the API server answers 503 in its place does not make the API server silent."""
    cluster = with_exporter(error(UnavailableError, "error trying to reach service: connection refused"))
    with pytest.raises(pytest.fail.Exception, match="connection refused"):
        checks.test_dcgm_exporter_answers_for_every_gpu(node, inventory, cluster)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (error(Refused, ""), "no right to get pods/proxy"),
        (error(NotFoundError, "the server could not find the requested resource"), "no proxy to pods"),
    ],
)
def test_exporter_that_cannot_be_asked_is_skipped(
    node: DeclaredNode, inventory: Inventory, answer: ProvisionError, reason: str
) -> None:
    """For want of a right, or of a way."""
    with pytest.raises(pytest.skip.Exception, match=reason):
        checks.test_dcgm_exporter_answers_for_every_gpu(node, inventory, with_exporter(answer))


def test_exporter_without_metrics_is_no_missing_proxy(node: DeclaredNode, inventory: Inventory) -> None:
    """Its own 404 is a failure."""
    with pytest.raises(NotFoundError):
        checks.test_dcgm_exporter_answers_for_every_gpu(
            node, inventory, with_exporter(error(NotFoundError, "404 page not found"))
        )


@pytest.mark.parametrize(
    ("strategy", "updated", "available", "said"),
    [
        ("RollingUpdate", 3, 3, ""),
        ("RollingUpdate", 2, 3, "gfd has 2 of 3 pods of its present content"),
        ("RollingUpdate", 3, 1, "gfd has 1 of 3 pods available"),
        ("OnDelete", 0, 3, ""),
        ("OnDelete", 0, 1, "gfd has 1 of 3 pods available"),
    ],
)
def test_daemonsets_have_all_their_pods(
    inventory: Inventory, strategy: str, updated: int, available: int, said: str
) -> None:
    """Of the present content, and available. Driver pods that run are patched, and keep their revision."""
    status = {
        "desiredNumberScheduled": 3,
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "observedGeneration": 1,
    }
    item = {"metadata": {"name": "gfd", "generation": 1}, "spec": {"updateStrategy": {"type": strategy}}}
    cluster = Answering({"/apis/apps/v1/daemonsets": {"items": [{**item, "status": status}]}})
    if not said:
        checks.test_every_daemonset_is_complete(inventory, cluster)
        return
    with pytest.raises(AssertionError, match=said):
        checks.test_every_daemonset_is_complete(inventory, cluster)


def test_daemonset_that_its_controller_has_not_seen_yet_is_incomplete(inventory: Inventory) -> None:
    """Its figures are of what was before."""
    item = {"metadata": {"name": "driver", "generation": 2}, "status": {"observedGeneration": 1}}
    with pytest.raises(AssertionError, match="driver was changed a moment ago"):
        checks.test_every_daemonset_is_complete(inventory, Answering({"/apis/apps/v1/daemonsets": {"items": [item]}}))


def test_cluster_without_the_stack_is_told_so(inventory: Inventory) -> None:
    """No DaemonSet at all would be complete otherwise."""
    with pytest.raises(AssertionError, match="nothing was applied"):
        checks.test_every_daemonset_is_complete(inventory, Answering({"/apis/apps/v1/daemonsets": {"items": []}}))


NODES = [
    {**live(), "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)}}
    for node in labelled().nodes
]


class Validated(Answering):
    """A cluster that shows a stack on `NODES`."""

    def __init__(self, stack: Stack) -> None:
        """Show a stack, with its record."""
        record = {node: json.dumps({component: verdict}) for (component, node), verdict in stack.passed.items()}
        super().__init__({"/api/v1/nodes": {"items": NODES}, RECORD: {"data": record}})
        self.stack = stack

    def pods(self, *, node: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the pods of a component on a node."""
        found = (pod for pod in self.stack.pods.values() if node_of(pod) == node)
        return [pod for pod in found if pod["metadata"]["labels"][COMPONENT] == labels[COMPONENT]]


CHECKS = {
    "validator": checks.test_vector_add_has_passed_with_this_driver_and_toolkit,
    "device_plugin": checks.test_vector_add_has_passed_on_a_gpu_that_kubernetes_granted,
}


@pytest.mark.parametrize("of", CHECKS)
def test_vector_add_has_passed_since_what_it_stands_on_started(of: str) -> None:
    """By the validator's pod, and by the record of pods that are gone."""
    stack = Stack(facts=ClusterFacts(nodes=tuple(map(node_facts, NODES))))
    (node,) = (each for each in nodes.listed(stack.inventory) if each.name == "t4-1")
    CHECKS[of](node, stack.inventory, Validated(stack))
    stack.put(restarted(stack.pod("toolkit", "t4-1"), "2026-11-21T08:00:00Z"))
    with pytest.raises(AssertionError, match="has not run since the toolkit pod was replaced or restarted"):
        CHECKS[of](node, stack.inventory, Validated(stack))


def check_vector_add(node: DeclaredNode, inventory: Inventory, cluster: GpuCluster) -> None:
    checks.test_vector_add_has_passed_with_this_driver_and_toolkit(node, inventory, cluster)


def test_vector_add_is_skipped_where_a_label_keeps_it_away(node: DeclaredNode, inventory: Inventory) -> None:
    """Somebody said so on purpose."""
    cluster = Answering({"/api/v1/nodes": {"items": [live(**{"nvidia.com/gpu.deploy.operands": "false"})]}})
    with pytest.raises(pytest.skip.Exception, match="keeps validations away"):
        check_vector_add(node, inventory, cluster)
