"""Tells a difference from the schema in a sentence for people; jsonschema's own messages are for programmers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_provision.inventory.document import Document, dotted
from gpu_provision.inventory.nearest import did_you_mean, nearest, one_of
from gpu_provision.inventory.repair import repaired
from gpu_provision.inventory.secrets import HIDDEN, shown
from gpu_provision.inventory.shape import Mismatch, schema
from gpu_provision.model.findings import Finding


def tell(document: Document, mismatch: Mismatch) -> Finding:
    """Return the finding for one mismatch."""
    return _TELL.get(mismatch.keyword, _other)(document, mismatch)


def _finding(document: Document, mismatch: Mismatch, code: str, what: str, fix: str) -> Finding:
    """Return a finding whose evidence is the scalar at the place, unless that may be a secret."""
    item = document.item(mismatch.path)
    text = item.raw if item and not isinstance(item.value, (dict, list)) else ""
    evidence = shown(mismatch.path, text)[:100]
    fix = "" if evidence == HIDDEN and text in fix else fix
    return Finding(code=code, where=document.where(mismatch.path), what=what, evidence=evidence, fix=fix)


def _bare(document: Document, mismatch: Mismatch, code: str, what: str, fix: str) -> Finding:
    """Return a finding without evidence: what is wrong is not the value."""
    return Finding(code=code, where=document.where(mismatch.path), what=what, fix=fix)


def _unknown(document: Document, mismatch: Mismatch) -> Finding:
    *parent, key = mismatch.path
    known = mismatch.schema["properties"]
    if tuple(mismatch.path) == ("validator", "enabled"):
        what, fix = (
            "The validator cannot be off: every state is proven before a run calls it done.",
            "Remove the line.",
        )
        return _bare(document, mismatch, "GP120", what, fix)
    place = f"under {dotted(tuple(parent))}" if parent else "at the top level"
    elsewhere = _elsewhere(str(key))
    otherwise = f"{key} belongs under {elsewhere}." if elsewhere else f"Known here: {', '.join(sorted(known))}"
    fix = did_you_mean(str(key), known, otherwise)
    return _bare(document, mismatch, "GP120", f"There is no key {key} {place}.", fix)


def _elsewhere(key: str) -> str:
    """Return the names of the top-level sections that know this key, for a key at the wrong level."""
    sections = schema()["properties"]
    holders = [name for name, section in sections.items() if key in _resolved(section).get("properties", {})]
    return one_of(holders) if 0 < len(holders) <= 3 else ""  # noqa: PLR2004  more would be no help


def _resolved(part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema()["$defs"].get(name, part)
    return found


def _missing(document: Document, mismatch: Mismatch) -> Finding:
    *parent, key = mismatch.path
    part = _resolved(mismatch.schema["properties"][key])
    place = f"{dotted(tuple(parent))} has no {key}" if parent else f"The inventory has no {key}"
    fix = f"Add {key}: {part.get('description', '')}".strip()
    return _bare(document, mismatch, "GP121", f"{place}.", fix)


def _type(document: Document, mismatch: Mismatch) -> Finding:
    value, name = mismatch.value, str(mismatch.path[-1]) if mismatch.path else "the file"
    wanted = [mismatch.wanted] if isinstance(mismatch.wanted, str) else mismatch.wanted
    item = document.item(mismatch.path)
    raw = item.raw if item else ""
    label = dotted(mismatch.path[-1:]) if isinstance(mismatch.path[-1], str) else "This entry"
    if value is None:
        what = f"{label} has no value."
        return _finding(document, mismatch, "GP122", what, "Write a value, or remove the line.")
    if "string" in wanted and isinstance(value, (bool, int, float)):
        what = f"{label} is a text, but YAML reads {_read_as(value)} here."
        return _finding(document, mismatch, "GP127", what, f'Quote it: {_key(name)}"{raw}"')
    what = f"{label} is {one_of(_KINDS[kind] for kind in wanted)}, not {_kind(value)}."
    return _finding(document, mismatch, "GP122", what, _type_fix(wanted, value, name))


def _key(name: str) -> str:
    return "" if name.isdecimal() else f"{name}: "


def _type_fix(wanted: list[str], value: Any, name: str) -> str:
    if wanted == ["boolean"]:
        return f"Write {_key(name)}true or {_key(name)}false."
    if wanted == ["integer"] and isinstance(value, str) and value.strip().lstrip("0").isdecimal():
        return f"Write it without quotes: {_key(name)}{int(value)}"
    if wanted == ["array"] and not isinstance(value, dict):
        return f"Write a list: {_key(name)}[{value}]"
    if wanted == ["object"] and isinstance(value, list):
        return "Write lines of `key: value`, without dashes."
    return ""


_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}


def _kind(value: Any) -> str:
    table = (
        (bool, "true or false"),
        (int, "a number"),
        (float, "a number"),
        (list, "a list"),
        (dict, "a mapping"),
    )
    return next((name for kind, name in table if isinstance(value, kind)), "a text")


def _read_as(value: object) -> str:
    if isinstance(value, bool):
        return f"the switch {'true' if value else 'false'}"
    return f"the number {value}"


def _enum(document: Document, mismatch: Mismatch) -> Finding:
    label, allowed = dotted(mismatch.path[-1:]), [str(each) for each in mismatch.wanted]
    what = f"{label} is {one_of(allowed)}."
    fix = f"Write {nearest(str(mismatch.value), allowed) or allowed[0]}."
    return _finding(document, mismatch, "GP123", what, fix)


def _pattern(document: Document, mismatch: Mismatch) -> Finding:
    what = f"{mismatch.schema['patternErrorMessage']}."
    better = repaired(str(mismatch.value), str(mismatch.wanted))
    example = next(iter(mismatch.schema.get("examples", ())), "")
    fix = f"Did you mean {better}?" if better else f"Such as: {example}" if example else ""
    finding = _finding(document, mismatch, "GP124", what, fix)
    if mismatch.keyword != "propertyNames":
        return finding
    return Finding(code="GP124", where=finding.where, what=what, evidence=str(mismatch.value)[:100], fix=fix)


def _range(document: Document, mismatch: Mismatch) -> Finding:
    label, bound = dotted(mismatch.path[-1:]), mismatch.wanted
    word = "at least" if mismatch.keyword == "minimum" else "at most"
    fix = f"Write {bound} or {'more' if word == 'at least' else 'less'}."
    if mismatch.path[-2:] == ("gpu", "count") and word == "at least":
        fix = "Write how many GPUs each node has; leave out gpu for nodes without one."
    return _finding(document, mismatch, "GP125", f"{label} is {word} {bound}.", fix)


def _length(document: Document, mismatch: Mismatch) -> Finding:
    label = dotted(mismatch.path[-1:])
    if mismatch.keyword == "minLength":
        what, fix = f"{label} is empty.", "Write a value, or remove the line."
        return _bare(document, mismatch, "GP126", what, fix)
    what = f"{label} has at most {mismatch.wanted} characters."
    return _finding(document, mismatch, "GP126", what, f"Shorten it by {len(mismatch.value) - mismatch.wanted}.")


def _repeated(document: Document, mismatch: Mismatch) -> Finding:
    seen = [value for position, value in enumerate(mismatch.value) if value in mismatch.value[:position]]
    what = f"{dotted(mismatch.path[-1:])} names {seen[0]} more than once."
    return _finding(document, mismatch, "GP126", what, "Remove the repetition.")


def _other(document: Document, mismatch: Mismatch) -> Finding:
    what = f"{dotted(mismatch.path)} is not as the schema asks ({mismatch.keyword}: {mismatch.wanted})."
    return _finding(document, mismatch, "GP124", what, "See docs/inventory.md.")


_TELL: dict[str, Callable[[Document, Mismatch], Finding]] = {
    "additionalProperties": _unknown,
    "required": _missing,
    "type": _type,
    "enum": _enum,
    "pattern": _pattern,
    "propertyNames": _pattern,
    "minimum": _range,
    "maximum": _range,
    "minLength": _length,
    "maxLength": _length,
    "uniqueItems": _repeated,
}
