"""Which kubeconfig and context an inventory means; a sandbox is started or found, its errors become findings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpu_provision.model.findings import Finding, InvalidInventoryError, ProvisionError, UnreachableError
from gpu_provision.model.inventory import Inventory

if TYPE_CHECKING:
    from gpu_provision.sandbox.state import Sandbox


@contextmanager
def as_findings() -> Iterator[None]:
    """Turn an error of the sandbox into the ProvisionError of the same exit code."""
    from gpu_provision.sandbox.errors import FleetError, NoAnswerError, SandboxError

    try:
        yield
    except SandboxError as error:
        kind = {FleetError: InvalidInventoryError, NoAnswerError: UnreachableError}.get(type(error), ProvisionError)
        raise kind(*(Finding(**asdict(problem)) for problem in error.problems)) from error


def start_sandbox(fleet: str) -> Sandbox:
    """Start the sandbox of a fleet, or return the one that runs. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.up(fleet)


def find_sandbox(fleet: str) -> Sandbox | None:
    """Return the sandbox of a fleet if it runs and answers; nothing is started. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.find_running(fleet)


def find_context(inventory: Inventory) -> tuple[str, str] | None:
    """Return the same as `resolve_context`, but None for a sandbox that does not run: nothing is started."""
    if not inventory.cluster.sandbox:
        return resolve_context(inventory)
    sandbox = find_sandbox(inventory.cluster.sandbox)
    return (str(sandbox.kubeconfig), sandbox.context) if sandbox else None


def resolve_context(inventory: Inventory) -> tuple[str, str]:
    """Return the kubeconfig's path and the context's name; empty strings mean the user's defaults.

    Raises ProvisionError: the inventory asks for a sandbox, and it cannot be started.
    """
    if not inventory.cluster.sandbox:
        return inventory.cluster.kubeconfig, inventory.cluster.context
    sandbox = start_sandbox(inventory.cluster.sandbox)
    return str(sandbox.kubeconfig), sandbox.context
