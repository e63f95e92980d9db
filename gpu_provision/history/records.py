"""Records of runs as text, and which of them stay.

A record is one JSON document; its inventory is packed, everything else can be read with kubectl. What a newer tool
wrote is read as far as it is known here. The size of a record is bounded so that as many as are kept fit one object.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from gpu_provision.components.objects import digest
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.model.plan import Plan

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
        text = _unpack(values.get(_PACKED) or "")
        known: dict[str, Any] = {key: str(values.get(key) or "") for key in _TEXTS}
        known |= {key: int(values.get(key) or 0) for key in _NUMBERS}
        return Record(id=name, ending=Ending(values["ending"]), text=text, **known)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError, OSError, zlib.error):
        return None


def _unpack(packed: str) -> str:
    if not packed:
        return ""
    from io import BytesIO  # noqa: PLC0415  only a reader of history needs it

    with gzip.GzipFile(fileobj=BytesIO(base64.b64decode(packed, validate=True))) as file:
        data = file.read(_INVENTORY_BYTES + 1)
    if len(data) > _INVENTORY_BYTES:
        message = "larger than any inventory"
        raise ValueError(message)
    return data.decode()


def fit_to_size(record: Record, keep: int) -> Record:
    """Return the record, without its inventory if it would take more than its share of the object."""
    share = OBJECT_BYTES // (keep + 2)  # one that runs, and one good one that outlives its time
    size = len(encode(record))
    if size <= share:
        return record
    return replace(record, text="", lacks=f"its inventory is too large for the cluster: {size:,} of {share:,} bytes")


def parse_history(texts: Mapping[str, str], holder: str) -> History:
    """Return the history that an object's texts hold.

    Args:
        texts: Name of a record -> its text.
        holder: Holder of the lock; empty for none. A run of another holder that has no end was interrupted.
    """
    found = {name: decode(name, text) for name, text in texts.items()}
    known = number_records(record for record in found.values() if record is not None)
    runs = tuple(record if record.holder == holder else _interrupted(record) for record in known)
    return History(runs, tuple(sorted(name for name, record in found.items() if record is None)))


def number_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return records in their order, each with a number: those that have none yet came after those that have one."""
    found = sorted(records, key=lambda record: (record.number or _LAST, record.id))
    highest = max((record.number for record in found), default=0)
    new = iter(range(highest + 1, highest + 1 + len(found)))
    return tuple(record if record.number else replace(record, number=next(new)) for record in found)


_LAST = 1 << 62


def _interrupted(record: Record) -> Record:
    return replace(record, ending=Ending.INTERRUPTED) if record.ending is Ending.RUNNING else record


def unfinished(history: History) -> tuple[Record, ...]:
    """Return the interrupted runs whose records do not say so yet, with the reason that they get."""
    silent = (each for each in history.records if each.ending is Ending.INTERRUPTED and not each.ended)
    return tuple(replace(each, reason=_NEVER_ENDED) for each in silent if each.reason != _NEVER_ENDED)


_NEVER_ENDED = "it never ended"


def expired(history: History, keep: int) -> tuple[str, ...]:
    """Return the names of records that are to go: damaged ones and the oldest, but never the last that succeeded."""
    good = [record.id for record in history.records if record.ending is Ending.SUCCEEDED and not record.only]
    older = [record.id for record in history.records[:-keep]]
    damaged = history.damaged if len(history.records) + len(history.damaged) > keep else ()
    return (*damaged, *(name for name in older if name not in good[-1:]))


def plan_digest(plan: Plan) -> str:
    """Return what names the changes of a plan: objects, actions and fields, but no values, which may be secret."""
    changes: list[Any] = [
        (change.action.value, str(change.ref), [field.path for field in change.fields]) for change in plan.changes
    ]
    return digest(changes, 64)
