"""Which inventory a command is about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpu_provision import files
from gpu_provision.cli import codes
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory

VARIABLE = "GPU_PROVISION_INVENTORY"
DEFAULT = Path("inventories") / "sandbox.yaml"


def chosen(option: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the inventory's path: the option, the environment variable, or the sandbox's.

    ``prod`` stands for ``inventories/prod.yaml`` where that exists. Raises UsageError if nothing is named.
    """
    named = option or environ.get(VARIABLE, "")
    if named:
        return _expanded(named)
    if files.is_file(DEFAULT):
        return DEFAULT
    raise UsageError(
        Finding(
            code=codes.NO_INVENTORY,
            what=f"no inventory named, and there is no {DEFAULT} here",
            fix=f"gpu-provision COMMAND -i FILE, or set {VARIABLE}",
        )
    )


def _expanded(named: str) -> Path:
    path = _home(named)
    if path.suffix == ".py":
        return _yaml_beside(path)
    short = DEFAULT.parent / f"{named}.yaml"
    return short if not files.is_there(path) and files.is_file(short) else path


def _home(path: str) -> Path:
    from gpu_provision.inventory.paths import home

    return home(path)


def _yaml_beside(path: Path) -> Path:
    """Return the YAML file of a pyinfra inventory; the .py file is pyinfra's view of it."""
    beside = path.with_suffix(".yaml")
    if files.is_file(beside):
        return beside
    raise UsageError(
        Finding(
            code=codes.NO_INVENTORY,
            where=str(path),
            what="gpu-provision reads the YAML file, not pyinfra's inventory in Python",
            fix=f"-i {beside}",
        )
    )


def loaded(option: str | None, *, kubeconfig: str | None = None, context: str | None = None) -> Inventory:
    """Return the inventory, on the cluster that the options name. Raises InvalidInventory."""
    from gpu_provision.inventory import load
    from gpu_provision.inventory.elsewhere import elsewhere

    return elsewhere(load(chosen(option)), kubeconfig=kubeconfig, context=context)
