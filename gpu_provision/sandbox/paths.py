"""Names of the files and contexts of a sandbox."""

from __future__ import annotations

import hashlib

from gpu_provision.sandbox.fleet import Fleet

READY_FILE = "sandbox.json"
PID_FILE = "pid"
LOCK_FILE = "lock"
LOG_FILE = "sandbox.log"


def context_name(name: str) -> str:
    """Return the kubeconfig's context of a sandbox."""
    return "sandbox" if name == "default" else f"sandbox-{name}"


def fleet_digest(fleet: Fleet) -> str:
    """Return a digest of what a fleet says, wherever it came from."""
    told = (fleet.name, fleet.machines, fleet.timings, fleet.faults, fleet.events)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
