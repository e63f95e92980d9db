"""Which part of an inventory is about the cluster, as a stack's ``spec`` has it, and which about hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_provision.inventory.document import Path, dotted

ADDRESSES = ("http_proxy", "https_proxy")
"""Keys of ``proxy`` that name a proxy."""

ANY = "*"
"""In a path: every entry of a list or mapping."""

_ELSEWHERE: frozenset[Path] = frozenset(
    {
        ("name",),  # metadata.name
        ("cluster", "kubeconfig"),  # the stack is in the cluster that it is about
        ("cluster", "context"),
        ("cluster", "sandbox"),
        ("proxy", "credentials_file"),  # a file of somebody's machine
        ("host_prerequisites",),  # hosts: a controller in a pod has no way to them, and no right
        ("preflight",),
        ("connect",),
        ("helper_pod",),
        ("ssh",),
        ("pools", ANY, "connect"),
        ("pools", ANY, "host_prerequisites"),
        ("nodes", ANY, "address"),
        ("nodes", ANY, "connect"),
        ("nodes", ANY, "ssh"),
        ("nodes", ANY, "host_prerequisites"),
    }
)


def is_of_cluster(path: Path) -> bool:
    """Whether a key of an inventory belongs into the resource; entries of lists and maps are named `ANY`."""
    return path not in _ELSEWHERE


def part_of_cluster(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the part of an inventory that is about the cluster, and the paths of what was left out.

    Amounts such as 0.5 are texts: an API server's *int or string* has no fractions.
    """
    left: list[str] = []
    kept = _kept(dict(data), (), (), left)
    if _has_secret(kept.get("proxy"), data.get("proxy")):
        del kept["proxy"]  # the driver container is told of no proxy that needs credentials, see inventory/proxy.py
        left = [path for path in left if not path.startswith("proxy")] + ["proxy"]
    return kept, tuple(left)


def _has_secret(kept: Any, proxy: Any) -> bool:
    if not isinstance(kept, dict):
        return False
    addresses = [kept.get(key, "") for key in ADDRESSES]
    return "credentials_file" in proxy or any(isinstance(each, dict) or "@" in str(each) for each in addresses)


def _kept(value: Any, path: Path, pattern: Path, left: list[str]) -> Any:
    """Return a value without what is no part of the resource.

    Args:
        path: Of the value.
        pattern: The same, with `ANY` for entries.
        left: Is given the paths of what is left out.
    """
    if isinstance(value, Mapping):
        return _kept_keys(value, path, pattern, left)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_kept(item, (*path, index), (*pattern, ANY), left) for index, item in enumerate(value)]
    return str(value) if isinstance(value, float) else value


def _kept_keys(value: Mapping[str, Any], path: Path, pattern: Path, left: list[str]) -> dict[str, Any]:
    result = {}
    for key, item in value.items():
        here = (*pattern, ANY if pattern == ("pools",) else key)
        if is_of_cluster(here):
            result[key] = _kept(item, (*path, key), here, left)
        else:
            left.append(dotted((*path, key)))
    return result
