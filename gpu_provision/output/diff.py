"""A plan as a unified diff of YAML, for readers who want to see everything."""

from __future__ import annotations

import difflib
from typing import Any

from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.output import yaml_text
from gpu_provision.output.field_paths import put
from gpu_provision.output.text import PLAIN, Style
from gpu_provision.output.values import field_line, redacted

_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def text(plan: Plan, style: Style = PLAIN) -> str:
    """Return the diff of every object that would be created, updated or deleted. Secrets are hidden."""
    parts = [one(change) for change in plan.changes if change.action is not Action.WAIT]
    return "\n".join(_painted(line, style) for part in parts for line in part)


def one(change: Change) -> list[str]:
    """Return the lines of one object's diff."""
    if change.action is Action.DELETE:
        return [f"--- {change.ref}", "+++ /dev/null"]
    after = change.manifest or {}
    before = None if change.action in {Action.CREATE, Action.RUN} else _before(change)
    lines = difflib.unified_diff(
        _yaml(before) if before else [],
        _yaml(after),
        fromfile=str(change.ref) if before else "/dev/null",
        tofile=str(change.ref),
        lineterm="",
    )
    told = list(lines) if before or change.action is not Action.UPDATE else []
    return told or [f"--- {change.ref}", *(f"@ {field_line(change.ref.kind, field)}" for field in change.fields)]


def _before(change: Change) -> dict[str, Any] | None:
    """Return the object as it stands as far as we manage it: as declared, with the old values put back."""
    before = dict(change.manifest or {})
    try:
        for field in change.fields:
            before = put(before, field.path, field.old)
    except LookupError:
        return None
    return before


def _yaml(manifest: dict[str, Any]) -> list[str]:
    return yaml_text.one(redacted(manifest)).splitlines()


def _painted(line: str, style: Style) -> str:
    if line.startswith(("---", "+++")):
        return style.bold(line)
    color = _COLORS.get(line[:1])
    return style.paint(color, line) if color else line
