"""The pods that ask for a GPU: what they are, and when another one is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired
from gpu_provision.components.device_plugin_validation import pod_name
from gpu_provision.components.labels import DIGEST
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Gpu, Inventory
from tests.components import builders


def pods(inventory: Inventory | None = None, facts: ClusterFacts | None = None) -> dict[str, Any]:
    """Return the pods by the node that each is meant for."""
    manifests = desired(builders.context(inventory, facts or builders.fleet())).get("device_plugin_validation", [])
    return {node_of(item): item for item in manifests}


def node_of(pod: dict[str, Any]) -> str:
    """Return the node that a pod is bound to."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (field,) = term["matchFields"]
    assert (field["key"], field["operator"]) == ("metadata.name", "In")
    (name,) = field["values"]
    return str(name)


def test_a_long_node_name_gives_way_to_its_digest() -> None:
    """The name of a pod has 253 characters."""
    one, other = (pod_name("n" * 240 + end, "01234567") for end in "ab")
    assert len(one) <= 253
    assert one != other
    assert pod_name("host.example.org", "01234567") == "nvidia-device-plugin-validation-host.example.org-01234567"


def changed_spec(component: str, **fields: Any) -> Callable[[], tuple[Inventory, ClusterFacts]]:
    """Return a maker of the default situation with one spec changed."""
    return lambda: (builders.with_spec(component, **fields), builders.fleet())


def changed_node(**fields: str) -> Callable[[], tuple[Inventory, ClusterFacts]]:
    """Return a maker of the default situation with t4-1 changed."""
    first, *others = builders.fleet().nodes
    return lambda: (builders.inventory(), ClusterFacts(nodes=(replace(first, **fields), *others)))


def other_count() -> tuple[Inventory, ClusterFacts]:
    """Return the default situation with another number of GPUs."""
    pools = {**builders.POOLS, "t4": replace(builders.POOLS["t4"], gpu=Gpu("T4", 2))}
    return builders.inventory(pools=pools), builders.fleet()


def image(component: str) -> Any:
    """Return another version of a component's image."""
    return replace(getattr(builders.SPECS, component).image, version="v0.0.1")


CHANGES = {
    "driver": (changed_spec("driver", image=image("driver")), True),
    "toolkit": (changed_spec("toolkit", image=image("toolkit")), True),
    "validator": (changed_spec("validator", image=image("validator")), True),
    "plugin": (changed_spec("device_plugin", image=image("device_plugin")), True),
    "exporter": (changed_spec("dcgm_exporter", image=image("dcgm_exporter")), False),
    "machine": (changed_node(uid="another", boot_id="another"), False),  # the verdict tells, see test_verdicts
    "kernel": (changed_node(kernel="another"), False),
    "count": (other_count, True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_validation_is_repeated_when_its_content_changes(change: str) -> None:
    """And only then, so that a run without changes runs nothing."""
    make, is_repeated = CHANGES[change]
    before, after = pods()["t4-1"], pods(*make())["t4-1"]
    assert (before["metadata"]["labels"][DIGEST] != after["metadata"]["labels"][DIGEST]) == is_repeated


def test_without_a_device_plugin_nothing_asks_for_a_gpu() -> None:
    """The operator validator does not wait for it either."""
    chosen = builders.with_spec("device_plugin", enabled=False)
    assert pods(chosen) == {}
    validator = desired(builders.context(chosen))["validator"][-1]["spec"]["template"]["spec"]
    assert "plugin-validation" not in [item["name"] for item in validator["initContainers"]]


@pytest.mark.parametrize(
    ("labels", "is_validated"),
    [
        ({"nvidia.com/gpu.deploy.operands": "false"}, False),
        ({"nvidia.com/gpu.deploy.container-toolkit": "false"}, False),
        ({"nvidia.com/gpu.deploy.device-plugin": "false"}, False),
        ({"nvidia.com/gpu.deploy.driver": "pre-installed"}, True),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, True),
    ],
)
def test_a_node_that_keeps_the_operands_off_is_not_validated(labels: dict[str, str], *, is_validated: bool) -> None:
    """It could never pass; a pause ends."""
    first, *others = builders.fleet().nodes
    facts = ClusterFacts(nodes=(replace(first, labels={**first.labels, **labels}), *others))
    assert ("t4-1" in pods(None, facts)) == is_validated
    nodes = (replace(builders.NODES[0], labels=labels), *builders.NODES[1:])
    assert ("t4-1" in pods(builders.inventory(nodes=nodes))) == is_validated


def test_a_node_whose_gpu_is_gone_is_not_validated() -> None:
    """Its labels say what is wrong with it."""
    _, *others = builders.fleet().nodes
    gone = builders.node("t4-1", labels=builders.nfd_labels(gpu=False))
    assert "t4-1" not in pods(None, ClusterFacts(nodes=(gone, *others)))
