"""The versions of an earlier inventory on the inventory of now, and an earlier inventory to compare with.

Everyone who may patch the ConfigMap of the history can write a record, and what an inventory says runs as root on
hosts. So a record gives versions of software and nothing else, and only versions that the release catalogue or the
inventory of now names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

import yaml

from gpu_provision import releases
from gpu_provision.inventory.document import KeyPath, Source, SourceError, format_path
from gpu_provision.inventory.hiding import replaced, restored
from gpu_provision.inventory.json_schema import ANY, cluster_part, resolved, schema
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.values import without_foreign
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.findings import Finding
from gpu_provision.model.inventory import Inventory

Data = dict[str, Any]

RELEASE: KeyPath = ("release",)
_MANAGER = "driver_manager"

VERSIONS: Mapping[KeyPath, str] = MappingProxyType(
    {
        RELEASE: "release",
        ("nfd", "version"): "nfd",
        ("driver", "version"): "driver",
        ("driver", "manager", "version"): _MANAGER,
        ("toolkit", "version"): "toolkit",
        ("validator", "version"): "validator",
        ("device_plugin", "version"): "device_plugin",
        ("gfd", "version"): "gfd",
        ("dcgm", "version"): "dcgm",
        ("dcgm_exporter", "version"): "dcgm_exporter",
        ("pools", ANY, "driver", "version"): "driver",
        ("pools", ANY, "driver", "manager", "version"): _MANAGER,
    }
)
"""Settings that a record may give -> the software that each one is a version of. All others are as now."""

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C is ten times faster; not every wheel has it
_LONGEST = 100  # characters of a value on record, in a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What came of an inventory on record.

    Attributes:
        inventory: None if it cannot be used.
        unknown: Versions on record that neither the release catalogue nor the inventory of now names, by path, in
            printable characters.
        kept: Paths of settings that differ between the record and now, and stay as now; the schema names them.
        findings: What the loader says.
    """

    inventory: Inventory | None
    unknown: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def again(text: str, now: Inventory, *, name: str, release: str = "", of_cluster: bool = False) -> Again:
    """Return the inventory of now with the versions of an earlier one.

    A pool that the earlier one does not have keeps its versions; a pool that only the earlier one has stays away.

    Args:
        text: As on record.
        now: Read from a text.
        name: What findings call the record, such as ``run 3``.
        release: What the earlier one meant if it names no release; empty for the default of this version of the tool.
        of_cluster: Whether the text says nothing of hosts, which are no difference then.

    Raises:
        SourceError: The text is no inventory.
    """
    then, current = _data(name, text), _data(now.path, now.text)
    versions = _versions(then, current, release or releases.DEFAULT)
    unknown = {
        format_path(path): ascii(value)[:_LONGEST]
        for path, value in versions.items()
        if value is not None and not (isinstance(value, str) and value in _known(path, current))
    }
    if unknown:
        return Again(inventory=None, unknown=unknown)
    told = _with_versions(now, current, versions)
    digest = hashlib.sha256(told.encode()).hexdigest()
    source = Source(name=name, path=_path(now), text=told, digest=digest, is_local=bool(now.path))
    inventory, findings = validate_source(source)
    return Again(
        inventory=replace(inventory, cluster=now.cluster, path=now.path) if inventory else None,
        kept=tuple(_kept(_data(name, restored(text, now.text)), current, of_cluster=of_cluster)),
        findings=findings.all,
    )


def as_then(text: str, now: Inventory, *, name: str) -> Inventory | None:
    """Return the cluster's part of an earlier inventory, to compare; None if it cannot be used today.

    A record may have no file of this machine read that the present inventory does not read itself: so the hosts' part
    is left out, which names files.
    """
    try:
        _data(name, text)  # refuses nested aliases, which the next line would write out
        data = without_foreign(_data(name, restored(text, now.text)), _data(now.path, now.text) if now.text else {})
        told = _dumped({"name": data.get("name", ""), "cluster": {}, **cluster_part(data)[0]})
        return validate_source(Source(name=name, path=_path(now), text=told, digest="", is_local=bool(now.path)))[0]
    except SourceError:
        return None


