"""``gpu-provision adopt``: take over a cluster from the GPU Operator."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import gpu_provision
from gpu_provision import files
from gpu_provision.cli import options, output
from gpu_provision.cli.display import show_progress
from gpu_provision.cli.imports import check_new_file, save_inventory
from gpu_provision.cli.options import StackOptions
from gpu_provision.cli.output import Output, report_write_errors, write
from gpu_provision.model.codes import ExitCode
from gpu_provision.model.findings import RunFailedError
from gpu_provision.model.inventory import Inventory
from gpu_provision.output import findings as findings_view
from gpu_provision.output import object_text
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import document, has_errors

if TYPE_CHECKING:
    from gpu_provision.adopt.plan import Adoption
    from gpu_provision.api.results import StackRun
    from gpu_provision.api.views import StackAdoption


@click.command()
@options.stack_options
@click.option(
    "--inventory-out",
    "written",
    metavar="FILE",
    help="Write an inventory of the existing installation, and change nothing.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change; never prompts.")
@options.lock_timeout
@options.yes
@options.output_options
def adopt(  # noqa: PLR0913 - one argument per option
    *, stack: StackOptions, written: str | None, dry_run: bool, lock_timeout: int, yes: bool, out: Output
) -> ExitCode:
    """Take over a cluster from the GPU Operator and its Helm chart; unchanged drivers keep running.

    \b
    gpu-provision adopt --inventory-out gpu.yaml     write an inventory
    gpu-provision adopt -i gpu.yaml                  show what happens to each object
    gpu-provision adopt -i gpu.yaml --yes            adopt; repeat the command to resume an interrupted run

    Asks for confirmation before the first change.
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    if written:
        return _write_inventory(Path(written), stack, out)
    inventory = stack.load()
    adoption = gpu_provision.adoption(inventory)
    if adoption.is_complete or dry_run or has_errors(adoption.findings) or not (yes or output.has_terminal(out)):
        return _show(adoption, out, None)
    if not yes:
        write(sys.stdout, adoption.text(out.style))
        write(sys.stderr, findings_view.text(adoption.findings, out.error_style))
        if not output.confirm(f"Apply these changes to {output.describe_target(inventory, adoption.cluster)}?"):
            out.note("Nothing was changed.")
            return ExitCode.FAILED
    out.note(f"Backup of the current objects: {save_objects(adoption)}")
    return _show(adoption, out, _adopt(inventory, out, lock_timeout))


def _adopt(inventory: Inventory, out: Output, lock_timeout: int) -> StackRun:
    """Run the adoption and return the result, also of a failed run."""
    with show_progress(out) as listen:
        try:
            return gpu_provision.adopt(inventory, lock_timeout=lock_timeout, listen=listen)
        except RunFailedError as failure:
            if failure.result is None:
                raise
            return cast("StackRun", failure.result)


def _show(adoption: StackAdoption, out: Output, run: StackRun | None) -> ExitCode:
    findings = (*adoption.findings, *(run.findings if run else ()))
    of_cluster: dict[str, Any] = status_view.run_document(run.cluster) if run and run.cluster else {}
    parts = {**adoption.document(), **findings_view.split_by_severity(findings), **of_cluster}
    out.result(parts, run.text(out.style) if run else adoption.text(out.style))
    out.findings(findings)
    if run is None and not (adoption.is_complete or has_errors(adoption.findings)):
        out.hint("Nothing was changed. Next: the same with --yes")
    failed = has_errors(adoption.findings) or (run is not None and not run.succeeded)
    return ExitCode.FAILED if failed else ExitCode.OK


def _write_inventory(path: Path, stack: StackOptions, out: Output) -> ExitCode:
    """Write an inventory of the installation, and print its findings. Raises UsageError for an unwritable file."""
    from gpu_provision.adopt.checks import check_policy, nothing_to_adopt_finding
    from gpu_provision.adopt.discovery import discover
    from gpu_provision.adopt.inventory import derive_inventory, settings_of_install
    from gpu_provision.inventory import check
    from gpu_provision.kube.client import connect

    check_new_file(path)
    kubeconfig, context = stack.kubeconfig or "", stack.context or ""
    installation = discover(connect(kubeconfig, context))
    if installation.policy is None:
        raise RunFailedError(nothing_to_adopt_finding(installation.cluster))
    cluster = {"kubeconfig": kubeconfig and str(Path(kubeconfig).resolve()), "context": context}
    draft = derive_inventory(settings_of_install(installation), name=path.stem, cluster=cluster, install=installation)
    text = f"# Written by gpu-provision adopt: the GPU Operator's installation in {installation.cluster}.\n"
    save_inventory(path, text + draft.text)
    findings = (*check_policy(installation), *draft.refused, *check(path).all)
    parts = {"cluster": installation.cluster, "inventory_file": str(path)}
    out.result(document("adopt", findings, **parts), f"{path} declares the GPU Operator's installation")
    out.findings(findings)
    out.hint(f"Next: read it, then gpu-provision adopt -i {path}")
    return ExitCode.FAILED if has_errors(findings) else ExitCode.OK


# Set by the API server. The garbage collector would delete a restored object with a missing owner.
_SERVERS = frozenset(
    {"creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"}
)


def save_objects(adoption: Adoption) -> Path:
    """Save every object of the operator and its chart for ``kubectl apply``; return the file.

    Only its owner may read the file. Raises UsageError for an unwritable file.
    """
    objects = (*adoption.policies, *(each.live for each in adoption.objects))
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    file = files.state_folder() / "adoptions" / f"{adoption.inventory}-{now}.yaml"
    what = "the backup of the current objects cannot be written, so nothing was changed"
    with report_write_errors(file, what, "set XDG_STATE_HOME to a directory that you may write to"):
        files.make_state_folder(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor with its own mode
            stream.write(object_text.yaml_stream(map(_without_server_fields, objects)))
    return file


def _without_server_fields(live: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in live["metadata"].items() if key not in _SERVERS}
    return {**{key: value for key, value in live.items() if key != "status"}, "metadata": metadata}
