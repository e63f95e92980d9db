"""Labels of GPU nodes. Those of a usual fleet, and of a host with a driver of its own, are golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import labels, render_manifests
from gpu_provision.model.cluster import ClusterFacts
from tests import data_file
from tests.components import builders

CASES: dict[str, dict[str, Any]] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def labels_of(live: dict[str, str], case: dict[str, Any]) -> dict[str, Any]:
    known = ClusterFacts(nodes=(builders.node("t4-1", labels=live),), host_drivers=case.get("host_drivers", {}))
    manifests = render_manifests(builders.context(builders.inventory_with(case.get("inventory", {})), known))[
        "node_labels"
    ]
    return next((item["metadata"]["labels"] for item in manifests if item["metadata"]["name"] == "t4-1"), {})


@pytest.mark.parametrize("name", CASES)
def test_a_node_gets_its_labels(name: str) -> None:
    case = CASES[name]
    result = labels_of({**builders.nfd_labels(), **case.get("live", {})}, case)
    assert {key: result.get(key, "absent") for key in case.get("gets", {})} == case.get("gets", {})
    assert "only" not in case or result == case["only"]


def test_before_nfd_has_spoken_the_declared_gpu_counts() -> None:
    """The run waits for NFD before it writes; the plan must not say the opposite meanwhile."""
    assert labels_of({}, {}) == labels_of(builders.nfd_labels(), {})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("feature.node.kubernetes.io/pci-10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-0302_10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-0300_10de.present", "true", True),
        ("feature.node.kubernetes.io/pci-10de.present", "false", False),
        ("feature.node.kubernetes.io/pci-8086.present", "true", False),
    ],
)
def test_a_gpu_is_seen_by_any_of_nfds_labels(key: str, value: str, *, expected: bool) -> None:
    """Whichever form the cluster's own NFD writes."""
    assert labels.has_gpu({key: value}) is expected
    assert labels.has_nfd_labels({key: value})
