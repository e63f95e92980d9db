"""The local records of runs: what the cluster has of them, and beside it results and the validations' own logs.

``$XDG_STATE_HOME/gpu-provision/runs/<inventory>/<id>.json``, the newest fifty; the id is that of the record in the
cluster. Only their owner can read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gpu_provision import files
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import Record
from gpu_provision.model.plan import Change, Plan
from gpu_provision.model.progress import RunResult, State, Transition

_KEPT = 50


def folder(inventory: str) -> Path:
    """Return where the records of an inventory's runs are."""
    return files.state_folder() / "runs" / inventory


def write(record: Record, details: Callable[[], Mapping[str, Any]] = dict) -> Path | None:
    """Write a record down and return the file; None where the folder cannot be written, which fails no run.

    Args:
        details: Called if it can: those of a fleet take seconds.
    """
    path = folder(record.inventory) / f"{record.id}.json"
    try:
        files.make_state_folder(path.parent)
        document = {**msgspec.to_builtins(record), **details()}
        files.put(path, json.dumps(document, sort_keys=True) + "\n", private=True)  # indented: ten times as long
        for old in sorted(path.parent.iterdir(), key=_age)[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _age(path: Path) -> str:
    """Return what orders records by age; the draft that a killed process left is as old as its record."""
    return path.name.removeprefix(".")


def details_of(plan: Plan, result: RunResult, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what only the local record has: what was to change, states, evidence, findings, and the timeline."""
    return {
        "cluster": plan.cluster,
        "components": list(plan.components),
        "changes": [_change(change) for change in plan.changes],
        **msgspec.to_builtins(replace(result, timeline=())),
        "findings": msgspec.to_builtins(list(findings)),
        "timeline": [_line(transition) for transition in result.timeline],
    }


def _change(change: Change) -> dict[str, Any]:
    """Return a change without the fields and the object: both may hold what must not be written down."""
    return {
        "component": change.component,
        "action": change.action.value,
        "ref": change.ref._asdict(),
        "effects": list(change.effects),
        "certain": change.certain,
    }


def _line(transition: Transition) -> str:
    """Return a transition in one line: there may be fifty thousand."""
    columns = (transition.component, transition.node, transition.state.value, transition.step, transition.reason)
    return "\t".join((f"{transition.at:.3f}", *columns))


def transition_of(line: str) -> Transition:
    """Return the transition that a line of a record's timeline tells of. Raises ValueError for another line."""
    at, component, node, state, step, reason = line.split("\t", 5)
    return Transition(at=float(at), component=component, node=node, state=State(state), step=step, reason=reason)


def found(inventory: str, number: int | None = None) -> dict[str, Any] | None:
    """Return the local record of a run by its number, or the newest; None if there is none that can be read."""
    readable = (_read(path) for path in sorted(folder(inventory).glob("*.json"), reverse=True))
    return next((each for each in readable if each and number in {None, each.get("number")}), None)


def completed(record: Record, inventory: str) -> Record:
    """Return a record with its inventory, if that is on record here alone."""
    if record.text:
        return record
    text = details(record, inventory).get("text")
    return replace(record, text=text, lacks="") if isinstance(text, str) and text else record


def details(record: Record, inventory: str) -> dict[str, Any]:
    """Return the local record of a run of an inventory; empty if it is not here, or damaged."""
    return _read(folder(inventory) / f"{record.id}.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
