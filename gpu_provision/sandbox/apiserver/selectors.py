"""Label and field selectors: text -> predicate over objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import StatusError, bad_request
from gpu_provision.sandbox.apiserver.objects import at
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.objects import is_met

Matches = Callable[[Object], bool]
Labels = Mapping[str, str]


class Requirement(NamedTuple):
    """One part of a label selector; ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()


class FieldTerm(NamedTuple):
    """One part of a field selector."""

    field: str
    equal: bool
    value: str


_REQUIREMENT = re.compile(
    r"""(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)
        (?: \s*(?P<compare>==|!=|=|>|<)\s*(?P<value>[^\s!=<>(),]*)
          | \s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\) )?""",
    re.VERBOSE,
)
_TERM = re.compile(r"([\w.]+)\s*(==|!=|=)\s*(.*)")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector. Raises StatusError 400."""
    return tuple(_parse_requirement(part) for part in _split(text))


def _parse_requirement(part: str) -> Requirement:
    found = _REQUIREMENT.fullmatch(part)
    if not found or (found["absent"] and (found["compare"] or found["set"])):
        message = f"unable to parse requirement: {part!r} is no label selector"
        raise bad_request(message)
    key, operator = found["key"], _OPERATORS.get(found["compare"] or found["set"] or "", "Exists")
    texts = found["values"].split(",") if found["set"] else [found["value"]] if found["compare"] else []
    values = frozenset(text.strip() for text in texts)
    if not _KEY.fullmatch(key):
        message = f"unable to parse requirement: invalid label key {key!r}"
        raise bad_request(message)
    if operator in ("Gt", "Lt") and not all(re.fullmatch(r"-?\d+", value) for value in values):
        message = "unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(message)
    if wrong := next((value for value in values if not _VALUE.fullmatch(value)), ""):
        message = f"unable to parse requirement: invalid label value: {wrong!r}"
        raise bad_request(message)
    return Requirement(key, "DoesNotExist" if found["absent"] else operator, values)


def labels_match(requirements: tuple[Requirement, ...], labels: Labels) -> bool:
    """Say whether labels meet all requirements."""
    return all(is_met(one.operator, labels.get(one.key), one.values) for one in requirements)


def parse_field_selector(text: str, info: ResourceInfo) -> tuple[FieldTerm, ...]:
    """Parse a field selector. Raises StatusError 400 for a field that this resource does not offer."""
    return tuple(_parse_term(part, info) for part in _split(text))


def _parse_term(part: str, info: ResourceInfo) -> FieldTerm:
    found = _TERM.fullmatch(part)
    if not found:
        message = f"invalid selector: '{part}'; can't understand '{part}'"
        raise bad_request(message)
    field, operator, value = found.groups()
    if field not in ("metadata.name", "metadata.namespace", *info.fields):
        known = f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        raise bad_request(f"field label not supported: {field}" if info.fields else known)
    return FieldTerm(field, operator != "!=", value)


def selected_name(text: str, info: ResourceInfo) -> str:
    """Return the name of the one object that a field selector can select; empty if it may be any, or is malformed."""
    try:
        terms = parse_field_selector(text, info)
    except StatusError:
        return ""
    names = {term.value for term in terms if term.equal and term.field == "metadata.name"}
    return names.pop() if len(names) == 1 else ""


def required_value(field_selector: str, field: str) -> str:
    """Return the value that a field selector demands of ``field``, else nothing: the key into an index."""
    found = (_TERM.fullmatch(part) for part in _split(field_selector))
    return next((term[3] for term in found if term and term[1] == field and term[2] != "!="), "")


def _field_text(obj: Object, field: str) -> str:
    """Return a field as selectors see it: text, empty if missing."""
    value = at(obj, *field.split("."))
    if field == "source" and isinstance(value, dict):
        value = value.get("component")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "false" if field in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value)


def build_predicate(label_selector: str, field_selector: str, info: ResourceInfo) -> Matches | None:
    """Return the test of both selectors, or None if everything matches. Raises StatusError 400."""
    labels = parse_label_selector(label_selector)
    fields = parse_field_selector(field_selector, info)
    if not labels and not fields:
        return None

    def matches(obj: Object) -> bool:
        return labels_match(labels, obj["metadata"].get("labels") or {}) and all(
            (_field_text(obj, term.field) == term.value) is term.equal for term in fields
        )

    return matches
