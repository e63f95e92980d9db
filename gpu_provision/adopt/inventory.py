"""Derive an inventory from the settings of the GPU Operator and from the nodes of its cluster.

Every setting is carried over, known to have no effect, or reported. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

import yaml

from gpu_provision import releases
from gpu_provision.adopt import reference
from gpu_provision.adopt.discovery import OperatorInstall, labels_of
from gpu_provision.adopt.pools import OF_DRIVER, DriverPool, driver_pool, pool_names, pools_of_drivers, pools_of_nodes
from gpu_provision.adopt.reference import DRIVER, IMAGE, POLICY, POOL, VALUES, read_table
from gpu_provision.adopt.settings import (
    EMPTY_VALUES,
    OperatorSettings,
    Path,
    is_env,
    leaves,
    put_value,
    settings_of_resource,
    value_at,
)
from gpu_provision.adopt.unsupported import LOST, defaults_of, import_warning, report_unsupported
from gpu_provision.components import labels
from gpu_provision.inventory.document import KeyPath, Source, SourceError, format_path
from gpu_provision.inventory.json_schema import find_schema_errors, resolve_ref, schema
from gpu_provision.inventory.schema_errors import to_finding
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, InvalidInventoryError
from gpu_provision.model.openshift_specs import OPENSHIFT

_NAMESPACE = "gpu-operator"  # the namespace that the GPU Operator's installation guide names
_NO_ENV = "A variable is a mapping with `name` and `value`, and nothing else."
_MIG_FILE = "config.yaml"  # the only key of the MIG manager's ConfigMap
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


@dataclass(kw_only=True)
class Draft:
    """A derived inventory, with a warning for each setting that it does not carry over."""

    data: dict[str, Any]
    unsupported: list[Finding] = field(default_factory=list)  # settings that an inventory lacks
    refused: list[Finding] = field(default_factory=list)  # values that the schema of inventories refuses

    @property
    def text(self) -> str:
        """The inventory as YAML."""
        return yaml.safe_dump(self.data, sort_keys=False, allow_unicode=True, width=118)


def derive_inventory(
    source: OperatorSettings,
    *,
    name: str,
    cluster: Mapping[str, str],
    release: str = "",
    install: OperatorInstall | None = None,
) -> Draft:
    """Return an inventory that means what the settings do.

    Raises InvalidInventoryError if its YAML would have more or deeper values than an inventory may have.

    ``cluster`` has the user's ``kubeconfig``, ``context`` and ``namespace``. Nodes are those of ``install``; without
    one, a pool selects every node that has a GPU.
    """
    release = release or release_of(source)
    source = _with_platform(source, install) if install else source
    main = _without_driver(source) if source.drivers else source
    settings = carried_settings(main, release)
    platform = settings.pop("cluster", {})
    if source.drivers:  # what the operator takes without a value is not of these drivers
        _remove(settings, ("driver", "upgrade_policy"))
    draft = Draft(data={}, unsupported=[item for each in (main, *source.drivers) for item in report_unsupported(each)])
    drivers = _read_drivers(source.drivers, release)
    origins: dict[KeyPath, OperatorSettings] = {(): main}
    if len(drivers) == 1 and drivers[0].selects_all:
        only = drivers.pop()
        settings |= {key: {**settings.get(key, {}), **section} for key, section in only.part.items()}
        origins |= {(key,): only.source for key in OF_DRIVER}
    members: list[dict[str, str]] = []
    if install:
        settings = _add_cluster_facts(settings, install)
        pools, members, own = pools_of_nodes(install.facts.nodes, drivers)
    else:
        pools, own = pools_of_drivers(drivers)
    origins |= {("pools", pool): each.source for pool, each in own.items()}
    draft.data = {
        "name": name,
        "cluster": {**platform, **{key: value for key, value in cluster.items() if value}},
        "release": release,
        "host_prerequisites": {"enabled": False},
        **settings,
        "pools": pools,
        **({"nodes": members} if install else {}),
    }
    draft.data["cluster"].setdefault("namespace", source.namespace or _NAMESPACE)
    _drop_refused(draft, origins)
    return draft


def _without_driver(source: OperatorSettings) -> OperatorSettings:
    """Return the settings of a ClusterPolicy whose drivers, with all modules, come from NVIDIADriver resources."""
    others = {key: value for key, value in source.spec.items() if key not in OF_DRIVER}
    return replace(source, spec={**others, "driver": {"enabled": value_at(source.spec, "driver.enabled")}})


def _read_drivers(sources: list[OperatorSettings], release: str) -> list[DriverPool]:
    """Return the pools of NVIDIADriver resources, which carry nothing but sections of a pool."""
    names = pool_names(each.name for each in sources)
    return [driver_pool(each, carried_settings(each, release), name) for each, name in zip(sources, names, strict=True)]


def _add_cluster_facts(settings: Mapping[str, Any], install: OperatorInstall) -> dict[str, Any]:
    """Return the settings with what the labels of the nodes tell."""
    found = dict(settings)
    driver_labels = {node.labels.get(labels.DEPLOY_DRIVER) for node in install.facts.nodes}
    if found.get("driver", {}).get("enabled", True) and labels.PRE_INSTALLED in driver_labels:
        found["driver"] = {**found.get("driver", {}), "enabled": "auto"}
    if not install.discovery and any(labels.has_nfd_labels(node.labels) for node in install.facts.nodes):
        found = {"nfd": {"enabled": False}, **found}  # another NFD labels the nodes
    return found


def settings_of_install(install: OperatorInstall) -> OperatorSettings:
    """Return the settings of a cluster's ClusterPolicy and NVIDIADriver resources."""
    found = _with_platform(_settings_of_live(POLICY, install.policy or {}), install)
    found.version_texts = (*_chart_texts(install), *found.version_texts)
    found.namespace = install.namespace
    found.drivers = [_settings_of_live(DRIVER, driver) for driver in install.drivers]
    return found