def _path(now: Inventory) -> FilePath:
    return FilePath(now.path) if now.path else FilePath.cwd() / now.name


def _data(name: str, text: str) -> Data:
    source = Source(name=name, path=FilePath(name), text=text, digest="")
    return parse(source)[0].data


def _dumped(data: Data) -> str:
    return str(yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


def _versions(then: Data, now: Data, release: str) -> dict[KeyPath, Any]:
    """Return the versions that differ from those of now, by their paths; None for one that is not on record."""
    pools = _mapping(then, "pools").keys() & _mapping(now, "pools").keys()
    found = {path: _at(then, path) for path in _places(pools)}
    current = {path: _at(now, path) for path in found}
    for versions, default in ((found, release), (current, releases.DEFAULT)):
        versions[RELEASE] = default if versions[RELEASE] is None else versions[RELEASE]
    return {path: value for path, value in found.items() if value != current[path]}


def _places(pools: Collection[str]) -> Iterator[KeyPath]:
    """Yield the paths of all versions in an inventory that has pools of these names."""
    for path in VERSIONS:
        yield from ((path[0], name, *path[2:]) for name in pools) if ANY in path else (path,)


def _known(path: KeyPath, now: Data) -> frozenset[Any]:
    """Return the versions that may stand at a path: those of the catalogue, and those that the inventory names."""
    software = VERSIONS[_pattern(path)]
    here = (each for each in _places(_mapping(now, "pools")) if VERSIONS[_pattern(each)] == software)
    return frozenset({*_catalogue(software), *(_at(now, each) for each in here)})


def _pattern(path: KeyPath) -> KeyPath:
    return (path[0], ANY, *path[2:]) if path[0] == "pools" else path


def _catalogue(software: str) -> Collection[str]:
    match software:
        case "release":
            return [spelled for name in releases.names() for spelled in (name, f"v{name}")]
        case "driver":
            return releases.driver_versions()
        case _:
            return releases.versions(software)


def _with_versions(now: Inventory, current: Data, versions: Mapping[KeyPath, Any]) -> str:
    """Return the inventory's text with other versions, changed in place where the text has one at each path."""
    if not versions:
        return now.text
    wanted = deepcopy(current)
    for path, value in versions.items():
        _set(wanted, path, value)
    told = replaced(now.text, {path: value for path, value in versions.items() if value is not None})
    return told if _data(now.path, told) == wanted else _dumped(wanted)  # else: one comes or goes, or is an alias


def _at(data: Any, path: KeyPath) -> Any:
    for step in path:
        data = data.get(step) if isinstance(data, Mapping) else None
    return data


def _set(data: dict[Any, Any], path: KeyPath, value: Any) -> None:
    """Set a value; None takes it away, with mappings that it leaves empty: an empty driver is no driver of its own."""
    first, *rest = path
    if rest:
        below = data.setdefault(first, {}) if value is not None else data.get(first)
        if isinstance(below, dict):
            _set(below, tuple(rest), value)
        if below == {}:
            del data[first]
    elif value is not None:
        data[first] = value
    else:
        data.pop(first, None)


def _mapping(data: Data, key: str) -> Data:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _kept(then: Data, now: Data, *, of_cluster: bool) -> Iterator[str]:
    """Yield the paths of settings that are no versions, and that differ."""
    one, other = (cluster_part(each)[0] if of_cluster else deepcopy(each) for each in (then, now))
    for each in (one, other):
        for path in tuple(_places(_mapping(each, "pools"))):
            _set(each, path, None)
    yield from _differing(one, other, schema())


def _differing(one: Data, other: Data, part: Data, path: KeyPath = ()) -> Iterator[str]:
    """Yield the paths of settings that differ. Only the schema's keys are looked at, so no name is of a record."""
    for key, setting in part["properties"].items():
        here, found = (*path, key), resolved(setting)
        before, after = (each.get(key, found.get("default", {})) for each in (one, other))
        if "properties" in found and isinstance(before, dict) and isinstance(after, dict):
            yield from _differing(before, after, found, here)
        elif _told(before) != _told(after):
            yield format_path(here)


def _told(value: Any) -> str:
    """Return a value as text, in which True, 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True)
