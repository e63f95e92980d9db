"""Sets of field paths, held in the form that ``metadata.managedFields`` stores: FieldsV1.

A set is a tree of dicts keyed by steps (see elements.py). The path to a node is in the set if the node is
empty or holds the step ``.``; the root stands for the object and is never in the set. A set is never changed
once made: the operations return their argument itself where nothing differs, and share what is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_provision.sandbox.apiserver.fieldmanager.elements import SELF, order, printed

FieldSet = dict[str, Any]


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in either set."""
    if not left or not right or left is right:
        return left or right
    return _merged(left, right)


def _merged(left: FieldSet, right: FieldSet) -> FieldSet:
    out, added = dict(left), False
    for step, theirs in right.items():
        mine = left.get(step)
        added |= mine is None
        out[step] = theirs if mine is None else _union(mine, theirs)
    return _sorted(out) if added else out


def _union(left: FieldSet, right: FieldSet) -> FieldSet:
    if left is right:
        return left
    if left and right:
        return _merged(left, right)
    return with_self(left or right)


def with_self(node: FieldSet) -> FieldSet:
    """Return a node whose own path is in the set too."""
    return node if not node or SELF in node else {SELF: {}, **node}


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths of ``left`` that are not in ``right``; it does not matter if parents of them are."""
    if not left or not right:
        return left
    out: FieldSet | None = None
    for step, theirs in right.items():
        mine = left.get(step)
        if mine is None or (rest := _difference(mine, theirs)) is mine:
            continue
        out = dict(left) if out is None else out
        _put(out, step, rest)
    return left if out is None else out


def _put(out: FieldSet, step: str, rest: FieldSet | None) -> None:
    if rest is None:
        del out[step]
    else:
        out[step] = rest


def _difference(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if not left:
        return left if right and SELF not in right else None
    return _node(difference(left, right or {SELF: {}}))


def _node(fields: FieldSet) -> FieldSet | None:
    """Return the node of these steps: a lone ``.`` is written as an empty node, nothing as no node."""
    if len(fields) == 1 and SELF in fields:
        return {}
    return fields or None


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in both sets."""
    out: FieldSet = {}
    for step, mine in left.items():
        theirs = right.get(step)
        if theirs is not None and (both := _intersection(mine, theirs)) is not None:
            out[step] = both
    return out


def _intersection(left: FieldSet, right: FieldSet) -> FieldSet | None:
    if not left:
        return {} if not right or SELF in right else None
    if not right:
        return {} if SELF in left else None
    return _node(intersection(left, right))


def paths(fields: FieldSet, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a set as messages print them, in the server's order: level by level."""
    steps = sorted((step for step in fields if step != SELF), key=order)
    for step in steps:
        if not fields[step] or SELF in fields[step]:
            yield prefix + printed(step)
    for step in steps:
        yield from paths(fields[step], prefix + printed(step))


def _sorted(fields: FieldSet) -> FieldSet:
    return dict(sorted(fields.items(), key=_by_step))


def _by_step(entry: tuple[str, Any]) -> tuple[Any, ...]:
    return order(entry[0])


def normalized(fields: FieldSet) -> FieldSet:
    """Return a set in the server's order, from one built in any order."""
    return {step: normalized(fields[step]) for step in sorted(fields, key=order)}
