"""What options change about an inventory, and whether they fit it. Pure."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from typing import Any

from gpu_provision.library import codes
from gpu_provision.library.selection import Words, split
from gpu_provision.model.findings import Finding, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import OperandSpec, Specs
from gpu_provision.preflight.codes import CODES
from gpu_provision.preflight.findings import unknown_codes


def with_timeout(inventory: Inventory, seconds: int | None) -> Inventory:
    """Return the inventory with another deadline for every component; None leaves the inventory's own."""
    if seconds is None:
        return inventory
    pools = {
        name: replace(pool, driver=replace(pool.driver, timeout=seconds)) for name, pool in inventory.pools.items()
    }
    return replace(inventory, specs=_specs_with_timeout(inventory.specs, seconds), pools=pools)


def _specs_with_timeout(specs: Specs, seconds: int) -> Specs:
    operands = {field.name: getattr(specs, field.name) for field in fields(specs)}
    changed: dict[str, Any] = {
        name: replace(spec, timeout=seconds) for name, spec in operands.items() if isinstance(spec, OperandSpec)
    }
    return replace(specs, **changed)


def with_ignored(inventory: Inventory, words: Words) -> Inventory:
    """Return the inventory that ignores more findings of preflight. Raises UsageError for a code that is none."""
    own = inventory.preflight
    codes_wanted = tuple(code.upper() for code in split(words))
    problems = [
        *(_no_finding(f"--ignore {code}", code) for code in unknown_codes(codes_wanted)),
        *(_no_finding(f"{inventory.path} preflight.ignore", code) for code in unknown_codes(own.ignore)),
    ]
    if problems:
        raise UsageError(*problems)
    return replace(inventory, preflight=replace(own, ignore=tuple(dict.fromkeys((*own.ignore, *codes_wanted)))))


def _no_finding(where: str, code: str) -> Finding:
    near = difflib.get_close_matches(code, CODES, n=1)
    return Finding(
        code=codes.NOTHING_MATCHES,
        where=where,
        what=f"preflight has no finding {code}",
        fix=f"{near[0]}: {CODES[near[0]]}?  docs/findings.md lists all of them" if near else "see docs/findings.md",
    )
