"""Reads an inventory file to the end, whatever is wrong with it, and tells everything at once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpu_provision import releases
from gpu_provision.inventory.checks import Subject, check_meaning
from gpu_provision.inventory.parse import parse
from gpu_provision.inventory.resolve import resolve
from gpu_provision.inventory.sentences import tell
from gpu_provision.inventory.shape import mismatches, sound
from gpu_provision.inventory.source import Source, Unreadable, read
from gpu_provision.inventory.values import digest_with, filled, without_incomplete
from gpu_provision.model.findings import Finding, Findings, InvalidInventory
from gpu_provision.model.inventory import Inventory


def examine(path: str | Path) -> tuple[Inventory | None, Findings]:
    """Return the inventory, or None if it cannot be used, and all findings sorted by line. Never raises."""
    try:
        return examined(read(path))
    except Unreadable as error:
        return None, Findings((error.finding,))


def examined(source: Source) -> tuple[Inventory | None, Findings]:
    """Return what `examine` returns, of a text. Raises Unreadable."""
    inventory, found = _examine(source)
    findings = Findings(tuple(sorted(found, key=_line)))
    return (None if findings.errors else inventory), findings


def check(path: str | Path) -> Findings:
    """Return everything that is wrong with an inventory file, errors and warnings; never raises for a bad file."""
    return examine(path)[1]


def load(path: str | Path) -> Inventory:
    """Return the inventory that a YAML file declares, fully resolved.

    Raises:
        InvalidInventory: With all findings of the file, warnings included.
    """
    inventory, findings = examine(path)
    if inventory is None:
        raise InvalidInventory(*findings.all)
    return inventory


def _examine(source: Source) -> tuple[Inventory, list[Finding]]:
    document, found = parse(source)
    written, unavailable = filled(document, source.path.parent, is_local=source.is_local)
    found += unavailable
    differences = mismatches(written)
    data = without_incomplete(sound(written, differences)) if differences else written
    source = replace(source, digest=digest_with(source.digest, document, written))
    inventory = resolve(source, data, _release(data.get("release", releases.DEFAULT)))
    subject = Subject(document, data, inventory, complete=not differences and not found)
    found += [tell(document, difference) for difference in differences]
    found += check_meaning(subject)
    return inventory, found


def _release(name: str) -> releases.Release:
    """Return the release, or the default one in place of one that does not exist; a check tells that."""
    try:
        return releases.release(name)
    except releases.UnknownRelease:
        return releases.release(releases.DEFAULT)


def _line(finding: Finding) -> tuple[int, str, str]:
    found = re.search(r":(\d+)(?::\d+)?(?: |$)", finding.where)
    return (int(found[1]) if found else 0, finding.where, finding.code)
