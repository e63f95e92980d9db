"""The next step of a StatefulSet, in order of its ordinals, and its status (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.controllers import objects
from gpu_provision.sandbox.controllers.deployment_plan import replicas

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
