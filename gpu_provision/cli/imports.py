"""``gpu-provision import``: an inventory from what a user has set in the GPU Operator."""

from __future__ import annotations

from pathlib import Path

import click

import gpu_provision
from gpu_provision import files as local_files
from gpu_provision.cli import options
from gpu_provision.cli.output import Output, report_write_errors
from gpu_provision.model import codes
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.output.findings import has_errors, split_by_severity

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
    path = Path(written) if written else None
    if path:
        check_new_file(path)
    made = gpu_provision.import_settings(
        files,
        with_nodes=with_nodes,
        kubeconfig=kubeconfig or "",
        context=context or "",
        release=release or "",
        name=name or (path.stem if path else _NAME),
        namespace=namespace or "",
    )
    problems, parts = made.problems, made.document()
    if path:
        save_inventory(path, made.yaml)
        problems = gpu_provision.check(path).all
        parts["inventory_file"] = str(path)
    findings = (*made.source_warnings, *made.not_carried_over, *problems)
    parts |= split_by_severity(findings)
    out.result(parts, f"{path} has the imported settings" if path else made.yaml)
    out.findings(findings)
    if has_errors(problems):
        return ExitCode.FAILED
    return ExitCode.DIFFERENCES if detailed_exitcode and made.not_carried_over else ExitCode.OK


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
