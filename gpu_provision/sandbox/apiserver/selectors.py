"""Label and field selectors: text -> predicate over objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.status import StatusError, bad_request

Matches = Callable[[Object], bool]


class Requirement(NamedTuple):
    """One part of a label selector; ``operator`` is in, notin, exists, absent, gt or lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()


_SET = re.compile(r"^(?P<key>[^\s!=<>(),]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>(),]+)\s*(?P<operator>==|!=|=|>|<)\s*(?P<value>[^\s!=<>(),]*)$")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)$")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_INTEGER = re.compile(r"^-?\d+$")
_LONGEST = 63
_OPERATORS = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}


def _parts(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    parts = re.split(r",(?![^()]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def _requirement(part: str) -> Requirement:
    found = _read(part)
    if not _KEY.fullmatch(found.key) or len(found.key.rpartition("/")[2]) > _LONGEST:
        message = f"unable to parse requirement: invalid label key {found.key!r}"
        raise bad_request(message)
    if found.operator in ("gt", "lt") and not all(_INTEGER.fullmatch(value) for value in found.values):
        message = "unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(message)
    for value in found.values:
        if not _VALUE.fullmatch(value) or len(value) > _LONGEST:
            message = f"unable to parse requirement: invalid label value: {value!r}"
            raise bad_request(message)
    return found


def _read(part: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], found["operator"], values)
    if found := _COMPARE.fullmatch(part):
        return Requirement(found["key"], _OPERATORS[found["operator"]], frozenset({found["value"]}))
    if found := _EXISTS.fullmatch(part):
        return Requirement(found["key"], "absent" if found["absent"] else "exists")
    message = f"unable to parse requirement: {part!r} is no label selector"
    raise bad_request(message)


def label_requirements(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector. Raises StatusError 400."""
    return tuple(_requirement(part) for part in _parts(text))


def requirements_of(selector: Mapping[str, Any] | None) -> tuple[Requirement, ...]:
    """Return the requirements of a LabelSelector object (matchLabels and matchExpressions)."""
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    given = selector or {}
    equal = [Requirement(key, "in", frozenset({value})) for key, value in (given.get("matchLabels") or {}).items()]
    sets = [
        Requirement(row["key"], operators[row["operator"]], frozenset(row.get("values") or ()))
        for row in given.get("matchExpressions") or []
    ]
    return (*equal, *sets)


def satisfied(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Say whether labels meet one requirement."""
    key, operator, values = requirement
    value = labels.get(key)
    match operator:
        case "in":
            return value is not None and value in values
        case "notin":
            return value not in values
        case "exists":
            return value is not None
        case "absent":
            return value is None
        case _:
            return _compared(value, next(iter(values)), larger=operator == "gt")


def _compared(value: str | None, bound: str, *, larger: bool) -> bool:
    try:
        number, limit = int(value or ""), int(bound)
    except ValueError:
        return False
    return number > limit if larger else number < limit


def all_satisfied(requirements: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    """Say whether labels meet all requirements."""
    return all(satisfied(requirement, labels) for requirement in requirements)


# Fields that Kubernetes lets people select by, per storage; metadata.name and metadata.namespace work everywhere.
FIELDS: dict[str, tuple[str, ...]] = {
    "/pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "/events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "/nodes": ("spec.unschedulable",),
    "/namespaces": ("status.phase",),
    "/secrets": ("type",),
    "/services": ("spec.clusterIP", "spec.type"),
    "/replicationcontrollers": ("status.replicas",),
    "apps/replicasets": ("status.replicas",),
    "batch/jobs": ("status.successful",),
}
_EVERYWHERE = ("metadata.name", "metadata.namespace")


class FieldTerm(NamedTuple):
    """One part of a field selector."""

    field: str
    equal: bool
    value: str


def field_terms(text: str, storage: str) -> tuple[FieldTerm, ...]:
    """Parse a field selector. Raises StatusError 400 for a field that this resource does not offer."""
    return tuple(_field_term(part, storage) for part in _parts(text))


def _field_term(part: str, storage: str) -> FieldTerm:
    found = re.match(r"^([\w.]+)\s*(==|!=|=)\s*(.*)$", part)
    if not found:
        message = f"invalid selector: '{part}'; can't understand '{part}'"
        raise bad_request(message)
    field, operator, value = found.groups()
    if field not in _EVERYWHERE and field not in FIELDS.get(storage, ()):
        raise _unknown_field(field, storage)
    return FieldTerm(field, operator != "!=", value)


def named_by(text: str, storage: str) -> str:
    """Return the name of the one object that a field selector can select; empty if it may be any, or is malformed."""
    try:
        names = {term.value for term in field_terms(text, storage) if term.equal and term.field == "metadata.name"}
    except StatusError:
        return ""
    return names.pop() if len(names) == 1 else ""


def _unknown_field(field: str, storage: str) -> StatusError:
    if storage in FIELDS:
        return bad_request(f"field label not supported: {field}")
    return bad_request(f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"')


def field_text(obj: Object, field: str) -> str:
    """Return a field as selectors see it: text, empty if missing."""
    value = at(obj, *field.split("."))
    if field == "source" and isinstance(value, dict):
        value = value.get("component")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "false" if field in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value)


def predicate(label_selector: str, field_selector: str, storage: str) -> Matches | None:
    """Return the test of both selectors, or None if everything matches. Raises StatusError 400."""
    labels = label_requirements(label_selector)
    fields = field_terms(field_selector, storage)
    if not labels and not fields:
        return None

    def matches(obj: Object) -> bool:
        return all_satisfied(labels, obj["metadata"].get("labels") or {}) and all(
            (field_text(obj, term.field) == term.value) is term.equal for term in fields
        )

    return matches


def exact(field_selector: str, field: str) -> str:
    """Return the value that a field selector demands of ``field``, else nothing: the key into an index."""
    for part in _parts(field_selector):
        found = re.match(r"^([\w.]+)\s*==?\s*(.+)$", part)
        if found and found[1] == field:
            return found[2]
    return ""
