"""Options that change an inventory; `render` and comparisons of declared objects."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from gpu_provision.api.selection import Words, split_words
from gpu_provision.history.restore import restore_for_comparison
from gpu_provision.hosts.checks.findings import unknown_codes
from gpu_provision.model import codes
from gpu_provision.model.cluster import ClusterFacts, Manifest
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.operand_specs import OperandSpec
from gpu_provision.model.plan import Change
from gpu_provision.planning.prepare import prepare


def with_timeout(inventory: Inventory, seconds: int | None) -> Inventory:
    """Return the inventory with another deadline for every component; None leaves the inventory's own."""
    if seconds is None:
        return inventory
    operands = {field.name: getattr(inventory.specs, field.name) for field in fields(inventory.specs)}
    changed: dict[str, Any] = {
        name: replace(spec, timeout=seconds) for name, spec in operands.items() if isinstance(spec, OperandSpec)
    }
    pools = {
        name: replace(pool, driver=replace(pool.driver, timeout=seconds)) for name, pool in inventory.pools.items()
    }
    return replace(inventory, specs=replace(inventory.specs, **changed), pools=pools)


def with_ignored(inventory: Inventory, words: Words) -> Inventory:
    """Return the inventory that ignores more findings of preflight. Raises UsageError for an unknown code."""
    own = inventory.preflight
    wanted = tuple(code.upper() for code in split_words(words))
    unknown = [(f"--ignore {code}", code) for code in unknown_codes(wanted)]
    unknown += [(f"{inventory.path} preflight.ignore", code) for code in unknown_codes(own.ignore)]
    problems = []
    for where, code in unknown:
        near, fix = codes.find_nearest_code(code, codes.PREFLIGHT), "see docs/findings.md"
        if near:
            fix = f"{near}: {codes.meanings()[near].title}?  docs/findings.md lists all of them"
        what = f"preflight has no finding {code}"
        problems.append(Finding(code=codes.NOTHING_MATCHES, where=where, what=what, fix=fix))
    if problems:
        raise UsageError(*problems)
    return replace(inventory, preflight=replace(own, ignore=tuple(dict.fromkeys((*own.ignore, *wanted)))))


def render(inventory: Inventory) -> dict[str, list[Manifest]]:
    """Return every component's manifests, from the inventory alone; makes no API calls."""
    _, desired = prepare(inventory, ClusterFacts())
    return {component: list(manifests) for component, manifests in desired.items()}


def object_changes(before: Record, after: Record | Inventory, inventory: Inventory) -> tuple[Change, ...] | None:
    """Return the changes of objects from the inventory of one run to another run's, or to an inventory.

    None if one of them is not valid today. Makes no API calls.

    Args:
        inventory: The current one, which has the secrets that records omit.
    """
    from gpu_provision.planning.diff import diff_manifests

    old = restore_for_comparison(before.text, inventory, name=f"run {before.number}")
    new = (
        restore_for_comparison(after.text, inventory, name=f"run {after.number}")
        if isinstance(after, Record)
        else after
    )
    return diff_manifests(render(old), render(new)) if old and new else None
