"""Which nodes are checked, and our checks of a cluster against hand-made answers of an API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.components.labels import COMPONENT
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.inventory import load
from gpu_provision.kube.errors import NotFoundError, UnavailableError
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.findings import Finding, ForbiddenError, ProvisionError
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
        super().__init__(SimpleNamespace(api=None), namespace="gpu-operator-resources")  # type: ignore[arg-type]
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
    return load(inventory_file)


@pytest.fixture
def node(inventory: Inventory) -> DeclaredNode:
    return nodes.listed(inventory)[0]


def live(*, ready: str = "True", gpus: str = "1", **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "message": "kubelet stopped"}]
    return {
        "metadata": {"name": "good-1", "uid": "u", "labels": labels},
        "status": {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus}},
    }


def auto(declared: DeclaredNode) -> DeclaredNode:
    return replace(declared, pool=replace(declared.pool, driver=replace(declared.pool.driver, prefer_host=True)))


def exporter(gpus: int) -> str:
    lines = [
        f'{name}{{gpu="{number}",UUID="GPU-{number}",device="nvidia{number}"}} 42'
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
        for number in range(gpus)
    ]
    return "\n".join(["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", *lines])


def with_exporter(answer: Any) -> Answering:
    return Answering({PODS: {"items": [{"metadata": {"name": "dcgm-x"}}]}, METRICS: answer})


def error(kind: type[ProvisionError], evidence: str) -> ProvisionError:
    return kind(Finding(code="GP305", what="x", evidence=evidence))


def daemonset(strategy: str, updated: int, available: int, generation: int = 1) -> Answering:
    status = {
        "desiredNumberScheduled": 3,
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "observedGeneration": 1,
    }
    item = {"metadata": {"name": "gfd", "generation": generation}, "spec": {"updateStrategy": {"type": strategy}}}
    return Answering({DAEMONSETS: {"items": [{**item, "status": status}]}})


DAEMONSETS = "/apis/apps/v1/daemonsets"
LABEL = "nvidia.com/cuda.driver-version.full"
PREINSTALLED = {"nvidia.com/gpu.deploy.driver": "pre-installed", LABEL: "550.90.07"}
FAILED, SKIPPED = (AssertionError, pytest.fail.Exception), pytest.skip.Exception
READY, LABELS = checks.test_the_node_is_ready, checks.test_the_node_carries_the_labels_of_its_pool
GPUS, VERSION = checks.test_kubernetes_offers_the_declared_gpus, checks.test_the_driver_is_of_the_declared_version
EXPORTER, DAEMONS = checks.test_dcgm_exporter_answers_for_every_gpu, checks.test_every_daemonset_is_complete
CASES: dict[str, tuple[Callable[..., None], Answering, Any, str]] = {
    "a ready node": (READY, Answering({NODE: live()}), None, ""),
    "the words of its kubelet": (READY, Answering({NODE: live(ready="False")}), FAILED, "not Ready: kubelet stopped"),
    "a node that is not there": (READY, Answering({}), FAILED, "no node of this name"),
    "all labels that differ": (
        LABELS,
        Answering({NODE: live(**{"nvidia.com/gpu.present": "false"})}),
        FAILED,
        "gpu.present is false, not true; .*inventory is missing, not test",
    ),
    "fewer GPUs": (GPUS, Answering({NODE: live(gpus="0")}), FAILED, "nvidia.com/gpu is 0, declared are 1"),
    "more GPUs": (GPUS, Answering({NODE: live(gpus="2")}), FAILED, "nvidia.com/gpu is 2, declared are 1"),
    "the declared driver": (VERSION, Answering({NODE: live(**{LABEL: "595.91.07"})}), None, ""),
    "another driver": (VERSION, Answering({NODE: live(**{LABEL: "535.183.01"})}), FAILED, "535.183.01, not 595.91.07"),
    "half a version": (VERSION, Answering({NODE: live(**{LABEL: "595.91"})}), FAILED, "is 595.91, not 595.91.07"),
    "no version": (VERSION, Answering({NODE: live()}), FAILED, "is missing, not 595.91.07"),
    "metrics of every GPU": (EXPORTER, with_exporter(exporter(1)), None, ""),
    "metrics of another GPU": (EXPORTER, with_exporter(exporter(2)), FAILED, "are of 2 GPUs, declared are 1"),
    "an exporter that is down": (EXPORTER, with_exporter(error(UnavailableError, "refused")), FAILED, "refused"),
    "no right to ask it": (EXPORTER, with_exporter(error(ForbiddenError, "")), SKIPPED, "no right to get pods/proxy"),
    "no way to it": (
        EXPORTER,
        with_exporter(error(NotFoundError, "the server could not find the requested resource")),
        SKIPPED,
        "no proxy to pods",
    ),
    "its own 404": (EXPORTER, with_exporter(error(NotFoundError, "404 page not found")), NotFoundError, "404"),
    "complete DaemonSets": (DAEMONS, daemonset("RollingUpdate", 3, 3), None, ""),
    "pods of another content": (DAEMONS, daemonset("RollingUpdate", 2, 3), FAILED, "gfd has 2 of 3 pods"),
    "pods that are not available": (DAEMONS, daemonset("RollingUpdate", 3, 1), FAILED, "1 of 3 pods available"),
    "driver pods keep their revision": (DAEMONS, daemonset("OnDelete", 0, 3), None, ""),
    "and have to be available": (DAEMONS, daemonset("OnDelete", 0, 1), FAILED, "1 of 3 pods available"),
    "figures of what was before": (DAEMONS, daemonset("OnDelete", 3, 3, 2), FAILED, "was changed a moment ago"),
    "nothing of the stack": (DAEMONS, Answering({DAEMONSETS: {"items": []}}), FAILED, "nothing was applied"),
}


def run(check: Callable[..., None], node: DeclaredNode, inventory: Inventory, cluster: GpuCluster) -> None:
    fixtures = {"inventory_node": node, "gpu_node": node, "gpu_inventory": inventory, "gpu_cluster": cluster}
    check(**{name: fixtures[name] for name in signature(check).parameters})


@pytest.mark.parametrize("case", CASES)
def test_check_of_the_cluster(node: DeclaredNode, inventory: Inventory, case: str) -> None:
    check, cluster, outcome, words = CASES[case]
    with pytest.raises(outcome, match=words) if outcome else nullcontext():
        run(check, node, inventory, cluster)


def test_no_version_is_declared_where_the_host_has_a_driver(node: DeclaredNode, inventory: Inventory) -> None:
    """``driver.enabled: auto`` has left it there, which the node's labels tell."""
    with pytest.raises(pytest.skip.Exception, match="the driver belongs to the host"):
        run(VERSION, auto(node), inventory, Answering({NODE: live(**PREINSTALLED)}))
    with pytest.raises(AssertionError, match=r"is 550\.90\.07, not 595"):
        run(VERSION, auto(node), inventory, Answering({NODE: live(**{LABEL: "550.90.07"})}))


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
    """The label is deliberate."""
    cluster = Answering({"/api/v1/nodes": {"items": [live(**{"nvidia.com/gpu.deploy.operands": "false"})]}})
    with pytest.raises(pytest.skip.Exception, match="keeps validations away"):
        check_vector_add(node, inventory, cluster)


