"""Explains schema errors in plain English; jsonschema's messages are for programmers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu_provision.inventory.document import Document, format_path, quote_unprintable
from gpu_provision.inventory.json_schema import SchemaError, resolve_ref, schema
from gpu_provision.inventory.redaction import HIDDEN, redact
from gpu_provision.model.findings import Finding
from gpu_provision.model.text import did_you_mean, find_nearest, join_or

Explanation = tuple[str, str]  # what and fix of the finding

_KINDS = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}
_FEW = 3  # longer lists do not help
_NOTHING = "Write a value, or remove the line."


def to_finding(document: Document, error: SchemaError) -> Finding:
    """Return the finding for an error. Its evidence is a wrong value that is no secret."""
    case = error.keyword
    if case == "type" and error.value is None:
        case = "no value"
    elif case == "type" and "string" in _allowed_types(error) and isinstance(error.value, (bool, int, float)):
        case = "misread"
    code, shows_value, explain = _EXPLANATIONS.get(case, ("GP124", True, _explain_other))
    what, fix = explain(document, error)
    evidence = str(error.value) if error.keyword == "propertyNames" else redact(error.path, _raw_text(document, error))
    shown = quote_unprintable(evidence)[:100] if shows_value else ""
    return Finding(code=code, where=document.location(error.path), what=what, evidence=shown, fix=fix)


def _allowed_types(error: SchemaError) -> list[str]:
    return [error.expected] if isinstance(error.expected, str) else list(error.expected)


def _raw_text(document: Document, error: SchemaError) -> str:
    item = document.item(error.path)
    return item.raw if item and not isinstance(item.value, (dict, list)) else ""


def _label(error: SchemaError) -> str:
    return str(error.path[-1]) if isinstance(error.path[-1], str) else "This entry"


def _key(error: SchemaError) -> str:
    return f"{error.path[-1]}: " if isinstance(error.path[-1], str) else ""


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _explain_unknown(_: Document, error: SchemaError) -> Explanation:
    *parent, key = error.path
    if error.path == ("validator", "enabled"):
        return "The validator cannot be off: a run validates every node before it succeeds.", "Remove the line."
    known, sections = error.schema["properties"], schema()["properties"]
    holders = [name for name, section in sections.items() if key in resolve_ref(section).get("properties", {})]
    otherwise = f"Use one of: {', '.join(sorted(known))}"
    if holders:  # a key at the wrong level
        right = join_or(holders) if len(holders) <= _FEW else "a component, such as driver"
        otherwise = f"{key} belongs under {right}."
    place = f"under {format_path(tuple(parent))}" if parent else "at the top level"
    name = quote_unprintable(str(key)) if str(key).strip() else f'"{key}"'
    return f"There is no key {name} {place}.", did_you_mean(str(key), known, otherwise)


def _explain_missing(_: Document, error: SchemaError) -> Explanation:
    *parent, key = error.path
    meaning = str(resolve_ref(error.schema["properties"][key]).get("description", "")).partition(". ")[0]
    holder = format_path(tuple(parent)) if parent else "The inventory"
    return f"{holder} has no {key}.", f"Add `{key}`: {meaning.rstrip('.')}."


def _explain_type(_: Document, error: SchemaError) -> Explanation:
    wanted = _allowed_types(error)
    table = ((bool, "true or false"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "a mapping"))
    actual = next((name for kind, name in table if isinstance(error.value, kind)), "a string")
    what = f"{_label(error)} must be {join_or(_KINDS[kind] for kind in wanted)}, not {actual}."
    return what, _fix_type(error, wanted[0])


def _fix_type(error: SchemaError, wanted: str) -> str:
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
            return f"Write {key}{_example_mapping(error.schema, value)}"
        case _:
            return f"Write a single {_KINDS[wanted].partition(' ')[2]}."


def _example_mapping(part: dict[str, Any], value: object) -> str:
    """Return an example of a mapping of this kind, in one line."""
    known = part.get("properties", {})
    if "enabled" in known and (isinstance(value, bool) or value in list(known["enabled"].get("enum", ()))):
        return f"{{enabled: {_format_value(value)}}}"
    keys = part.get("required") or list(known)[:2] or ["KEY"]
    return f"{{{', '.join(f'{key}: ...' for key in keys)}}}"


def _explain_misread(document: Document, error: SchemaError) -> Explanation:
    """Explain a string that YAML reads as a number or a boolean: ``26.70``, ``no``."""
    raw = redact(error.path, _raw_text(document, error))
    read_as = "a boolean" if isinstance(error.value, bool) else "a number"
    what = f"{_label(error)} must be a string, but YAML reads this as {read_as}."
    return what, "Quote it." if raw == HIDDEN else f'Quote it: {_key(error)}"{raw}"'


def _explain_enum(_: Document, error: SchemaError) -> Explanation:
    allowed = [_format_value(each) for each in error.expected]
    fix = f"Write {find_nearest(str(error.value), allowed) or allowed[0]}."
    if error.value in [_format_value(each) for each in error.expected if isinstance(each, bool)]:  # of any type
        fix = f"Write it without quotes: {_key(error)}{error.value}"
    return f"{_label(error)} must be {join_or(allowed)}.", fix


def _explain_pattern(document: Document, error: SchemaError) -> Explanation:
    better = suggest_value(str(error.value), str(error.expected)) if _may_show(document, error) else ""
    example = next(iter(error.schema.get("examples", ())), "")
    otherwise = f"Write, for example: {example}" if example else "Correct it, or remove the line."
    return f"{error.schema['patternErrorMessage']}.", f"Did you mean {better}?" if better else otherwise


def _may_show(document: Document, error: SchemaError) -> bool:
    """Return whether a finding may show the value: it is in the file and not secret."""
    item = document.item(error.path)
    if error.keyword == "propertyNames":  # a key, which is never secret
        return True
    is_reference = item is not None and isinstance(item.value, dict) and isinstance(error.value, str)
    return not is_reference and redact(error.path, error.value) == error.value


def _explain_bound(_: Document, error: SchemaError) -> Explanation:
    label, bound = _label(error), error.expected
    match error.keyword:
        case "maxLength":
            return f"{label} may have at most {bound} characters.", f"Shorten it by {len(error.value) - bound}."
        case "maximum":
            return f"{label} must be at most {bound}.", f"Write {bound} or less."
    fix = f"Write {bound} or more."
    if error.path[-2:] == ("gpu", "count"):
        fix = "Write how many GPUs each node has; leave out gpu for nodes without one."
    return f"{label} must be at least {bound}.", fix


def _explain_sources(_: Document, error: SchemaError) -> Explanation:
    names = list(error.schema.get("properties", ()))
    if not names:
        return f"{_label(error)} is empty.", "Write an entry, or remove the line."
    sources = join_or(f"`{name}`" for name in names).replace(" or ", " and ")
    what = f"{_label(error)} must be a string, or have exactly one of {sources}."
    return what, f"Keep one of them: {_key(error)}{{{names[0]}: ...}}"


def _explain_repeated(_: Document, error: SchemaError) -> Explanation:
    counts = Counter(each for each in error.value if isinstance(each, str))
    repeated = next(each for each, count in counts.items() if count > 1)
    return f"{_label(error)} names {repeated} more than once.", "Remove the repetition."


def _explain_other(_: Document, error: SchemaError) -> Explanation:
    what = f"{format_path(error.path)} does not fit the schema ({error.keyword}: {error.expected})."
    return what, "See docs/inventory.md."


# Corrections of common mistakes, from the least to the most invasive.
_GUESSES: tuple[Callable[[str], str], ...] = (
    str.strip,
    str.lower,
    lambda text: re.sub(r"^[a-z]+://", "", text).rstrip("/"),  # https://registry.example.com/
    lambda text: text.rpartition("/")[2].partition(":")[0],  # nvcr.io/nvidia/driver:1.2
    lambda text: text.rpartition("@")[2],  # ubuntu@10.0.0.1
    lambda text: text.rpartition("@")[2].partition(":")[0],  # ubuntu@10.0.0.1:22
    lambda text: re.sub(r"-[a-z]+[0-9.]*$", "", text).removeprefix("v"),  # 595.91.07-ubuntu22.04
    lambda text: re.sub(r"[Bb]$", "", text),  # 1GiB, 512MB
    lambda text: re.sub(r"[\s_-]+", "", text.lower()) if re.search(r"[0-9]\.[0-9]", text) else "",  # Ubuntu 22.04
    lambda text: re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._"),
    lambda text: re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-."),
    lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
)


def suggest_value(value: str, pattern: str) -> str:
    """Return a similar value that fits the pattern, or an empty string."""
    guesses = (guess(value) for guess in _GUESSES)
    return next((guess for guess in guesses if guess and re.fullmatch(pattern, guess)), "")


_EXPLANATIONS: dict[str, tuple[str, bool, Callable[[Document, SchemaError], Explanation]]] = {
    "additionalProperties": ("GP120", False, _explain_unknown),
    "required": ("GP121", False, _explain_missing),
    "no value": ("GP122", False, lambda _, error: (f"{_label(error)} has no value.", _NOTHING)),
    "type": ("GP122", True, _explain_type),
    "enum": ("GP123", True, _explain_enum),
    "pattern": ("GP124", True, _explain_pattern),
    "propertyNames": ("GP124", True, _explain_pattern),
    "minimum": ("GP125", True, _explain_bound),
    "maximum": ("GP125", True, _explain_bound),
    "minLength": ("GP126", False, lambda _, error: (f"{_label(error)} is empty.", _NOTHING)),
    "maxLength": ("GP126", True, _explain_bound),
    "minItems": (
        "GP126",
        False,
        lambda _, error: (f"{_label(error)} is empty.", "Write an entry, or remove the line."),
    ),
    "uniqueItems": ("GP126", True, _explain_repeated),
    "minProperties": ("GP126", False, _explain_sources),
    "maxProperties": ("GP126", False, _explain_sources),
    "misread": ("GP127", True, _explain_misread),
}
"""Keyword of JSON Schema -> code, whether the value is the evidence, and its explanation."""
