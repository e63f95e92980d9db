"""Inventories on record: redacted when written, restored with the secrets of the present inventory."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from gpu_provision import releases
from gpu_provision.inventory import redaction
from gpu_provision.inventory.document import KeyPath, Source, SourceError, format_path
from gpu_provision.inventory.json_schema import ANY, cluster_part, resolve_ref, schema
from gpu_provision.inventory.loader import validate_source
from gpu_provision.inventory.redaction import HIDDEN, is_secret, looks_secret, may_hold_secret
from gpu_provision.inventory.references import mask_foreign
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.driver_specs import MODULE_SECTIONS
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import Record
from gpu_provision.model.hosts import HostPrerequisites
from gpu_provision.model.inventory import Inventory

Data = dict[str, Any]
RELEASE: KeyPath = ("release",)
_MANAGER = "driver_manager"

VERSIONS: Mapping[KeyPath, str] = MappingProxyType(
    {
        RELEASE: "release",
        **{(name, "version"): name for name in releases.COMPONENTS},
        ("driver", "manager", "version"): _MANAGER,
        ("pools", ANY, "driver", "version"): "driver",
        ("pools", ANY, "driver", "manager", "version"): _MANAGER,
        **{("pools", ANY, name, "version"): name for name in MODULE_SECTIONS},
    }
)
"""Settings that a record may give -> the software that each one is a version of. All others are as now."""

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C is ten times faster; not every wheel has it
_MAX_LENGTH = 100  # characters of a value on record, in a finding


class RestoredInventory(NamedTuple):
    """What came of an inventory on record.

    Attributes:
        inventory: None if it cannot be used.
        unknown: Versions on record that neither the release catalogue nor the inventory of now names, by path, in
            printable characters.
        kept: Paths of settings that differ between the record and now, and stay as now; the schema names them.
        findings: What the loader says.
    """

    inventory: Inventory | None
    unknown: Mapping[str, str] = MappingProxyType({})
    kept: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def restore(text: str, now: Inventory, *, name: str, release: str = "", of_cluster: bool = False) -> RestoredInventory:
    """Return the inventory of now with the versions of an earlier one.

    A pool that the earlier one does not have keeps its versions; a pool that only the earlier one has stays away.

    Args:
        text: As on record. Findings call it by ``name``, such as ``run 3``.
        now: Read from a text.
        release: What the earlier one meant if it names no release; empty for the default of this version of the tool.
        of_cluster: Whether the text says nothing of hosts, which are no difference then.

    Raises:
        SourceError: The text is no inventory.
    """
    then, current = _data(name, text), _data(now.path, now.text)
    versions = _versions(then, current, release or releases.DEFAULT)
    unknown = {
        format_path(path): ascii(value)[:_MAX_LENGTH]
        for path, value in versions.items()
        if value is not None and not (isinstance(value, str) and value in _known_versions(path, current))
    }
    if unknown:
        return RestoredInventory(inventory=None, unknown=unknown)
    changed = _with_versions(now, current, versions)
    digest = hashlib.sha256(changed.encode()).hexdigest()
    source = Source(name=name, path=_path(now), text=changed, digest=digest, is_local=bool(now.path))
    inventory, findings = validate_source(source)
    return RestoredInventory(
        inventory=replace(inventory, cluster=now.cluster, path=now.path) if inventory else None,
        kept=tuple(_kept_paths(_data(name, unredact(text, now.text)), current, of_cluster=of_cluster)),
        findings=findings.all,
    )


def restore_for_comparison(text: str, now: Inventory, *, name: str) -> Inventory | None:
    """Return the cluster's part of an earlier inventory, to compare; None if it cannot be used today.

    The hosts' part, which names files, is left out: a record has no file of this machine read.
    """
    try:
        _data(name, text)  # refuses nested aliases, which the next line would write out
        data = mask_foreign(_data(name, unredact(text, now.text)), _data(now.path, now.text) if now.text else {})
        part = _dump({"name": data.get("name", ""), "cluster": {}, **cluster_part(data)[0]})
        return validate_source(Source(name=name, path=_path(now), text=part, digest="", is_local=bool(now.path)))[0]
    except SourceError:
        return None


def versions_on_record(record: Record, now: Inventory) -> Mapping[str, str]:
    """Return the version of each component as a run declared it, of drivers by pool; empty if that is not known."""
    found = restore_for_comparison(record.text, now, name=f"run {record.number}") if record.text else None
    if found is None:
        return {}
    specs = {name: getattr(found.specs, name) for name in releases.COMPONENTS if name != "driver"}
    drivers = {f"driver ({name})": pool.driver for name, pool in found.pools.items() if pool.gpu}
    return {name: spec.image.version for name, spec in {**specs, **drivers}.items() if spec.enabled}


def _path(now: Inventory) -> FilePath:
    return FilePath(now.path) if now.path else FilePath.cwd() / now.name


def _data(name: str, text: str) -> Data:
    return parse(Source(name=name, path=FilePath(name), text=text, digest=""))[0].data


def _dump(data: Data) -> str:
    return str(yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


def _versions(then: Data, now: Data, release: str) -> dict[KeyPath, Any]:
    """Return the versions that differ from those of now, by their paths; None for one that is not on record."""
    pools = _mapping(then, "pools").keys() & _mapping(now, "pools").keys()
    found = {path: _value_at(then, path) for path in _version_paths(pools)}
    current = {path: _value_at(now, path) for path in found}
    for versions, default in ((found, release), (current, releases.DEFAULT)):
        versions[RELEASE] = default if versions[RELEASE] is None else versions[RELEASE]
    return {path: value for path, value in found.items() if value != current[path]}


def _version_paths(pools: Collection[str]) -> Iterator[KeyPath]:
    """Yield the paths of all versions in an inventory that has pools of these names."""
    for path in VERSIONS:
        yield from ((path[0], name, *path[2:]) for name in pools) if ANY in path else (path,)


def _known_versions(path: KeyPath, now: Data) -> frozenset[Any]:
    """Return the versions that may stand at a path: those of the catalogue, and those that the inventory names."""
    software = _software(path)
    here = (_value_at(now, each) for each in _version_paths(_mapping(now, "pools")) if _software(each) == software)
    if software == "release":
        return frozenset((*here, *releases.names(), *(f"v{name}" for name in releases.names())))
    return frozenset((*here, *(releases.driver_versions() if software == "driver" else releases.versions(software))))


def _software(path: KeyPath) -> str:
    return VERSIONS[(path[0], ANY, *path[2:]) if path[0] == "pools" else path]


def _with_versions(now: Inventory, current: Data, versions: Mapping[KeyPath, Any]) -> str:
    """Return the inventory's text with other versions, changed in place where the text has one at each path."""
    if not versions:
        return now.text
    wanted = deepcopy(current)
    for path, value in versions.items():
        _set(wanted, path, value)
    changed = replace_values(now.text, {path: value for path, value in versions.items() if value is not None})
    return changed if _data(now.path, changed) == wanted else _dump(wanted)  # else: one comes or goes, or is an alias


