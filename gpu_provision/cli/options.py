"""Options that commands share, each spelled once."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from gpu_provision.cli import output
from gpu_provision.cli.session import Session

Command = Callable[..., Any]


def _at_home(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Expand a tilde: no shell does in --kubeconfig=~/config."""
    from gpu_provision.inventory.paths import home

    return str(home(path)) if path else path


inventory = click.option(
    "-i",
    "--inventory",
    "file",
    metavar="FILE",
    help="The inventory. Default: $GPU_PROVISION_INVENTORY, else inventories/sandbox.yaml if it exists.",
)
kubeconfig = click.option(
    "--kubeconfig", metavar="FILE", callback=_at_home, help="Another kubeconfig than the inventory names."
)
_context = click.option("--context", metavar="NAME", help="Another context than the inventory names.")


def _set_api_timeout(_context: click.Context, _option: click.Parameter, seconds: int | None) -> None:
    if seconds is not None:
        os.environ[_API_TIMEOUT] = str(seconds)


_API_TIMEOUT = "GPU_PROVISION_API_TIMEOUT"
_api_timeout = click.option(
    "--api-timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    expose_value=False,
    callback=_set_api_timeout,
    help="How long to retry a request that the API server does not answer."
    f" Default: ${_API_TIMEOUT}, else 5 for the first answer and 60 afterwards.",
)


def context(command: Command) -> Command:
    """Add --context, and --api-timeout, which belongs to every connection to a cluster."""
    return _context(_api_timeout(command))


limit = click.option(
    "--limit",
    metavar="HOST[,HOST...]",
    help="Only these nodes: names, patterns such as 'gpu-0*', groups, or @FILE with one a line."
    " In the cluster: their labels, drivers and validations; what serves all nodes is as declared.",
)
hosts_limit = click.option(
    "--limit",
    metavar="HOST[,HOST...]",
    help="Only these hosts: names, patterns, groups, or @FILE. The cluster is left out.",
)
target = click.option(
    "--target",
    "targets",
    metavar="COMPONENT",
    multiple=True,
    help="Only this component of the cluster, and what it requires; may be repeated.",
)
timeout = click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="How long a node may take for each component, instead of the inventory's figures.",
)
take_over = click.option(
    "--take-over",
    is_flag=True,
    help="Where a controller looks after the stack: take over fields of its resource that somebody else has set.",
)
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask before a real cluster is changed.")
report = click.option(
    "--report",
    metavar="FILE.html",
    help="Write a page about the run, however it ends: timeline, changes, validations, failures.",
)
detailed_exitcode = click.option(
    "--detailed-exitcode", is_flag=True, help="Exit with 2 if something is not as declared."
)


def _ask(_context: click.Context, _option: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click calls it so
    if asked:
        from gpu_provision.inventory import sudo

        sudo.give(click.prompt("Password of sudo on the hosts", hide_input=True, err=True))


ask_sudo_password = click.option(
    "-K",
    "--ask-sudo-password",
    is_flag=True,
    expose_value=False,
    callback=_ask,
    help="Ask for the password of sudo on the hosts, once. Default: $GPU_PROVISION_SUDO_PASSWORD, else none.",
)

ignore = click.option(
    "--ignore",
    "ignored",
    metavar="CODE[,CODE...]",
    multiple=True,
    help="Findings of preflight that shall not stop the run, such as GP620; may be repeated.",
)


def phases(command: Command) -> Command:
    """Add --hosts-only and --cluster-only, and pass them on as ``hosts`` and ``cluster``."""

    @click.option("--hosts-only", is_flag=True, help="Leave the cluster alone.")
    @click.option("--cluster-only", is_flag=True, help="Leave the hosts alone.")
    @functools.wraps(command)
    def wrapped(*, hosts_only: bool, cluster_only: bool, **rest: Any) -> Any:
        if hosts_only and cluster_only:
            message = "--hosts-only and --cluster-only exclude each other."
            raise click.UsageError(message)
        return command(hosts=not cluster_only, cluster=not hosts_only, **rest)

    return wrapped


def speaking(command: Command) -> Command:
    """Add --json, --quiet, --verbose and --no-color, and pass them on as one ``out``."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; never asks.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no hints.")
    @click.option("-v", "--verbose", count=True, help="Timestamps; a traceback for internal errors.")
    @click.option("--no-color", is_flag=True, help="No colors; NO_COLOR and TERM=dumb do the same.")
    @functools.wraps(command)
    def wrapped(*, as_json: bool, quiet: bool, verbose: int, no_color: bool, **rest: Any) -> Any:
        out = output.make(as_json=as_json, quiet=quiet, verbose=verbose, no_color=no_color)
        if "context" in click.get_current_context().params:
            from gpu_provision.cli import retry_reports

            retry_reports.start(out)
        click.get_current_context().ensure_object(Session).output = out
        return command(out=out, **rest)

    return wrapped
