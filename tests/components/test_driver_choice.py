"""Whose driver a node has."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest

from gpu_provision.components.driver_choice import choose
from gpu_provision.hosts.facts.driver import Driver
from gpu_provision.hosts.facts.host import HostRecord
from gpu_provision.model.cluster import DriverBasis, DriverChoice

DECLARED = {
    "true": builders.DRIVER,
    "false": replace(builders.DRIVER, enabled=False),
    "auto": replace(builders.DRIVER, prefer_host=True),
}
MODULE = "/lib/modules/5.15.0-122-generic/updates/dkms/nvidia.ko"
HOSTS = {
    "unread": None,
    "bare": Driver(),
    "working": Driver(loaded="550.90.07", module=MODULE, module_version="550.90.07"),
    "to be loaded": Driver(module=MODULE, module_version="550.90.07"),
    "runs a container's": Driver(loaded="580.95.05", in_container=True),
    "runs a container's, and has its own": Driver(loaded="580.95.05", in_container=True, module=MODULE),
    "built for another kernel": Driver(libraries=("/usr/lib64/libnvidia-ml.so.550.90.07",)),
    "removed, not yet unloaded": Driver(loaded="550.90.07", programs=("/usr/bin/nvidia-ctk",)),
}
NOTHING: dict[str, str] = {}
HAS_OWN = {"nvidia.com/gpu.deploy.driver": "pre-installed", "gpu-provision.io/host-driver": "535.183.01"}
BY_MANAGER = {"nvidia.com/gpu.deploy.driver": "pre-installed"}
SWITCHED_OFF = {"nvidia.com/gpu.deploy.operands": "false", "gpu-provision.io/host-driver": "535.183.01"}
IN_GROUP = {"nvidia.com/gpu.deploy.driver": "true", "gpu-provision.io/driver": "ubuntu22.04"}

HOST_READ = DriverChoice(on_host=True, basis=DriverBasis.READ, version="550.90.07")
CONTAINER_READ = DriverChoice(on_host=False, basis=DriverBasis.READ)


@pytest.mark.parametrize(
    ("declared", "host", "labels", "expected"),
    [
        ("auto", "working", NOTHING, HOST_READ),
        ("auto", "to be loaded", NOTHING, HOST_READ),
        ("auto", "bare", NOTHING, CONTAINER_READ),
        ("auto", "built for another kernel", NOTHING, CONTAINER_READ),
        ("auto", "removed, not yet unloaded", HAS_OWN, CONTAINER_READ),
        # What runs stays: the modules of a container of ours are not the host's.
        ("auto", "runs a container's", IN_GROUP, CONTAINER_READ),
        ("auto", "runs a container's, and has its own", IN_GROUP, CONTAINER_READ),
        # What was read outweighs what was labelled, in both directions.
        ("auto", "bare", HAS_OWN, CONTAINER_READ),
        ("auto", "working", IN_GROUP, HOST_READ),
        # Without a reading the labels tell, whoever wrote them.
        ("auto", "unread", HAS_OWN, DriverChoice(on_host=True, basis=DriverBasis.LABEL, version="535.183.01")),
        ("auto", "unread", SWITCHED_OFF, DriverChoice(on_host=True, basis=DriverBasis.LABEL, version="535.183.01")),
        ("auto", "unread", BY_MANAGER, DriverChoice(on_host=True, basis=DriverBasis.LABEL)),
        ("auto", "unread", IN_GROUP, DriverChoice(on_host=False, basis=DriverBasis.LABEL)),
        ("auto", "unread", NOTHING, DriverChoice(on_host=False, basis=DriverBasis.GUESS)),
        # Who is sure is believed; that the host has none is still worth knowing.
        ("true", "unread", HAS_OWN, DriverChoice(on_host=False, basis=DriverBasis.DECLARED)),
        ("true", "working", NOTHING, DriverChoice(on_host=False, basis=DriverBasis.DECLARED)),
        ("true", "bare", BY_MANAGER, CONTAINER_READ),
        ("false", "bare", IN_GROUP, DriverChoice(on_host=True, basis=DriverBasis.DECLARED)),
        ("false", "working", NOTHING, DriverChoice(on_host=True, basis=DriverBasis.DECLARED)),
    ],
)
def test_inventory_host_and_labels_decide_together(
    declared: str, host: str, labels: dict[str, str], expected: DriverChoice
) -> None:
    """``driver.enabled`` first, then the host as it was read, then what is written on the node."""
    driver = HOSTS[host]
    read = HostRecord(driver=driver).driver.usable if driver else None
    assert choose(DECLARED[declared], read=read, labels=labels) == expected


def test_a_driver_without_a_version_is_one() -> None:
    """The module may not tell one; an empty version would mean that there is none."""
    assert Driver(module=MODULE).usable == "unknown"
