"""``gpu-provision sandbox``: start and stop the simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import options
from gpu_provision.cli.output import Output
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, UnreachableError
from gpu_provision.output.findings import document

if TYPE_CHECKING:
    from gpu_provision.sandbox.state import Sandbox

_fleet = click.option(
    "--fleet",
    default="default",
    show_default=True,
    metavar="NAME|FILE",
    help="Built-in fleet, or a YAML file with a fleet.",
)


@click.group(cls=SuggestingGroup)
def sandbox() -> None:
    """Manage a simulated cluster with GPU nodes on this machine."""


@sandbox.command()
@_fleet
@options.output_options
def up(*, fleet: str, out: Output) -> None:
    """Start the sandbox, unless it is running."""
    from gpu_provision.kube.config import start_sandbox

    running = start_sandbox(fleet)
    out.result(document("sandbox up", sandbox=_document(running)), _describe(running))
    out.hint(f"\nexport KUBECONFIG={running.kubeconfig}")


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
    """Show whether the sandbox runs; exits with 69 if it does not."""
    from gpu_provision.kube.config import find_sandbox

    running = find_sandbox(fleet)
    text = _describe(running) if running else f"sandbox {fleet} is not running"
    out.result(document("sandbox status", sandbox=_document(running) if running else None), text)
    return ExitCode.OK if running else ExitCode.UNREACHABLE


@sandbox.command()
@_fleet
@click.option(
    "--user", metavar="NAME", help="Write the kubeconfig of a user with the permissions granted by RBAC in the sandbox."
)
@options.output_options
def kubeconfig(*, fleet: str, user: str | None, out: Output) -> None:
    """Print the path of the kubeconfig, for KUBECONFIG=$(gpu-provision sandbox kubeconfig)."""
    from gpu_provision.sandbox import lifecycle

    running = _find(fleet)
    if user:
        running = replace(running, kubeconfig=lifecycle.write_kubeconfig(running, user))
    out.result(document("sandbox kubeconfig", sandbox=_document(running)), str(running.kubeconfig))


@sandbox.command()
@_fleet
@click.option("--to", "version", metavar="VERSION", required=True, help="Release of OpenShift to install.")
@click.option("--wait", is_flag=True, help="Return once every node runs it, but for those of paused pools.")
@options.output_options
def upgrade(*, fleet: str, version: str, wait: bool, out: Output) -> None:
    """Upgrade a sandbox that simulates OpenShift; nodes reboot pool by pool."""
    from gpu_provision.kube.config import as_findings
    from gpu_provision.sandbox import lifecycle

    running = _find(fleet)
    with as_findings():
        lifecycle.upgrade(running, version, wait=wait)
    done = f"sandbox {fleet} {'runs' if wait else 'installs'} OpenShift {version}"
    out.result(document("sandbox upgrade", version=version), done)
    out.hint("\nkubectl get clusterversion,machineconfigpools,nodes")


def _find(fleet: str) -> Sandbox:
    """Return a sandbox that runs. Raises UnreachableError."""
    from gpu_provision.kube.config import find_sandbox

    running = find_sandbox(fleet)
    if running is None:
        fix = f"gpu-provision sandbox up --fleet {fleet}".removesuffix(" --fleet default")
        what = f"sandbox {fleet!r} is not running"
        raise UnreachableError(Finding(code=codes.NO_SANDBOX, where=f"sandbox {fleet}", what=what, fix=fix))
    return running


def _describe(running: Sandbox) -> str:
    where = f"kubeconfig {running.kubeconfig}, context {running.context}"
    return f"sandbox {running.name} runs at {running.url} (process {running.pid})\n{where}"


def _document(running: Sandbox) -> dict[str, object]:
    own = {"kubeconfig": str(running.kubeconfig), "directory": str(running.directory)}
    return {"name": running.name, "context": running.context, "url": running.url, "pid": running.pid, **own}