def _with_platform(source: OperatorSettings, install: OperatorInstall) -> OperatorSettings:
    """Return the settings with the platform of the cluster, as the chart's values have it; none stay none."""
    platform = {"platform": {"openshift": install.facts.openshift is not None}}
    return replace(source, spec={**source.spec, **platform}) if source.spec else source


def _settings_of_live(kind: str, item: Manifest) -> OperatorSettings:
    spec, metadata = item.get("spec") or {}, item.get("metadata", {})
    return settings_of_resource(kind, metadata, leaves(spec), lambda path: f"{ref_of(item)} spec.{format_path(path)}")


def _chart_texts(install: OperatorInstall) -> Iterator[str]:
    yield from (labels_of(item).get("helm.sh/chart", "") for item in install.operators)
    for item in install.operators:
        yield str(item["spec"]["template"]["spec"]["containers"][0]["image"]).rpartition(":")[2]


def release_of(source: OperatorSettings) -> str:
    """Return the release that the chart, the operator's image or its validator names, else the default."""
    texts = [*source.version_texts, str(value_at(source.spec, "validator.version"))]
    versions = (version[1] for version in map(_VERSION.search, texts) if version)
    return next((version for version in versions if version in releases.names()), releases.DEFAULT)


def carried_settings(source: OperatorSettings, release: str) -> dict[str, Any]:
    """Return the nested inventory settings of a source that differ from the inventory's defaults and the release."""
    spec = _with_unset(source, release)
    settings: dict[str, Any] = {}
    for name, carried in reference.carried_fields().items():
        value = value_at(spec, name)
        if value in EMPTY_VALUES or _is_implied(source.kind, name, spec):
            continue
        if (written := _to_inventory_value(name, carried, value)) not in EMPTY_VALUES:
            put_value(settings, tuple(carried.key.split(".")), written)
    settings = _drop_schema_defaults(settings, schema())
    for key, parts in _images(source, release).items():
        for part, value in parts.items():
            put_value(settings, (*key.split("."), part), value)
    return settings


