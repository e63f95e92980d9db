"""The published schema: finds differences of a document, and selects the keys about the cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from gpu_provision.inventory.document import KeyPath, format_path
from gpu_provision.model.text import find_nearest


@cache
def schema() -> dict[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of inventory files."""
    document: dict[str, Any] = json.loads(FilePath(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return document


def resolve_ref(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of the schema with its definition written out; keywords beside ``$ref`` override it."""
    name = part.get("$ref", "").rpartition("/")[2]
    return {**schema()["$defs"][name], **part} if name else part


@dataclass(frozen=True, slots=True)
class SchemaError:
    """One difference from the schema: its path, the keyword, and the keyword's value.

    ``value`` is what is there; for a missing key the mapping that lacks it.
    """

    path: KeyPath
    keyword: str
    expected: Any
    schema: dict[str, Any]
    value: Any


def find_schema_errors(data: dict[str, Any]) -> list[SchemaError]:
    """Return every difference between the data and the schema, one per place and keyword.

    A value of the wrong type has no further difference, a text that is too long is not malformed as well, a key that is
    misspelled is not missing as well, and the value of a malformed key does not matter.
    """
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415  40 ms that --help need not pay
    from jsonschema.validators import Draft202012Validator, extend  # noqa: PLC0415  as above

    def pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[Exception]:
        """Match a pattern with the whole text: Python's ``$`` also matches before a final newline."""
        if validator.is_type(value, "string") and not re.fullmatch(pattern, value):
            yield ValidationError("malformed")

    def unique(validator: Any, unique: bool, value: Any, _schema: Any) -> Iterator[Exception]:  # noqa: FBT001  as jsonschema calls it
        """Compare texts only, which all such lists hold: jsonschema compares each pair if types are mixed."""
        texts = [each for each in value if isinstance(each, str)] if validator.is_type(value, "array") else []
        if unique and len(set(texts)) < len(texts):
            yield ValidationError("repeated")

    rules = {"pattern": pattern, "uniqueItems": unique}
    validator = extend(Draft202012Validator, rules)  # type: ignore[no-untyped-call]  # jsonschema has no types for it
    errors: dict[tuple[KeyPath, str], SchemaError] = {}
    for error in validator(schema()).iter_errors(data):
        for each in _split(error):
            errors.setdefault((each.path, each.keyword), each)
    unknown: dict[KeyPath, list[str]] = {}
    for path, keyword in errors:
        if keyword == "additionalProperties":
            unknown.setdefault(path[:-1], []).append(str(path[-1]))
    return [
        each
        for each in errors.values()
        if (each.keyword in _OF_WRONG_TYPES or (each.path, "type") not in errors)
        and (each.keyword != "pattern" or (each.path, "maxLength") not in errors)
        and (each.keyword not in _NUMBERS_OF_KEYS or each.path not in unknown)
        and (each.keyword == "propertyNames" or (each.path, "propertyNames") not in errors)
        and not (each.keyword == "required" and _is_misnamed(each, unknown.get(each.path[:-1], ())))
    ]


def _is_misnamed(missing: SchemaError, unknown: Sequence[str]) -> bool:
    """Return whether an unknown key stands for a missing one: ``generateName``, ``modle``, or the only one there is."""
    key, holder = str(missing.path[-1]), missing.value
    is_alone = bool(unknown) and holder.keys() == {*unknown}
    return is_alone or any(key in each.lower() or find_nearest(each, [key]) for each in unknown)


OF_KEYS = frozenset({"additionalProperties", "propertyNames"})
"""Keywords of differences that are about a key, not about its value."""

_OF_WRONG_TYPES = OF_KEYS | {"type"}
_NUMBERS_OF_KEYS = frozenset({"minProperties", "maxProperties"})


def _split(error: Any) -> Iterator[SchemaError]:
    """Split one of jsonschema's errors into one error per key."""
    path, keyword, wanted = tuple(error.absolute_path), error.validator, error.validator_value
    if keyword == "additionalProperties":
        for key in error.instance.keys() - error.schema["properties"].keys():
            yield SchemaError((*path, key), keyword, wanted, error.schema, error.instance[key])
    elif keyword == "required":
        for key in (key for key in wanted if key not in error.instance):
            yield SchemaError((*path, key), keyword, wanted, error.schema, error.instance)
    elif keyword == "dependentRequired":
        needed = {key for given, keys in wanted.items() if given in error.instance for key in keys}
        for key in sorted(needed.difference(error.instance)):
            yield SchemaError((*path, key), "required", [key], error.schema, error.instance)
    elif "propertyNames" in error.absolute_schema_path:
        yield SchemaError((*path, error.instance), "propertyNames", wanted, error.schema, error.instance)
    else:
        yield SchemaError(path, keyword, wanted, error.schema, error.instance)


def drop_errors(data: dict[str, Any], errors: list[SchemaError]) -> dict[str, Any]:
    """Return the data without values that do not fit the schema, so that the other checks can run.

    Lists keep their positions, and entries of ``nodes`` stay mappings.
    """
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for error in sorted(errors, key=lambda each: len(each.path), reverse=True):
        *parent, last = error.path
        holder: Any = copy
        try:
            for step in parent:
                holder = holder[step]
        except (KeyError, IndexError, TypeError):
            continue  # a value around it is already removed
        if isinstance(holder, dict):
            holder.pop(last, None)
        elif isinstance(holder, list) and isinstance(last, int):
            holder[last] = {} if parent == ["nodes"] else None
    return copy


ADDRESSES = ("http_proxy", "https_proxy")
"""Keys of ``proxy`` that name a proxy."""

ANY = "*"
"""In a path: every entry of a list or mapping."""

_WITH_PREREQUISITES: tuple[KeyPath, ...] = ((), ("pools", ANY), ("nodes", ANY))
_ONLY_OF_HOSTS = (
    *("kernel_headers", "hold_packages", "runtime_imports", "dev_char_symlinks", "persistence_mode", "proxy"),
    *("ca_certificates", "reboot", "max_parallel_reboots", "reboot_timeout", "drain"),
)

_ELSEWHERE: frozenset[KeyPath] = frozenset(
    {
        ("name",),  # metadata.name
        ("cluster", "kubeconfig"),  # a GPUStack is in its own cluster
        ("cluster", "context"),
        ("cluster", "sandbox"),
        ("proxy", "credentials_file"),  # a file on the user's machine
        ("preflight",),
        ("operator", "metrics"),  # who installs the controller decides
        ("connect",),
        ("helper_pod",),
        ("ssh",),
        ("pools", ANY, "connect"),
        ("nodes", ANY, "address"),
        ("nodes", ANY, "connect"),
        ("nodes", ANY, "ssh"),
        # The controller does not connect to hosts; on OpenShift, MachineConfigs carry the others.
        *((*holder, "host_prerequisites", key) for holder in _WITH_PREREQUISITES for key in _ONLY_OF_HOSTS),
    }
)


_OF_OTHERS: frozenset[KeyPath] = frozenset(("nfd", part, "affinity") for part in ("worker", "master", "gc")) | {
    ("nfd", "worker_config"),
    ("nfd", "master_config"),
    ("extra_objects",),
}
"""Settings that are parts of objects or files of other programs, with numbers of any kind."""


def is_about_cluster(path: KeyPath) -> bool:
    """Whether a GPUStack has a key of the inventory; `ANY` stands for entries of lists and maps."""
    return path not in _ELSEWHERE


def cluster_part(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the part of an inventory that a GPUStack has, and the paths of omitted values.

    Amounts such as 0.5 are texts: ``x-kubernetes-int-or-string`` has no fractions.
    """
    omitted: list[str] = []
    part = _select(dict(data), (), (), omitted)
    proxy = part.get("proxy")
    if isinstance(proxy, dict):
        addresses = [proxy.get(key, "") for key in ADDRESSES]
        has_secret = any(isinstance(each, dict) or "@" in str(each) for each in addresses)
        if has_secret or "credentials_file" in data["proxy"]:
            del part["proxy"]  # the driver container gets no proxy that needs credentials, see `resolve.container_env`
            omitted = [path for path in omitted if not path.startswith("proxy")] + ["proxy"]
    return part, tuple(omitted)


def _select(value: Any, path: KeyPath, pattern: KeyPath, omitted: list[str]) -> Any:
    """Return a value without omitted keys, whose paths are added to ``omitted``; ``pattern`` is ``path`` with `ANY`."""
    if pattern in _OF_OTHERS:
        return value
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            here = (*pattern, ANY if pattern == ("pools",) else key)
            if is_about_cluster(here):
                result[key] = _select(item, (*path, key), here, omitted)
            else:
                omitted.append(format_path((*path, key)))
        return result
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_select(item, (*path, index), (*pattern, ANY), omitted) for index, item in enumerate(value)]
    return str(value) if isinstance(value, float) else value
