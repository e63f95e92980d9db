"""Asking before a real cluster is changed."""

from __future__ import annotations

import sys

import click

from gpu_provision.cli import codes
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.visible import visible


def is_needed(inventory: Inventory, *, yes: bool) -> bool:
    """Return whether a person has to agree: always, but for a sandbox or with ``--yes``."""
    return not (yes or inventory.cluster.sandbox)


def require_terminal(out: Output, *, look: str) -> None:
    """Raise UsageError where nobody can be asked: JSON output, or no terminal; ``look`` shows what would happen."""
    if out.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            Finding(
                code=codes.NOT_CONFIRMED,
                what="this would change a real cluster, and there is no terminal to ask on",
                fix=f"look with gpu-provision {look}, then add --yes",
            )
        )


def target(cluster: str, hosts: int = 0) -> str:
    """Return what a question is about: the cluster, if any takes part, and how many hosts."""
    on_hosts = f"{hosts} host{'' if hosts == 1 else 's'}" if hosts else ""
    return " and ".join(filter(None, (f"cluster {cluster}" if cluster else "", on_hosts)))


def given(question: str) -> bool:
    """Ask on the terminal; only "y" or "yes" is a yes."""
    return click.confirm(visible(question), default=False, err=True)
