"""Read an inventory file to the end, whatever is wrong with it, and report every problem at once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_provision import releases
from gpu_provision.inventory.checks import Subject, check_meaning
from gpu_provision.inventory.errors import tell
from gpu_provision.inventory.problems import MOST, Problem, word
from gpu_provision.inventory.resolve import resolve
from gpu_provision.inventory.schema_check import mismatches, sound
from gpu_provision.inventory.document import Source, SourceError, home, read
from gpu_provision.inventory.values import digest_with, filled, without_incomplete
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.findings import Findings, InvalidInventory
from gpu_provision.model.inventory import Inventory


def examine(path: str | Path) -> tuple[Inventory | None, Findings]:
    """Return the inventory, or None if it cannot be used, and its findings sorted by line. Never raises.

    Of many findings it has the first `problems.MOST`, errors before warnings, and one more with their number.
    """
    try:
        return examined(read(path))
    except SourceError as error:
        return None, Findings((error.finding,))


def examined(source: Source) -> tuple[Inventory | None, Findings]:
    """Return what `examine` returns, of a text. Raises SourceError."""
    inventory, problems = _examine(source)
    findings = Findings(word(problems, source.name), unshown=max(0, len(problems) - MOST))
    if inventory is None or findings.errors:
        return None, findings
    return replace(inventory, warnings=findings.warnings), findings


def check(path: str | Path) -> Findings:
    """Return what is wrong with an inventory file, as `examine` does; never raises for a bad file."""
    return examine(path)[1]


def load(path: str | Path) -> Inventory:
    """Return the inventory that a YAML file declares, fully resolved.

    Raises:
        InvalidInventory: With the findings of the file, warnings included, as `examine` returns them.
    """
    inventory, findings = examine(path)
    if inventory is None:
        raise InvalidInventory(*findings.all)
    return inventory


def _examine(source: Source) -> tuple[Inventory | None, list[Problem]]:
    """Return the inventory and what is wrong; a file with more of that than is shown is looked at no further."""
    document, problems = parse(source)
    written, unavailable = filled(document, source.path.parent, is_local=source.is_local)
    problems += unavailable
    differences = mismatches(written)
    problems += [Problem(line=document.line(each.path), finding=partial(tell, document, each)) for each in differences]
    if len(problems) > MOST:
        return None, problems
    data = without_incomplete(sound(written, differences)) if differences else written
    source = replace(source, digest=digest_with(source.digest, document, written))
    inventory = resolve(source, data, _release(data.get("release", releases.DEFAULT)))
    subject = Subject(document, data, inventory, complete=not problems)
    return inventory, [*problems, *check_meaning(subject)]


def _release(name: str) -> releases.Release:
    """Return the release, or the default one in place of one that does not exist; a check tells that."""
    try:
        return releases.release(name)
    except releases.UnknownReleaseError:
        return releases.release(releases.DEFAULT)


def elsewhere(inventory: Inventory, *, kubeconfig: str | None, context: str | None) -> Inventory:
    """Return the inventory aimed at another cluster; a sandbox's inventory then is not the sandbox's."""
    if not (kubeconfig or context):
        return inventory
    cluster = replace(
        inventory.cluster,
        sandbox="",
        kubeconfig=str(home(kubeconfig).resolve()) if kubeconfig else inventory.cluster.kubeconfig,
        context=context or ("" if kubeconfig else inventory.cluster.context),
    )
    return replace(inventory, cluster=cluster)
