"""``gpu-provision operator``: the controller that keeps the stacks of a cluster, and how it stands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_provision.cli import options, output
from gpu_provision.cli.options import find_inventory, load_inventory
from gpu_provision.cli.output import Output, write
from gpu_provision.cli.root import SuggestingGroup
from gpu_provision.cli.validate import write_texts
from gpu_provision.model import codes
from gpu_provision.model.findings import ExitCode, Finding, InvalidInventoryError, UsageError, one_line
from gpu_provision.model.inventory import Inventory
from gpu_provision.output import object_text
from gpu_provision.output.findings import document
from gpu_provision.output.text import table

if TYPE_CHECKING:
    from gpu_provision.kube.client import KubeClient
    from gpu_provision.operator.manifests import InstallOptions
    from gpu_provision.operator.status import Overview
    from gpu_provision.operator.telemetry import StackEvent

_NO_CONTROLLER = (
    "No --image, so there is no controller in the cluster: build one of the Containerfile, or run it elsewhere."
)
_image_name = options.matching(
    r"[A-Za-z0-9][\w.:/@-]*", "name of an image, such as registry.example.com/gpu-provision:0.1.0"
)
_version = options.matching(r"v?1\.\d+([.+-]\S*)?", "version of Kubernetes, such as 1.27")
_timeout = options.seconds("--timeout", default=300, show_default=True, help="How long each step may take.")


def _stack_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Take the name of a stack: it becomes part of a path at the API server."""
    from gpu_provision.inventory.json_schema import schema

    rule = schema()["$defs"]["name"]
    if not re.fullmatch(rule["pattern"], value):
        message = f"{value!r} is no name of a stack. {rule['patternErrorMessage']}."
        raise click.BadParameter(message)
    return value


