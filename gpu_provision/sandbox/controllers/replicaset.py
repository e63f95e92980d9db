"""The ReplicaSet controller: as many pods as asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import PODS, REPLICA_SETS, Object
from gpu_provision.sandbox.controllers.deployment import replicas
from gpu_provision.sandbox.controllers.manager import (
    ControllerManager,
    OwnerClaim,
    QueueController,
    claim_objects,
    enqueue_owners,
    gather_all,
)
from gpu_provision.sandbox.objects import Key

_BURST = 500


def choose_surplus(pods: Sequence[Object], count: int) -> list[Object]:
    """Choose the pods to delete: unbound, pending and unready ones first, then the youngest."""

    def worth(pod: Object) -> tuple[bool, bool, bool]:
        return bool(objects.node_of(pod)), objects.phase(pod) == "Running", objects.is_ready(pod)

    youngest_first = sorted(pods, key=objects.created, reverse=True)
    return sorted(youngest_first, key=worth)[:count]


def build_status(replica_set: Object, pods: Sequence[Object]) -> dict[str, int | None]:
    """Count the status; zeros that the API omits are None."""
    ready = sum(map(objects.is_ready, pods))
    wanted = (replica_set["spec"]["template"].get("metadata") or {}).get("labels")
    return {
        "replicas": len(pods),
        "fullyLabeledReplicas": sum(objects.includes_labels(wanted, objects.labels(pod)) for pod in pods) or None,
        "readyReplicas": ready or None,
        "availableReplicas": ready or None,
        "observedGeneration": replica_set["metadata"].get("generation"),
    }


class ReplicaSets(QueueController[Key]):
    """Keeps every ReplicaSet's pods and status."""

    name = "replicaset"
    watches = (REPLICA_SETS, PODS)

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow ReplicaSets and their pods."""
        super().__init__(cluster)
        self._sets = cluster.informer(REPLICA_SETS)
        self._sets.on_event(lambda _, obj: self.queue.add(objects.key_of(obj)))
        enqueue_owners(cluster, REPLICA_SETS, PODS, self.queue.add)

    async def sync(self, key: Key) -> None:
        """Create or delete pods until the number is right, then write the status."""
        replica_set = self._sets.objects.get(key)
        if replica_set is None:
            return
        claim = OwnerClaim(replica_set, PODS, replica_set["spec"]["selector"])
        pods = [pod for pod in await claim_objects(self.cluster, claim) if objects.is_active(pod)]
        try:
            if not objects.is_deleting(replica_set):
                await self._scale(replica_set, pods)
        finally:
            await self._write_status(replica_set)

    async def _scale(self, replica_set: Object, pods: Sequence[Object]) -> None:
        missing = replicas(replica_set) - len(pods)
        body = objects.pod_from_template(replica_set["spec"]["template"], replica_set)
        await gather_all([self.create_pod(replica_set, body) for _ in range(min(missing, _BURST))])
        await gather_all([self.delete_pod(replica_set, pod) for pod in choose_surplus(pods, max(-missing, 0))])

    async def _write_status(self, replica_set: Object) -> None:
        owned = self.cluster.informer(PODS).by("controller uid", objects.uid(replica_set))
        pods = [pod for pod in owned if objects.is_active(pod)]
        await self.cluster.write_status(REPLICA_SETS, replica_set, build_status(replica_set, pods))
