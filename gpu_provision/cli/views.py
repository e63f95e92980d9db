"""drift, preflight, verify: commands that look at hosts and cluster and change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

import gpu_provision
from gpu_provision.cli import options
from gpu_provision.cli.display import show_progress
from gpu_provision.cli.options import StackOptions
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode
from gpu_provision.output.findings import has_errors


@click.command()
@options.on_stack
@options.hosts_limit
@options.phase_options
@options.ask_sudo_password
@options.detailed_exitcode
@options.output_options
def drift(*, stack: StackOptions, detailed_exitcode: bool, out: Output, **part: Any) -> ExitCode:
    """Show what is not as it was applied, and who changed it; change nothing. For timers: one line if there is nothing.

    Distinguishes manual changes from changes of the inventory that are not applied yet: those are pending, no drift.
    With --detailed-exitcode the exit code is 2 if anything but pending changes was found.
    """
    inventory = stack.load()
    with show_progress(replace(out, quiet=True)) as listen:
        found = gpu_provision.drift(inventory, listen=listen, **part)
    out.show(found)
    if has_errors(found.findings):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and found.is_worth_a_look else ExitCode.OK


@click.command()
@options.on_stack
@options.look_limit
@options.ignore
@options.ask_sudo_password
@click.option("--offline", is_flag=True, help="Ask no registry for images.")
@options.output_options
def preflight(*, stack: StackOptions, out: Output, **part: Any) -> ExitCode:
    """Say what would go wrong on hosts and in the cluster, and change nothing.

    Every host is read over SSH, also those without a GPU, and compared with the inventory, the cluster and the
    registry. An error exits with 1 and would stop apply on that host; --ignore CODE turns it into a warning.
    """
    inventory = stack.load()
    with show_progress(out) as listen:
        found = gpu_provision.preflight(inventory, listen=listen, **part)
    out.result(found.document(), found.text(out.style))
    return ExitCode.FAILED if found.failed else ExitCode.OK


@click.command()
@click.argument("tests", nargs=-1, type=click.Path(exists=True))
@options.on_stack
@options.look_limit
@options.phase_options
@click.option("--junit", metavar="FILE", default="", help="Write JUnit XML there, too.")
@options.output_options
def verify(*, stack: StackOptions, out: Output, **part: Any) -> ExitCode:
    """Run acceptance tests against hosts and cluster, and change nothing.

    They look for themselves: hosts are asked over SSH by testinfra, the cluster by plain GET requests. TESTS are
    files or folders with pytest tests of your own, which run beside; docs/verify.md shows how to write them. It needs
    pip install 'gpu-provision[verify]'.
    """
    inventory = stack.load()
    with show_progress(out) as listen:
        found = gpu_provision.verify(inventory, listen=listen, **part)
    out.result(found.document(), found.text(out.style))
    return found.exit_code
