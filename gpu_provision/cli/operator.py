"""``gpu-provision operator``: the same tool, resident in a cluster."""

from __future__ import annotations

import click

from gpu_provision.cli.commands import Commands


@click.group(cls=Commands, modules={"run": "operator_run"})
def operator() -> None:
    """Have a cluster hold itself to the stacks (GPUStack) that it declares."""
