"""Writes to GPUStacks: the finalizer, and the status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.operator.stack import FINALIZER, HOME, LED_BY


def add_finalizer(cluster: Cluster, stack: ObjectRef, namespace: str, lease: str = "") -> None:
    """Have the API server wait for our removal before the stack goes, and write down where that is to look.

    Args:
        lease: By which controllers agree, for command lines to watch; empty for the usual one.
    """

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found, notes = metadata.get("finalizers") or [], metadata.get("annotations") or {}
        held = {} if FINALIZER in found else {"finalizers": [*found, FINALIZER]}
        marks = {} if HOME in notes else {HOME: namespace}
        led_by = {} if notes.get(LED_BY, "") == lease else {LED_BY: lease or None}
        return {**held, "annotations": {**marks, **led_by}} if marks or led_by else held

    _change(cluster, stack, change)


def remove_finalizer(cluster: Cluster, stack: ObjectRef) -> None:
    """Let the stack go."""

    def change(metadata: Mapping[str, Any]) -> dict[str, Any]:
        found = metadata.get("finalizers") or []
        return {"finalizers": [each for each in found if each != FINALIZER]} if FINALIZER in found else {}

    _change(cluster, stack, change)


def _change(cluster: Cluster, stack: ObjectRef, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    while live := cluster.get(stack):
        wanted = change(live["metadata"])
        if not wanted:
            return
        with contextlib.suppress(ConflictError, NotFoundError):
            cluster.merge(stack, {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], **wanted}})
            return
