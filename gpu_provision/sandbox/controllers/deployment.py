"""The Deployment controller: rolls ReplicaSets from one pod template to the next."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import deployment_plan as plan
from gpu_provision.sandbox.controllers import objects, timestamps
from gpu_provision.sandbox.controllers.claims import Claim, claimed, enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from gpu_provision.sandbox.informer import Key

_HISTORY = 10


class Deployments(Controller[Key]):
    """Keeps every Deployment's ReplicaSets and status."""

    name = "deployment"
    watches = (DEPLOYMENTS, REPLICA_SETS, PODS)

    def __init__(self, cluster: Cluster) -> None:
        """Follow Deployments, their ReplicaSets, and pods that go (Recreate waits for them)."""
        super().__init__(cluster)
        self._deployments = cluster.informer(DEPLOYMENTS)
        self._deployments.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        enqueue_owners(cluster, DEPLOYMENTS, REPLICA_SETS, self.queue.add)
        self._sets = cluster.informer(REPLICA_SETS)
        self._sets.index("uid", lambda obj: [objects.uid(obj)])
        self._pods = cluster.informer(PODS)
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if old is None or (new is not None and not objects.is_finished(new)):
            return
        for replica_set in self._sets.by("uid", objects.controller_uid(old)):
            owner = objects.controller_of(replica_set)
            if owner is not None:
                self.queue.add((objects.namespace(old), owner["name"]))

    async def sync(self, key: Key) -> None:
        """Take the next step of the rollout, then write the status."""
        deployment = self._deployments.objects.get(key)
        if deployment is None:
            return
        claim = Claim(DEPLOYMENTS, deployment, REPLICA_SETS, deployment["spec"]["selector"])
        new, old = plan.split(deployment, await claimed(self.cluster, claim))
        if objects.is_deleting(deployment):
            return
        if deployment["spec"].get("paused"):
            await self._scale_paused(deployment, new, old)
        else:
            new = await self._advance(deployment, new, old)
        await self._write_status(deployment, new, old)
        await self._forget_history(deployment, old)

    async def _scale_paused(self, deployment: Object, new: Object | None, old: Sequence[Object]) -> None:
        active = [one for one in [*old, *([new] if new else [])] if plan.replicas(one)]
        if len(active) == 1:
            await self._scale(deployment, active[0], plan.replicas(deployment))

    async def _advance(self, deployment: Object, new: Object | None, old: list[Object]) -> Object | None:
        if plan.is_recreate(deployment):
            for one in old:
                await self._scale(deployment, one, 0)
            if any(self._running(one) for one in old):
                return new
        number = max(map(plan.revision, old), default=0) + 1
        if new is None:
            return await self._create(deployment, number, plan.new_replicas(deployment, None, old))
        new = await self._renumber(deployment, new, number)
        new = await self._scale(deployment, new, plan.new_replicas(deployment, new, old))
        for one, count in plan.shrink(deployment, new, old):
            await self._scale(deployment, one, count)
        return new

    def _running(self, replica_set: Object) -> bool:
        pods = self._pods.by("controller uid", objects.uid(replica_set))
        return any(not objects.is_finished(pod) for pod in pods)

    async def _create(self, deployment: Object, number: int, count: int) -> Object:
        spec = deployment["spec"]
        digest = objects.stable_hash(spec["template"], int(objects.status(deployment).get("collisionCount") or 0))
        template = copy.deepcopy(spec["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[plan.HASH_LABEL] = digest
        selector = copy.deepcopy(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), plan.HASH_LABEL: digest}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{objects.name(deployment)}-{digest}",
                "labels": dict(template["metadata"]["labels"]),
                "annotations": plan.rollout_annotations(deployment, number),
                "ownerReferences": [objects.controller_ref(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": count,
                "selector": selector,
                "template": template,
                **{key: spec[key] for key in ("minReadySeconds",) if key in spec},
            },
        }
        new = await self.cluster.create(REPLICA_SETS, body, objects.namespace(deployment))
        self._scaled(deployment, new, 0, count)
        await self._write_revision(deployment, number)
        return new

    async def _renumber(self, deployment: Object, new: Object, number: int) -> Object:
        number = max(number, plan.revision(new))
        wanted = plan.rollout_annotations(deployment, number) | plan.history_annotation(new, number)
        have = objects.annotations_of(new)
        missing = {key: value for key, value in wanted.items() if have.get(key) != value}
        if missing:
            new = await self.cluster.patch(REPLICA_SETS, new, {"metadata": {"annotations": missing}})
        await self._write_revision(deployment, number)
        return new

    async def _write_revision(self, deployment: Object, number: int) -> None:
        if objects.annotations_of(deployment).get(plan.REVISION) != str(number):
            change = {"metadata": {"annotations": {plan.REVISION: str(number)}}}
            await self.cluster.patch(DEPLOYMENTS, deployment, change)

    async def _scale(self, deployment: Object, replica_set: Object, count: int) -> Object:
        before = plan.replicas(replica_set)
        if before == count:
            return replica_set
        change = {
            "metadata": {"annotations": plan.scale_annotations(deployment)},
            "spec": {"replicas": count},
        }
        result = await self.cluster.patch(REPLICA_SETS, replica_set, change)
        self._scaled(deployment, replica_set, before, count)
        return result

    def _scaled(self, deployment: Object, replica_set: Object, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        message = f"Scaled {direction} replica set {objects.name(replica_set)} from {before} to {after}"
        self.event(DEPLOYMENTS, deployment, Note("ScalingReplicaSet", message))

    async def _write_status(self, deployment: Object, new: Object | None, old: Sequence[Object]) -> None:
        moment = timestamps.now()
        counted = plan.counts(new, old)
        wanted = {
            **counted,
            "observedGeneration": deployment["metadata"].get("generation"),
            "conditions": plan.conditions(deployment, new, counted, moment),
        }
        await self.cluster.write_status(DEPLOYMENTS, deployment, wanted)
        pause = plan.remaining_seconds(deployment, counted, moment)
        if pause:
            self.queue.add_after(objects.key_of(deployment), pause)

    async def _forget_history(self, deployment: Object, old: Sequence[Object]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit")
        unused = [
            one
            for one in sorted(old, key=plan.revision)
            if not plan.replicas(one) and not objects.status(one).get("replicas") and not objects.is_deleting(one)
        ]
        surplus = len(unused) - (_HISTORY if limit is None else int(limit))
        for one in unused[: max(surplus, 0)]:
            await self.cluster.delete(REPLICA_SETS, one)
