"""``gpu-provision drift``: what is not as declared, for a timer to ask."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

import gpu_provision
from gpu_provision.cli import options
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.options import loaded
from gpu_provision.cli.output import Output, write
from gpu_provision.model.findings import ExitCode, Finding, Severity
from gpu_provision.output import findings as findings_view


@click.command()
@options.inventory
@options.kubeconfig
@options.context
@options.hosts_limit
@options.phases
@options.ask_sudo_password
@options.detailed_exitcode
@options.speaking
def drift(  # noqa: PLR0913 - one argument per option
    *,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    limit: str | None,
    hosts: bool,
    cluster: bool,
    detailed_exitcode: bool,
    out: Output,
) -> ExitCode:
    """Show what is not as it was applied, and who changed it; change nothing. For timers: one line if there is nothing.

    Tells what somebody changed from what the inventory declares by now and nobody has applied yet: that is pending,
    and no drift. With --detailed-exitcode the exit code is 2 if anything but pending changes was found.
    """
    inventory = loaded(file, kubeconfig=kubeconfig, context=context)
    with shown_on_stderr(replace(out, quiet=True)) as listen:
        found = gpu_provision.drift(
            inventory, hosts_only=not cluster, cluster_only=not hosts, limit=limit, listen=listen
        )
    out.result(found.document(), found.text(out.style))
    if not out.json:
        write(sys.stderr, findings_view.text(found.findings, out.error_style))
    return _exit(found.findings, differs=detailed_exitcode and found.is_worth_a_look)


def _exit(findings: tuple[Finding, ...], *, differs: bool) -> ExitCode:
    if any(finding.severity is Severity.ERROR for finding in findings):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if differs else ExitCode.OK
