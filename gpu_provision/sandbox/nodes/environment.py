"""The environment and the command line of a container, with every reference resolved."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

Object = dict[str, Any]
Lookup = Callable[[str, str], Awaitable["dict[str, str] | None"]]
"""Returns the data of ``("configmaps" | "secrets", name)``; None if there is no such object."""

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_VARIABLE = re.compile(r"\$(\$)?\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_REFERENCES = {"configMapKeyRef": "configmaps", "secretKeyRef": "secrets"}
_SOURCES = {"configMapRef": "configmaps", "secretRef": "secrets"}
_SINGULAR = {"configmaps": "configmap", "secrets": "secret"}


class MissingReference(Exception):
    """A container's environment names an object or key that does not exist; the text is the kubelet's."""


def field_of(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of a pod as the downward API does; empty for one that is not set."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value; ``$$(NAME)`` is left as ``$(NAME)``."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return f"$({match[2]})"
        return env.get(match[2], match[0])

    return _VARIABLE.sub(value, text)


async def environment(container: Mapping[str, Any], pod: Mapping[str, Any], lookup: Lookup) -> dict[str, str]:
    """Return a container's environment. Raises MissingReference."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        env |= await _from_source(source, lookup)
    for entry in container.get("env") or ():
        value = await _value(entry, pod, lookup)
        if value is not None:
            env[entry["name"]] = expand(value, env)
    return env


async def _from_source(source: Mapping[str, Any], lookup: Lookup) -> dict[str, str]:
    for kind, resource in _SOURCES.items():
        reference = source.get(kind)
        if reference:
            data = await lookup(resource, reference["name"])
            if data is None and not reference.get("optional"):
                raise MissingReference(_not_found(resource, reference["name"]))
            prefix = source.get("prefix", "")
            return {f"{prefix}{key}": value for key, value in (data or {}).items()}
    return {}


async def _value(entry: Mapping[str, Any], pod: Mapping[str, Any], lookup: Lookup) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    for kind, resource in _REFERENCES.items():
        if kind in source:
            return await _key(source[kind], resource, pod, lookup)
    return ""


async def _key(reference: Mapping[str, Any], resource: str, pod: Mapping[str, Any], lookup: Lookup) -> str | None:
    data = await lookup(resource, reference["name"])
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional"):
        return None
    if data is None:
        raise MissingReference(_not_found(resource, reference["name"]))
    kind = "ConfigMap" if resource == "configmaps" else "Secret"
    where = f"{kind} {pod['metadata'].get('namespace', '')}/{reference['name']}"
    message = f"couldn't find key {reference['key']} in {where}"
    raise MissingReference(message)


def _not_found(resource: str, name: str) -> str:
    return f'{_SINGULAR[resource]} "{name}" not found'


def decoded(resource: str, obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the data of a ConfigMap or Secret as texts."""
    if resource == "configmaps":
        return dict(obj.get("data") or {})
    encoded = obj.get("data") or {}
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in encoded.items()}


def command_line(container: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return command and arguments as the pod gives them; what the image itself would add is not known."""
    words: Sequence[str] = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(expand(word, env) for word in words)
