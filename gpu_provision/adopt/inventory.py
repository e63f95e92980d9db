"""An inventory that declares what the GPU Operator has provisioned: its settings, its release, its nodes.

Field names and defaults are those of the ClusterPolicy. Every field is either carried over, known to be of no effect
(`cluster_policy.yaml`), or reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml

from gpu_provision import releases
from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.components import labels
from gpu_provision.components.targets import observed_os
from gpu_provision.inventory import hardware
from gpu_provision.inventory.json_schema import resolve_ref, schema
from gpu_provision.inventory.resolve import section_type
from gpu_provision.model.cluster import NodeFacts
from gpu_provision.model.settings import camel_case, reference_of, settings_of

Spec = Mapping[str, Any]

# Section of a ClusterPolicy -> component.
OPERANDS: Mapping[str, str] = {
    camel_case(name): name
    for name in ("validator", "driver", "toolkit", "device_plugin", "gfd", "dcgm", "dcgm_exporter")
}

_NOTHING: tuple[Any, ...] = (None, "", {}, [])
_IMAGE = ("repository", "image", "version")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


@cache
def facts(file: str) -> Mapping[str, Any]:
    """Return a table of facts from beside this module; it is read where it is needed, as `status` imports this."""
    found: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return found


class UnsupportedSetting(NamedTuple):
    """Something that the ClusterPolicy says and an inventory cannot."""

    path: str
    value: str
    meaning: str
    is_needed: bool


def _settings_in(record: type[Any], field: str, setting: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of a section that a setting takes, each with that setting; images are left out."""
    kinds = get_type_hints(record)
    for each in settings_of(record):
        reference, here = reference_of(each), f"{setting}.{each.name}"
        if reference is None or each.metadata["image"]:
            continue
        if is_dataclass(kinds[each.name]):
            yield from _settings_in(kinds[each.name], f"{field}.{reference}", here)
        else:
            yield f"{field}.{reference}", here


# Field of a ClusterPolicy -> setting.
_SETTINGS: Mapping[str, str] = {
    field: setting
    for name in (*OPERANDS.values(), "daemonsets", "cdi", "mig", "operator")
    for field, setting in _settings_in(section_type(name), camel_case(name), name)
}

_CARRIED_OVER = {*_SETTINGS, *(f"{each}.{part}" for each in (*OPERANDS, "driver.manager") for part in _IMAGE)}


def _settings(spec: Spec) -> dict[str, Any]:
    """Return everything that a ClusterPolicy's spec says and an inventory can say, but for images: nested settings."""
    found: dict[str, Any] = {}
    for field, setting in _SETTINGS.items():
        value = _at(spec, field)
        if value in _NOTHING or (written := _written(setting, value)) in _NOTHING:
            continue
        part, (*parents, last) = found, setting.split(".")
        for step in parents:
            part = part.setdefault(step, {})
        part[last] = written
    return found


def _written(setting: str, value: Any) -> Any:
    """Return a value as an inventory has it, without what the chart itself has set."""
    known, (section, _, key) = facts("cluster_policy.yaml"), setting.partition(".")
    if key == "env":
        variables = {entry["name"]: str(entry.get("value", "")) for entry in value}
        return _without(known["chart_variables"].get(section, {}), variables)
    if setting == "daemonsets.labels":
        return _without(known["chart_labels"], value)
    if key.endswith("max_unavailable"):
        return int(value) if str(value).isdigit() else value
    if setting == "driver.args" and value[0] == "init":  # a ClusterPolicy's replace it, an inventory's follow it
        return value[1:]
    return value


def _without(defaults: Mapping[str, str | None], said: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in said.items() if key not in defaults or defaults[key] not in {value, None}}


def _images(spec: Spec) -> dict[str, dict[str, str]]:
    """Return the images that a ClusterPolicy names, by component; ``driver_manager`` is one of them.

    A section without a version says nothing: its image then stands in the operator's own environment.
    """
    sections = {**OPERANDS, "driver.manager": "driver_manager"}
    found = {component: _at(spec, section) or {} for section, component in sections.items()}
    return {
        component: {part: said[part] for part in _IMAGE if said.get(part)}
        for component, said in found.items()
        if said.get("version")
    }


