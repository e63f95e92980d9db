"""Say what is wrong with an inventory in sentences for people; jsonschema's own messages are for programmers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu_provision.inventory.document import Document, dotted, visible
from gpu_provision.inventory.nearest import did_you_mean, nearest, one_of
from gpu_provision.inventory.redaction import HIDDEN, shown
from gpu_provision.inventory.schema_check import Mismatch, resolved, schema
from gpu_provision.model.findings import Finding

_FEW = 3  # more sections than these would be no help


def tell(document: Document, mismatch: Mismatch) -> Finding:
    """Return the finding for one mismatch."""
    return _TELL.get(mismatch.keyword, _other)(document, mismatch)


def _finding(document: Document, mismatch: Mismatch, code: str, what: str, fix: str) -> Finding:
    """Return a finding whose evidence is the scalar at the place, unless that may be a secret."""
    item = document.item(mismatch.path)
    text = item.raw if item and not isinstance(item.value, (dict, list)) else ""
    evidence = visible(shown(mismatch.path, text))[:100]
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
    return _bare(document, mismatch, "GP120", f"There is no key {visible(str(key))} {place}.", fix)


def _elsewhere(key: str) -> str:
    """Return the names of the top-level sections that know this key, for a key at the wrong level."""
    sections = schema()["properties"]
    holders = [name for name, section in sections.items() if key in resolved(section).get("properties", {})]
    if len(holders) > _FEW:
        return "a component, such as driver"
    return one_of(holders) if holders else ""


def _missing(document: Document, mismatch: Mismatch) -> Finding:
    *parent, key = mismatch.path
    meaning = str(resolved(mismatch.schema["properties"][key]).get("description", "")).partition(". ")[0]
    place = f"{dotted(tuple(parent))} has no {key}" if parent else f"The inventory has no {key}"
    return _bare(document, mismatch, "GP121", f"{place}.", f"Add `{key}`: {meaning.rstrip('.')}.")


def _type(document: Document, mismatch: Mismatch) -> Finding:
    value, label = mismatch.value, _label(mismatch)
    wanted = [mismatch.wanted] if isinstance(mismatch.wanted, str) else mismatch.wanted
    if value is None:
        return _bare(document, mismatch, "GP122", f"{label} has no value.", "Write a value, or remove the line.")
    if "string" in wanted and isinstance(value, (bool, int, float)):
        return _misread(document, mismatch)
    what = f"{label} must be {one_of(_KINDS[kind] for kind in wanted)}, not {_kind(value)}."
    return _finding(document, mismatch, "GP122", what, _type_fix(mismatch, wanted[0]))


def _misread(document: Document, mismatch: Mismatch) -> Finding:
    """Return the finding for a text that YAML took for a number or a switch: ``26.70``, ``no``."""
    item = document.item(mismatch.path)
    raw = shown(mismatch.path, item.raw if item else "")
    read_as = "a switch" if isinstance(mismatch.value, bool) else "a number"
    what = f"{_label(mismatch)} must be a text, but YAML reads this as {read_as}."
    fix = "Quote it." if raw == HIDDEN else f'Quote it: {_key(mismatch)}"{raw}"'
    return _finding(document, mismatch, "GP127", what, fix)


def _label(mismatch: Mismatch) -> str:
    last = mismatch.path[-1]
    return last if isinstance(last, str) else "This entry"


def _key(mismatch: Mismatch) -> str:
    last = mismatch.path[-1]
    return f"{last}: " if isinstance(last, str) else ""


def _type_fix(mismatch: Mismatch, wanted: str) -> str:
    value, key = mismatch.value, _key(mismatch)
    match wanted:
        case "boolean":
            return f"Write {key}true or {key}false."
        case "integer" if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            return f"Write it without quotes: {key}{int(value)}"
        case "array" if not isinstance(value, (dict, list)):
            return f"Write a list: {key}[{shown(mismatch.path, value)}]"
        case "array":
            return "Write lines that begin with a dash."
        case "object":
            return f"Write {key}{_mapping(mismatch.schema, value)}"
        case _:
            return f"Write one {_KINDS[wanted].partition(' ')[2]}."


def _mapping(part: dict[str, Any], value: object) -> str:
    """Return what a mapping of this kind looks like, in one line."""
    known = part.get("properties", {})
    if "enabled" in known and (isinstance(value, bool) or value in list(known["enabled"].get("enum", ()))):
        return f"{{enabled: {_written(value)}}}"
    keys = part.get("required") or list(known)[:2] or ["KEY"]
    return f"{{{', '.join(f'{key}: ...' for key in keys)}}}"


def _written(value: object) -> str:
    """Return a scalar as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
}


