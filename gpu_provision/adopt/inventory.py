"""Derive an inventory from the GPU Operator's ClusterPolicy, its release and its nodes.

Every field of the ClusterPolicy is either converted, known to have no effect (`cluster_policy.yaml`), or reported.
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
from gpu_provision.components.gpu_resources import SLICES
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
    for name in (
        "validator",
        "driver",
        "gds",
        "gdrcopy",
        "toolkit",
        "device_plugin",
        "gfd",
        "dcgm",
        "dcgm_exporter",
        "node_status_exporter",
    )
}

_EMPTY_VALUES: tuple[Any, ...] = (None, "", {}, [])
_SLICES, _A30_SLICES = 7, 4  # compute slices of a GPU with MIG: NVIDIA MIG user guide
_IMAGE = ("repository", "image", "version")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


@cache
def read_table(file: str) -> Mapping[str, Any]:
    """Return a YAML table of this package; it is read on first use, since `status` imports this module."""
    table: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return table


class UnsupportedSetting(NamedTuple):
    """A setting of a ClusterPolicy that an inventory lacks."""

    path: str
    value: str
    meaning: str
    is_needed: bool


def _map_settings(record: type[Any], field: str, setting: str) -> Iterator[tuple[str, str]]:
    """Yield (ClusterPolicy field, setting) for each setting of a section, without images."""
    kinds = get_type_hints(record)
    for each in settings_of(record):
        reference, here = reference_of(each), f"{setting}.{each.name}"
        if reference is None or each.metadata["image"]:
            continue
        if is_dataclass(kinds[each.name]):
            yield from _map_settings(kinds[each.name], f"{field}.{reference}", here)
        else:
            yield f"{field}.{reference}", here


# Field of a ClusterPolicy -> setting.
_SETTINGS: Mapping[str, str] = {
    field: setting
    for name in (*OPERANDS.values(), "daemonsets", "host_paths", "cdi", "mig", "operator")
    for field, setting in _map_settings(section_type(name), camel_case(name), name)
}

_CARRIED_OVER = {*_SETTINGS, *(f"{each}.{part}" for each in (*OPERANDS, "driver.manager") for part in _IMAGE)}


def _settings(spec: Spec) -> dict[str, Any]:
    """Return the nested inventory settings of a ClusterPolicy's spec, without images."""
    settings: dict[str, Any] = {}
    for field, setting in _SETTINGS.items():
        value = _value_at(spec, field)
        if value in _EMPTY_VALUES or (written := _to_inventory_value(setting, value)) in _EMPTY_VALUES:
            continue
        part, (*parents, last) = settings, setting.split(".")
        for step in parents:
            part = part.setdefault(step, {})
        part[last] = written
    driver = settings.get("driver", {})
    if driver.get("image_pull_policy") == driver.get("manager", {}).get("image_pull_policy"):
        driver.get("manager", {}).pop("image_pull_policy", None)  # the driver's is its default
    return settings


def _to_inventory_value(setting: str, value: Any) -> Any:
    """Convert a ClusterPolicy's value to an inventory's, without the values of the chart."""
    known, (section, _, key) = read_table("cluster_policy.yaml"), setting.rpartition(".")
    if key == "env":
        variables = {entry["name"]: str(entry.get("value", "")) for entry in value}
        return _drop_defaults(known["chart_variables"].get(section, {}), variables)
    if setting == "daemonsets.labels":
        return _drop_defaults(known["chart_labels"], value)
    if key.endswith("max_unavailable"):
        return int(value) if str(value).isdigit() else value
    if setting == "driver.args" and value[0] == "init":  # an inventory's arguments follow it
        return value[1:]
    return value


def _drop_defaults(defaults: Mapping[str, str | None], settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key not in defaults or defaults[key] not in {value, None}}


def _images(spec: Spec) -> dict[str, dict[str, str]]:
    """Return the images of a ClusterPolicy by component, including ``driver_manager``.

    A section without a version names no image: the operator then takes it from its environment.
    """
    sections = {**OPERANDS, "driver.manager": "driver_manager"}
    found = {component: _value_at(spec, section) or {} for section, component in sections.items()}
    return {
        component: {part: settings[part] for part in _IMAGE if settings.get(part)}
        for component, settings in found.items()
        if settings.get("version")
    }


