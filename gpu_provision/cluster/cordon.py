"""Cordons of ours: an annotation says that it was us, what for and since when, so that any later run knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import Outdated
from gpu_provision.components.labels import CORDONED
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef

_TRIES = 10  # kubelets and controllers write to nodes, too

Change = dict[str, Any]


def is_ours(node: NodeFacts, purpose: str) -> bool:
    """Whether we cordoned a node for a purpose and have not taken that back."""
    return _marked(node.annotations, purpose)


def cordon(cluster: Cluster, name: str, purpose: str) -> bool:
    """Keep new pods off a node, and note that it was us; False if somebody else did, which stays as it is."""

    def change(node: Manifest) -> Change | None:
        if node["spec"].get("unschedulable"):
            return None
        return {"annotations": {CORDONED: _mark(purpose)}, "unschedulable": True}

    node = _change(cluster, name, change)
    return _marked(node["metadata"].get("annotations"), purpose)


def uncordon(cluster: Cluster, name: str, purpose: str) -> None:
    """Take our own cordon back, and no other."""

    def change(node: Manifest) -> Change | None:
        if not _marked(node["metadata"].get("annotations"), purpose):
            return None
        return {"annotations": {CORDONED: None}, "unschedulable": None}

    _change(cluster, name, change)


def _mark(purpose: str) -> str:
    return f"{purpose} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _marked(annotations: Mapping[str, str] | None, purpose: str) -> bool:
    return str((annotations or {}).get(CORDONED, "")).startswith(f"{purpose} since ")


def _change(cluster: Cluster, name: str, change: Callable[[Manifest], Change | None]) -> Manifest:
    """Write what a node needs, on exactly the version that was looked at. Raises NotFound, Outdated."""
    ref = ObjectRef("v1", "Node", "", name)
    for _ in range(_TRIES):
        with contextlib.suppress(Outdated):
            return _try(cluster, ref, change)
    return _try(cluster, ref, change)


def _try(cluster: Cluster, ref: ObjectRef, change: Callable[[Manifest], Change | None]) -> Manifest:
    node = cluster.read(ref)
    wanted = change(node)
    if wanted is None:
        return node
    metadata = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": wanted["annotations"]}
    return cluster.merge(ref, {"metadata": metadata, "spec": {"unschedulable": wanted["unschedulable"]}})
