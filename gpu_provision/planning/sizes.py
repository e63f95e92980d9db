"""How many nodes one stack can have: what passed on which of them is on record in one object. Pure.

A ConfigMap holds 1 MiB of values, and etcd takes objects of 1.5 MiB. Nodes are named twice in one: as keys, and by the
API server, which keeps a book of who has written which.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.model.cluster import Context
from gpu_provision.model.findings import Finding
from gpu_provision.planning.codes import TOO_MANY_NODES

MOST_OF_VALUES, MOST_OF_OBJECT = 1024 * 1024, 1536 * 1024
_VALUE, _AROUND_NAMES = 106, 20  # bytes: name and verdict of a validation; quotes, lengths and the book's marks
_ROOM = 0.97  # for what else is in the object


def too_many_nodes(known: Context) -> Iterator[Finding]:
    """Yield that the record of a stack's validations would not fit: the API server would refuse it in mid-run."""
    names = [target.name for target in (*known.targets, *known.others)]
    whole = sum(2 * len(name) + _AROUND_NAMES + _VALUE for name in names)
    share = max(len(names) * _VALUE / MOST_OF_VALUES, whole / MOST_OF_OBJECT) / _ROOM
    if share <= 1.0:
        return
    name, fit = known.inventory.name, int(len(names) / share)
    yield Finding(
        code=TOO_MANY_NODES,
        what=f"the stack has {len(names)} GPU nodes, and what passed on them fits in no ConfigMap",
        where=f"ConfigMap {known.namespace}/{name}-validations",
        evidence=f"with names as long as these there is room for {fit} nodes",
        consequence="nothing was written",
        fix="divide the nodes among several clusters: Kubernetes itself is made for 5,000 nodes in each",
    )