def _kind(value: Any) -> str:
    table = ((bool, "true or false"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "a mapping"))
    return next((name for kind, name in table if isinstance(value, kind)), "a text")


def _enum(document: Document, mismatch: Mismatch) -> Finding:
    allowed = [_written(each) for each in mismatch.wanted]
    what = f"{_label(mismatch)} must be {one_of(allowed)}."
    fix = f"Write {nearest(str(mismatch.value), allowed) or allowed[0]}."
    if mismatch.value in [_written(each) for each in mismatch.wanted if isinstance(each, bool)]:
        fix = f"Write it without quotes: {_key(mismatch)}{mismatch.value}"
    return _finding(document, mismatch, "GP123", what, fix)


def _pattern(document: Document, mismatch: Mismatch) -> Finding:
    what = f"{mismatch.schema['patternErrorMessage']}."
    better = repaired(str(mismatch.value), str(mismatch.wanted)) if _is_open(document, mismatch) else ""
    example = next(iter(mismatch.schema.get("examples", ())), "")
    otherwise = f"Such as: {example}" if example else "Correct it, or remove the line."
    fix = f"Did you mean {better}?" if better else otherwise
    finding = _finding(document, mismatch, "GP124", what, fix)
    if mismatch.keyword != "propertyNames":
        return finding
    return Finding(code="GP124", where=finding.where, what=what, evidence=visible(str(mismatch.value))[:100], fix=fix)


def _is_open(document: Document, mismatch: Mismatch) -> bool:
    """Return whether a finding may show the value: it stands in the file, and nothing of it is secret."""
    item = document.item(mismatch.path)
    if mismatch.keyword == "propertyNames":  # a name, whatever its value
        return True
    is_elsewhere = item is not None and isinstance(item.value, dict) and isinstance(mismatch.value, str)
    return not is_elsewhere and shown(mismatch.path, mismatch.value) == mismatch.value


def _range(document: Document, mismatch: Mismatch) -> Finding:
    bound = mismatch.wanted
    word = "at least" if mismatch.keyword == "minimum" else "at most"
    fix = f"Write {bound} or {'more' if word == 'at least' else 'less'}."
    if mismatch.path[-2:] == ("gpu", "count") and word == "at least":
        fix = "Write how many GPUs each node has; leave out gpu for nodes without one."
    return _finding(document, mismatch, "GP125", f"{_label(mismatch)} must be {word} {bound}.", fix)


def _length(document: Document, mismatch: Mismatch) -> Finding:
    if mismatch.keyword == "minLength":
        what, fix = f"{_label(mismatch)} is empty.", "Write a value, or remove the line."
        return _bare(document, mismatch, "GP126", what, fix)
    what = f"{_label(mismatch)} may have at most {mismatch.wanted} characters."
    return _finding(document, mismatch, "GP126", what, f"Shorten it by {len(mismatch.value) - mismatch.wanted}.")


def _repeated(document: Document, mismatch: Mismatch) -> Finding:
    counts = Counter(each for each in mismatch.value if isinstance(each, str))
    repeated = next(each for each, count in counts.items() if count > 1)
    what = f"{_label(mismatch)} names {repeated} more than once."
    return _finding(document, mismatch, "GP126", what, "Remove the repetition.")


def _one_source(document: Document, mismatch: Mismatch) -> Finding:
    sources = [f"`{name}`" for name in mismatch.schema["properties"]]
    what = f"{_label(mismatch)} must be a text, or have exactly one of {one_of(sources).replace(' or ', ' and ')}."
    return _bare(
        document,
        mismatch,
        "GP126",
        what,
        f"Keep one of them: {_key(mismatch)}{{{next(iter(mismatch.schema['properties']))}: ...}}",
    )


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
    "minProperties": _one_source,
    "maxProperties": _one_source,
}

# What people write instead, from the least to the most invasive change.
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


def repaired(value: str, pattern: str) -> str:
    """Return a value like the given one that fits the pattern, or an empty string if no guess does."""
    guesses = (guess(value) for guess in _GUESSES)
    return next((guess for guess in guesses if guess and re.fullmatch(pattern, guess)), "")
