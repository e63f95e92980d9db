"""Where records of runs are kept: one ConfigMap in the cluster, and files on the machine that ran.

The ConfigMap has a key per run, so that two requests are all that a run costs. The files hold what the cluster has, and
besides it results and the logs of validations: ``$XDG_STATE_HOME/gpu-provision/runs/<inventory>/<id>.json``, the
newest fifty; the id is that of the record in the cluster. Only their owner can read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gpu_provision import files
from gpu_provision.components import labels
from gpu_provision.history.records import parse_history
from gpu_provision.kube import lock
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lease import holder_is_dead
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Change, Plan
from gpu_provision.model.progress import RunResult, State, Transition

_MANAGER = "gpu-provision-history-"
_LOCAL_LIMIT = 50

Texts = Mapping[str, str]
"""Name of a record -> its text."""


def history_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the records of runs. It is no member of the stack, so nothing prunes it."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-history")


def read_records(cluster: Cluster, inventory: Inventory) -> History:
    """Return the stack's runs as the cluster has them: two requests."""
    texts = (cluster.get(history_ref(inventory)) or {}).get("data") or {}
    held = lock.read_lock(cluster, inventory).lock
    return parse_history(texts, held.holder if held and not holder_is_dead(held.holder) else "")


def write_records(
    cluster: Cluster, inventory: Inventory, changes: Mapping[str, str | None], *, is_first: bool = False
) -> Texts:
    """Write records, remove those that are None, and return all that there are then: one request.

    Args:
        is_first: Whether there is probably no object yet.
    """
    ref = history_ref(inventory)
    if not is_first:
        try:
            return cluster.merge(ref, {"data": dict(changes)}).get("data") or {}
        except NotFoundError:
            pass
    texts = {name: text for name, text in changes.items() if text is not None}
    metadata = {
        "name": ref.name,
        "namespace": ref.namespace,
        "labels": {labels.MANAGED_BY: "gpu-provision", labels.RECORD: "history", labels.STACK: inventory.name},
    }
    manifest = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": texts}
    # A field manager of this run's own: should the object exist after all, its other records stay.
    return cluster.apply(manifest, manager=f"{_MANAGER}{min(texts)}").object.get("data") or {}


def local_folder(inventory: str) -> Path:
    """Return where the local records of an inventory's runs are."""
    return files.state_folder() / "runs" / inventory


def write_local(record: Record, details: Callable[[], Mapping[str, Any]] = dict) -> Path | None:
    """Write a local record and return the file; None where the folder cannot be written, which fails no run.

    Args:
        details: Called only if the folder can be written: those of a fleet take seconds.
    """
    path = local_folder(record.inventory) / f"{record.id}.json"
    try:
        files.make_state_folder(path.parent)
        document = {**msgspec.to_builtins(record), **details()}
        files.put(path, json.dumps(document, sort_keys=True) + "\n", private=True)  # indented: ten times as long
        # The draft that a killed process left is as old as its record.
        by_age = sorted(path.parent.iterdir(), key=lambda each: each.name.removeprefix("."))
        for old in by_age[:-_LOCAL_LIMIT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def run_details(plan: Plan, result: RunResult, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what only the local record has: planned changes, states, evidence, findings, and the timeline."""
    return {
        "cluster": plan.cluster,
        "components": list(plan.components),
        "changes": [_change(change) for change in plan.changes],
        **msgspec.to_builtins(replace(result, timeline=())),
        "findings": msgspec.to_builtins(list(findings)),
        "timeline": [_line(transition) for transition in result.timeline],
    }


def _change(change: Change) -> dict[str, Any]:
    """Return a change without the fields and the object: both may hold secrets."""
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
    """Return the transition that a line of a record's timeline holds. Raises ValueError for another line."""
    at, component, node, state, step, reason = line.split("\t", 5)
    return Transition(at=float(at), component=component, node=node, state=State(state), step=step, reason=reason)


def find_local(inventory: str, number: int | None = None) -> dict[str, Any] | None:
    """Return the local record of a run by its number, or the newest; None if there is none that can be read."""
    readable = (_read(path) for path in sorted(local_folder(inventory).glob("*.json"), reverse=True))
    return next((each for each in readable if each and number in {None, each.get("number")}), None)


def local_details(record: Record, inventory: str) -> dict[str, Any]:
    """Return the local record of a run of an inventory; empty if it is not here, or damaged."""
    return _read(local_folder(inventory) / f"{record.id}.json")


def complete_from_local(record: Record, inventory: str) -> Record:
    """Return a record with its inventory, if only the local record has that."""
    if record.text:
        return record
    text = local_details(record, inventory).get("text")
    return replace(record, text=text, lacks="") if isinstance(text, str) and text else record


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