def unsupported_settings(spec: Spec) -> Iterator[UnsupportedSetting]:
    """Yield what a ClusterPolicy's spec says and an inventory cannot."""
    known = facts("cluster_policy.yaml")
    needed, not_needed, ignored = known["needed"], known["not_needed"], known["ignored"]
    for path, value in _leaves(spec, ()):
        if any(".".join(path[:length]) in _CARRIED_OVER for length in range(1, len(path) + 1)):
            continue
        text, written = ".".join(path), str(value).lower() if isinstance(value, bool) else str(value)
        field = next((each for each in (*needed, *not_needed, *ignored) if f"{text}.".startswith(f"{each}.")), "")
        is_default = value is False or value in (*_NOTHING, *known["defaults"].get(field, ()))
        if field not in ignored and not is_default:
            meaning = needed.get(field) or not_needed.get(field, "not known here")
            yield UnsupportedSetting(text, written, meaning, is_needed=field in needed)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def derive_inventory(found: OperatorInstall, *, name: str, cluster: Mapping[str, str]) -> dict[str, Any]:
    """Return an inventory that declares what is there; ``cluster`` has the user's ``kubeconfig`` and ``context``."""
    spec = (found.policy or {}).get("spec", {})
    release = release_of(found)
    said = _without_defaults(_settings(spec), schema())
    for component, named in _images(spec).items():
        default = releases.release(release).image(component)
        if image := {part: value for part, value in named.items() if value != getattr(default, part)}:
            is_manager = component == "driver_manager"
            section = said.setdefault("driver" if is_manager else component, {})
            (section.setdefault("manager", {}) if is_manager else section).update(image)
    has_host_drivers = any(node.labels.get(labels.DEPLOY_DRIVER) == labels.PRE_INSTALLED for node in found.facts.nodes)
    if said.get("driver", {}).get("enabled", True) and has_host_drivers:
        said.setdefault("driver", {})["enabled"] = "auto"
    if not found.discovery and any(labels.has_nfd_labels(node.labels) for node in found.facts.nodes):
        said = {"nfd": {"enabled": False}, **said}  # another one than the chart's labels the nodes
    pools, nodes = _pools(found)
    return {
        "name": name,
        "cluster": {**{key: value for key, value in cluster.items() if value}, "namespace": found.namespace},
        "release": release,
        "host_prerequisites": {"enabled": False},
        **said,
        "pools": pools,
        "nodes": nodes,
    }


def release_of(found: OperatorInstall) -> str:
    """Return the release that the chart, the operator's image or its validator names; the default for others."""
    texts = [(item["metadata"].get("labels") or {}).get("helm.sh/chart", "") for item in found.operators]
    images = [str(item["spec"]["template"]["spec"]["containers"][0]["image"]) for item in found.operators]
    texts += [image.rpartition(":")[2] for image in images]
    texts += [_images((found.policy or {}).get("spec", {})).get("validator", {}).get("version", "")]
    versions = (version[1] for version in map(_VERSION.search, texts) if version)
    return next((version for version in versions if version in releases.names()), releases.DEFAULT)


def _without_defaults(settings: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their part of the schema; others would be in the way."""
    kept = {}
    for key, value in settings.items():
        setting = resolve_ref(part["properties"][key])
        if "properties" in setting:
            if below := _without_defaults(value, setting):
                kept[key] = below
        elif value != setting.get("default"):
            kept[key] = value
    return kept


def _pools(found: OperatorInstall) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return pools of nodes that are alike, and the nodes; pools are named after what sets them apart."""
    kinds: dict[tuple[str, int, str], list[str]] = {}
    for node in found.facts.nodes:
        if labels.has_gpu(node.labels):
            os = observed_os(node)
            kind = _model(node), _count(node), f"{os.id}{os.version}" if os else ""
            kinds.setdefault(kind, []).append(node.name)
    pools: dict[str, Any] = {}
    members: list[dict[str, str]] = []
    for (model, count, system), names in sorted(kinds.items()):
        alike = [kind for kind in kinds if kind[0] == model]
        parts = [model]
        parts += [f"x{count}"] if len({kind[1] for kind in alike}) > 1 else []
        parts += [system] if len({kind[2] for kind in alike}) > 1 else []
        pool = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
        pools[pool] = {**({"os": system} if system else {}), "gpu": {"model": model, "count": count}}
        members += [{"name": name, "pool": pool} for name in names]
    return pools, sorted(members, key=lambda member: member["name"])


def _model(node: NodeFacts) -> str:
    """Return the model as inventories know it; what GPU Feature Discovery adds for sharing and MIG is no part of it."""
    product = node.labels.get(labels.GPU_PRODUCT, "")
    bare = re.sub(r"-(SHARED|MIG-.*)$", "", product)
    known = hardware.find_model(bare)
    return known.name if known else bare or "unknown"


def _count(node: NodeFacts) -> int:
    counted = node.labels.get(labels.GPU_COUNT, "")
    return int(counted) if counted.isdigit() and int(counted) else node.gpus_allocatable or 1
