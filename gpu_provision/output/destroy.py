"""A removal as text and as JSON: what would go, what went, what stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpu_provision.model.findings import Severity
from gpu_provision.model.plan import Action, Change, DestroyResult, Plan
from gpu_provision.output import plan as plan_view
from gpu_provision.output.text import PLAIN, Style

_TRACES = "left by components"


def succeeded(result: DestroyResult) -> bool:
    """Return whether nothing is left that should have gone."""
    return not any(finding.severity is Severity.ERROR for finding in result.findings)


def text(result: DestroyResult, inventory: str, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return the changes by component, the evictions and one closing sentence; findings are told apart."""
    shown = plan_view.changes(as_plan(result, inventory), style) if dry_run else ""
    evicted = f"{'would be ' if dry_run else ''}evicted: {', '.join(result.evicted)}" if result.evicted else ""
    parts = [style.bold(f"Inventory {inventory}, cluster {result.cluster}"), shown, evicted]
    return "\n\n".join(part for part in (*parts, closing(result, style, dry_run=dry_run)) if part)


def closing(result: DestroyResult, style: Style = PLAIN, *, dry_run: bool) -> str:
    """Return the one sentence with the outcome and the counts."""
    counts = Counter("nodes" if each.ref.kind == "Node" else each.action for each in result.changes)
    figures = [
        f"{counts[Action.DELETE]} objects {'to remove' if dry_run else 'removed'}",
        f"{counts['nodes']} nodes {'to clean' if dry_run else 'cleaned'}",
        *([f"{counts[Action.UPDATE]} left to others"] if counts[Action.UPDATE] else []),
    ]
    if not result.changes and succeeded(result):
        return style.paint("green", "There is nothing to remove from the cluster. Nothing was changed.")
    if dry_run:
        return style.bold(f"Plan: {', '.join(figures)}. Nothing was changed.")
    figures += [f"{result.requests} API requests", f"{result.seconds:.1f} s"]
    if not succeeded(result):
        return style.paint("red", f"Something is left, see below. {', '.join(figures)}.")
    return style.paint("green", f"Nothing of the stack is left. {', '.join(figures)}.")


def document(result: DestroyResult, inventory: str) -> dict[str, Any]:
    """Return the removal's own parts of its JSON document."""
    plan: Mapping[str, Any] = plan_view.document(as_plan(result, inventory))
    return {
        "cluster": result.cluster,
        "changes": plan["changes"],
        "evicted": list(result.evicted),
        "changed": len(result.changes),
        "requests": result.requests,
        "seconds": round(result.seconds, 3),
        "succeeded": succeeded(result),
    }


def as_plan(result: DestroyResult, inventory: str) -> Plan:
    """Return what went, or would go, as a plan."""
    components = tuple(dict.fromkeys(change.component or _TRACES for change in result.changes))
    changes = tuple(_titled(change) for change in result.changes)
    return Plan(inventory=inventory, release="", cluster=result.cluster, components=components, changes=changes)


def _titled(change: Change) -> Change:
    if change.component:
        return change
    return Change(component=_TRACES, action=change.action, ref=change.ref, fields=change.fields, effects=change.effects)
