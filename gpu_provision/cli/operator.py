"""``gpu-provision operator``: the controller that keeps the stacks of a cluster, and how it stands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_provision.cli import confirm, options
from gpu_provision.cli.options import find_inventory, load_inventory
from gpu_provision.cli.output import Output
from gpu_provision.cli.root import LazyCommand, SuggestingGroup
from gpu_provision.cli.validate import write_texts
from gpu_provision.model.findings import ExitCode, InvalidInventoryError
from gpu_provision.output import object_text
from gpu_provision.output.findings import document
from gpu_provision.output.text import Style

if TYPE_CHECKING:
    from gpu_provision.kube.client import KubeClient
    from gpu_provision.operator.manifests import InstallOptions
    from gpu_provision.operator.status import Overview, StackRow


_NO_CONTROLLER = (
    "No --image, so there is no controller in the cluster: build one of the Containerfile, or run it elsewhere"
)


_stacks = click.option(
    "-i",
    "--inventory",
    "files",
    metavar="FILE",
    multiple=True,
    help="The controller gets the rights for this inventory's stack; can be repeated."
    " Default: stacks of any name in the usual namespaces.",
)


_image = click.option(
    "--image",
    metavar="IMAGE",
    default="",
    callback=options.image,
    help="The controller's image, made from the Containerfile.",
)


_replicas = click.option(
    "--replicas",
    type=click.IntRange(min=1, max=9),
    default=2,
    show_default=True,
    help="Number of controller replicas (leader election).",
)


_pull_secrets = click.option(
    "--image-pull-secret",
    "pull_secrets",
    metavar="NAME",
    multiple=True,
    help="Secret of its namespace; can be repeated.",
)


_timeout = click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    default=300,
    show_default=True,
    help="How long each step may take.",
)


_take_over = click.option(
    "--take-over", is_flag=True, help="Take over fields that another field manager has applied, such as kubectl."
)
_COMMANDS = {"run": LazyCommand("operator_run", "Look after every stack of a cluster, until Ctrl-C or SIGTERM.")}


@click.group(cls=SuggestingGroup, elsewhere=_COMMANDS)
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
@click.argument("name", callback=options.stack)
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
    if not _agreed(cluster, f"Release the stack {name}", look="operator status", yes=yes, out=out):
        return ExitCode.FAILED
    was_there = leaving.release_stack(cluster, name, seconds=timeout, say=out.note)
    text = f"{name} is released; what it has installed stays." if was_there else f"There is no stack {name}."
    out.result(document("operator release", told, cluster=cluster.name, released=was_there), text)
    return ExitCode.OK


@operator.command()
@_stacks
@_image
@_replicas
@_pull_secrets
@click.option(
    "--kubernetes",
    metavar="VERSION",
    default="",
    callback=options.kubernetes,
    help="Version of the cluster, such as 1.27, if it is older than 1.29.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write files for kubectl apply -k DIR."
)
@options.output_options
def render(  # noqa: PLR0913 - one argument per option
    *,
    files: tuple[str, ...],
    image: str,
    replicas: int,
    pull_secrets: tuple[str, ...],
    kubernetes: str,
    output: Path | None,
    out: Output,
) -> None:
    """Print all that the operator consists of, without asking any cluster: definition, namespaces, rights, controller.

    With --output, a folder that kubectl apply -k takes.
    """
    from gpu_provision.operator.manifests import grouped, kustomization, manifests

    shape = _shape(image, replicas, pull_secrets, kubernetes)
    made = manifests(shape, [load_inventory(file) for file in files])
    if not image:
        out.note(f"{_NO_CONTROLLER}.")
    if output is None:
        out.result(document("operator render", manifests=made, files=[]), object_text.yaml_stream(made))
        return
    texts = {name: object_text.yaml_stream(group) for name, group in grouped(made).items()}
    texts["kustomization.yaml"] = object_text.to_yaml(kustomization(list(texts)))
    paths = [str(path) for path in write_texts(output, texts)]
    out.result(document("operator render", manifests=made, files=paths), "\n".join(paths))


def _shape(image: str, replicas: int, pull_secrets: tuple[str, ...], kubernetes: str = "") -> InstallOptions:
    from gpu_provision.operator.manifests import InstallOptions

    return InstallOptions(image=image, replicas=replicas, pull_secrets=pull_secrets, kubernetes=kubernetes)


@operator.command()
@_stacks
@_image
@_replicas
@_pull_secrets
@_take_over
@_timeout
@options.yes
@options.output_options
@options.on_cluster
def install(  # noqa: PLR0913 - one argument per option
    *,
    files: tuple[str, ...],
    image: str,
    replicas: int,
    pull_secrets: tuple[str, ...],
    cluster: KubeClient,
    take_over: bool,
    timeout: int,
    yes: bool,
    out: Output,
) -> ExitCode:
    """Put the operator into the cluster that kubectl speaks to, or bring it up to date; again, nothing changes."""
    from gpu_provision.operator import install as installing

    if not _agreed(cluster, "Install the operator", look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    if not image:
        out.note(f"{_NO_CONTROLLER}.")
    stacks = [load_inventory(file) for file in files]
    shape = _shape(image, replicas, pull_secrets)
    written, told = installing.install(cluster, shape, stacks, take_over=take_over, seconds=timeout, say=out.note)
    names = [str(ref) for ref in written]
    text = "\n".join(
        [*names, f"{len(names)} objects were made or changed." if names else "Everything is as it should be."]
    )
    out.result(document("operator install", told, cluster=cluster.name, written=names), text)
    out.findings(told)
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
    if not _agreed(cluster, what, look="operator render", yes=yes, out=out):
        return ExitCode.FAILED
    gone, told = installing.uninstall(cluster, with_stacks=with_stacks, seconds=timeout, say=out.note)
    names = [str(ref) for ref in gone]
    text = "\n".join([*names, f"{len(names)} objects were deleted." if names else "There is no operator."])
    out.result(document("operator uninstall", told, cluster=cluster.name, deleted=names), text)
    out.findings(told)
    return ExitCode.OK


def _agreed(cluster: KubeClient, what: str, *, look: str, yes: bool, out: Output) -> bool:
    if yes:
        return True
    confirm.require_terminal(out, look=look)
    return confirm.ask(f"{what} on {cluster.name} ({cluster.server})?")


_HEADERS = ("STACK", "RELEASE", "READY", "NODES", "GPUS", "ROLLOUT", "MESSAGE")
_NOTHING = "-"


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
    told = {**asdict(found), "ready": found.is_well}
    out.result(document("operator status", warnings, operator=told), _status_text(found, out.style))
    out.findings(warnings)
    return ExitCode.DIFFERENCES if detailed_exitcode and not found.is_well else ExitCode.OK


def _status_text(found: Overview, style: Style) -> str:
    from gpu_provision.output.screen import table

    controllers = f"Controllers in the cluster: {found.controllers}" if found.controllers else ""
    told = f"Leader: {found.leader}, gpu-provision {found.version}" if found.version else f"Leader: {found.leader}"
    leader = told if found.leader else "There is no leader: no controller runs, or none can lead."
    rows = [_status_row(row, style) for row in found.stacks]
    stacks = table(_HEADERS, rows, style) if rows else "There is no stack."
    return "\n".join(filter(None, (controllers, leader, "", stacks)))


def _status_row(row: StackRow, style: Style) -> tuple[str, ...]:
    ready = style.paint("green", "yes") if row.is_ready else style.paint("yellow", "no")
    current = "" if row.is_current else " (of what was declared before)"
    values = (row.name, row.release, ready, row.nodes, str(row.gpus), row.rollout, f"{row.message}{current}")
    return tuple(value or _NOTHING for value in values)
