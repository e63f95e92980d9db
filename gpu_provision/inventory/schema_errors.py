"""Explains errors of the schema to people; jsonschema's own messages are for programmers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu_provision.inventory.document import Document, format_path, visible
from gpu_provision.inventory.json_schema import SchemaError, resolved, schema
from gpu_provision.inventory.redaction import HIDDEN, redact
from gpu_provision.inventory.suggestions import did_you_mean, find_nearest, one_of, suggest_value
from gpu_provision.model.findings import Finding

Explanation = tuple[str, str]
"""What is wrong, and what the reader can do."""

_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}
_FEW = 3  # more sections than these would be no help


def to_finding(document: Document, error: SchemaError) -> Finding:
    """Return the finding for an error. Its evidence is the value, if that is what is wrong, and is no secret."""
    code, shows_value, explain = _EXPLANATIONS.get(_case(error), ("GP124", True, _other))
    what, fix = explain(document, error)
    evidence = str(error.value) if error.keyword == "propertyNames" else redact(error.path, _raw(document, error))
    seen = visible(evidence)[:100] if shows_value else ""
    return Finding(code=code, where=document.where(error.path), what=what, evidence=seen, fix=fix)


def _case(error: SchemaError) -> str:
    """Return the keyword, in three for a wrong type."""
    if error.keyword != "type":
        return error.keyword
    if error.value is None:
        return "no value"
    return "misread" if "string" in _wanted(error) and isinstance(error.value, (bool, int, float)) else "type"


def _wanted(error: SchemaError) -> list[str]:
    return [error.wanted] if isinstance(error.wanted, str) else list(error.wanted)


def _raw(document: Document, error: SchemaError) -> str:
    """Return the text of a scalar as it stands in the file."""
    item = document.item(error.path)
    return item.raw if item and not isinstance(item.value, (dict, list)) else ""


def _label(error: SchemaError) -> str:
    last = error.path[-1]
    return last if isinstance(last, str) else "This entry"


def _key(error: SchemaError) -> str:
    last = error.path[-1]
    return f"{last}: " if isinstance(last, str) else ""


def _written(value: object) -> str:
    """Return a scalar as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(_: Document, error: SchemaError) -> Explanation:
    *parent, key = error.path
    if error.path == ("validator", "enabled"):
        return "The validator cannot be off: every state is proven before a run calls it done.", "Remove the line."
    known = error.schema["properties"]
    section = _section_of(str(key))
    otherwise = f"{key} belongs under {section}." if section else f"Known here: {', '.join(sorted(known))}"
    place = f"under {format_path(tuple(parent))}" if parent else "at the top level"
    return f"There is no key {visible(str(key))} {place}.", did_you_mean(str(key), known, otherwise)


def _section_of(key: str) -> str:
    """Return the names of the top-level sections that know this key, for a key at the wrong level."""
    sections = schema()["properties"]
    holders = [name for name, section in sections.items() if key in resolved(section).get("properties", {})]
    if len(holders) > _FEW:
        return "a component, such as driver"
    return one_of(holders) if holders else ""


def _missing(_: Document, error: SchemaError) -> Explanation:
    *parent, key = error.path
    meaning = str(resolved(error.schema["properties"][key]).get("description", "")).partition(". ")[0]
    holder = format_path(tuple(parent)) if parent else "The inventory"
    return f"{holder} has no {key}.", f"Add `{key}`: {meaning.rstrip('.')}."


def _type(_: Document, error: SchemaError) -> Explanation:
    wanted = _wanted(error)
    what = f"{_label(error)} must be {one_of(_KINDS[kind] for kind in wanted)}, not {_kind(error.value)}."
    return what, _type_fix(error, wanted[0])


def _kind(value: Any) -> str:
    table = ((bool, "true or false"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "a mapping"))
    return next((name for kind, name in table if isinstance(value, kind)), "a text")


def _type_fix(error: SchemaError, wanted: str) -> str:
    value, key = error.value, _key(error)
    match wanted:
        case "boolean":
            return f"Write {key}true or {key}false."
        case "integer" if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            return f"Write it without quotes: {key}{int(value)}"
        case "array" if not isinstance(value, (dict, list)):
            return f"Write a list: {key}[{redact(error.path, value)}]"
        case "array":
            return "Write lines that begin with a dash."
        case "object":
            return f"Write {key}{_mapping(error.schema, value)}"
        case _:
            return f"Write one {_KINDS[wanted].partition(' ')[2]}."


