"""Declarative provisioning of NVIDIA GPU nodes for Kubernetes.

    import gpu_provision

    inventory = gpu_provision.load("inventories/prod.yaml")
    print(gpu_provision.plan(inventory).changes)
    gpu_provision.apply(inventory)

For use inside pyinfra deploys there is ``gpu_provision.deploys``. Everything here is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_provision.inventory import check, load
    from gpu_provision.library import apply, destroy, drift, history, plan, preflight, render, rollback, status, unlock
    from gpu_provision.model.findings import Finding, ProvisionError
    from gpu_provision.model.inventory import Inventory

_HOMES = {
    "Finding": "model.findings",
    "Inventory": "model.inventory",
    "ProvisionError": "model.findings",
    **dict.fromkeys(("check", "load"), "inventory"),
    **dict.fromkeys(("apply", "destroy", "drift", "history", "plan", "preflight"), "library"),
    **dict.fromkeys(("render", "rollback", "status", "unlock"), "library"),
}

__all__ = ["Finding", "Inventory", "ProvisionError", "apply", "check", "destroy", "drift", "history"]
__all__ += ["load", "plan", "preflight", "render", "rollback", "status", "unlock"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"gpu_provision.{_HOMES[name]}"), name)
