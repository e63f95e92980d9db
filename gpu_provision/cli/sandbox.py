"""``gpu-provision sandbox``: the embedded cluster, up and down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import options
from gpu_provision.cli.output import Output
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.model import codes
from gpu_provision.model.findings import ExitCode, Finding, Unreachable
from gpu_provision.output.findings import document

if TYPE_CHECKING:
    from gpu_provision.sandbox.process import Sandbox

_fleet = click.option(
    "--fleet",
    default="default",
    show_default=True,
    metavar="NAME|FILE",
    help="A fleet that comes along, or a YAML file that describes one.",
)


@click.group(cls=SuggestingGroup)
def sandbox() -> None:
    """Run a simulated cluster with GPU nodes on this machine."""


@sandbox.command()
@_fleet
@options.output_options
def up(*, fleet: str, out: Output) -> None:
    """Start it; one that runs already is left running."""
    from gpu_provision.sandbox import process

    found = process.up(fleet)
    out.result(document("sandbox up", sandbox=_document(found)), _text(found))
    out.hint(f"\nexport KUBECONFIG={found.kubeconfig}")


@sandbox.command()
@_fleet
@options.output_options
def down(*, fleet: str, out: Output) -> None:
    """End it; its state is kept."""
    from gpu_provision.sandbox import process

    ended = process.down(fleet)
    text = f"sandbox {fleet} ended" if ended else f"sandbox {fleet} was not running"
    out.result(document("sandbox down", ended=ended), text)


@sandbox.command()
@_fleet
@options.output_options
def reset(*, fleet: str, out: Output) -> None:
    """End it and forget its state."""
    from gpu_provision.sandbox import process

    process.reset(fleet)
    out.result(document("sandbox reset"), f"sandbox {fleet} ended, its state is removed")


@sandbox.command()
@_fleet
@options.output_options
def status(*, fleet: str, out: Output) -> ExitCode:
    """Say whether it runs; exit with 69 if it does not."""
    from gpu_provision.sandbox import process

    found = process.running(fleet)
    text = _text(found) if found else f"sandbox {fleet} is not running"
    out.result(document("sandbox status", sandbox=_document(found) if found else None), text)
    return ExitCode.OK if found else ExitCode.UNREACHABLE


@sandbox.command()
@_fleet
@click.option("--user", metavar="NAME", help="That of another user, who may do what RBAC in the sandbox grants.")
@options.output_options
def kubeconfig(*, fleet: str, user: str | None, out: Output) -> None:
    """Print the path of its kubeconfig, for KUBECONFIG=$(gpu-provision sandbox kubeconfig)."""
    from gpu_provision.sandbox import process

    found = process.running(fleet)
    if found is None:
        raise Unreachable(
            Finding(
                code=codes.NO_SANDBOX,
                where=f"sandbox {fleet}",
                what="it is not running",
                fix=f"gpu-provision sandbox up --fleet {fleet}".removesuffix(" --fleet default"),
            )
        )
    if user:
        found = replace(found, kubeconfig=process.kubeconfig_of(found, user))
    out.result(document("sandbox kubeconfig", sandbox=_document(found)), str(found.kubeconfig))


def _text(found: Sandbox) -> str:
    return (
        f"sandbox {found.name} runs at {found.url} (process {found.pid})\n"
        f"kubeconfig {found.kubeconfig}, context {found.context}"
    )


def _document(found: Sandbox) -> dict[str, object]:
    return {
        "name": found.name,
        "context": found.context,
        "kubeconfig": str(found.kubeconfig),
        "directory": str(found.directory),
        "url": found.url,
        "pid": found.pid,
    }