def _value_at(data: Any, path: KeyPath) -> Any:
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


def _kept_paths(then: Data, now: Data, *, of_cluster: bool) -> Iterator[str]:
    """Yield the paths of settings that are no versions, and that differ."""
    one, other = (cluster_part(each)[0] if of_cluster else deepcopy(each) for each in (then, now))
    for each in (one, other):
        for path in tuple(_version_paths(_mapping(each, "pools"))):
            _set(each, path, None)
    yield from _differing_paths(one, other, schema())


def _differing_paths(one: Data, other: Data, part: Data, path: KeyPath = ()) -> Iterator[str]:
    """Yield the paths of settings that differ. Only the schema's keys are compared, so no name comes from a record."""
    for key, setting in part["properties"].items():
        here, found = (*path, key), resolve_ref(setting)
        before, after = (each.get(key, found.get("default", {})) for each in (one, other))
        if "properties" in found and isinstance(before, dict) and isinstance(after, dict):
            yield from _differing_paths(before, after, found, here)
        elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):  # in which True, 1 and 1.0 differ
            yield format_path(here)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LINE_END = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_COMMENT = re.compile(r"(?P<line>^[ \t]*#.*(?:\n|\Z))|(?P<rest>[ \t]+#.*$)", re.MULTILINE)
_ANCHOR_OR_TAG = re.compile(r"(?:[&!]\S*\s+)*")
_TELLING = 6  # characters of a secret that is one in free text; a shorter one may be a common word


class _Scalar(NamedTuple):
    """One value of a text: where it begins and ends, what it means, and its path; one more for each alias of it."""

    start: int
    end: int
    value: str
    path: KeyPath


