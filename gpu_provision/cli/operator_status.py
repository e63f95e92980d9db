"""``gpu-provision operator status``: whether a controller leads, and how the stacks stand."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import options
from gpu_provision.cli.output import Output, write
from gpu_provision.model.findings import ExitCode
from gpu_provision.output import findings as findings_view
from gpu_provision.output.documents import document
from gpu_provision.output.text import Style, table

if TYPE_CHECKING:
    from gpu_provision.operator.overview import Overview, StackRow

_HEADERS = ("STACK", "RELEASE", "READY", "NODES", "GPUS", "ROLLOUT", "MESSAGE")
_NOTHING = "-"


@click.command()
@options.kubeconfig
@options.context
@options.detailed_exitcode
@options.speaking
def status(*, kubeconfig: str | None, context: str | None, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show who leads, and every stack as its status says; and what of the operator is of another version than this."""
    from gpu_provision.kube.client import connect
    from gpu_provision.operator.overview import read_overview, skew_findings

    cluster = connect(kubeconfig or "", context or "")
    found = read_overview(cluster)
    warnings = skew_findings(cluster, found.version, found.lease)
    told = {**asdict(found), "ready": found.is_well}
    out.result(document("operator status", warnings, operator=told), _text(found, out.style))
    if not out.json:
        write(sys.stderr, findings_view.text(warnings, out.error_style))
    return ExitCode.DIFFERENCES if detailed_exitcode and not found.is_well else ExitCode.OK


def _text(found: Overview, style: Style) -> str:
    controllers = f"Controllers in the cluster: {found.controllers}" if found.controllers else ""
    told = f"Leader: {found.leader}, gpu-provision {found.version}" if found.version else f"Leader: {found.leader}"
    leader = told if found.leader else "Nobody leads: no controller runs, or none can lead."
    rows = [_row(row, style) for row in found.stacks]
    stacks = table(_HEADERS, rows, style) if rows else "There is no stack."
    return "\n".join(filter(None, (controllers, leader, "", stacks)))


def _row(row: StackRow, style: Style) -> tuple[str, ...]:
    ready = style.paint("green", "yes") if row.is_ready else style.paint("yellow", "no")
    current = "" if row.is_current else " (of what was declared before)"
    values = (row.name, row.release, ready, row.nodes, str(row.gpus), row.rollout, f"{row.message}{current}")
    return tuple(value or _NOTHING for value in values)
