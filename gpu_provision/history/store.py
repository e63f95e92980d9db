"""Records of runs: as text, and where they are kept: one ConfigMap in the cluster, and files on the machine that ran.

The ConfigMap has a key per run, so that two requests are all that a run costs. A record is one JSON document; its
inventory is packed, everything else can be read with kubectl. What a newer tool wrote is read as far as it is known
here. The files hold what the cluster has, and besides it results and the logs of validations:
``$XDG_STATE_HOME/gpu-provision/runs/<inventory>/<id>.json``, the newest fifty. Only their owner can read them.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from gpu_provision import files
from gpu_provision.components import labels
from gpu_provision.components.objects import digest
from gpu_provision.kube import lock
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.lease import holder_is_dead
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.findings import Finding
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import RunResult, State, Transition

OBJECT_BYTES = 900 * 1024
"""What all records of a stack may come to: an object may have 1 MiB (apiserver: MaxSecretSize)."""

_INVENTORY_BYTES = 1 << 20  # as the loader's own limit; nothing that unpacks to more was written by this tool
_PACKED = "inventory_gz"
_SCHEMA = 1
_NUMBERS = frozenset({"number", "changed", "back_to"})
_TEXTS = frozenset(field.name for field in fields(Record)) - _NUMBERS - {"id", "ending", "text"}


def encode(record: Record) -> str:
    """Return a record as one line of JSON."""
    values = asdict(record)
    text = values.pop("text")
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode() if text else ""
    return json.dumps({"schema": _SCHEMA, **values, _PACKED: packed}, sort_keys=True)


def decode(name: str, line: str) -> Record | None:
    """Return the record that a text holds; None if it holds none, or is damaged."""
    try:
        values = json.loads(line)
        text = _unpack(values[_PACKED]) if values.get(_PACKED) else ""
        known: dict[str, Any] = {key: str(values.get(key) or "") for key in _TEXTS}
        known |= {key: int(values.get(key) or 0) for key in _NUMBERS}
        return Record(id=name, ending=Ending(values["ending"]), text=text, **known)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError, OSError, zlib.error):
        return None


def _unpack(packed: str) -> str:
    from io import BytesIO  # noqa: PLC0415  only a reader of history needs it

    with gzip.GzipFile(fileobj=BytesIO(base64.b64decode(packed, validate=True))) as file:
        data = file.read(_INVENTORY_BYTES + 1)
    if len(data) > _INVENTORY_BYTES:
        message = "larger than any inventory"
        raise ValueError(message)
    return data.decode()


def fit_to_size(record: Record, keep: int) -> Record:
    """Return the record, without its inventory if it would take more than its share of what ``keep`` records may."""
    share = OBJECT_BYTES // (keep + 2)  # one that runs, and one good one that outlives its time
    size = len(encode(record))
    if size <= share:
        return record
    return replace(record, text="", lacks=f"its inventory is too large for the cluster: {size:,} of {share:,} bytes")


def parse_history(texts: Mapping[str, str], holder: str) -> History:
    """Return the history that texts hold by name; a run without an end that does not hold the lock was interrupted."""
    found = {name: decode(name, text) for name, text in texts.items()}
    runs = tuple(
        replace(each, ending=Ending.INTERRUPTED) if each.ending is Ending.RUNNING and each.holder != holder else each
        for each in number_records(record for record in found.values() if record is not None)
    )
    return History(runs, tuple(sorted(name for name, record in found.items() if record is None)))


def number_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return records in their order, each with a number: those that have none yet came after those that have one."""
    found = sorted(records, key=lambda record: (not record.number, record.number, record.id))
    highest = max((record.number for record in found), default=0)
    new = iter(range(highest + 1, highest + 1 + len(found)))
    return tuple(record if record.number else replace(record, number=next(new)) for record in found)


def unfinished_runs(history: History) -> tuple[Record, ...]:
    """Return the interrupted runs whose records do not say so yet, with the reason that they get."""
    silent, reason = (each for each in history.records if each.ending is Ending.INTERRUPTED), "it never ended"
    return tuple(replace(each, reason=reason) for each in silent if not each.ended and each.reason != reason)


