"""An inventory aimed at another cluster than its file names."""

from __future__ import annotations

from dataclasses import replace

from gpu_provision.inventory.paths import home
from gpu_provision.model.inventory import Inventory


def elsewhere(inventory: Inventory, *, kubeconfig: str | None, context: str | None) -> Inventory:
    """Return the inventory aimed at another cluster; a sandbox's inventory then is not the sandbox's."""
    if not (kubeconfig or context):
        return inventory
    cluster = replace(
        inventory.cluster,
        sandbox="",
        kubeconfig=str(home(kubeconfig).resolve()) if kubeconfig else inventory.cluster.kubeconfig,
        context=context or ("" if kubeconfig else inventory.cluster.context),
    )
    return replace(inventory, cluster=cluster)
