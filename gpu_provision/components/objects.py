"""Builders of objects in canonical form, digests, and comparison of versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_provision.model.cluster import Manifest


def is_at_least(version: str, since: tuple[int, int]) -> bool:
    """Whether a version is this one or newer; other texts, such as a digest, count as newer."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return match is None or (int(match[1]), int(match[2])) >= since


RBAC = "rbac.authorization.k8s.io"

# Maps that have a meaning when they are empty.
_MEANINGFUL = frozenset({"emptyDir", "status"})


def compact(value: Any) -> Any:
    """Return a copy without nulls, empty lists and empty maps; empty strings, zero and False stay."""
    if isinstance(value, str | int):  # most values; a check of an abstract type takes ten times as long
        return value
    if isinstance(value, dict | Mapping):
        compacted = {key: item if key in _MEANINGFUL else compact(item) for key, item in value.items()}
        return {key: item for key, item in compacted.items() if item or key in _MEANINGFUL or not _is_empty(item)}
    if isinstance(value, list | tuple):
        return [item for item in map(compact, value) if item or not _is_empty(item)]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list) and not value)


def manifest(
    kind: tuple[str, str],
    name: str,
    *,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **body: Any,
) -> Manifest:
    """Return an object of ``(apiVersion, kind)``; ``body`` holds the fields beside its metadata."""
    metadata = {"name": name, "namespace": namespace or None, "labels": labels, "annotations": annotations}
    built: Manifest = compact({"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, **body})
    return built


def config_map(name: str, namespace: str, data: Mapping[str, str], labels: Mapping[str, str]) -> Manifest:
    """Return a ConfigMap."""
    return manifest(("v1", "ConfigMap"), name, namespace=namespace, labels=labels, data=dict(data))


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return one RBAC rule for resources of one API group."""
    built: dict[str, Any] = compact(
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), "resourceNames": list(names)}
    )
    return built


def service_account(name: str, namespace: str, labels: Mapping[str, str] | None = None) -> Manifest:
    """Return a ServiceAccount."""
    return manifest(("v1", "ServiceAccount"), name, namespace=namespace, labels=labels)


def role(  # noqa: PLR0913  keyword-only: what differs between roles
    name: str,
    namespace: str,
    rules: Iterable[dict[str, Any]],
    *,
    subject: str,
    subject_namespace: str = "",
    labels: Mapping[str, str] | None = None,
    kind: str = "Role",
) -> list[Manifest]:
    """Return a Role, or ClusterRole, and its binding to the ServiceAccount ``subject``, as a rule of ``namespace``."""
    metadata: dict[str, Any] = {"namespace": namespace if kind == "Role" else "", "labels": labels}
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    subjects = [{"kind": "ServiceAccount", "name": subject, "namespace": subject_namespace or namespace}]
    return [
        manifest((f"{RBAC}/v1", kind), name, **metadata, rules=list(rules)),
        manifest((f"{RBAC}/v1", f"{kind}Binding"), name, **metadata, roleRef=reference, subjects=subjects),
    ]


def digest(content: Any, length: int = 16) -> str:
    """Return hexadecimal digits of a SHA-256 that names ``content``, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
