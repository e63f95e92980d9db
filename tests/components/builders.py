"""Inventories and cluster facts made in Python, as the loader would make them for the sandbox's default fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_provision.components.labels import NFD_GPU, NFD_OS_ID, NFD_OS_VERSION
from gpu_provision.components.targets import context as make_context
from gpu_provision.model.cluster import ClusterFacts, Context, NodeFacts
from gpu_provision.model.inventory import ClusterConfig, Gpu, Inventory, Node, NodePool, OperatingSystem
from gpu_provision.model.specs import (
    DcgmExporterSpec,
    DcgmSpec,
    DevicePluginSpec,
    DriverSpec,
    GfdSpec,
    Image,
    NfdSpec,
    Specs,
    ToolkitSpec,
    ValidatorSpec,
)

UBUNTU_22 = OperatingSystem("ubuntu", "22.04")
UBUNTU_24 = OperatingSystem("ubuntu", "24.04")


def _image(repository: str, image: str, version: str) -> Image:
    return Image(repository=repository, image=image, version=version)


_PLUGIN = _image("nvcr.io/nvidia", "k8s-device-plugin", "v0.20.0")
DRIVER = DriverSpec(
    image=_image("nvcr.io/nvidia", "driver", "595.91.07"),
    manager=_image("nvcr.io/nvidia/cloud-native", "k8s-driver-manager", "v0.12.0"),
    timeout=1200,
)
SPECS = Specs(
    nfd=NfdSpec(image=_image("registry.k8s.io/nfd", "node-feature-discovery", "v0.19.0")),
    driver=DRIVER,
    toolkit=ToolkitSpec(image=_image("nvcr.io/nvidia/k8s", "container-toolkit", "v1.20.0")),
    validator=ValidatorSpec(image=_image("nvcr.io/nvidia", "gpu-operator", "v26.7.0")),
    device_plugin=DevicePluginSpec(image=_PLUGIN),
    gfd=GfdSpec(image=_PLUGIN),
    dcgm=DcgmSpec(image=_image("nvcr.io/nvidia/cloud-native", "dcgm", "4.6.0-1-ubuntu24.04")),
    dcgm_exporter=DcgmExporterSpec(image=_image("nvcr.io/nvidia/k8s", "dcgm-exporter", "4.6.0-4.8.3-distroless")),
)


def pool(name: str, **fields: Any) -> NodePool:
    """Return a pool whose driver settings are those of the inventory unless given."""
    return NodePool(**{"name": name, "driver": DRIVER} | fields)


POOLS = {
    "t4": pool("t4", os=UBUNTU_22, gpu=Gpu("T4", 1)),
    "h100": pool("h100", os=UBUNTU_24, gpu=Gpu("H100", 8)),
    "cpu": pool("cpu", os=UBUNTU_22),
    "control": pool("control", os=UBUNTU_22),
}
NODES = (
    Node(name="t4-1", pool="t4"),
    Node(name="t4-2", pool="t4"),
    Node(name="h100-1", pool="h100"),
    Node(name="cpu-1", pool="cpu"),
    Node(name="control-1", pool="control"),
)


def inventory(**fields: Any) -> Inventory:
    """Return the inventory of the sandbox's default fleet, with some fields replaced."""
    base = Inventory(
        name="sandbox",
        release="26.7.0",
        cluster=ClusterConfig(sandbox="default"),
        specs=SPECS,
        pools=POOLS,
        nodes=NODES,
    )
    return replace(base, **fields)


def specs(**fields: Any) -> Specs:
    """Return the release's specs with some replaced."""
    return replace(SPECS, **fields)


def with_spec(name: str, **fields: Any) -> Inventory:
    """Return the inventory with some fields of one component's spec replaced."""
    spec = replace(getattr(SPECS, name), **fields)
    pools = POOLS if name != "driver" else {key: replace(old, driver=spec) for key, old in POOLS.items()}
    return inventory(specs=specs(**{name: spec}), pools=pools)


def node(name: str, os: OperatingSystem | None = UBUNTU_22, **fields: Any) -> NodeFacts:
    """Return a node as the cluster shows it before Node Feature Discovery has spoken."""
    defaults = {
        "uid": f"uid-of-{name}",
        "boot_id": f"boot-of-{name}",
        "os": os,
        "container_runtime": "containerd",
        "ready": True,
    }
    return NodeFacts(**{"name": name, **defaults} | fields)


def nfd_labels(os: OperatingSystem = UBUNTU_22, *, gpu: bool = True) -> dict[str, str]:
    """Return the labels that Node Feature Discovery gives a node."""
    found = {NFD_GPU[0]: "true"} if gpu else {}
    return {NFD_OS_ID: os.id, NFD_OS_VERSION: os.version, **found}


def fleet() -> ClusterFacts:
    """Return the facts of the default fleet after Node Feature Discovery has spoken."""
    return ClusterFacts(
        version="v1.34.0",
        nodes=(
            node("t4-1", labels=nfd_labels()),
            node("t4-2", labels=nfd_labels()),
            node("h100-1", UBUNTU_24, labels=nfd_labels(UBUNTU_24)),
            node("cpu-1", labels=nfd_labels(gpu=False)),
            node("control-1", labels=nfd_labels(gpu=False)),
        ),
    )


def context(chosen: Inventory | None = None, facts: ClusterFacts | None = None) -> Context:
    """Return a context of the default inventory and offline facts, or those given."""
    return make_context(chosen or inventory(), facts or ClusterFacts())