def _mapping(part: dict[str, Any], value: object) -> str:
    """Return what a mapping of this kind looks like, in one line."""
    known = part.get("properties", {})
    if "enabled" in known and (isinstance(value, bool) or value in list(known["enabled"].get("enum", ()))):
        return f"{{enabled: {_written(value)}}}"
    keys = part.get("required") or list(known)[:2] or ["KEY"]
    return f"{{{', '.join(f'{key}: ...' for key in keys)}}}"


def _misread(document: Document, error: SchemaError) -> Explanation:
    """Explain a text that YAML took for a number or a switch: ``26.70``, ``no``."""
    raw = redact(error.path, _raw(document, error))
    read_as = "a switch" if isinstance(error.value, bool) else "a number"
    what = f"{_label(error)} must be a text, but YAML reads this as {read_as}."
    return what, "Quote it." if raw == HIDDEN else f'Quote it: {_key(error)}"{raw}"'


def _enum(_: Document, error: SchemaError) -> Explanation:
    allowed = [_written(each) for each in error.wanted]
    fix = f"Write {find_nearest(str(error.value), allowed) or allowed[0]}."
    if error.value in [_written(each) for each in error.wanted if isinstance(each, bool)]:
        fix = f"Write it without quotes: {_key(error)}{error.value}"
    return f"{_label(error)} must be {one_of(allowed)}.", fix


def _pattern(document: Document, error: SchemaError) -> Explanation:
    better = suggest_value(str(error.value), str(error.wanted)) if _is_open(document, error) else ""
    example = next(iter(error.schema.get("examples", ())), "")
    otherwise = f"Such as: {example}" if example else "Correct it, or remove the line."
    return f"{error.schema['patternErrorMessage']}.", f"Did you mean {better}?" if better else otherwise


def _is_open(document: Document, error: SchemaError) -> bool:
    """Return whether a finding may show the value: the file has it, and nothing of it is secret."""
    item = document.item(error.path)
    if error.keyword == "propertyNames":  # a name, whatever its value
        return True
    is_reference = item is not None and isinstance(item.value, dict) and isinstance(error.value, str)
    return not is_reference and redact(error.path, error.value) == error.value


def _minimum(_: Document, error: SchemaError) -> Explanation:
    fix = f"Write {error.wanted} or more."
    if error.path[-2:] == ("gpu", "count"):
        fix = "Write how many GPUs each node has; leave out gpu for nodes without one."
    return f"{_label(error)} must be at least {error.wanted}.", fix


def _one_source(_: Document, error: SchemaError) -> Explanation:
    names = list(error.schema["properties"])
    sources = one_of(f"`{name}`" for name in names).replace(" or ", " and ")
    what = f"{_label(error)} must be a text, or have exactly one of {sources}."
    return what, f"Keep one of them: {_key(error)}{{{names[0]}: ...}}"


def _repeated(_: Document, error: SchemaError) -> Explanation:
    counts = Counter(each for each in error.value if isinstance(each, str))
    repeated = next(each for each, count in counts.items() if count > 1)
    return f"{_label(error)} names {repeated} more than once.", "Remove the repetition."


def _other(_: Document, error: SchemaError) -> Explanation:
    what = f"{format_path(error.path)} is not as the schema asks ({error.keyword}: {error.wanted})."
    return what, "See docs/inventory.md."


_EXPLANATIONS: dict[str, tuple[str, bool, Callable[[Document, SchemaError], Explanation]]] = {
    "additionalProperties": ("GP120", False, _unknown),
    "required": ("GP121", False, _missing),
    "no value": ("GP122", False, lambda _, e: (f"{_label(e)} has no value.", "Write a value, or remove the line.")),
    "type": ("GP122", True, _type),
    "enum": ("GP123", True, _enum),
    "pattern": ("GP124", True, _pattern),
    "propertyNames": ("GP124", True, _pattern),
    "minimum": ("GP125", True, _minimum),
    "maximum": (
        "GP125",
        True,
        lambda _, e: (f"{_label(e)} must be at most {e.wanted}.", f"Write {e.wanted} or less."),
    ),
    "minLength": ("GP126", False, lambda _, e: (f"{_label(e)} is empty.", "Write a value, or remove the line.")),
    "maxLength": (
        "GP126",
        True,
        lambda _, e: (
            f"{_label(e)} may have at most {e.wanted} characters.",
            f"Shorten it by {len(e.value) - e.wanted}.",
        ),
    ),
    "uniqueItems": ("GP126", True, _repeated),
    "minProperties": ("GP126", False, _one_source),
    "maxProperties": ("GP126", False, _one_source),
    "misread": ("GP127", True, _misread),
}
"""Keyword of JSON Schema -> code, whether the value is the evidence, and how it is explained."""
