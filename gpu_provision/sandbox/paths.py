"""Names of the files and contexts of a sandbox."""

from __future__ import annotations

READY_FILE = "sandbox.json"
LOCK_FILE = "lock"
LOG_FILE = "sandbox.log"


def context_name(name: str) -> str:
    """Return the kubeconfig's context of a sandbox."""
    return "sandbox" if name == "default" else f"sandbox-{name}"
