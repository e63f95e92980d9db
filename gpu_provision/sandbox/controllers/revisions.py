"""ControllerRevisions: the history of a pod template that DaemonSets and StatefulSets keep."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import ApiError, Object, Resource
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.claims import Claim, claimed
from gpu_provision.sandbox.controllers.cluster import Cluster
from gpu_provision.sandbox.controllers.daemonset_plan import HASH_LABEL
from gpu_provision.sandbox.controllers.resources import CONTROLLER_REVISIONS

_CONFLICT = 409


class History(NamedTuple):
    """The present revision and the older ones, the oldest first."""

    current: Object
    old: list[Object]

    @property
    def hash(self) -> str:
        """The value of the label controller-revision-hash of current pods."""
        return objects.labels(self.current)[HASH_LABEL]


def patch_of(owner: Object) -> dict[str, Any]:
    """Return what a revision stores: a patch that replaces the template."""
    return {"spec": {"template": {**copy.deepcopy(owner["spec"]["template"]), "$patch": "replace"}}}


def revision_for(resource: Resource, owner: Object, *, number: int, collisions: int) -> Object:
    """Return the ControllerRevision of the owner's present template."""
    digest = objects.stable_hash(owner["spec"]["template"], collisions)
    template_labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{objects.name(owner)}-{digest}",
            "namespace": objects.namespace(owner),
            "labels": {**template_labels, HASH_LABEL: digest},
            "annotations": dict(objects.annotations_of(owner)),
            "ownerReferences": [objects.controller_ref(resource, owner)],
        },
        "data": patch_of(owner),
        "revision": number,
    }


async def history(cluster: Cluster, resource: Resource, owner: Object) -> History:
    """Return the history with the present template in it, created or renumbered as needed."""
    claim = Claim(resource, owner, CONTROLLER_REVISIONS, owner["spec"]["selector"])
    known = sorted(await claimed(cluster, claim), key=lambda one: int(one["revision"]))
    wanted = patch_of(owner)
    equal = [one for one in known if one.get("data") == wanted]
    old = [one for one in known if one.get("data") != wanted]
    latest = max((int(one["revision"]) for one in old), default=0)
    if not equal:
        return History(await _create(cluster, resource, owner, number=latest + 1), old)
    current = equal[-1]
    if int(current["revision"]) <= latest:
        current = await cluster.patch(CONTROLLER_REVISIONS, current, {"revision": latest + 1})
    return History(current, old)


async def _create(cluster: Cluster, resource: Resource, owner: Object, *, number: int) -> Object:
    collisions = int(objects.status(owner).get("collisionCount") or 0)
    body = revision_for(resource, owner, number=number, collisions=collisions)
    try:
        return await cluster.create(CONTROLLER_REVISIONS, body, objects.namespace(owner))
    except ApiError as refusal:
        if refusal.code != _CONFLICT:
            raise
    present = await cluster.api.get(CONTROLLER_REVISIONS, objects.name(body), objects.namespace(owner))
    if present.get("data") == body["data"] and objects.controller_uid(present) == objects.uid(owner):
        return present
    await cluster.patch(resource, owner, {"status": {"collisionCount": collisions + 1}}, "status")
    raise ApiError(_CONFLICT, "AlreadyExists", f"the name of revision {objects.name(body)} is taken")


async def prune(cluster: Cluster, owner: Object, old: list[Object], *, used: set[str]) -> None:
    """Delete the oldest revisions beyond the owner's limit that no pod is of. Raises ApiError."""
    limit = owner["spec"].get("revisionHistoryLimit")
    unused = [one for one in old if objects.labels(one).get(HASH_LABEL) not in used]
    surplus = len(unused) - (10 if limit is None else int(limit))
    for revision in unused[: max(surplus, 0)]:
        await cluster.delete(CONTROLLER_REVISIONS, revision)
