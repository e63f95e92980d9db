"""``gpu-provision operator``: install, run and inspect the controller of GPUStacks."""

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
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, InvalidInventoryError, UsageError, one_line
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
    "No --image, so the cluster gets no controller: build an image from the Containerfile, or run it elsewhere."
)
_image_name = options.pattern_callback(
    r"[A-Za-z0-9][\w.:/@-]*", "name of an image, such as registry.example.com/gpu-provision:0.1.0"
)
_version = options.pattern_callback(r"v?1\.\d+([.+-]\S*)?", "version of Kubernetes, such as 1.27")
_timeout = options.seconds("--timeout", default=300, show_default=True, help="Timeout of each step.")


def _stack_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Check the name of a stack, which becomes part of an API path."""
    from gpu_provision.inventory.json_schema import schema

    rule = schema()["$defs"]["name"]
    if not re.fullmatch(rule["pattern"], value):
        message = f"{value!r} is no name of a stack. {rule['patternErrorMessage']}."
        raise click.BadParameter(message)
    return value


def _install_options(command: options.Command) -> options.Command:
    """Add --inventory, --image, --replicas and --image-pull-secret."""
    for option in (
        click.option(
            "--image-pull-secret",
            "pull_secrets",
            metavar="NAME",
            multiple=True,
            help="Image pull Secret in the operator's namespace; can be repeated.",
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
            help="Controller image, built from the Containerfile.",
        ),
        click.option(
            "-i",
            "--inventory",
            "files",
            metavar="FILE",
            multiple=True,
            help="Grant the controller the permissions for this inventory's stack; can be repeated."
            " Default: stacks of any name in the default namespaces.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def operator() -> None:
    """Install and run the controller that reconciles GPUStack resources."""


@operator.command()
@options.inventory
@options.output_options
def stack(*, file: str | None, out: Output) -> None:
    """Print an inventory as a GPUStack.

    The manifest is for kubectl apply -f - or a GitOps repository. Omits settings of hosts and connections;
    -v lists the omitted settings.
    """
    from gpu_provision.inventory.document import read_source
    from gpu_provision.inventory.yaml_parser import parse
    from gpu_provision.operator.stack import local_values, spec_of, stack_of

    load_inventory(file)  # reports an invalid inventory as every other command does
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
@options.cluster_options
def release(*, name: str, cluster: KubeClient, timeout: int, yes: bool, out: Output) -> ExitCode:
    """Delete the GPUStack NAME; its objects stay installed.

    Afterwards gpu-provision apply manages the stack again.
    """
    from gpu_provision.operator import remote_run as leaving

    findings = leaving.release_findings(cluster, name)
    out.findings(findings)
    if not _confirm(cluster, f"Release the stack {name}", look="operator status", yes=yes, out=out):
        return ExitCode.FAILED
    was_there = leaving.release_stack(cluster, name, seconds=timeout, say=out.note)
    text = f"GPUStack {name} is released; its objects stay installed." if was_there else f"There is no stack {name}."
    out.result(document("operator release", findings, cluster=cluster.name, released=was_there), text)
    return ExitCode.OK


@operator.command()
@_install_options
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default="",
    callback=_version,
    help="Kubernetes version of a cluster older than 1.29, such as 1.27.",
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
    """Print the operator's manifests; makes no API calls.

    These are the CRD, namespaces, RBAC roles and the controller Deployment.
    With --output, writes a directory for kubectl apply -k.
    """
    from gpu_provision.operator.manifests import group_by_file, kustomization, manifests

    made = manifests(_manifest_options(out, **shape), [load_inventory(file) for file in files])
    if folder is None:
        out.result(document("operator render", manifests=made, files=[]), object_text.yaml_stream(made))
        return
    texts = {name: object_text.yaml_stream(group) for name, group in group_by_file(made).items()}
    texts["kustomization.yaml"] = object_text.to_yaml(kustomization(list(texts)))
    paths = [str(path) for path in write_texts(folder, texts)]
    out.result(document("operator render", manifests=made, files=paths), "\n".join(paths))


def _manifest_options(out: Output, **shape: Any) -> InstallOptions:
    from gpu_provision.operator.manifests import InstallOptions

    if not shape["image"]:
        out.note(_NO_CONTROLLER)
    return InstallOptions(**shape)


@operator.command()
@_install_options
@click.option("--take-over", is_flag=True, help="Take over fields from other field managers, such as kubectl.")
@_timeout
@options.yes
@options.output_options
@options.cluster_options
def install(  # noqa: PLR0913 - one argument per option
    *, files: tuple[str, ...], cluster: KubeClient, take_over: bool, timeout: int, yes: bool, out: Output, **shape: Any
) -> ExitCode:
    """Install or upgrade the operator; idempotent."""
    from gpu_provision.operator import install as installing

    if not _confirm(cluster, "Install the operator", look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    made, stacks = _manifest_options(out, **shape), [load_inventory(file) for file in files]
    written, findings = installing.install(cluster, made, stacks, take_over=take_over, seconds=timeout, say=out.note)
    closing = f"{len(written)} objects were created or changed." if written else "Nothing to change."
    _print_result(out, "operator install", findings, cluster, "written", written, closing)
    return ExitCode.OK


@operator.command()
@click.option("--with-stacks", is_flag=True, help="Also delete all GPUStacks and everything they installed.")
@_timeout
@options.yes
@options.output_options
@options.cluster_options
def uninstall(*, cluster: KubeClient, with_stacks: bool, timeout: int, yes: bool, out: Output) -> ExitCode:
    """Uninstall the operator; refused while GPUStacks exist, unless --with-stacks is given.

    The controller has to run for --with-stacks: it uninstalls the stacks.
    """
    from gpu_provision.operator import install as installing

    what = "Remove the operator and all GPU stacks" if with_stacks else "Remove the operator"
    if not _confirm(cluster, what, look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    gone, findings = installing.uninstall(cluster, with_stacks=with_stacks, seconds=timeout, say=out.note)
    closing = f"{len(gone)} objects were deleted." if gone else "There is no operator."
    _print_result(out, "operator uninstall", findings, cluster, "deleted", gone, closing)
    return ExitCode.OK


def _confirm(cluster: KubeClient, what: str, *, look: str, yes: bool, out: Output) -> bool:
    if not yes:
        output.require_terminal(out, look=look)
    return yes or output.confirm(f"{what} on {cluster.name} ({cluster.server})?")


def _print_result(  # noqa: PLR0913, PLR0917 - the output of both commands
    out: Output,
    command: str,
    findings: Iterable[Finding],
    cluster: KubeClient,
    key: str,
    refs: Iterable[object],
    end: str,
) -> None:
    names = [str(ref) for ref in refs]
    parts: dict[str, Any] = {"cluster": cluster.name, key: names}
    out.result(document(command, findings, **parts), "\n".join([*names, end]))
    out.findings(findings)


@operator.command()
@options.detailed_exitcode
@options.output_options
@options.cluster_options
def status(*, cluster: KubeClient, detailed_exitcode: bool, out: Output) -> ExitCode:
    """Show the leader and all GPUStacks, and warn of version skew."""
    from gpu_provision.operator.install import skew_findings
    from gpu_provision.operator.status import read_overview

    overview = read_overview(cluster)
    warnings = skew_findings(cluster, overview.version, overview.lease)
    fields = {**asdict(overview), "ready": overview.is_healthy}
    out.result(document("operator status", warnings, operator=fields), _status_text(overview, out))
    out.findings(warnings)
    return ExitCode.DIFFERENCES if detailed_exitcode and not overview.is_healthy else ExitCode.OK


def _status_text(overview: Overview, out: Output) -> str:
    controllers = f"Controllers in the cluster: {overview.controllers}" if overview.controllers else ""
    version = f", gpu-provision {overview.version}" if overview.version else ""
    leader = "There is no leader: no controller runs, or none can lead."
    if overview.leader:
        leader = f"Leader: {overview.leader}{version}"
    rows = []
    for row in overview.stacks:
        ready = out.style.paint("green", "yes") if row.is_ready else out.style.paint("yellow", "no")
        message = f"{row.message}{'' if row.is_current else ' (of what was declared before)'}"
        values = (row.name, row.release, ready, row.nodes, str(row.gpus), row.rollout, message)
        rows.append([value or "-" for value in values])
    headers = ("STACK", "RELEASE", "READY", "NODES", "GPUS", "ROLLOUT", "MESSAGE")
    stacks = table(headers, rows, out.style) or "There is no stack."
    return "\n".join(filter(None, (controllers, leader, "", stacks)))


@operator.command()
@options.cluster_of_kubeconfig
@click.option(
    "--namespace",
    default="gpu-operator",
    show_default=True,
    metavar="NAME",
    help="Namespace of the leader election Lease.",
)
@click.option(
    "--address", default="127.0.0.1", show_default=True, metavar="IP", help="Listen address; :: for all addresses."
)
@click.option(
    "--port", default=8080, show_default=True, metavar="PORT", type=click.IntRange(0, 65535), help="0: any free port."
)
@options.output_options
def run(  # noqa: PLR0913 - one argument per option
    *, kubeconfig: str | None, context: str | None, namespace: str, address: str, port: int, out: Output
) -> ExitCode:
    """Reconcile every GPUStack of a cluster, until Ctrl-C or SIGTERM.

    Several controllers may run; one of them leads. Events are lines on stderr, or with --json one object per line on
    stdout.
    The port serves /healthz, /readyz and /metrics.
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
            fields = {"time": _now(), "level": "warning" if note.is_warning else "info", "stack": note.stack}
            write(sys.stdout, json.dumps({**fields, "reason": note.reason, "message": note.message}, sort_keys=True))
        else:
            out.note(event_line(note))

    cluster = connect(kubeconfig or "", context or "")
    controller = Controller(cluster, retarget=retarget, on_event=on_event, namespace=namespace)
    try:
        probes = {"is_alive": controller.liveness_problem, "is_ready": controller.readiness_problem}
        bound_port = serve(address, port, read_metrics=controller.metrics, **probes)
    except OSError as error:
        finding = Finding(
            code=codes.NO_ENDPOINT,
            what=f"cannot listen on {address}:{port}",
            evidence=error.strerror or str(error),
            fix="choose another --port or --address; --port 0 takes any free port",
        )
        raise UsageError(finding) from error
    host = f"[{address}]" if ":" in address else address
    on_event(StackEvent(reason="Answering", message=f"http://{host}:{bound_port}/metrics, /healthz and /readyz"))
    try:
        with redirect_reports(lambda message: on_event(StackEvent(reason="Waiting", message=message, is_warning=True))):
            controller.run()
    except KeyboardInterrupt:
        controller.stop()
    return ExitCode.OK


def event_line(note: StackEvent) -> str:
    """Return an event as one line of the log."""
    prefix = f"{note.stack}: " if note.stack else ""
    mark = "warning " if note.is_warning else ""
    return f"{_now()} {mark}{prefix}{note.reason}: {one_line(note.message)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
