"""Read what is imported: values of the GPU Operator's chart, and its resources, from YAML files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpu_provision.adopt import reference
from gpu_provision.adopt.reference import DRIVER, POLICY, VALUES
from gpu_provision.adopt.settings import OperatorSettings, Path, leaves, settings_of_resource, value_at
from gpu_provision.inventory.document import (
    Document,
    KeyPath,
    SourceError,
    quote_unprintable,
    read_source,
    read_stdin,
    to_findings,
)
from gpu_provision.inventory.yaml_parser import parse_documents
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, InvalidInventoryError, Severity
from gpu_provision.model.text import did_you_mean

STDIN = "-"
"""In place of a file: standard input."""

_GROUP = "nvidia.com/"
_AS_SUBCHART = "gpu-operator"
_NAME_FILES = "Name values files of the chart, or one ClusterPolicy and its NVIDIADriver resources."


class _Part(NamedTuple):
    """A mapping in a file: the chart's values, or a resource."""

    document: Document
    path: KeyPath
    data: Mapping[str, Any]

    @property
    def place(self) -> str:
        return self.document.location(self.path)

    def below(self, *steps: str) -> _Part:
        data: Any = self.data
        for step in steps:
            data = data.get(step)
        return _Part(self.document, (*self.path, *steps), data)

    def locate(self, path: Path) -> str:
        """Return the place of a field of this part."""
        return self.document.location((*self.path, *path))

    def leaves(self) -> Iterator[tuple[Path, Any]]:
        """Yield the fields; a version that YAML reads as a number is as it is written."""
        for path, value in leaves(self.data):
            item = self.document.item((*self.path, *path))
            is_number = path[-1] == "version" and isinstance(value, (int, float)) and not isinstance(value, bool)
            yield path, item.raw if item and is_number else value


@dataclass(kw_only=True)
class _Parts:
    """The contents of all files by kind, and the findings about them."""

    values: list[_Part] = field(default_factory=list)
    policies: list[_Part] = field(default_factory=list)
    drivers: list[_Part] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_files(names: Iterable[str]) -> tuple[OperatorSettings, tuple[Finding, ...]]:
    """Return what the files set, of several values files the last one first, and warnings.

    Raises InvalidInventoryError with a finding for each mistake in the files.
    """
    parts = _Parts()
    for name in dict.fromkeys(names):
        parts.findings += _read_file(name, parts)
    parts.findings += _find_contradictions(parts)
    if _has_errors(parts):
        raise InvalidInventoryError(*parts.findings)
    return _combine(parts), tuple(parts.findings)


def _read_file(name: str, parts: _Parts) -> Iterator[Finding]:
    """Add the contents of a file to the parts, and yield its findings."""
    try:
        source = read_stdin() if name == STDIN else read_source(name)
        documents, problems = parse_documents(source)
    except SourceError as error:
        yield error.finding
        return
    yield from to_findings(problems, source.name)
    written = [document for document in documents if document.data is not None]
    if not written:
        yield _refusal("The file holds no values.", source.name)
    for document in written:
        yield from _sort_document(_Part(document, (), document.data), parts)


def _sort_document(part: _Part, parts: _Parts) -> Iterator[Finding]:
    if not isinstance(part.data, Mapping):
        yield _refusal("This is no mapping of keys to values.", part.place)
    elif "kind" in part.data and "apiVersion" in part.data:
        yield from _sort_resource(part, parts)
    else:
        yield from _sort_values(part, parts)


def _sort_values(part: _Part, parts: _Parts) -> Iterator[Finding]:
    known = _chart_sections()
    if not part.data.keys() & known and isinstance(part.data.get(_AS_SUBCHART), Mapping):
        part = part.below(_AS_SUBCHART)
    names = list(part.data)
    if {"pools", "cluster"} <= part.data.keys():
        yield _refusal("This is an inventory already.", part.place, fix="Check it with gpu-provision validate.")
    elif names and not set(names) & known:
        what = "These are no values of the GPU Operator's chart, and no resource of the GPU Operator."
        shown = ", ".join(map(quote_unprintable, names[:3]))
        yield _refusal(what, part.place, evidence=shown, fix=did_you_mean(names[0], known, _NAME_FILES))
    else:
        parts.values.append(part)


