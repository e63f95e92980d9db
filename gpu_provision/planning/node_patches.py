"""What makes a node as a partial Node says: labels, and the end of the startup taint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest, NodeFacts
from gpu_provision.model.inventory import Inventory


class NodePatch(NamedTuple):
    """Labels that are to change, None removes one; ``frees`` says that the startup taint goes with the same write."""

    labels: dict[str, str | None]
    frees: bool

    @property
    def is_empty(self) -> bool:
        """Whether the node is as desired."""
        return not (self.labels or self.frees)


def node_patch(manifest: Manifest, node: NodeFacts, inventory: Inventory) -> NodePatch:
    """Return what makes a node as a partial Node of an inventory's components says."""
    frees = has_startup_taint(node) and _frees(manifest["metadata"].get("labels", {}), inventory)
    return NodePatch(label_changes(manifest, node), frees)


def label_changes(manifest: Manifest, node: NodeFacts) -> dict[str, str | None]:
    """Return the labels of a node that are not as a partial Node says; None means: to be removed."""
    wanted: Mapping[str, str | None] = manifest["metadata"].get("labels", {})
    return {key: value for key, value in wanted.items() if node.labels.get(key) != value}


def _frees(wanted: Mapping[str, str | None], inventory: Inventory) -> bool:
    """Whether these labels end the startup taint: one that says what was validated does.

    Where that label never comes, since the inventory turns it off or has the node no more, the taint goes with the
    other labels: no other program would ever take it off.
    """
    mark = wanted.get(labels.INVENTORY, "")
    is_off = bool(mark) and not inventory.specs.startup_taint.enabled
    return bool(wanted.get(labels.VALIDATED)) or mark is None or is_off


def has_startup_taint(node: NodeFacts) -> bool:
    """Whether a node has the startup taint, whatever its effect."""
    return any(map(_is_startup_taint, node.taints))


def other_taints(node: NodeFacts) -> tuple[Mapping[str, Any], ...]:
    """Return the taints of a node but for the startup taint."""
    return tuple(taint for taint in node.taints if not _is_startup_taint(taint))


def _is_startup_taint(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == labels.NOT_VALIDATED
