"""The sandbox's inventory with changes, and facts of its default fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpu_provision.components.labels import NFD_GPU, NFD_OS_ID, NFD_OS_VERSION
from gpu_provision.components.targets import context as make_context
from gpu_provision.inventory import load
from gpu_provision.inventory.document import Source
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.resolve import merge
from gpu_provision.model.cluster import ClusterFacts, NodeFacts, RenderContext
from gpu_provision.model.inventory import Inventory, NodePool, OperatingSystem
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.model.specs import Specs
from tests import data_file

UBUNTU_22 = OperatingSystem("ubuntu", "22.04")
UBUNTU_24 = OperatingSystem("ubuntu", "24.04")

_PATH = Path(__file__).parents[2] / "inventories" / "sandbox.yaml"
_FILE = load(_PATH)
SPECS, POOLS, NODES = _FILE.specs, _FILE.pools, _FILE.nodes
DRIVER = SPECS.driver


def pool(name: str, **fields: Any) -> NodePool:
    return NodePool(**{"name": name, "driver": DRIVER, "gds": SPECS.gds, "gdrcopy": SPECS.gdrcopy} | fields)


def inventory(**fields: Any) -> Inventory:
    return replace(_FILE, **{"path": "", "digest": "", "text": "", **fields})


def specs(**fields: Any) -> Specs:
    return replace(SPECS, **fields)


def with_spec(name: str, **fields: Any) -> Inventory:
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


def system(tag: str) -> OperatingSystem:
    """Return the operating system of a word such as ``sles15.5``."""
    name = tag.rstrip("0123456789.")
    return OperatingSystem(name, tag.removeprefix(name))


def nfd_labels(os: OperatingSystem = UBUNTU_22, *, gpu: bool = True) -> dict[str, str]:
    result = {NFD_GPU[0]: "true"} if gpu else {}
    return {NFD_OS_ID: os.id, NFD_OS_VERSION: os.version, **result}


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


CASES: dict[str, dict[str, Any]] = data_file.document(Path(__file__).with_name("golden.yaml").read_text())


def case_context(name: str) -> RenderContext:
    return context(inventory_with(CASES[name].get("inventory", {})), observed_facts(CASES[name]))


def inventory_with(changes: dict[str, Any]) -> Inventory:
    """Return what the sandbox's inventory says with these changes, as a loader reads it."""
    text = yaml.safe_dump(merge(data_file.document(_PATH.read_text()), changes), sort_keys=False)
    result, findings = validate_source(Source(name="sandbox", path=_PATH, text=text, digest=""))
    assert result, findings
    return result


def observed_facts(case: dict[str, Any]) -> ClusterFacts:
    changes, cluster = case.get("nodes", {}), case.get("cluster", {})
    nodes = tuple(_changed(node, **changes.get(node.name, {})) for node in fleet().nodes)
    platform = {"openshift": openshift_facts(**cluster["openshift"])} if "openshift" in cluster else {}
    resources = {"resources": frozenset(cluster.get("resources", ()))}
    return replace(fleet(), nodes=nodes, **cluster | resources | platform)


def _changed(node: NodeFacts, **changes: Any) -> NodeFacts:
    """Return a node with other facts; an ``os`` such as ``rhcos4.18`` is also that of its labels."""
    if "os" not in changes:
        return replace(node, **changes)
    os = system(changes["os"])
    labels = {**node.labels, NFD_OS_ID: os.id, NFD_OS_VERSION: os.version, **changes.get("labels", {})}
    return replace(node, **changes | {"os": os, "labels": labels})


def openshift_facts(**facts: Any) -> OpenShiftFacts:
    return msgspec.convert(facts, OpenShiftFacts)
