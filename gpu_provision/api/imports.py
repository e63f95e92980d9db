"""Import of the GPU Operator's settings, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_provision.api.results import Printable
from gpu_provision.api.selection import find_release
from gpu_provision.inventory.document import Source
from gpu_provision.inventory.loader import validate_source
from gpu_provision.model.findings import Finding, RunFailedError, escape_control_characters
from gpu_provision.output.findings import document
from gpu_provision.output.text import PLAIN, Style

if TYPE_CHECKING:
    from gpu_provision.adopt.discovery import OperatorInstall
    from gpu_provision.adopt.settings import OperatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedInventory(Printable):
    """An inventory that means what is set in the GPU Operator.

    Attributes:
        data: The inventory, as its YAML file has it.
        yaml: The text of the file, with the source in its first line.
        not_carried_over: A warning for each setting that it lacks: ``where`` is its file and line, ``what`` the reason.
        source_warnings: What is not read of the files.
        problems: Findings of the inventory itself, such as about settings that exclude each other.
    """

    data: Mapping[str, Any]
    yaml: str
    not_carried_over: tuple[Finding, ...] = ()
    source_warnings: tuple[Finding, ...] = ()
    problems: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return (*self.source_warnings, *self.not_carried_over, *self.problems)

    def text(self, style: Style = PLAIN) -> str:  # noqa: ARG002  an inventory has no colors
        """Return the inventory as YAML, as ``gpu-provision import`` prints it."""
        return self.yaml

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpu-provision import --json``."""
        return document("import", self.findings, imported=self.data)


def import_settings(  # noqa: PLR0913 - the options of the command
    files: str | Path | Iterable[str | Path] = (),
    *,
    with_nodes: bool = False,
    kubeconfig: str = "",
    context: str = "",
    release: str = "",
    name: str = "gpu",
    namespace: str = "",
) -> ImportedInventory:
    """Return an inventory that means what is set in the GPU Operator; read-only. The command is ``import``.

    ``files`` have values of the GPU Operator's Helm chart, its ClusterPolicy, or NVIDIADriver resources. Of several
    values files the last one wins. Without a file, reads the resources of the cluster.

    Args:
        with_nodes: With files: read the nodes from the cluster.
        kubeconfig: File that names the cluster; empty for the default, as kubectl has it.
        context: Context in it; empty for the current one.
        release: Version of the GPU Operator's chart; empty for the version that the source names, else the newest.
        name: Name of the stack.
        namespace: Namespace of the operands; empty for the GPU Operator's, else gpu-operator.

    Raises:
        InvalidInventoryError: A file cannot be imported.
        UsageError: ``release`` is not known.
        RunFailedError: The cluster has no ClusterPolicy.
        UnreachableError, ForbiddenError: The cluster cannot be asked.
    """
    from gpu_provision.adopt.inventory import derive_inventory

    names = [str(each) for each in ([files] if isinstance(files, str | Path) else files)]
    chart = find_release(release, "--release").name if release else ""
    source, install, warnings = _read(names, kubeconfig, context, with_nodes=with_nodes)
    file = str(Path(kubeconfig).resolve()) if kubeconfig else ""
    draft = derive_inventory(
        source,
        name=name,
        cluster={"kubeconfig": file, "context": context, "namespace": namespace},
        release=chart,
        install=install,
    )
    origin = ", ".join(names) or f"the GPU Operator's installation in {install.cluster if install else ''}"
    text = f"# Written by gpu-provision import: {escape_control_characters(origin)}.\n{draft.text}"
    return ImportedInventory(
        data=draft.data,
        yaml=text,
        not_carried_over=(*draft.unsupported, *draft.refused),
        source_warnings=warnings,
        problems=validate_source(Source("the inventory", Path("inventory.yaml").absolute(), text, ""))[1].all,
    )


def _read(
    files: list[str], kubeconfig: str, context: str, *, with_nodes: bool
) -> tuple[OperatorSettings, OperatorInstall | None, tuple[Finding, ...]]:
    """Return the settings of the files, else of the cluster; the cluster, if it was read; and warnings."""
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