def _is_implied(kind: str, name: str, spec: Mapping[str, Any]) -> bool:
    """Whether a field has no effect without another one that is off, or has the value that it follows."""
    only_with = reference.row_of(kind, name).only_with
    followed = read_table("reference.yaml")["follows"].get(name, "")
    default = reference.default_of(reference.setting_of(followed)) if followed else None
    is_off = bool(only_with) and not value_at(spec, only_with)
    return is_off or (bool(followed) and value_at(spec, name) == (value_at(spec, followed) or default))


def _with_unset(source: OperatorSettings, release: str) -> dict[str, Any]:
    """Return the spec of a source with what holds for fields that it does not have."""
    if not source.spec:
        return {}
    spec: dict[str, Any] = {}
    for name, default in read_table("reference.yaml")["unset"].get(source.kind, {}).items():
        until, only_with = default.get("until", release), default.get("only_with")
        if not _is_newer(release, until) and (only_with is None or value_at(source.spec, only_with)):
            put_value(spec, tuple(name.split(".")), default["value"])
    for path, value in leaves(source.spec):
        put_value(spec, path, value)
    return spec


def _is_newer(release: str, other: str) -> bool:
    names = releases.names()
    return names.index(release) > names.index(other)


def _to_inventory_value(name: str, carried: reference.Carried, value: Any) -> Any:
    """Convert a ClusterPolicy's value to an inventory's, without the values of the chart."""
    known, key = read_table("reference.yaml"), carried.key
    if carried.kind == "env" and is_env(value):
        variables = {entry["name"]: _text_of(entry.get("value")) for entry in value}
        return _drop_defaults(known["chart_variables"].get(key, {}), variables)
    if isinstance(value, dict):
        value = _without_defaults(tuple(name.split(".")), value)
    if value in known["defaults"].get(name, ()):
        return None
    if key == "daemonsets.labels" and isinstance(value, dict):
        return _drop_defaults(known["chart_labels"], value)
    return _convert(key, value)


