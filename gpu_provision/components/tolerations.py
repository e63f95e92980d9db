"""Which taints the pods of a stack tolerate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_provision.components import labels, pods
from gpu_provision.model.cluster import Context

STARTUP: Mapping[str, Any] = {"key": labels.NOT_VALIDATED, "operator": "Exists"}
"""The startup taint, whatever its effect."""


def of_operands(
    context: Context, *more: Iterable[Mapping[str, Any]], first: Iterable[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return what pods tolerate that a node needs for its GPUs: ``first``, the inventory's own, ``more``."""
    declared = context.inventory.specs.daemonsets.tolerations
    return pods.tolerations(first, declared, *more, startup(context))


def startup(context: Context) -> tuple[Mapping[str, Any], ...]:
    """Return the toleration of the startup taint, if nodes may have it."""
    return (STARTUP,) if context.inventory.specs.startup_taint.enabled else ()


_KEEPS_PODS_OFF = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES = "node.kubernetes.io/"  # says what the node's own conditions say; DaemonSets tolerate most of them


def untolerated(taints: Iterable[Mapping[str, Any]], tolerations: Iterable[Mapping[str, Any]]) -> str:
    """Return the first taint that keeps pods with these tolerations off a node, as ``team=ml:NoSchedule``; or empty.

    Taints that Kubernetes itself sets for a node's conditions are left out.
    """
    known = tuple(tolerations)
    for taint in taints:
        is_own = str(taint.get("key", "")).startswith(_OF_KUBERNETES)
        if taint.get("effect") in _KEEPS_PODS_OFF and not is_own and not any(_tolerates(one, taint) for one in known):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{taint.get('key', '')}{value}:{taint['effect']}"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key", ""), toleration.get("effect", "")
    if effect not in {"", taint["effect"]} or key not in {"", taint.get("key", "")}:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(key) and toleration.get("value", "") == taint.get("value", "")
