"""Asking before a real cluster is changed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator

import click
from click.core import ParameterSource

from gpu_provision.cli.output import Output
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, UsageError, visible
from gpu_provision.model.inventory import Inventory
from gpu_provision.output.text import counted


def is_required(inventory: Inventory, *, yes: bool) -> bool:
    """Return whether a person has to agree: always, but for a sandbox or with ``--yes``."""
    return not (yes or inventory.cluster.sandbox)


def require_terminal(out: Output, *, look: str) -> None:
    """Raise UsageError without a terminal to ask on, or with JSON output; ``look`` is the command that previews."""
    if out.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            Finding(
                code=codes.NOT_CONFIRMED,
                what="this would change a real cluster, and there is no terminal to ask on",
                fix=f"look with gpu-provision {look}, then add --yes",
            )
        )


def describe_target(inventory: Inventory, cluster: str, hosts: int = 0) -> str:
    """Return what a question is about: the cluster with its context, if it takes part, and how many hosts."""
    context = f"context {inventory.cluster.context}" if inventory.cluster.context else "the current context"
    target = f"cluster {cluster}, {context}" if cluster else ""
    return " and ".join(filter(None, (target, counted(hosts, "host") if hosts else "")))


def ask(question: str) -> bool:
    """Ask on the terminal; only "y" or "yes" is a yes."""
    return click.confirm(visible(question), default=False, err=True)


_WHERE = ("kubeconfig", "context", "ask_sudo_password")
_PART = ("file", "limit", "targets", "hosts_only", "cluster_only", "ignored")


def next_command(name: str, *words: str, part: bool = True) -> str:
    """Return ``gpu-provision NAME WORDS`` with the options of this command line that the next one needs, too.

    Without ``part``, those that say what takes part are left out: a plan file says that itself.
    """
    names = (*_WHERE, *_PART) if part else _WHERE
    return " ".join(("gpu-provision", name, *words, *_given(names)))


def _given(names: Collection[str]) -> Iterator[str]:
    context = click.get_current_context()
    for option in context.command.params:
        said = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if not (said and option.name in names):
            continue
        if getattr(option, "is_flag", False):
            yield option.opts[0]
            continue
        values = context.params[option.name]
        for value in values if option.multiple else (values,):
            yield f"{option.opts[0]} {shlex.quote(str(value))}"
