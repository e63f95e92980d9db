"""Which objects belong to a controller: adopt matching orphans, release what matches no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object, Resource
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.cluster import Cluster
from gpu_provision.sandbox.controllers.resources import PODS
from gpu_provision.sandbox.informer import Informer, Key

OWNED, ORPHANS = "controller uid", "orphans of namespace"


def index_owned(informer: Informer) -> None:
    """Index the informer's objects by controlling owner, and orphans by namespace."""
    informer.index(OWNED, lambda obj: [uid] if (uid := objects.controller_uid(obj)) else [])
    informer.index(ORPHANS, lambda obj: [] if objects.controller_of(obj) else [objects.namespace(obj)])


class Claim(NamedTuple):
    """Who claims what: ``owner`` (an object of ``resource``) claims objects of ``owned`` by a selector."""

    resource: Resource
    owner: Object
    owned: Resource
    selector: dict[str, Any]


async def claimed(cluster: Cluster, claim: Claim) -> list[Object]:
    """Return what belongs to the owner after adopting and releasing. Raises ApiError."""
    informer = cluster.informer(claim.owned)
    mine: list[Object] = []
    for obj in informer.by(OWNED, objects.uid(claim.owner)):
        if objects.matches(claim.selector, objects.labels(obj)) or objects.is_deleting(obj):
            mine.append(obj)
        elif not objects.is_deleting(claim.owner):
            await _release(cluster, claim, obj)
    if objects.is_deleting(claim.owner):
        return mine
    orphans = informer.by(ORPHANS, objects.namespace(claim.owner))
    adoptable = [obj for obj in orphans if _adoptable(claim, obj)]
    return mine + [await _adopt(cluster, claim, obj) for obj in adoptable]


def _adoptable(claim: Claim, obj: Object) -> bool:
    if objects.is_deleting(obj) or (claim.owned == PODS and objects.is_finished(obj)):
        return False
    return objects.matches(claim.selector, objects.labels(obj))


async def _adopt(cluster: Cluster, claim: Claim, obj: Object) -> Object:
    reference = objects.controller_ref(claim.resource, claim.owner)
    return await _write_owners(cluster, claim.owned, obj, [*objects.owners(obj), reference])


async def _release(cluster: Cluster, claim: Claim, obj: Object) -> None:
    kept = [one for one in objects.owners(obj) if one["uid"] != objects.uid(claim.owner)]
    await _write_owners(cluster, claim.owned, obj, kept)


async def _write_owners(cluster: Cluster, resource: Resource, obj: Object, owners: list[dict[str, Any]]) -> Object:
    metadata = obj["metadata"]
    change = {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "ownerReferences": owners,
    }
    return await cluster.patch(resource, obj, {"metadata": change})


def enqueue_owners(cluster: Cluster, resource: Resource, owned: Resource, add: Callable[[Key], None]) -> None:
    """Have the owner worked on when an owned object changes, and whoever may adopt an orphan."""
    owners, informer = cluster.informer(resource), cluster.informer(owned)
    index_owned(informer)
    owners.index("uid", lambda obj: [objects.uid(obj)])
    owners.index("namespace", lambda obj: [objects.namespace(obj)])

    def changed(old: Object | None, new: Object | None) -> None:
        uids = {objects.controller_uid(obj) for obj in (old, new) if obj is not None}
        for uid in uids - {""}:
            for owner in owners.by("uid", uid):
                add(objects.key_of(owner))
        if new is not None and not objects.controller_of(new) and not objects.is_deleting(new):
            for owner in owners.by("namespace", objects.namespace(new)):
                if objects.matches(owner["spec"].get("selector"), objects.labels(new)):
                    add(objects.key_of(owner))

    informer.on_change(changed)
