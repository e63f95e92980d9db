"""Loads and validates an inventory file, and reports its problems at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_provision import releases
from gpu_provision.inventory.checks import CheckContext, check_files, check_nodes, check_rollouts, check_settings
from gpu_provision.inventory.component_checks import check_components
from gpu_provision.inventory.document import (
    MAX_FINDINGS,
    Document,
    KeyPath,
    Problem,
    Source,
    SourceError,
    expand_home,
    read_source,
    to_findings,
)
from gpu_provision.inventory.json_schema import OF_KEYS, SchemaError, drop_errors, find_schema_errors
from gpu_provision.inventory.references import digest_values, drop_incomplete_references, fill_values
from gpu_provision.inventory.resolve import resolve
from gpu_provision.inventory.schema_errors import to_finding
from gpu_provision.inventory.version_checks import check_versions
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.model.findings import Findings, InvalidInventoryError
from gpu_provision.model.inventory import Inventory

_CHECKS = (check_nodes, check_versions, check_components, check_settings, check_files, check_rollouts)


def validate(path: str | Path) -> tuple[Inventory | None, Findings]:
    """Return the inventory, or None if it cannot be used, and its findings sorted by line. Never raises.

    Of many findings it has the first `document.MAX_FINDINGS`, errors before warnings, and one with the total number.
    """
    try:
        return validate_source(read_source(path))
    except SourceError as error:
        return None, Findings((error.finding,))


def validate_source(source: Source) -> tuple[Inventory | None, Findings]:
    """Validate a text as `validate` does a file. Raises SourceError."""
    inventory, problems = _read(source)
    findings = Findings(to_findings(problems, source.name), hidden_count=max(0, len(problems) - MAX_FINDINGS))
    if inventory is None or findings.errors:
        return None, findings
    return replace(inventory, warnings=findings.warnings), findings


def check(path: str | Path) -> Findings:
    """Return the findings of `validate`; never raises for a bad file."""
    return validate(path)[1]


def load(path: str | Path) -> Inventory:
    """Return the inventory that a YAML file declares, fully resolved.

    Raises:
        InvalidInventoryError: With the findings of the file, warnings included, as `validate` returns them.
    """
    inventory, findings = validate(path)
    if inventory is None:
        raise InvalidInventoryError(*findings.all)
    return inventory


def _read(source: Source) -> tuple[Inventory | None, list[Problem]]:
    """Return the inventory and its problems; a file with too many schema errors gets no further checks."""
    document, problems = parse(source)
    written, unavailable = fill_values(document, source.path.parent, is_local=source.is_local)
    problems += unavailable
    differences = find_schema_errors(written)
    refused = {each.path for each in differences if each.keyword == "type"}
    problems = [each for each in problems if each.holder is None or refused.isdisjoint(_prefixes(each.holder))]
    misread = [each for each in differences if each.keyword in OF_KEYS and document.is_misread(each.path)]
    problems += [
        Problem(line=document.line(each.path), finding=partial(to_finding, document, each))
        for each in _once_for_each_alias(document, differences)
        if each not in misread
    ]
    if len(problems) > MAX_FINDINGS:
        return None, problems
    data = drop_incomplete_references(drop_errors(written, differences)) if differences else written
    source = replace(source, digest=digest_values(source.digest, document, written))
    try:
        release = releases.release(data.get("release", releases.DEFAULT))
    except releases.UnknownReleaseError:  # `hardware` reports it
        release = releases.release(releases.DEFAULT)
    inventory = resolve(source, data, release)
    context = CheckContext(document, data, inventory, is_complete=not problems)
    return inventory, [*problems, *(problem for check in _CHECKS for problem in check(context))]


def _once_for_each_alias(document: Document, differences: Iterable[SchemaError]) -> Iterable[SchemaError]:
    """Return the differences, of a value that several aliases name only the first one."""
    first: dict[tuple[object, ...], SchemaError] = {}
    for each in differences:
        item, holder = document.item(each.path), document.item(each.path[:-1])
        place = (id(item),) if item else (id(holder), each.path[-1])
        first.setdefault((place, each.keyword, str(each.expected)), each)
    return first.values()


def _prefixes(path: KeyPath) -> Iterator[KeyPath]:
    return (path[:length] for length in range(len(path) + 1))


def with_cluster(inventory: Inventory, *, kubeconfig: str | None, context: str | None) -> Inventory:
    """Return the inventory with another kubeconfig or context, which replaces a sandbox."""
    if not (kubeconfig or context):
        return inventory
    cluster = replace(
        inventory.cluster,
        sandbox="",
        kubeconfig=str(expand_home(kubeconfig).resolve()) if kubeconfig else inventory.cluster.kubeconfig,
        context=context or ("" if kubeconfig else inventory.cluster.context),
    )
    return replace(inventory, cluster=cluster)
