"""An inventory that declares what the GPU Operator has provisioned: its settings, its release, its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpu_provision import releases
from gpu_provision.adopt import cluster_policy
from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.components import labels
from gpu_provision.components.targets import observed_os
from gpu_provision.inventory import hardware
from gpu_provision.inventory.json_schema import resolved, schema
from gpu_provision.model.cluster import NodeFacts

_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


def derive_inventory(found: OperatorInstall, *, name: str, cluster: Mapping[str, str]) -> dict[str, Any]:
    """Return an inventory that declares what is there.

    Args:
        cluster: ``kubeconfig`` and ``context``, as the user named them.
    """
    spec = (found.policy or {}).get("spec", {})
    release = release_of(found)
    said = _without_defaults(cluster_policy.settings(spec), schema())
    for component, named in cluster_policy.images(spec).items():
        default = releases.release(release).image(component)
        if image := {part: value for part, value in named.items() if value != getattr(default, part)}:
            is_manager = component == "driver_manager"
            section = said.setdefault("driver" if is_manager else component, {})
            (section.setdefault("manager", {}) if is_manager else section).update(image)
    has_host_drivers = any(node.labels.get(labels.DEPLOY_DRIVER) == labels.PRE_INSTALLED for node in found.facts.nodes)
    if said.get("driver", {}).get("enabled", True) and has_host_drivers:
        said.setdefault("driver", {})["enabled"] = "auto"
    pools, nodes = _pools(found)
    return {
        "name": name,
        "cluster": {**{key: value for key, value in cluster.items() if value}, "namespace": found.namespace},
        "release": release,
        "host_prerequisites": {"enabled": False},
        **_discovery(found),
        **{section: said[section] for section in said if said[section]},
        "pools": pools,
        "nodes": nodes,
    }


def release_of(found: OperatorInstall) -> str:
    """Return the release that the chart, the operator's image or its validator names; the default for others."""
    known = releases.names()
    return next((name for name in _release_hints(found) if name in known), releases.DEFAULT)


def _release_hints(found: OperatorInstall) -> Iterator[str]:
    texts = [(item["metadata"].get("labels") or {}).get("helm.sh/chart", "") for item in found.operators]
    images = [str(item["spec"]["template"]["spec"]["containers"][0]["image"]) for item in found.operators]
    texts += [image.rpartition(":")[2] for image in images]
    texts += [cluster_policy.images((found.policy or {}).get("spec", {})).get("validator", {}).get("version", "")]
    for text in texts:
        if version := _VERSION.search(text):
            yield version[1]


def _without_defaults(settings: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their part of the schema; others would be in the way."""
    kept = {}
    for key, value in settings.items():
        setting = resolved(part["properties"][key])
        if "properties" in setting:
            if below := _without_defaults(value, setting):
                kept[key] = below
        elif value != setting.get("default"):
            kept[key] = value
    return kept


def _discovery(found: OperatorInstall) -> dict[str, Any]:
    """Turn ours off where another one than the chart's labels the nodes."""
    if found.discovery or not any(labels.nfd_has_spoken(node.labels) for node in found.facts.nodes):
        return {}
    return {"nfd": {"enabled": False}}


def _pools(found: OperatorInstall) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return pools of nodes that are alike, and the nodes."""
    kinds: dict[tuple[str, int, str], list[str]] = {}
    for node in found.facts.nodes:
        if labels.has_gpu(node.labels):
            os = observed_os(node)
            kind = _model(node), _count(node), f"{os.id}{os.version}" if os else ""
            kinds.setdefault(kind, []).append(node.name)
    names = _names(kinds)
    pools = {
        names[model, count, os]: {**({"os": os} if os else {}), "gpu": {"model": model, "count": count}}
        for model, count, os in sorted(kinds)
    }
    members = ((node, names[kind]) for kind, found_nodes in kinds.items() for node in found_nodes)
    return pools, [{"name": node, "pool": pool} for node, pool in sorted(members)]


def _model(node: NodeFacts) -> str:
    """Return the model as inventories know it; what GPU Feature Discovery adds for sharing and MIG is no part of it."""
    product = node.labels.get(labels.GPU_PRODUCT, "")
    bare = re.sub(r"-(SHARED|MIG-.*)$", "", product)
    known = hardware.find_model(bare)
    return known.name if known else bare or "unknown"


def _count(node: NodeFacts) -> int:
    counted = node.labels.get(labels.GPU_COUNT, "")
    return int(counted) if counted.isdigit() and int(counted) else node.gpus_allocatable or 1


def _names(kinds: Iterable[tuple[str, int, str]]) -> dict[tuple[str, int, str], str]:
    """Name pools after the model, and after the number and the system where that is not enough."""
    found: dict[tuple[str, int, str], str] = {}
    every = list(kinds)
    for kind in every:
        model, count, os = kind
        alike = [other for other in every if other[0] == model]
        parts = [model]
        parts += [f"x{count}"] if len({other[1] for other in alike}) > 1 else []
        parts += [os] if len({other[2] for other in alike}) > 1 else []
        found[kind] = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    return found