def _installation(command: options.Command) -> options.Command:
    """Add what the operator is made for and of: --inventory, --image, --replicas, --image-pull-secret."""
    for option in (
        click.option(
            "--image-pull-secret",
            "pull_secrets",
            metavar="NAME",
            multiple=True,
            help="Secret of its namespace; can be repeated.",
        ),
        click.option(
            "--replicas",
            type=click.IntRange(min=1, max=9),
            default=2,
            show_default=True,
            help="Number of controller replicas (leader election).",
        ),
        click.option(
            "--image",
            metavar="IMAGE",
            default="",
            callback=_image_name,
            help="The controller's image, made from the Containerfile.",
        ),
        click.option(
            "-i",
            "--inventory",
            "files",
            metavar="FILE",
            multiple=True,
            help="The controller gets the rights for this inventory's stack; can be repeated."
            " Default: stacks of any name in the usual namespaces.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def operator() -> None:
    """Have a cluster hold itself to the stacks (GPUStack) that it declares."""


@operator.command()
@options.inventory
@options.output_options
def stack(*, file: str | None, out: Output) -> None:
    """Print an inventory as a GPUStack, for kubectl apply -f - or a repository that GitOps applies.

    What is about hosts and connections is not in it; -v says what was left out.
    """
    from gpu_provision.inventory.document import read_source
    from gpu_provision.inventory.yaml_parser import parse
    from gpu_provision.operator.stack import local_values, spec_of, stack_of

    load_inventory(file)  # an invalid inventory is reported as by every other command
    document_of_file = parse(read_source(find_inventory(file)))[0]
    if refused := local_values(document_of_file):
        raise InvalidInventoryError(*refused)
    made, left = stack_of(document_of_file.data), spec_of(document_of_file.data)[1]
    if out.verbose:
        out.note(f"Not in a stack: {', '.join(left)}")
    out.result(document("operator stack", manifests=[made], left_out=list(left)), object_text.to_yaml(made))


@operator.command()
@click.argument("name", callback=_stack_name)
@_timeout
@options.yes
@options.output_options
@options.on_cluster
def release(*, name: str, cluster: KubeClient, timeout: int, yes: bool, out: Output) -> ExitCode:
    """Let the stack NAME go: its GPUStack is deleted, and all that it has installed stays and runs on.

    After that gpu-provision apply looks after the stack again.
    """
    from gpu_provision.operator import remote_run as leaving

    told = leaving.release_findings(cluster, name)
    out.findings(told)
    if not _has_agreed(cluster, f"Release the stack {name}", look="operator status", yes=yes, out=out):
        return ExitCode.FAILED
    was_there = leaving.release_stack(cluster, name, seconds=timeout, say=out.note)
    text = f"{name} is released; what it has installed stays." if was_there else f"There is no stack {name}."
    out.result(document("operator release", told, cluster=cluster.name, released=was_there), text)
    return ExitCode.OK


@operator.command()
@_installation
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default="",
    callback=_version,
    help="Version of the cluster, such as 1.27, if it is older than 1.29.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write files for kubectl apply -k DIR.",
)
@options.output_options
def render(*, files: tuple[str, ...], folder: Path | None, out: Output, **shape: Any) -> None:
    """Print all that the operator consists of, without asking any cluster: definition, namespaces, rights, controller.

    With --output, a folder that kubectl apply -k takes.
    """
    from gpu_provision.operator.manifests import group_by_file, kustomization, manifests

    made = manifests(_shape(out, **shape), [load_inventory(file) for file in files])
    if folder is None:
        out.result(document("operator render", manifests=made, files=[]), object_text.yaml_stream(made))
        return
    texts = {name: object_text.yaml_stream(group) for name, group in group_by_file(made).items()}
    texts["kustomization.yaml"] = object_text.to_yaml(kustomization(list(texts)))
    paths = [str(path) for path in write_texts(folder, texts)]
    out.result(document("operator render", manifests=made, files=paths), "\n".join(paths))


def _shape(out: Output, **shape: Any) -> InstallOptions:
    from gpu_provision.operator.manifests import InstallOptions

    if not shape["image"]:
        out.note(_NO_CONTROLLER)
    return InstallOptions(**shape)


@operator.command()
@_installation
@click.option(
    "--take-over", is_flag=True, help="Take over fields that another field manager has applied, such as kubectl."
)
@_timeout
@options.yes
@options.output_options
@options.on_cluster
def install(  # noqa: PLR0913 - one argument per option
    *, files: tuple[str, ...], cluster: KubeClient, take_over: bool, timeout: int, yes: bool, out: Output, **shape: Any
) -> ExitCode:
    """Put the operator into the cluster that kubectl speaks to, or bring it up to date; again, nothing changes."""
    from gpu_provision.operator import install as installing

    if not _has_agreed(cluster, "Install the operator", look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    made, stacks = _shape(out, **shape), [load_inventory(file) for file in files]
    written, told = installing.install(cluster, made, stacks, take_over=take_over, seconds=timeout, say=out.note)
    closing = f"{len(written)} objects were made or changed." if written else "Everything is as it should be."
    _tell(out, "operator install", told, cluster, "written", written, closing)
    return ExitCode.OK


@operator.command()
@click.option("--with-stacks", is_flag=True, help="Also delete all GPUStacks and everything they installed.")
@_timeout
@options.yes
@options.output_options
@options.on_cluster
def uninstall(*, cluster: KubeClient, with_stacks: bool, timeout: int, yes: bool, out: Output) -> ExitCode:
    """Take the operator off the cluster; not while there are stacks, unless they are to go as well.

    What stacks have installed is taken off by the controller, so that one has to run.
    """
    from gpu_provision.operator import install as installing

    what = "Remove the operator and all GPU stacks" if with_stacks else "Remove the operator"
    if not _has_agreed(cluster, what, look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    gone, told = installing.uninstall(cluster, with_stacks=with_stacks, seconds=timeout, say=out.note)
    closing = f"{len(gone)} objects were deleted." if gone else "There is no operator."
    _tell(out, "operator uninstall", told, cluster, "deleted", gone, closing)
    return ExitCode.OK


def _has_agreed(cluster: KubeClient, what: str, *, look: str, yes: bool, out: Output) -> bool:
    if not yes:
        output.require_terminal(out, look=look)
    return yes or output.ask(f"{what} on {cluster.name} ({cluster.server})?")


def _tell(  # noqa: PLR0913, PLR0917 - what both commands say
    out: Output, command: str, told: Iterable[Finding], cluster: KubeClient, key: str, refs: Iterable[object], last: str
) -> None:
    names = [str(ref) for ref in refs]
    parts: dict[str, Any] = {"cluster": cluster.name, key: names}
    out.result(document(command, told, **parts), "\n".join([*names, last]))
    out.findings(told)


@operator.command()
@options.detailed_exitcode
@options.output_options
@options.on_cluster
def status(*, cluster: KubeClient, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show who leads, and every stack as its status says; and what of the operator is of another version than this."""
    from gpu_provision.operator.install import skew_findings
    from gpu_provision.operator.status import read_overview

    found = read_overview(cluster)
    warnings = skew_findings(cluster, found.version, found.lease)
    told = {**asdict(found), "ready": found.is_healthy}
    out.result(document("operator status", warnings, operator=told), _status_text(found, out))
    out.findings(warnings)
    return ExitCode.DIFFERENCES if detailed_exitcode and not found.is_healthy else ExitCode.OK


def _status_text(found: Overview, out: Output) -> str:
    controllers = f"Controllers in the cluster: {found.controllers}" if found.controllers else ""
    version = f", gpu-provision {found.version}" if found.version else ""
    leader = "There is no leader: no controller runs, or none can lead."
    if found.leader:
        leader = f"Leader: {found.leader}{version}"
    rows = []
    for row in found.stacks:
        ready = out.style.paint("green", "yes") if row.is_ready else out.style.paint("yellow", "no")
        message = f"{row.message}{'' if row.is_current else ' (of what was declared before)'}"
        values = (row.name, row.release, ready, row.nodes, str(row.gpus), row.rollout, message)
        rows.append([value or "-" for value in values])
    headers = ("STACK", "RELEASE", "READY", "NODES", "GPUS", "ROLLOUT", "MESSAGE")
    stacks = table(headers, rows, out.style) or "There is no stack."
    return "\n".join(filter(None, (controllers, leader, "", stacks)))


@operator.command()
@options.kubeconfig
@options.context
@click.option(
    "--namespace",
    default="gpu-operator",
    show_default=True,
    metavar="NAME",
    help="Where controllers agree on who leads.",
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
    from gpu_provision.cli.display import redirect_reports
    from gpu_provision.kube.client import connect
    from gpu_provision.operator.controller import Controller
    from gpu_provision.operator.reconciler import use_one_arena
    from gpu_provision.operator.telemetry import StackEvent, serve

    use_one_arena()
    aimed = {"kubeconfig": kubeconfig or "", "context": context or "", "sandbox": ""}

    def retarget(inventory: Inventory) -> Inventory:
        return replace(inventory, cluster=replace(inventory.cluster, **aimed))

    def on_event(note: StackEvent) -> None:
        if out.json:
            told = {"time": _now(), "level": "warning" if note.is_warning else "info", "stack": note.stack}
            write(sys.stdout, json.dumps({**told, "reason": note.reason, "message": note.message}, sort_keys=True))
        else:
            out.note(event_line(note))

    cluster = connect(kubeconfig or "", context or "")
    controller = Controller(cluster, retarget=retarget, on_event=on_event, namespace=namespace)
    try:
        probes = {"is_alive": controller.liveness_problem, "is_ready": controller.readiness_problem}
        found = serve(address, port, read_metrics=controller.metrics, **probes)
    except OSError as error:
        finding = Finding(
            code=codes.NO_ENDPOINT,
            what=f"nothing can be answered at {address}:{port}",
            evidence=error.strerror or str(error),
            fix="choose another --port or --address; --port 0 takes any that is free",
        )
        raise UsageError(finding) from error
    place = f"[{address}]" if ":" in address else address
    on_event(StackEvent(reason="Answering", message=f"http://{place}:{found}/metrics, /healthz and /readyz"))
    try:
        with redirect_reports(lambda message: on_event(StackEvent(reason="Waiting", message=message, is_warning=True))):
            controller.run()
    except KeyboardInterrupt:
        controller.stop()
    return ExitCode.OK


def event_line(note: StackEvent) -> str:
    """Return an event as one line of the log."""
    place = f"{note.stack}: " if note.stack else ""
    mark = "warning " if note.is_warning else ""
    return f"{_now()} {mark}{place}{note.reason}: {one_line(note.message)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