def _chart_sections() -> frozenset[str]:
    fields = (*reference.field_names(POLICY), *reference.field_names(VALUES), *reference.rows_of(VALUES))
    return frozenset(field.partition(".")[0] for field in fields)


def _sort_resource(part: _Part, parts: _Parts) -> Iterator[Finding]:
    """Sort a resource, or each item of a list such as that of ``kubectl get -o yaml``."""
    kind, group = str(part.data["kind"]), str(part.data["apiVersion"])
    items = part.data.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for place, item in enumerate(items):
            below = _Part(part.document, (*part.path, "items", place), item)
            is_resource = isinstance(item, Mapping) and {"kind", "apiVersion"} <= item.keys()
            if is_resource:
                yield from _sort_resource(below, parts)
            else:
                yield _refusal("This entry of the list is no resource.", below.place)
        return
    found = {POLICY: parts.policies, DRIVER: parts.drivers}.get(kind) if group.startswith(_GROUP) else None
    if found is None:
        named = quote_unprintable(f"{group} {kind}")
        yield replace(_refusal(f"{named} is not read.", part.place), severity=Severity.WARNING)
    elif not isinstance(part.data.get("spec"), Mapping):
        yield _refusal(f"This {kind} has no spec.", part.place)
    elif not isinstance(part.data.get("metadata") or {}, Mapping):
        yield _refusal(f"The metadata of this {kind} is no mapping.", part.place)
    elif kind == DRIVER and not isinstance(part.data["spec"].get("nodeSelector") or {}, Mapping):
        yield _refusal(f"The nodeSelector of this {kind} is no mapping of labels to values.", part.place)
    else:
        found.append(part)


def _find_contradictions(parts: _Parts) -> Iterator[Finding]:
    if parts.values and parts.policies:
        what = "The files have both values of the chart and a ClusterPolicy, which the chart makes of its values."
        yield _refusal(what, parts.policies[0].place, fix="Name one of them.")
    for part in parts.policies[1:]:
        what = "There is a second ClusterPolicy; the GPU Operator uses only the oldest one."
        yield _refusal(what, part.place, fix="Name the files of one ClusterPolicy.")
    names: set[str] = set()
    for part in parts.drivers:
        name = _name_of(part)
        if name in names:
            yield _refusal(f"Several NVIDIADriver resources have the name {quote_unprintable(name)}.", part.place)
        names.add(name)
    if not (parts.values or parts.policies or parts.drivers or _has_errors(parts)):
        yield _refusal("No file has settings of the GPU Operator.", "")


def _has_errors(parts: _Parts) -> bool:
    return any(finding.severity is Severity.ERROR for finding in parts.findings)


def _name_of(part: _Part) -> str:
    return str((part.data.get("metadata") or {}).get("name", ""))


def _combine(parts: _Parts) -> OperatorSettings:
    found = OperatorSettings(kind=VALUES if parts.values else DRIVER)
    for part in parts.policies:
        found = _settings_of_part(POLICY, part)
    for part in parts.values:
        found.add(part.leaves(), part.locate)
    if parts.values:
        found.version_texts = (str(value_at(found.spec, "operator.version")),)
    found.drivers = [_settings_of_part(DRIVER, part) for part in parts.drivers]
    return found


def _settings_of_part(kind: str, part: _Part) -> OperatorSettings:
    spec = part.below("spec")
    return settings_of_resource(kind, part.data.get("metadata") or {}, spec.leaves(), spec.locate)


def _refusal(what: str, where: str, *, evidence: str = "", fix: str = _NAME_FILES) -> Finding:
    return Finding(code=codes.NOT_IMPORTABLE, what=what, where=where, evidence=evidence, fix=fix)
