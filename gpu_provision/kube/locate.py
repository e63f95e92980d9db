"""Which kubeconfig and context an inventory means; a sandbox is started if it is not running."""

from __future__ import annotations

from gpu_provision.model.inventory import Inventory


def located(inventory: Inventory) -> tuple[str, str] | None:
    """Return the same as `locate`, but None for a sandbox that does not run: nothing is started."""
    if not inventory.cluster.sandbox:
        return locate(inventory)
    from gpu_provision.kube import sandbox as door

    sandbox = door.find_running(inventory.cluster.sandbox)
    return (str(sandbox.kubeconfig), sandbox.context) if sandbox else None


def locate(inventory: Inventory) -> tuple[str, str]:
    """Return the kubeconfig's path and the context's name; empty strings mean the user's defaults.

    Raises:
        ProvisionError: The inventory asks for a sandbox, and it cannot be started.
    """
    if not inventory.cluster.sandbox:
        return inventory.cluster.kubeconfig, inventory.cluster.context
    from gpu_provision.kube import sandbox as door

    sandbox = door.start(inventory.cluster.sandbox)
    return str(sandbox.kubeconfig), sandbox.context
