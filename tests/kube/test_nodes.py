"""What a Node object says about its machine."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.kube.nodes import node_facts, os_of_image
from gpu_provision.model.inventory import OperatingSystem


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("Ubuntu 22.04.5 LTS", "ubuntu22.04"),
        ("Ubuntu 24.04 LTS", "ubuntu24.04"),
        ("Debian GNU/Linux 12 (bookworm)", "debian12"),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "rhel9"),
        ("Red Hat Enterprise Linux CoreOS 417.94.202410090854-0", "rhcos417"),
        ("Rocky Linux 9.5 (Blue Onyx)", "rocky9"),
        ("Oracle Linux Server 8.10", "ol8"),
        ("CentOS Stream 9", "centos9"),
        ("SUSE Linux Enterprise Server 15 SP6", "sles15.6"),
        ("Flatcar Container Linux by Kinvolk 3975.2.1 (Oklo)", "flatcar3975.2.1"),
        ("Amazon Linux 2", "amzn2"),
        ("Talos (v1.8.0)", ""),
        ("", ""),
    ],
)
def test_the_operating_system_is_read_off_its_pretty_name(image: str, tag: str) -> None:
    found = os_of_image(image)
    assert (found.tag if found else "") == tag


def node(labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n", "uid": "u", "labels": labels}, "status": status}


def test_the_labels_of_node_feature_discovery_speak_before_the_node() -> None:
    prefix = "feature.node.kubernetes.io/system-os_release"
    live = node({f"{prefix}.ID": "rhel", f"{prefix}.VERSION_ID": "9.4"}, nodeInfo={"osImage": "Ubuntu 22.04 LTS"})
    assert node_facts(live).os == OperatingSystem("rhel", "9.4")


def test_a_node_that_has_just_joined_says_little() -> None:
    facts = node_facts({"metadata": {"name": "new", "labels": None, "annotations": None}})
    assert (facts.name, facts.os, facts.ready, facts.gpus_allocatable, dict(facts.labels)) == (
        "new",
        None,
        False,
        None,
        {},
    )


@pytest.mark.parametrize(("unschedulable", "by"), [(True, "kubectl-cordon"), (False, "")])
def test_who_cordoned_a_node_is_read_while_it_is_cordoned(unschedulable: bool, by: str) -> None:  # noqa: FBT001 - a table
    """The entry of a manager that has uncordoned the node stays."""
    entry = {
        "manager": "kubectl-cordon",
        "time": "2026-11-21T08:00:00Z",
        "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
    }
    node = {"metadata": {"name": "t4-1", "managedFields": [entry]}, "spec": {"unschedulable": unschedulable}}
    found = node_facts(node)
    assert (found.cordoned_by, found.cordoned_at) == (by, entry["time"] if by else "")


def test_readiness_runtime_and_gpus_are_read() -> None:
    live = node(
        nodeInfo={"containerRuntimeVersion": "containerd://1.7.27", "bootID": "b", "kernelVersion": "5.15"},
        conditions=[{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        allocatable={"nvidia.com/gpu": "8"},
    )
    facts = node_facts({**live, "spec": {"unschedulable": True}})
    assert (facts.container_runtime, facts.container_runtime_version) == ("containerd", "1.7.27")
    assert (facts.boot_id, facts.kernel) == ("b", "5.15")
    assert (facts.ready, facts.unschedulable, facts.gpus_allocatable) == (True, True, 8)


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_whose_kubelet_is_silent_is_not_ready(status: str) -> None:
    assert not node_facts(node(conditions=[{"type": "Ready", "status": status}])).ready


@pytest.mark.parametrize(
    ("version", "labels", "distribution"),
    [
        ("v1.31.4+k3s1", {}, "k3s"),
        ("v1.31.5+rke2r1", {}, "rke2"),
        ("v1.31.3+k0s", {}, "k0s"),
        ("v1.31.4", {"microk8s.io/cluster": "true"}, "microk8s"),
        ("v1.34.1", {}, ""),
        ("v1.31.4-eks-ae9a62a", {}, ""),
    ],
)
def test_the_distribution_is_read_off_the_kubelets_version(
    version: str, labels: dict[str, str], distribution: str
) -> None:
    """MicroK8s' kubelet says nothing, but its nodes have a label."""
    node = {"metadata": {"name": "a", "labels": labels}, "status": {"nodeInfo": {"kubeletVersion": version}}}
    assert node_facts(node).distribution == distribution


def test_a_node_has_a_version_only_while_it_has_the_startup_taint() -> None:
    """Else a node that was written and is as it was would count as another one."""
    taint, other = {"key": "gpu-provision.io/not-validated", "effect": "NoSchedule"}, {"key": "team"}
    live = {"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": [other, taint]}}
    assert (node_facts(live).taints, node_facts(live).revision) == ((other, taint), "7")
    assert node_facts({**live, "spec": {"taints": [other]}}).revision == ""