def _without_defaults(path: Path, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the fields that have their default; an inventory merges it over the same ones."""
    kept: dict[str, Any] = {}
    for below, leaf in leaves(value):
        if leaf not in defaults_of((*path, *below)):
            put_value(kept, below, leaf)
    return kept


def _convert(key: str, value: Any) -> Any:
    if isinstance(value, dict) and key.endswith(".config.data") and reference.holds_mappings(key):
        return {name: _parse_text(text) for name, text in value.items()}
    if isinstance(value, dict) and value.keys() == {_MIG_FILE}:
        return _parse_text(value[_MIG_FILE])
    if key.endswith("max_unavailable") and re.fullmatch(r"[0-9]{1,9}", str(value)):
        return int(value)
    if key == "cluster.platform":
        return OPENSHIFT if value else None
    if key == "driver.args" and isinstance(value, list) and value[0] == "init":  # an inventory's arguments follow it
        return value[1:]
    return value


def _parse_text(text: Any) -> Any:
    """Return a file of a ConfigMap as a mapping; what is none stays, and the schema reports it."""
    if not isinstance(text, str):
        return text
    try:
        document, problems = parse(Source("", FilePath(), text, ""))
    except SourceError:
        return text
    return text if problems else document.data


def _text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _drop_defaults(defaults: Mapping[str, str | None], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in defaults or defaults[key] not in {value, None}}


def _images(source: OperatorSettings, release: str) -> dict[str, dict[str, Any]]:
    """Return the parts of images that differ from the release, by section of the inventory."""
    found = {}
    for section, key in reference.image_sections().items():
        parts = _image_parts(source.kind, value_at(source.spec, section))
        default = releases.release(release).images.get(key.replace(".", "_"))
        found[key] = {part: value for part, value in parts.items() if value != getattr(default, part, None)}
    return {key: parts for key, parts in found.items() if parts}


def _image_parts(kind: str, section: Any) -> dict[str, Any]:
    """Return repository, image and version as far as a section names them.

    In a resource an image without both others is a whole reference; that of an NVIDIADriver has the repository by
    default. Without an image, the operator takes it from its environment, as with the release (`ImagePath` in
    internal/image/image.go).
    """
    parts = {part: section[part] for part in IMAGE if section.get(part)} if isinstance(section, dict) else {}
    is_whole = "image" in parts and "repository" not in parts and (kind == DRIVER or "version" not in parts)
    if kind != VALUES and is_whole:
        return _split_image(str(parts["image"])) | {part: parts[part] for part in parts if part != "image"}
    return parts if kind != POLICY or "version" in parts else {}


def _split_image(name: str) -> dict[str, str]:
    """Return the parts of a reference such as ``r.example.com/nvidia/driver:580``, or with a digest."""
    rest, _, digest = name.partition("@")
    repository, _, image = rest.rpartition("/")
    image, _, tag = image.partition(":")
    parts = {"repository": repository, "image": image, "version": digest or tag}
    return {part: value for part, value in parts.items() if value}


def _drop_schema_defaults(settings: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their part of the schema."""
    kept = {}
    for key, value in settings.items():
        setting = resolve_ref(
            part["properties"].get(key, {})
        )  # without a schema for a key that `_drop_refused` reports
        if "properties" in setting and isinstance(value, dict):
            if below := _drop_schema_defaults(value, setting):
                kept[key] = below
        elif value != setting.get("default"):
            kept[key] = value
    return kept


def _drop_refused(draft: Draft, origins: Mapping[KeyPath, OperatorSettings]) -> None:
    """Take values that the schema refuses out of the inventory, each with a finding at its place in the source."""
    try:
        document, _ = parse(Source("inventory", FilePath(), draft.text, ""))
    except SourceError as refusal:  # files of ConfigMaps that are too large or too deep together
        raise InvalidInventoryError(refusal.finding) from refusal
    for error in find_schema_errors(document.data):
        begin = max((each for each in origins if error.path[: len(each)] == each), key=len)
        source, below = origins[begin], error.path[len(begin) if begin[:1] == ("pools",) else 0 :]
        if field := _field_of(below):
            finding, place = to_finding(document, error), source.where(tuple(field.split(".")))
            what = _NO_ENV if field.endswith("env") and error.keyword == "type" else finding.what
            warning = import_warning(place, f"{LOST} {what}", evidence=finding.evidence, fix=finding.fix)
            draft.refused.append(warning)
            _remove(draft.data, _setting_path(error.path))


def _field_of(path: KeyPath) -> str:
    """Return the field of the reference that a path in an inventory, or in a pool, was derived from."""
    keys = {carried.key: name for name, carried in reference.carried_fields().items()}
    keys |= {f"{key}.{part}": f"{name}.{part}" for name, key in reference.image_sections().items() for part in IMAGE}
    keys |= {
        row.key.removeprefix(POOL): f"driver.{name}"
        for name, row in reference.rows_of(reference.DRIVER).items()
        if row.key.startswith(POOL)
    }
    names = [name for name in reference.prefixes(".".join(map(str, path))) if name in keys]
    return keys[names[-1]] if names else ""


def _setting_path(path: KeyPath) -> KeyPath:
    """Return a path without what is inside a list: a list is carried over as a whole."""
    return path[: next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))]


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    """Remove the value at a path, and mappings that are empty then."""
    holders: list[Any] = [data]
    for step in path[:-1]:
        if not isinstance(holders[-1], dict) or step not in holders[-1]:
            return
        holders.append(holders[-1][step])
    for holder, step in zip(reversed(holders), reversed(path), strict=True):
        holder.pop(step, None)
        if holder:
            return