def unsupported_settings(spec: Spec) -> Iterator[UnsupportedSetting]:
    """Yield the settings of a ClusterPolicy's spec that an inventory lacks."""
    known = read_table("cluster_policy.yaml")
    needed, not_needed, ignored = known["needed"], known["not_needed"], known["ignored"]
    for path, value in _leaves(spec, ()):
        if any(".".join(path[:length]) in _CARRIED_OVER for length in range(1, len(path) + 1)):
            continue
        text, written = ".".join(path), str(value).lower() if isinstance(value, bool) else str(value)
        field = next((each for each in (*needed, *not_needed, *ignored) if f"{text}.".startswith(f"{each}.")), "")
        is_default = value is False or value in (*_EMPTY_VALUES, *known["defaults"].get(field, ()))
        if field not in ignored and not is_default:
            meaning = needed.get(field) or not_needed.get(field, "not known here")
            yield UnsupportedSetting(text, written, meaning, is_needed=field in needed)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value


def _value_at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def derive_inventory(install: OperatorInstall, *, name: str, cluster: Mapping[str, str]) -> dict[str, Any]:
    """Return an inventory of the operator's stack; ``cluster`` has the user's ``kubeconfig`` and ``context``."""
    spec = (install.policy or {}).get("spec", {})
    release = release_of(install)
    settings = _drop_schema_defaults(_settings(spec), schema())
    for component, named in _images(spec).items():
        default = releases.release(release).image(component)
        if image := {part: value for part, value in named.items() if value != getattr(default, part)}:
            is_manager = component == "driver_manager"
            section = settings.setdefault("driver" if is_manager else component, {})
            (section.setdefault("manager", {}) if is_manager else section).update(image)
    driver_labels = {node.labels.get(labels.DEPLOY_DRIVER) for node in install.facts.nodes}
    if settings.get("driver", {}).get("enabled", True) and labels.PRE_INSTALLED in driver_labels:
        settings.setdefault("driver", {})["enabled"] = "auto"
    if not install.discovery and any(labels.has_nfd_labels(node.labels) for node in install.facts.nodes):
        settings = {"nfd": {"enabled": False}, **settings}  # another NFD labels the nodes
    pools, nodes = _pools(install)
    return {
        "name": name,
        "cluster": {**{key: value for key, value in cluster.items() if value}, "namespace": install.namespace},
        "release": release,
        "host_prerequisites": {"enabled": False},
        **settings,
        "pools": pools,
        "nodes": nodes,
    }


def release_of(install: OperatorInstall) -> str:
    """Return the release that the chart, the operator's image or its validator names, else the default."""
    texts = [(item["metadata"].get("labels") or {}).get("helm.sh/chart", "") for item in install.operators]
    images = [str(item["spec"]["template"]["spec"]["containers"][0]["image"]) for item in install.operators]
    texts += [image.rpartition(":")[2] for image in images]
    texts += [_images((install.policy or {}).get("spec", {})).get("validator", {}).get("version", "")]
    versions = (version[1] for version in map(_VERSION.search, texts) if version)
    return next((version for version in versions if version in releases.names()), releases.DEFAULT)


def _drop_schema_defaults(settings: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their part of the schema."""
    kept = {}
    for key, value in settings.items():
        setting = resolve_ref(part["properties"][key])
        if "properties" in setting:
            if below := _drop_schema_defaults(value, setting):
                kept[key] = below
        elif value != setting.get("default"):
            kept[key] = value
    return kept


def _pools(install: OperatorInstall) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Group nodes with equal GPUs and systems into pools, named after their differences; return pools and nodes."""
    kinds: dict[tuple[str, int, str], list[str]] = {}
    for node in install.facts.nodes:
        if labels.has_gpu(node.labels):
            os = observed_os(node)
            kind = _gpu_model(node), _gpu_count(node), f"{os.id}{os.version}" if os else ""
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


def _gpu_model(node: NodeFacts) -> str:
    """Return the model's inventory name, without GPU Feature Discovery's suffixes for sharing and MIG."""
    product = node.labels.get(labels.GPU_PRODUCT, "")
    bare = re.sub(r"-(SHARED|MIG-.*)$", "", product)
    known = hardware.find_model(bare)
    return known.name if known else bare or "unknown"


def _gpu_count(node: NodeFacts) -> int:
    counted = node.labels.get(labels.GPU_COUNT, "")
    count = int(counted) if counted.isdigit() and int(counted) else node.gpus_allocatable or 1
    size = node.labels.get(SLICES, "")
    if size.isdigit() and int(size):  # ``count`` is of MIG devices of this size
        on_one = max(1, (_A30_SLICES if "A30" in node.labels.get(labels.GPU_PRODUCT, "") else _SLICES) // int(size))
        count = -(-count // on_one)
    return count
