"""``gpu-provision sandbox``: start and stop the embedded cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import options
from gpu_provision.cli.output import Output
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.model import codes
from gpu_provision.model.findings import ExitCode, Finding, UnreachableError
from gpu_provision.output.findings import document

if TYPE_CHECKING:
    from gpu_provision.sandbox.state import Sandbox

_fleet = click.option(
    "--fleet",
    default="default",
    show_default=True,
    metavar="NAME|FILE",
    help="Built-in fleet, or a YAML file that describes one.",
)


@click.group(cls=SuggestingGroup)
def sandbox() -> None:
    """Run a simulated cluster with GPU nodes on this machine."""


@sandbox.command()
@_fleet
@options.output_options
def up(*, fleet: str, out: Output) -> None:
    """Start the sandbox, unless it is running."""
    from gpu_provision.kube.config import start_sandbox

    found = start_sandbox(fleet)
    out.result(document("sandbox up", sandbox=_document(found)), _text(found))
    out.hint(f"\nexport KUBECONFIG={found.kubeconfig}")


@sandbox.command()
@_fleet
@options.output_options
def down(*, fleet: str, out: Output) -> None:
    """Stop the sandbox and keep its state."""
    from gpu_provision.kube.config import as_findings
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        ended = lifecycle.down(fleet)
    text = f"sandbox {fleet} ended" if ended else f"sandbox {fleet} was not running"
    out.result(document("sandbox down", ended=ended), text)


@sandbox.command()
@_fleet
@options.output_options
def reset(*, fleet: str, out: Output) -> None:
    """Stop the sandbox and delete its state."""
    from gpu_provision.kube.config import as_findings
    from gpu_provision.sandbox import lifecycle

    with as_findings():
        lifecycle.reset(fleet)
    out.result(document("sandbox reset"), f"sandbox {fleet} ended, its state is removed")


@sandbox.command()
@_fleet
@options.output_options
def status(*, fleet: str, out: Output) -> ExitCode:
    """Show whether the sandbox runs; exit with 69 if it does not."""
    from gpu_provision.kube.config import find_sandbox

    found = find_sandbox(fleet)
    text = _text(found) if found else f"sandbox {fleet} is not running"
    out.result(document("sandbox status", sandbox=_document(found) if found else None), text)
    return ExitCode.OK if found else ExitCode.UNREACHABLE


@sandbox.command()
@_fleet
@click.option(
    "--user", metavar="NAME", help="Write the kubeconfig of a user who may do what RBAC in the sandbox grants."
)
@options.output_options
def kubeconfig(*, fleet: str, user: str | None, out: Output) -> None:
    """Print the path of the kubeconfig, for KUBECONFIG=$(gpu-provision sandbox kubeconfig)."""
    from gpu_provision.kube.config import find_sandbox
    from gpu_provision.sandbox import lifecycle

    found = find_sandbox(fleet)
    if found is None:
        fix = f"gpu-provision sandbox up --fleet {fleet}".removesuffix(" --fleet default")
        what = f"sandbox {fleet!r} is not running"
        raise UnreachableError(Finding(code=codes.NO_SANDBOX, where=f"sandbox {fleet}", what=what, fix=fix))
    if user:
        found = replace(found, kubeconfig=lifecycle.write_kubeconfig(found, user))
    out.result(document("sandbox kubeconfig", sandbox=_document(found)), str(found.kubeconfig))


def _text(found: Sandbox) -> str:
    where = f"kubeconfig {found.kubeconfig}, context {found.context}"
    return f"sandbox {found.name} runs at {found.url} (process {found.pid})\n{where}"


def _document(found: Sandbox) -> dict[str, object]:
    own = {"kubeconfig": str(found.kubeconfig), "directory": str(found.directory)}
    return {"name": found.name, "context": found.context, "url": found.url, "pid": found.pid, **own}
