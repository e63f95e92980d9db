"""``gpu-provision operator run``: the controller, in a pod or anywhere else."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import display, options
from gpu_provision.cli.output import Output, write
from gpu_provision.model import codes
from gpu_provision.model.findings import ExitCode, Finding, UsageError, one_line
from gpu_provision.model.inventory import Inventory

if TYPE_CHECKING:
    from gpu_provision.operator.controller import Controller
    from gpu_provision.operator.telemetry import EventSink, StackEvent

_NAMESPACE = "gpu-operator"


@click.command()
@options.kubeconfig
@options.context
@click.option(
    "--namespace", default=_NAMESPACE, show_default=True, metavar="NAME", help="Where controllers agree on who leads."
)
@click.option(
    "--address", default="127.0.0.1", show_default=True, metavar="IP", help="Where to answer probes; :: for everywhere."
)
@click.option(
    "--port", default=8080, show_default=True, metavar="PORT", type=click.IntRange(0, 65535), help="0: any free one."
)
@options.output_options
def run(  # noqa: PLR0913 - one argument per option
    *, kubeconfig: str | None, context: str | None, namespace: str, address: str, port: int, out: Output
) -> ExitCode:
    """Look after every stack of a cluster, until Ctrl-C or SIGTERM.

    Several controllers may run; one of them leads. Events are lines on stderr, or with --json objects on stdout.
    /healthz, /readyz and /metrics are answered at the port.
    """
    from gpu_provision.kube.client import connect
    from gpu_provision.operator.controller import Controller
    from gpu_provision.operator.reconciler import use_one_arena
    from gpu_provision.operator.telemetry import StackEvent

    use_one_arena()

    def aim(inventory: Inventory) -> Inventory:
        found = replace(inventory.cluster, kubeconfig=kubeconfig or "", context=context or "", sandbox="")
        return replace(inventory, cluster=found)

    take = _take(out)
    controller = Controller(connect(kubeconfig or "", context or ""), aim=aim, take=take, namespace=namespace)
    _answer(controller, address, port, take)
    try:
        with display.redirect_reports(
            lambda message: take(StackEvent(reason="Waiting", message=message, is_warning=True))
        ):
            controller.run()
    except KeyboardInterrupt:
        controller.stop()
    return ExitCode.OK


def _take(out: Output) -> EventSink:
    def take(note: StackEvent) -> None:
        if out.json:
            write(sys.stdout, json.dumps(_document(note), sort_keys=True))
        else:
            out.note(_text(note))

    return take


def _document(note: StackEvent) -> dict[str, str]:
    level = "warning" if note.is_warning else "info"
    return {"time": _now(), "level": level, "stack": note.stack, "reason": note.reason, "message": note.message}


def _text(note: StackEvent) -> str:
    place = f"{note.stack}: " if note.stack else ""
    mark = "warning " if note.is_warning else ""
    return f"{_now()} {mark}{place}{note.reason}: {one_line(note.message)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _answer(controller: Controller, address: str, port: int, take: EventSink) -> None:
    from gpu_provision.operator.telemetry import StackEvent, serve

    try:
        found = serve(
            address, port, look=controller.look, is_alive=controller.why_dead, is_ready=controller.why_unready
        )
    except OSError as error:
        raise UsageError(
            Finding(
                code=codes.NO_ENDPOINT,
                what=f"nothing can be answered at {address}:{port}",
                evidence=error.strerror or str(error),
                fix="choose another --port or --address; --port 0 takes any that is free",
            )
        ) from error
    place = f"[{address}]" if ":" in address else address
    take(StackEvent(reason="Answering", message=f"http://{place}:{found}/metrics, /healthz and /readyz"))