def named(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {}}


def test_nodes_have_prerequisites_of_their_own_or_their_pools(inventory_file: Path) -> None:
    """What stands at the node counts."""
    own = "{name: two-1, pool: t4, host_prerequisites: {kernel_modules: [ib_umad]}}"
    inventory_file.write_text(inventory_file.read_text().replace("{name: two-1, pool: t4}", own))
    good, two, *_ = nodes.listed(load(inventory_file))
    assert good.prerequisites.kernel_modules == good.pool.host_prerequisites.kernel_modules
    assert two.prerequisites.kernel_modules == ("ib_umad",)


def test_nodes_that_pools_select_come_from_the_cluster(inventory_file: Path) -> None:
    """They have no SSH settings; those that are listed are not selected again."""
    inventory = load(inventory_file)
    assert not nodes.asks_cluster(inventory)
    text = inventory_file.read_text().replace(
        "  cpu:", "  spare: {gpu: {model: T4, count: 2}, node_selector: {x: y}}\n  cpu:"
    )
    inventory_file.write_text(text)
    inventory = load(inventory_file)
    assert nodes.asks_cluster(inventory)
    found = nodes.selected(inventory, [named("good-1", x="y"), named("new-1", x="y"), named("other-1")])
    assert [(node.name, node.gpus, node.node) for node in found] == [("new-1", 2, None)]