def redact(text: str) -> str:
    """Return the text of a valid inventory with placeholders for secrets, and without comments."""
    hidden_last = sorted(
        _redacted_scalars(text), key=lambda each: each[1] == HIDDEN
    )  # an alias hidden once is so at all
    spans = {(each.start, each.end): new for each, new in hidden_last if new != each.value}
    return _without_comments(_replace_spans(text, spans))


def unredact(text: str, source: str) -> str:
    """Return the text with those of its secrets that another inventory has at the same place and address."""
    known = {(each.path, shown): each.value for each, shown in _redacted_scalars(source)}
    hidden_ones = (each for each in _scalars(text) if HIDDEN in each.value)
    spans = {(each.start, each.end): known.get((each.path, each.value)) for each in hidden_ones}
    return _replace_spans(text, {span: value for span, value in spans.items() if value is not None})


def replace_values(text: str, values: Mapping[KeyPath, str]) -> str:
    """Return the text with other values where it has one at their paths; all else in it is as it was."""
    found = (each for each in _scalars(text) if each.path in values)
    return _replace_spans(text, {(each.start, each.end): values[each.path] for each in found})


def _redacted_scalars(text: str) -> Iterator[tuple[_Scalar, str]]:
    """Yield each value and its place on record; free text that looks like a secret or holds a known one is hidden."""
    scalars = list(_scalars(text))
    secrets = {each.value for each in scalars if is_secret(each.path) and len(each.value) >= _TELLING}
    for each in scalars:
        parent, last = each.path[-2:] if len(each.path) > 1 else ("", "")
        guessed = {"args": may_hold_secret(each.value), "annotations": looks_secret(str(last))}.get(str(parent))
        is_held = guessed is not None and any(secret in each.value for secret in secrets)
        is_hidden = bool(each.value) and (guessed or is_held)
        yield each, HIDDEN if is_hidden else redaction.redact(each.path, each.value)


def _scalars(text: str) -> Iterator[_Scalar]:
    starts = [0, *(found.end() for found in _LINE_END.finditer(text))]

    def below(node: Any, path: KeyPath) -> Iterator[_Scalar]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from below(value, (*path, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):  # a name identifies an item at any place
                pairs = item.value if isinstance(item, yaml.MappingNode) else ()
                name = next((str(value.value) for key, value in pairs if key.value == "name"), "")
                yield from below(item, (*path, name or index))
        elif node is not None:
            start, end = (starts[mark.line] + mark.column for mark in (node.start_mark, node.end_mark))
            yield _Scalar(start, end, node.value, path)

    return below(yaml.compose(text, Loader=_LOADER), ())


def _without_comments(text: str) -> str:
    spans = sorted((each.start, each.end) for each in _scalars(text))
    starts = [start for start, _ in spans]

    def keep_scalar(found: re.Match[str]) -> str:
        before = bisect_right(starts, found.start()) - 1
        return found[0] if before >= 0 and found.start() < spans[before][1] else ""

    return _COMMENT.sub(keep_scalar, text)


def _replace_spans(text: str, changes: Mapping[tuple[int, int], str]) -> str:
    """Return the text with values replaced; anchors stay, and so do blanks, as a block ends where the next begins."""
    for (start, end), new in sorted(changes.items(), reverse=True):
        old, quoted = text[start:end], json.dumps(new, ensure_ascii=False)  # YAML has the escapes of JSON
        anchor = _ANCHOR_OR_TAG.match(old)
        text = text[:start] + (anchor[0] if anchor else "") + quoted + old[len(old.rstrip()) :] + text[end:]
    return text


def declares_same(one: Record, other: Record, now: Inventory) -> bool:
    """Whether two runs declared the same, apart from hosts; what cannot be read today is the same as its own text."""
    if one.text == other.text:
        return True
    first, second = (restore_for_comparison(each.text, now, name=f"run {each.number}") for each in (one, other))
    if first is None or second is None:
        return False
    return _without_hosts(first) == _without_hosts(second)


def _without_hosts(inventory: Inventory) -> Inventory:
    pools = {name: replace(pool, host_prerequisites=HostPrerequisites()) for name, pool in inventory.pools.items()}
    nodes = tuple(replace(node, host_prerequisites=None) for node in inventory.nodes)
    return replace(inventory, pools=pools, nodes=nodes, text="", digest="")
