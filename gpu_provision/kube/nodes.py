"""From Node objects to facts; pure."""

from __future__ import annotations

import re
from typing import Any

from gpu_provision.components.labels import NOT_VALIDATED
from gpu_provision.model.cluster import Manifest, NodeFacts
from gpu_provision.model.inventory import OperatingSystem
from gpu_provision.rollout.states import writer_of

_OS_ID, _OS_VERSION = (
    "feature.node.kubernetes.io/system-os_release.ID",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)

_MICROK8S = "microk8s.io/cluster"

# How status.nodeInfo.osImage (PRETTY_NAME of /etc/os-release) begins, and the ID that goes with it.
_OS_IMAGES: tuple[tuple[str, str], ...] = (
    (r"Ubuntu (\d+\.\d+)", "ubuntu"),
    (r"Debian GNU/Linux (\d+)", "debian"),
    (r"Red Hat Enterprise Linux CoreOS (\d+)", "rhcos"),
    (r"Red Hat Enterprise Linux (\d+\.\d+)", "rhel"),
    (r"Rocky Linux (\d+\.\d+)", "rocky"),
    (r"Oracle Linux Server (\d+\.\d+)", "ol"),
    (r"CentOS (?:Linux|Stream) (\d+)", "centos"),
    (r"SUSE Linux Enterprise Server (\d+) SP(\d+)", "sles"),
    (r"Flatcar Container Linux by Kinvolk (\d+\.\d+\.\d+)", "flatcar"),
    (r"Amazon Linux (\d+)", "amzn"),
)


def node_facts(node: Manifest) -> NodeFacts:
    """Return what a Node object says about its machine."""
    metadata, status = node["metadata"], node.get("status", {})
    info = status.get("nodeInfo", {})
    runtime, _, runtime_version = info.get("containerRuntimeVersion", "").partition("://")
    found = metadata.get("labels") or {}
    unschedulable = bool(node.get("spec", {}).get("unschedulable"))
    cordoned_by, cordoned_at = writer_of(metadata) if unschedulable else ("", "")
    taints = tuple(node.get("spec", {}).get("taints") or ())
    return NodeFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        labels=found,
        annotations=metadata.get("annotations") or {},
        os=_os_of_labels(found) or os_of_image(info.get("osImage", "")),
        kernel=info.get("kernelVersion", ""),
        architecture=info.get("architecture", ""),
        container_runtime=runtime,
        container_runtime_version=runtime_version,
        distribution=_distribution(info.get("kubeletVersion", ""), found),
        boot_id=info.get("bootID", ""),
        ready=_is_ready(status),
        unschedulable=unschedulable,
        cordoned_by=cordoned_by,
        cordoned_at=cordoned_at,
        gpus_allocatable=_allocatable(status),
        taints=taints,
        revision=metadata.get("resourceVersion", "") if any(map(_is_startup_taint, taints)) else "",
    )


def _is_startup_taint(taint: dict[str, Any]) -> bool:
    return taint.get("key") == NOT_VALIDATED


def os_of_image(text: str) -> OperatingSystem | None:
    """Return the operating system that ``status.nodeInfo.osImage`` names, or None if it is not known."""
    for pattern, name in _OS_IMAGES:
        match = re.match(pattern, text)
        if match:
            return OperatingSystem(name, ".".join(match.groups()))
    return None


def _os_of_labels(labels: dict[str, str]) -> OperatingSystem | None:
    if _OS_ID in labels and _OS_VERSION in labels:
        return OperatingSystem(labels[_OS_ID], labels[_OS_VERSION])
    return None


def _distribution(version: str, labels: dict[str, str]) -> str:
    """Return what the kubelet's version ends in, as in ``v1.31.5+rke2r1``; MicroK8s says it by a label."""
    if _MICROK8S in labels:
        return "microk8s"
    found = re.search(r"\+(k3s|rke2|k0s)", version)
    return found[1] if found else ""


def _is_ready(status: dict[str, Any]) -> bool:
    conditions = status.get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _allocatable(status: dict[str, Any]) -> int | None:
    value = str(status.get("allocatable", {}).get("nvidia.com/gpu", ""))
    return int(value) if value.isdigit() else None
