"""The StatefulSet controller: pods with stable names, created and replaced in order; its plan is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects, revisions
from gpu_provision.sandbox.controllers.claims import Claim, claimed, enqueue_owners
from gpu_provision.sandbox.controllers.cluster import Cluster, Controller, all_of
from gpu_provision.sandbox.controllers.deployment import replicas
from gpu_provision.sandbox.controllers.events import Note
from gpu_provision.sandbox.controllers.resources import CONTROLLER_REVISIONS, PODS, STATEFUL_SETS
from gpu_provision.sandbox.controllers.revisions import History
from gpu_provision.sandbox.informer import Key

HASH_LABEL = "controller-revision-hash"
_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
_INDEX_LABEL = "apps.kubernetes.io/pod-index"


class Revisions(NamedTuple):
    """Names of the revision that pods are coming from and of the one they are going to."""

    current: str
    update: str


@dataclass(slots=True)
class Step:
    """Ordinals to create and pods to delete now."""

    create: list[int] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)


def ordinal(pod: Object) -> int:
    """Return the number at the end of the pod's name; -1 if there is none."""
    number = objects.name(pod).rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def ordinals(stateful_set: Object) -> range:
    """Return the ordinals that should exist."""
    start = int((stateful_set["spec"].get("ordinals") or {}).get("start") or 0)
    return range(start, start + replicas(stateful_set))


def partition(stateful_set: Object) -> int:
    """Return the lowest ordinal that a rolling update reaches."""
    rolling = (stateful_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return int(rolling.get("partition") or 0)


def is_parallel(stateful_set: Object) -> bool:
    """Whether pods need not wait for each other while scaling."""
    return bool(stateful_set["spec"].get("podManagementPolicy") == "Parallel")


def _is_healthy(stateful_set: Object, pod: Object, moment: datetime) -> bool:
    least = int(stateful_set["spec"].get("minReadySeconds") or 0)
    return objects.is_active(pod) and objects.is_available(pod, least, moment)


def next_step(stateful_set: Object, pods: Sequence[Object], update: str, moment: datetime) -> Step:
    """Decide what to do now: fill gaps from below, remove from above, then update from above."""
    wanted = ordinals(stateful_set)
    known: Mapping[int, Object] = {ordinal(pod): pod for pod in pods}
    step, settled = _fill(stateful_set, known, moment)
    if step.create and not is_parallel(stateful_set):
        return step
    surplus = sorted((one for one in known if one not in wanted), reverse=True)
    for number in surplus if is_parallel(stateful_set) else surplus[:1]:
        if not objects.is_deleting(known[number]):
            step.delete.append(known[number])
    if surplus or not settled:
        return step
    outdated = _outdated(stateful_set, known, update, moment)
    return Step(delete=[outdated]) if outdated else step


def _fill(stateful_set: Object, known: Mapping[int, Object], moment: datetime) -> tuple[Step, bool]:
    step = Step()
    settled = True
    for number in ordinals(stateful_set):
        pod = known.get(number)
        if pod is not None and _is_healthy(stateful_set, pod, moment):
            continue
        if pod is None:
            step.create.append(number)
        elif objects.is_finished(pod) and not objects.is_deleting(pod):
            step.delete.append(pod)
        settled = False
        if not is_parallel(stateful_set):
            break
    return step, settled


def _outdated(stateful_set: Object, known: Mapping[int, Object], update: str, moment: datetime) -> Object | None:
    if (stateful_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") != "RollingUpdate":
        return None
    for number in reversed(ordinals(stateful_set)):
        pod = known[number]
        if number < partition(stateful_set):
            return None
        if objects.labels(pod).get(HASH_LABEL) != update:
            return pod
        if not _is_healthy(stateful_set, pod, moment):
            return None
    return None


def status(stateful_set: Object, pods: Sequence[Object], revisions: Revisions, moment: datetime) -> dict[str, Any]:
    """Count the status; zeros that the API omits are None."""
    least = int(stateful_set["spec"].get("minReadySeconds") or 0)
    live = [pod for pod in pods if not objects.is_finished(pod)]

    def of(revision: str) -> int:
        return sum(objects.labels(pod).get(HASH_LABEL) == revision and objects.is_active(pod) for pod in live)

    updated, wanted = of(revisions.update), replicas(stateful_set)
    ready = sum(map(objects.is_ready, live))
    done = updated == wanted == ready == len(live)
    return {
        "replicas": len(live),
        "readyReplicas": ready or None,
        "availableReplicas": sum(objects.is_available(pod, least, moment) for pod in live),
        "currentReplicas": (updated if done else of(revisions.current)) or None,
        "updatedReplicas": updated or None,
        "currentRevision": revisions.update if done else revisions.current,
        "updateRevision": revisions.update,
        "observedGeneration": stateful_set["metadata"].get("generation"),
    }


def pod_for(
    stateful_set: Object, owner: dict[str, Any], number: int, *, revision: str, template: Mapping[str, Any]
) -> Object:
    """Return the pod of an ordinal, with its stable name and host name."""
    name = f"{objects.name(stateful_set)}-{number}"
    pod = objects.pod_from_template(template, owner, "")
    del pod["metadata"]["generateName"]
    pod["metadata"]["name"] = name
    pod["metadata"]["labels"] |= {_NAME_LABEL: name, _INDEX_LABEL: str(number), HASH_LABEL: revision}
    pod["spec"] |= {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName", "")}
    return pod


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
        names = Revisions(objects.status(stateful_set).get("currentRevision") or update, update)
        step = next_step(stateful_set, pods, update, objects.now())
        try:
            await all_of([self._delete(stateful_set, pod) for pod in step.delete])
            await all_of([self._create(stateful_set, number, names, history) for number in step.create])
        finally:
            await self._write_status(stateful_set, names)
        used = {objects.labels(pod).get(HASH_LABEL, "").rpartition("-")[2] for pod in pods}
        used.add(names.current.rpartition("-")[2])
        await revisions.prune(self.cluster, stateful_set, history.old, used=used)

    async def _create(self, stateful_set: Object, number: int, names: Revisions, history: History) -> None:
        revision, template = names.update, stateful_set["spec"]["template"]
        if number < partition(stateful_set):
            revision, template = names.current, _template(names.current, history) or template
        owner = objects.controller_ref(STATEFUL_SETS, stateful_set)
        body = pod_for(stateful_set, owner, number, revision=revision, template=template)
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

    async def _write_status(self, stateful_set: Object, names: Revisions) -> None:
        pods = self.cluster.informer(PODS).by("controller uid", objects.uid(stateful_set))
        moment = objects.now()
        wanted = status(stateful_set, pods, names, moment)
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
