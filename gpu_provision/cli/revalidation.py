"""``gpu-provision validate --gpus``: every vectorAdd again, and nothing else."""

from __future__ import annotations

import gpu_provision
from gpu_provision.cli.display import shown_on_stderr
from gpu_provision.cli.output import Output
from gpu_provision.model.findings import ExitCode
from gpu_provision.model.inventory import Inventory


def revalidate(inventory: Inventory, out: Output) -> ExitCode:
    """Run every vectorAdd again and print the output. Raises what `gpu_provision.revalidate` raises."""
    with shown_on_stderr(out) as listen:
        run = gpu_provision.revalidate(inventory, listen=listen)
    out.result(run.document(), run.text(out.style))
    return ExitCode.OK
