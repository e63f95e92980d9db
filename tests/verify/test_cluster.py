"""Which nodes are checked, and our checks of a cluster against hand-made answers of an API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from operator import itemgetter
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
from gpu_provision.model.findings import Finding, ForbiddenError
from gpu_provision.verify import cluster as nodes
from gpu_provision.verify.checks import cluster as checks
from gpu_provision.verify.cluster import GpuCluster
from tests import data_file
from tests.planning.builders import Stack, labelled, restarted

RECORD = "/api/v1/namespaces/gpu-operator-resources/configmaps/sandbox-validations"


class Answering(GpuCluster):
    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(SimpleNamespace(api=None), namespace="gpu-operator-resources")  # type: ignore[arg-type]
        self.answers = answers

    def get(self, path: str, labelSelector: str = "", **_: str) -> Any:  # noqa: N803 - a parameter of the API
        """Answer; pods of the driver and the toolkit there are none."""
        if COMPONENT in labelSelector:
            return {"items": []}
        answer = self.answers.get(path, {"raises": "NotFoundError", "evidence": ""})
        if "raises" in answer:
            kind = {each.__name__: each for each in (ForbiddenError, NotFoundError, UnavailableError)}[answer["raises"]]
            raise kind(Finding(code="GP305", what="x", evidence=answer["evidence"]))
        return answer

    text = get


OUTCOMES = {
    "failed": (AssertionError, pytest.fail.Exception),
    "skipped": pytest.skip.Exception,
    "NotFoundError": NotFoundError,
}


@pytest.mark.parametrize(
    "case", data_file.document(Path(__file__).with_suffix(".yaml").read_text()), ids=itemgetter("name")
)
def test_check_of_the_cluster(inventory_file: Path, case: dict[str, Any]) -> None:
    """Of a node with one GPU."""
    inventory, check = load(inventory_file), getattr(checks, f"test_{case['check']}")
    node = nodes.listed_nodes(inventory)[0]
    driver = replace(node.pool.driver, prefer_host=case.get("prefer_host", False))
    node = replace(node, pool=replace(node.pool, driver=driver))
    fixtures = {"inventory_node": node, "gpu_node": node, "gpu_inventory": inventory}
    fixtures["gpu_cluster"] = Answering(case["answers"])
    outcome = OUTCOMES.get(case["outcome"])
    with pytest.raises(outcome, match=case["words"]) if outcome else nullcontext():
        check(**{name: fixtures[name] for name in signature(check).parameters})


STATUS = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "1"}}
NODES = [
    {"metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)}, "status": STATUS}
    for node in labelled().nodes
]


class Validated(Answering):
    """A cluster that shows a stack on `NODES`."""

    def __init__(self, stack: Stack) -> None:
        record = {node: json.dumps({component: verdict}) for (component, node), verdict in stack.passed.items()}
        super().__init__({"/api/v1/nodes": {"items": NODES}, RECORD: {"data": record}})
        self.stack = stack

    def pods(self, *, node: str, labels: Mapping[str, str]) -> list[Manifest]:
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
    (node,) = (each for each in nodes.listed_nodes(stack.inventory) if each.name == "t4-1")
    CHECKS[of](node, stack.inventory, Validated(stack))
    stack.put(restarted(stack.pod("toolkit", "t4-1"), "2026-11-21T08:00:00Z"))
    with pytest.raises(AssertionError, match="has not run since the toolkit pod was replaced or restarted"):
        CHECKS[of](node, stack.inventory, Validated(stack))


def named(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {}}


def test_nodes_have_prerequisites_of_their_own_or_their_pools(inventory_file: Path) -> None:
    """What stands at the node counts."""
    own = "{name: two-1, pool: t4, host_prerequisites: {kernel_modules: [ib_umad]}}"
    inventory_file.write_text(inventory_file.read_text().replace("{name: two-1, pool: t4}", own))
    good, two, *_ = nodes.listed_nodes(load(inventory_file))
    assert good.prerequisites.kernel_modules == good.pool.host_prerequisites.kernel_modules
    assert two.prerequisites.kernel_modules == ("ib_umad",)


def test_nodes_that_pools_select_come_from_the_cluster(inventory_file: Path) -> None:
    """They have no SSH settings; those that are listed are not selected again."""
    inventory = load(inventory_file)
    assert not nodes.needs_cluster(inventory)
    text = inventory_file.read_text().replace(
        "  cpu:", "  spare: {gpu: {model: T4, count: 2}, node_selector: {x: y}}\n  cpu:"
    )
    inventory_file.write_text(text)
    inventory = load(inventory_file)
    assert nodes.needs_cluster(inventory)
    found = nodes.selected_nodes(inventory, [named("good-1", x="y"), named("new-1", x="y"), named("other-1")])
    assert [(node.name, node.gpus, node.node) for node in found] == [("new-1", 2, None)]