def expired_records(history: History, keep: int) -> tuple[str, ...]:
    """Return the names of records that are to go: damaged ones and the oldest, but never the last that succeeded."""
    good = [record.id for record in history.records if record.ending is Ending.SUCCEEDED and not record.only]
    older = [record.id for record in history.records[:-keep]]
    damaged = history.damaged if len(history.records) + len(history.damaged) > keep else ()
    return (*damaged, *(name for name in older if name not in good[-1:]))


def plan_digest(plan: Plan) -> str:
    """Return what names the changes of a plan: objects, actions and fields, but no values, which may be secret."""
    return digest([(each.action.value, str(each.ref), [one.path for one in each.fields]) for each in plan.changes], 64)


_LOCAL_LIMIT = 50


def history_ref(inventory: Inventory) -> ObjectRef:
    """Return the ConfigMap that holds the records of runs. It is no member of the stack, so nothing prunes it."""
    return ObjectRef("v1", "ConfigMap", inventory.cluster.namespace, f"{inventory.name}-history")


def read_records(cluster: KubeClient, inventory: Inventory) -> History:
    """Return the stack's runs as the cluster has them: two requests."""
    texts = (cluster.get(history_ref(inventory)) or {}).get("data") or {}
    held = lock.read_lock(cluster, inventory).lock
    return parse_history(texts, held.holder if held and not holder_is_dead(held.holder) else "")


def write_records(
    cluster: KubeClient, inventory: Inventory, changes: Mapping[str, str | None], *, is_first: bool = False
) -> Mapping[str, str]:
    """Write records, remove those that are None, and return all that there are then by name: one request.

    ``is_first`` says that there is probably no object yet.
    """
    ref = history_ref(inventory)
    if not is_first:
        with suppress(NotFoundError):
            return cluster.merge_patch(ref, {"data": dict(changes)}).get("data") or {}
    texts = {name: text for name, text in changes.items() if text is not None}
    marks = {labels.MANAGED_BY: "gpu-provision", labels.RECORD: "history", labels.STACK: inventory.name}
    metadata = {"name": ref.name, "namespace": ref.namespace, "labels": marks}
    manifest = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata, "data": texts}
    # A field manager of this run's own: should the object exist after all, its other records stay.
    return cluster.apply(manifest, manager=f"gpu-provision-history-{min(texts)}").object.get("data") or {}


def local_folder(inventory: str) -> Path:
    """Return where the local records of an inventory's runs are."""
    return files.state_folder() / "runs" / inventory


def write_local(record: Record, details: Callable[[], Mapping[str, Any]] = dict) -> Path | None:
    """Write a local record and return the file; None where the folder cannot be written, which fails no run.

    ``details`` is called only if it can: those of a fleet take seconds.
    """
    path = local_folder(record.inventory) / f"{record.id}.json"
    try:
        files.make_state_folder(path.parent)
        document = {**msgspec.to_builtins(record), **details()}
        content = json.dumps(document, sort_keys=True) + "\n"  # indented: ten times as long
        files.write_atomic(path, content, private=True)
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
        # Without the fields and the objects: both may hold secrets.
        "changes": [
            {
                "component": change.component,
                "action": change.action.value,
                "ref": change.ref._asdict(),
                "effects": list(change.effects),
                "certain": change.certain,
            }
            for change in plan.changes
        ],
        **msgspec.to_builtins(replace(result, timeline=())),
        "findings": msgspec.to_builtins(list(findings)),
        "timeline": [  # a line each: there may be fifty thousand
            "\t".join((f"{each.at:.3f}", each.component, each.node, each.state.value, each.step, each.reason))
            for each in result.timeline
        ],
    }


def transition_of(line: str) -> Transition:
    """Return the transition that a line of a record's timeline holds. Raises ValueError for another line."""
    at, component, node, state, step, reason = line.split("\t", 5)
    return Transition(at=float(at), component=component, node=node, state=State(state), step=step, reason=reason)


def find_local(inventory: str, number: int | None = None) -> dict[str, Any] | None:
    """Return the local record of a run by its number, or the newest; None if there is none that can be read."""
    readable = map(_read, sorted(local_folder(inventory).glob("*.json"), reverse=True))
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
