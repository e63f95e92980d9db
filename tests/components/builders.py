"""The sandbox's inventory with changes, and facts of its default fleet."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gpu_provision.components.labels import NFD_GPU, NFD_OS_ID, NFD_OS_VERSION
from gpu_provision.components.targets import context as make_context
from gpu_provision.inventory import load
from gpu_provision.model.cluster import ClusterFacts, NodeFacts, RenderContext
from gpu_provision.model.inventory import Inventory, NodePool, OperatingSystem
from gpu_provision.model.specs import DaemonSetSettings, SecretKey, Specs

UBUNTU_22 = OperatingSystem("ubuntu", "22.04")
UBUNTU_24 = OperatingSystem("ubuntu", "24.04")

_FILE = load(Path(__file__).parents[2] / "inventories" / "sandbox.yaml")
SPECS, POOLS, NODES = _FILE.specs, _FILE.pools, _FILE.nodes
DRIVER = SPECS.driver


def pool(name: str, **fields: Any) -> NodePool:
    """Return a pool whose driver settings are those of the inventory unless given."""
    return NodePool(**{"name": name, "driver": DRIVER} | fields)


def inventory(**fields: Any) -> Inventory:
    """Return the inventory of the sandbox's default fleet, with some fields replaced."""
    return replace(_FILE, **{"path": "", "digest": "", "text": "", **fields})


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


def context(chosen: Inventory | None = None, facts: ClusterFacts | None = None) -> RenderContext:
    """Return a context of the default inventory and offline facts, or those given."""
    return make_context(chosen or inventory(), facts or ClusterFacts())


def with_every_setting() -> Inventory:
    """Return an inventory that sets everything that can be set, to another value than the default."""
    chosen = {
        "image_pull_policy": "Always",
        "image_pull_secrets": ("private", "shared"),
        "env": {"ZZ": "1", "AA": "", "NVIDIA_VISIBLE_DEVICES": "0", "GIT_PAT": SecretKey(name="git", key="pat")},
        "args": ("--verbose",),
        "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {}},
    }
    configs = {name: name.replace("_", ".") for name in ("repo_config", "cert_config", "kernel_module_config")}
    own: dict[str, dict[str, Any]] = {
        "nfd": {"namespace": "gpu-operator-resources", "worker_tolerations": ({"key": "own", "operator": "Exists"},)},
        "driver": {**configs, "licensing_config": "licence", "kernel_module_type": "open"},
        "toolkit": {"install_dir": "/opt/nvidia"},
        "validator": {"image_pull_secrets": ("shared", "validators")},
        "device_plugin": {"config_name": "plugin-configs", "config_default": "all"},
        "dcgm_exporter": {"metrics_config": "metrics", "service_type": "NodePort"},
    }
    names = [field.name for field in fields(Specs) if hasattr(getattr(SPECS, field.name), "image")]
    changed = {
        name: replace(getattr(SPECS, name), **{"enabled": True, **chosen, **own.get(name, {})}) for name in names
    }
    settings = DaemonSetSettings(
        labels={"team": "ml", "app": "ignored"},
        annotations={"note": "x"},
        tolerations=({"key": "gpu", "operator": "Equal", "value": "", "effect": "NoSchedule"},),
        priority_class_name="gpu",
        max_unavailable="25%",
    )
    pools = {name: replace(old, driver=changed["driver"], labels={"pool": name}) for name, old in POOLS.items()}
    others = {"daemonsets": settings, "mig_strategy": "mixed", "runtime_class": "gpu"}
    return inventory(specs=specs(**changed, **others), pools=pools)
