"""Compares a document with the published schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from gpu_provision.inventory.document import Path


@cache
def schema() -> dict[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of inventory files."""
    found: dict[str, Any] = json.loads(FilePath(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return found


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of the schema with its definition written out; what stands beside the reference wins."""
    name = part.get("$ref", "").rpartition("/")[2]
    return {**schema()["$defs"][name], **part} if name else part


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference from the schema: where, by which keyword, and what the schema asks for there."""

    path: Path
    keyword: str
    wanted: Any
    schema: dict[str, Any]
    value: Any


def mismatches(data: dict[str, Any]) -> list[Mismatch]:
    """Return every difference between the data and the schema, one per place and keyword."""
    from jsonschema.validators import Draft202012Validator, extend  # noqa: PLC0415  40 ms that --help need not pay

    found: dict[tuple[Path, str], Mismatch] = {}
    rules = {"pattern": _pattern, "uniqueItems": _unique_items}
    validator = extend(Draft202012Validator, rules)  # type: ignore[no-untyped-call]  # jsonschema has no types for it
    for error in validator(schema()).iter_errors(data):
        for each in _split(error):
            found.setdefault((each.path, each.keyword), each)
    return list(found.values())


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Exception]:
    """Hold a pattern against the whole text: the ``$`` of Python also stands before a final newline."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415  as above

    if validator.is_type(value, "string") and not re.fullmatch(pattern, value):
        yield ValidationError("malformed")


def _unique_items(validator: Any, unique: bool, value: Any, _schema: Any) -> Iterator[Exception]:  # noqa: FBT001  as jsonschema calls it
    """Compare texts alone, as all such lists hold them: jsonschema compares each pair if types are mixed."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415  as above

    texts = [each for each in value if isinstance(each, str)] if validator.is_type(value, "array") else []
    if unique and len(set(texts)) < len(texts):
        yield ValidationError("repeated")


def _split(error: Any) -> Iterator[Mismatch]:
    """Turn one of jsonschema's errors into one mismatch per key that it is about."""
    path, keyword, wanted = tuple(error.absolute_path), error.validator, error.validator_value
    if keyword == "additionalProperties":
        for key in error.instance.keys() - error.schema["properties"].keys():
            yield Mismatch((*path, key), keyword, wanted, error.schema, error.instance[key])
    elif keyword == "required":
        for key in (key for key in wanted if key not in error.instance):
            yield Mismatch((*path, key), keyword, wanted, error.schema, None)
    elif "propertyNames" in error.absolute_schema_path:
        yield Mismatch((*path, error.instance), "propertyNames", wanted, error.schema, error.instance)
    else:
        yield Mismatch(path, keyword, wanted, error.schema, error.instance)


def sound(data: dict[str, Any], found: list[Mismatch]) -> dict[str, Any]:
    """Return the data without what does not fit the schema, so that the other checks can go on."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for mismatch in sorted(found, key=lambda each: len(each.path), reverse=True):
        _drop(copy, mismatch.path)
    return copy


def _drop(data: Any, path: Path) -> None:
    """Remove the value at a path. A list keeps its positions if it is the nodes', else it goes as a whole."""
    *parent, last = path
    for step in parent:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return  # something around it is gone already
    if isinstance(data, dict):
        data.pop(last, None)
    elif isinstance(data, list) and isinstance(last, int):
        data[last] = {} if list(parent) == ["nodes"] else None
