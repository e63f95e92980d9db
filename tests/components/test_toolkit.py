"""Container runtimes that clash or lack CDI; what the toolkit gets for each is in golden files."""

from __future__ import annotations

import pytest

from gpu_provision.components import problems, render_manifests
from gpu_provision.components.toolkit_runtimes import runtime_of
from gpu_provision.model.cluster import ClusterFacts
from tests.components import builders

WITHOUT_CDI = builders.inventory(specs=builders.specs(cdi_enabled=False))


def fleet(*runtimes: str, version: str = "") -> ClusterFacts:
    """Return facts in which t4-1, t4-2 and h100-1 run these container runtimes, all of one version."""
    nodes = (("t4-1", builders.UBUNTU_22), ("t4-2", builders.UBUNTU_22), ("h100-1", builders.UBUNTU_24))
    pairs = zip(nodes, runtimes, strict=True)
    return ClusterFacts(
        nodes=tuple(
            builders.node(name, os, container_runtime=runtime, container_runtime_version=version)
            for (name, os), runtime in pairs
        )
    )


@pytest.mark.parametrize(
    ("runtime", "distribution", "expected"),
    [
        ("rkt", "", "containerd"),  # what is not known counts as what most clusters run
        ("", "", "containerd"),
        ("docker", "k3s", "docker"),  # k3s with --docker: its own places say nothing
        ("containerd", "k3s", "k3s"),
    ],
)
def test_the_runtime_is_that_which_the_node_reports(runtime: str, distribution: str, expected: str) -> None:
    node = builders.node("t4-1", container_runtime=runtime, distribution=distribution)
    targets = builders.context(facts=ClusterFacts(nodes=(node,))).targets
    assert {target.name: runtime_of(target) for target in targets}["t4-1"] == expected


def test_a_toolkit_of_the_hosts_own_is_left_alone() -> None:
    assert "toolkit" not in render_manifests(builders.case_context("with-drivers-and-toolkits-of-the-hosts"))


@pytest.mark.parametrize(
    ("runtime", "version", "codes"),
    [
        ("containerd", "1.6.20", ["GP407", "GP409"]),
        ("containerd", "1.7.0", []),
        ("cri-o", "1.25.3", ["GP409"]),
        ("docker", "27.0.1", ["GP409"]),
    ],
)
def test_an_nri_plugin_needs_a_runtime_with_nri(runtime: str, version: str, codes: list[str]) -> None:
    chosen = builders.inventory_with({"cdi": {"nri_plugin_enabled": True}})
    found = problems(builders.context(chosen, fleet(runtime, runtime, runtime, version=version)))
    assert [finding.code for finding in found] == codes
    assert all("h100-1, t4-1, t4-2" in finding.where for finding in found)


def test_without_cdi_a_mix_of_crio_and_others_is_a_problem() -> None:
    """No runtime class would fit both."""
    mixed = fleet("cri-o", "containerd", "containerd")
    (finding,) = problems(builders.context(WITHOUT_CDI, mixed))
    assert finding.code == "GP406"
    assert "t4-1" in finding.where
    assert problems(builders.context(facts=mixed)) == ()


@pytest.mark.parametrize(
    ("runtime", "version", "codes"),
    [
        ("containerd", "1.6.20~ds1", ["GP407"]),
        ("containerd", "1.7.0", []),
        ("containerd", "v2.1.4-k3s1", []),
        ("cri-o", "1.22.5", ["GP407"]),
        ("cri-o", "1.30.0", []),
        ("docker", "19.3.1", []),
        ("containerd", "", []),
    ],
)
def test_a_runtime_without_cdi_is_a_problem_unless_cdi_is_off(runtime: str, version: str, codes: list[str]) -> None:
    """Such a node's pods would be granted GPUs that never appear in their containers."""
    facts = fleet(runtime, runtime, runtime, version=version)
    result = problems(builders.context(facts=facts))
    assert [finding.code for finding in result] == codes
    assert all(finding.where == "Nodes h100-1, t4-1, t4-2" for finding in result)
    assert not problems(builders.context(WITHOUT_CDI, facts))
