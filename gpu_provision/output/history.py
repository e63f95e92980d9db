"""Runs on record, as text and as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.plan import Change, Plan
from gpu_provision.output import plan as plan_view
from gpu_provision.output.text import PLAIN, Style, indented, table

_HEADERS = ("RUN", "BEGAN", "ENDED", "RESULT", "RELEASE", "WRITTEN", "BY", "WHAT")
_COLORS = {
    Ending.RUNNING: "cyan",
    Ending.SUCCEEDED: "green",
    Ending.FAILED: "red",
    Ending.INTERRUPTED: "yellow",
}
_DIFF_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def text(history: History, style: Style = PLAIN) -> str:
    """Return a table of runs, the newest first."""
    if not history.records:
        return "No run on record: none has written anything yet."
    return table(_HEADERS, [_row(record, style) for record in reversed(history.records)], style)


def _row(record: Record, style: Style) -> tuple[str, ...]:
    ending = style.paint(_COLORS[record.ending], record.ending.value)
    times = (record.began, record.ended or "-")
    written = str(record.changed) if record.ended else "-"  # a run that was killed has not said it
    return str(record.number), *times, ending, record.release, written, record.who, what(record)


def what(record: Record) -> str:
    """Return what there is to say of a run: that it was a rollback, why it failed, that its inventory is missing."""
    back = f"rollback to run {record.back_to}" if record.back_to else ""
    return "; ".join(filter(None, (back, record.reason, record.lacks)))


def one(record: Record, details: Mapping[str, Any], style: Style = PLAIN) -> str:
    """Return everything about a run; ``details`` is its local record, or empty."""
    lines = {
        "began": record.began,
        "ended": record.ended or "-",
        "result": style.paint(_COLORS[record.ending], record.ending.value),
        "by": record.who,
        "gpu-provision": record.tool,
        "inventory": record.inventory,
        "release": record.release,
        "written": f"{record.changed} objects" if record.ended else "-",
        "plan": record.plan,
        "what": what(record),
    }
    width = max(map(len, lines))
    told = [style.bold(f"Run {record.number}")]
    told += [f"  {name.ljust(width)}  {value}" for name, value in lines.items() if value]
    proofs = [f"{proof['pod']}: {proof['lines'][-1]}" for proof in details.get("evidence") or () if proof.get("lines")]
    parts = ["\n".join(told), _titled("What validations printed last", proofs, style)]
    parts += [_titled("The inventory, without secrets", record.text.splitlines(), style)]
    return "\n\n".join(part for part in parts if part)


def _titled(title: str, lines: Iterable[str], style: Style) -> str:
    body = indented("\n".join(lines))
    return f"{style.bold(title)}\n{body}" if body else ""


def document(record: Record) -> dict[str, Any]:
    """Return a run as JSON, without its inventory."""
    changed = record.changed if record.ended else None
    values = {**asdict(record), "ending": record.ending.value, "who": record.who, "changed": changed}
    return {key: value for key, value in values.items() if key != "text"}


def diff(before: str, after: str, names: tuple[str, str], style: Style = PLAIN) -> str:
    """Return the unified diff of two inventories; empty if they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), fromfile=names[0], tofile=names[1], lineterm=""
    )
    return "\n".join(_painted(line, style) for line in lines)


def _painted(line: str, style: Style) -> str:
    if line.startswith(("---", "+++")):
        return style.bold(line)
    color = _DIFF_COLORS.get(line[:1])
    return style.paint(color, line) if color else line


def meaning(changes: tuple[Change, ...], style: Style = PLAIN) -> str:
    """Return what the difference of two inventories means for objects, as a plan says it."""
    if not changes:
        return "For the cluster they mean the same."
    components = tuple(dict.fromkeys(change.component for change in changes))
    plan = Plan(inventory="", release="", cluster="", components=components, changes=changes)
    return f"{style.bold('What it means for the cluster')}\n\n{plan_view.changes(plan, style)}"
