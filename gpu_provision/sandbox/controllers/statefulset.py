"""The StatefulSet controller: pods with stable names, created and replaced in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, revisions, timestamps
from gpu_provision.sandbox.controllers import statefulset_plan as plan
from gpu_provision.sandbox.controllers.claims import Claim, claimed, enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.resources import CONTROLLER_REVISIONS, PODS, STATEFUL_SETS
from gpu_provision.sandbox.controllers.revisions import History
from gpu_provision.sandbox.informer import Key


class StatefulSets(Controller[Key]):
    """Keeps every StatefulSet's pods and status; volume claims are left out."""

    name = "statefulset"
    watches = (STATEFUL_SETS, PODS, CONTROLLER_REVISIONS)

    def __init__(self, cluster: Cluster) -> None:
        """Follow StatefulSets, their pods and revisions."""
        super().__init__(cluster)
        self._sets = cluster.informer(STATEFUL_SETS)
        self._sets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        enqueue_owners(cluster, STATEFUL_SETS, PODS, self.queue.add)
        enqueue_owners(cluster, STATEFUL_SETS, CONTROLLER_REVISIONS, self.queue.add)

    async def sync(self, key: Key) -> None:
        """Take the next step, then write the status."""
        stateful_set = self._sets.objects.get(key)
        if stateful_set is None or objects.is_deleting(stateful_set):
            return
        claim = Claim(STATEFUL_SETS, stateful_set, PODS, stateful_set["spec"]["selector"])
        pods = await claimed(self.cluster, claim)
        history = await revisions.history(self.cluster, STATEFUL_SETS, stateful_set)
        update = objects.name(history.current)
        names = plan.Revisions(objects.status(stateful_set).get("currentRevision") or update, update)
        step = plan.next_step(stateful_set, pods, update, timestamps.now())
        try:
            await all_of([self._delete(stateful_set, pod) for pod in step.delete])
            await all_of([self._create(stateful_set, number, names, history) for number in step.create])
        finally:
            await self._write_status(stateful_set, names)
        used = {objects.labels(pod).get(plan.HASH_LABEL, "").rpartition("-")[2] for pod in pods}
        used.add(names.current.rpartition("-")[2])
        await revisions.prune(self.cluster, stateful_set, history.old, used=used)

    async def _create(self, stateful_set: Object, number: int, names: plan.Revisions, history: History) -> None:
        revision, template = names.update, stateful_set["spec"]["template"]
        if number < plan.partition(stateful_set):
            revision, template = names.current, _template(names.current, history) or template
        owner = objects.controller_ref(STATEFUL_SETS, stateful_set)
        body = plan.pod_for(stateful_set, owner, number, revision=revision, template=template)
        name = objects.name(body)
        try:
            await self.cluster.create(PODS, body, objects.namespace(stateful_set))
        except Exception as error:
            message = f"create Pod {name} in StatefulSet {objects.name(stateful_set)} failed error: {error}"
            self.event(STATEFUL_SETS, stateful_set, Note("FailedCreate", message, warning=True))
            raise
        message = f"create Pod {name} in StatefulSet {objects.name(stateful_set)} successful"
        self.event(STATEFUL_SETS, stateful_set, Note("SuccessfulCreate", message))

    async def _delete(self, stateful_set: Object, pod: Object) -> None:
        await self.cluster.delete(PODS, pod)
        message = f"delete Pod {objects.name(pod)} in StatefulSet {objects.name(stateful_set)} successful"
        self.event(STATEFUL_SETS, stateful_set, Note("SuccessfulDelete", message))

    async def _write_status(self, stateful_set: Object, names: plan.Revisions) -> None:
        pods = self.cluster.informer(PODS).by("controller uid", objects.uid(stateful_set))
        moment = timestamps.now()
        wanted = plan.status(stateful_set, pods, names, moment)
        await self.cluster.write_status(STATEFUL_SETS, stateful_set, wanted)
        least = int(stateful_set["spec"].get("minReadySeconds") or 0)
        if any(objects.is_ready(pod) and not objects.is_available(pod, least, moment) for pod in pods):
            self.queue.add_after(objects.key_of(stateful_set), min(least, 1.0))


def _template(revision: str, history: History) -> Mapping[str, Any] | None:
    for one in (*history.old, history.current):
        if objects.name(one) == revision:
            template = one["data"]["spec"]["template"]
            return {key: value for key, value in template.items() if key != "$patch"}
    return None
