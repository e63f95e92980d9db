"""The rights that a removal needs: for what it found, and for an inventory whatever is there."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_provision.cluster.leases import lock_ref
from gpu_provision.cluster.observe import MEMBER_KINDS, NAMESPACE, NODE, POD
from gpu_provision.cluster.paths import KINDS
from gpu_provision.cluster.remains import FEATURE, nfd_lock
from gpu_provision.components import prerequisites
from gpu_provision.engine import needs
from gpu_provision.model.access import Permission
from gpu_provision.model.cluster import Kind
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.removal.shared import KINDS as SHARED


def to_carry_out(inventory: Inventory, changes: tuple[Change, ...], *, evict: bool) -> Iterator[Permission]:
    """Yield what a removal needs for what it found."""
    yield from _always(inventory)
    for change in changes:
        if change.action is Action.DELETE:
            yield from needs.permissions(change.ref, "delete")
        elif change.ref.kind != "Node":
            yield from needs.permissions(change.ref, "patch")
    if evict:
        yield _EVICTIONS


_EVICTIONS = Permission("create", "", "pods/eviction")


def everything(inventory: Inventory) -> frozenset[Permission]:
    """Return what an account needs to remove a stack, whatever is left of it.

    Namespaces are not among what may be deleted: whoever gives these rights has made them, so that they stay.
    """
    namespaces = prerequisites.spec(inventory).namespaces
    shared = {one for one in needs.to_prune(inventory) if one.resource in _SHARED}
    return frozenset(
        (
            *needs.to_read(inventory, MEMBER_KINDS),
            *_of(FEATURE, "list"),
            *needs.to_see_claims(inventory),
            *needs.to_reach_hosts(inventory),
            *_always(inventory),
            *(one for one in needs.to_prune(inventory) if one.resource != KINDS[NAMESPACE]),
            *(one._replace(verb=verb) for one in shared for verb in ("get", "patch")),
            *(one for namespace in namespaces for one in _of(NAMESPACE, "patch", name=namespace)),
            *(
                one
                for namespace in namespaces
                for kind in (POD, FEATURE)
                for one in _of(kind, "delete", space=namespace)
            ),
            *(one for namespace in namespaces for one in needs.permissions(nfd_lock(namespace), "delete", "get")),
            _EVICTIONS,
            *_of(Kind("policy/v1", "PodDisruptionBudget"), "list"),
        )
    )


_SHARED = frozenset(plural for kind, plural in KINDS.items() if kind.kind in SHARED)


def _always(inventory: Inventory) -> Iterator[Permission]:
    """Yield what every removal that writes needs: lock, watches, nodes."""
    lock = lock_ref(inventory)
    yield from _of(lock.type, "create", space=lock.namespace)  # a POST, which names nothing
    yield from needs.permissions(lock, "get", "update", "delete")
    yield from _of(NODE, "get", "patch", "watch")
    yield from _of(POD, "watch")
    yield from _of(NAMESPACE, "get", name=inventory.cluster.namespace)


def _of(kind: Kind, *verbs: str, space: str = "", name: str = "") -> Iterator[Permission]:
    group = kind.api_version.rpartition("/")[0]
    yield from (Permission(verb, group, KINDS[kind], space, name) for verb in verbs)
