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
