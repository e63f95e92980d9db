"""The door to the sandbox: it is started and found here, and its errors become findings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpu_provision.model.findings import Finding, InvalidInventory, ProvisionError, Unreachable

if TYPE_CHECKING:
    from gpu_provision.sandbox.state import Sandbox


@contextmanager
def as_findings() -> Iterator[None]:
    """Turn an error of the sandbox into the ProvisionError of the same exit code."""
    from gpu_provision.sandbox.errors import FleetError, NoAnswerError, SandboxError

    try:
        yield
    except SandboxError as error:
        kind = {FleetError: InvalidInventory, NoAnswerError: Unreachable}.get(type(error), ProvisionError)
        raise kind(*(Finding(**asdict(problem)) for problem in error.problems)) from error


def start(fleet: str) -> Sandbox:
    """Start the sandbox of a fleet, or return the one that runs. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.up(fleet)


def find_running(fleet: str) -> Sandbox | None:
    """Return the sandbox of a fleet if it runs and answers; nothing is started. Raises ProvisionError."""
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        return lifecycle.find_running(fleet)
