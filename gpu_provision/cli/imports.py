"""``gpu-provision import``: an inventory from what a user has set in the GPU Operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_provision import files as local_files
from gpu_provision.cli import options
from gpu_provision.cli.output import Output, report_write_errors
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, RunFailedError, UsageError, escape_control_characters
from gpu_provision.output.findings import document, has_errors

if TYPE_CHECKING:
    from gpu_provision.adopt.discovery import OperatorInstall
    from gpu_provision.adopt.settings import OperatorSettings

_UNWRITABLE = ("the inventory was not written", "name another file")
_NAME = "gpu"


@click.command("import")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(allow_dash=True))
@click.option("--cluster", "with_nodes", is_flag=True, help="Read the nodes from the cluster, too.")
@options.cluster_of_kubeconfig
@click.option(
    "--release",
    metavar="VERSION",
    shell_complete=options.complete_releases,
    help="Version of the GPU Operator's chart. Default: as labels or the validator's image name it, else the newest.",
)
@click.option("--name", metavar="NAME", help=f"Name of the stack. Default: that of --inventory-out, else {_NAME}.")
@click.option(
    "--namespace", metavar="NAME", help="Namespace of the operands. Default: the GPU Operator's, else gpu-operator."
)
@click.option("--inventory-out", "written", metavar="FILE", help="Write the inventory to a new file.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if a setting is not carried over.")
@options.output_options
def import_(  # noqa: PLR0913 - one argument per option
    *,
    files: tuple[str, ...],
    with_nodes: bool,
    kubeconfig: str | None,
    context: str | None,
    release: str | None,
    name: str | None,
    namespace: str | None,
    written: str | None,
    detailed_exitcode: bool,
    out: Output,
) -> ExitCode:
    """Print an inventory that means what is set in the GPU Operator; read-only.

    FILE holds values of the GPU Operator's Helm chart, its ClusterPolicy, or NVIDIADriver resources. Of several values
    files the last one wins, as with Helm. `-` is standard input. Without FILE, reads the resources of the cluster.

    \b
    gpu-provision import values.yaml > gpu.yaml                      from values of the chart
    helm get values gpu-operator -n gpu-operator -o yaml | gpu-provision import -
    gpu-provision import values.yaml --cluster                       with the cluster's nodes in pools
    gpu-provision import --inventory-out gpu.yaml                    from the cluster

    Each setting that is not carried over is a warning with file, line and reason; the exit code stays 0. It is 65 for a
    file that cannot be imported, and 1 if the inventory has an error.
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from gpu_provision.adopt.inventory import derive_inventory

    path = Path(written) if written else None
    if path:
        check_new_file(path)
    source, install, findings = _read(files, kubeconfig or "", context or "", with_nodes=with_nodes)
    file = str(Path(kubeconfig).resolve()) if kubeconfig else ""
    draft = derive_inventory(
        source,
        name=name or (path.stem if path else _NAME),
        cluster={"kubeconfig": file, "context": context or "", "namespace": namespace or ""},
        release=options.find_release(release, "--release").name if release else "",
        install=install,
    )
    origin = ", ".join(files) or f"the GPU Operator's installation in {install.cluster if install else ''}"
    text = f"# Written by gpu-provision import: {escape_control_characters(origin)}.\n{draft.text}"
    missing = (*draft.unsupported, *draft.refused)
    faults = _check(text, path)
    parts: dict[str, Any] = {"imported": draft.data}
    if path:
        save_inventory(path, text)
        parts["inventory_file"] = str(path)
    findings = (*findings, *missing, *faults)
    out.result(document("import", findings, **parts), f"{path} has the imported settings" if path else text)
    out.findings(findings)
    if has_errors(faults):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and missing else ExitCode.OK


def _read(
    files: tuple[str, ...], kubeconfig: str, context: str, *, with_nodes: bool
) -> tuple[OperatorSettings, OperatorInstall | None, tuple[Finding, ...]]:
    """Return the settings of the files, else of the cluster, and what is there of the cluster.

    Raises InvalidInventoryError, UnreachableError, ForbiddenError, RunFailedError.
    """
    from gpu_provision.adopt.checks import nothing_to_adopt_finding
    from gpu_provision.adopt.discovery import discover
    from gpu_provision.adopt.inventory import settings_of_install
    from gpu_provision.adopt.sources import read_files
    from gpu_provision.kube.client import connect

    if files:
        source, findings = read_files(files)
        return source, discover(connect(kubeconfig, context)) if with_nodes else None, findings
    install = discover(connect(kubeconfig, context))
    if install.policy is None:
        raise RunFailedError(nothing_to_adopt_finding(install.cluster))
    return settings_of_install(install), install, ()


def _check(text: str, path: Path | None) -> tuple[Finding, ...]:
    """Return the findings of the inventory that was derived."""
    from gpu_provision.inventory.document import Source
    from gpu_provision.inventory.loader import validate_source

    source = Source(str(path or "the inventory"), (path or Path("inventory.yaml")).absolute(), text, "")
    return validate_source(source)[1].all


def check_new_file(path: Path) -> None:
    """Raise UsageError if an inventory cannot be written to a new file."""
    if local_files.path_exists(path):
        what = "the inventory was not written: the file exists"
        raise UsageError(Finding(code=codes.NOT_WRITABLE, where=str(path), what=what, fix="name another file"))
    with report_write_errors(path, *_UNWRITABLE):
        local_files.check_writable(path)


def save_inventory(path: Path, text: str) -> None:
    """Write an inventory. Raises UsageError."""
    with report_write_errors(path, *_UNWRITABLE):
        path.write_text(text, encoding="utf-8")
