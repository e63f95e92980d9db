"""A namespace of a cluster with nodes: what tests create in it, and how they await what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from tests.contract.client import MERGE, SECONDS, Answer, Event, Object, Server, until

NODES = ("sim-1", "sim-2", "sim-3")
"""Nodes without a taint, as in fleet.yaml."""

TAINTED = "sim-tainted"
"""The node with the taint ``contract.example/dedicated=yes:NoSchedule``."""

DEDICATED = {"key": "contract.example/dedicated", "operator": "Exists"}
"""What tolerates that taint."""

_PLACES: Mapping[str, str] = {
    **dict.fromkeys(("ConfigMap", "Event", "Namespace", "Node", "Pod", "Secret", "ServiceAccount"), "v1"),
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    **dict.fromkeys(("ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet"), "apps/v1"),
    "Job": "batch/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
}
"""Kind -> its apiVersion; that of a PodDisruptionBudget depends on the server."""

_OF_CLUSTER = frozenset({"Namespace", "Node", "ClusterRole", "PriorityClass", "CustomResourceDefinition"})


class Cluster:
    """One test's view of a server: its namespace, and the whole cluster where it must."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    @property
    def mark(self) -> str:
        """A label key that no other test uses."""
        return f"contract.example/{self.namespace}"

    def version_of(self, kind: str) -> str:
        if kind == "PodDisruptionBudget":
            return "policy/v1" if self.server.at_least(1, 21) else "policy/v1beta1"
        return _PLACES[kind]

    def path(self, kind: str, name: str = "", part: str = "") -> str:
        version = self.version_of(kind)
        plural = f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        scope = "" if kind in _OF_CLUSTER else f"namespaces/{self.namespace}"
        return "/".join(word for word in (root, scope, plural, name, part) if word)

    def create(self, kind: str, name: str, *, metadata: Object | None = None, **body: Any) -> Object:
        whole = {"apiVersion": self.version_of(kind), "kind": kind, "metadata": {"name": name, **(metadata or {})}}
        return self.server.make(self.path(kind), whole | body)

    def get(self, kind: str, name: str) -> Object:
        return self.server.get(self.path(kind, name))

    def every(self, kind: str, labels: str = "") -> list[Object]:
        """Return the objects that a label selector finds, with the kind that servers leave out of lists."""
        items = self.server.get(f"{self.path(kind)}?labelSelector={quote(labels)}")["items"]
        return [{"apiVersion": self.version_of(kind), "kind": kind, **item} for item in items]

    def patch(self, kind: str, name: str, change: Any, part: str = "", content_type: str = MERGE) -> Object:
        return self.server.patch(self.path(kind, name, part), change, content_type)

    def delete(self, kind: str, name: str, **options: Any) -> Answer:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        answer = self.server.ask("DELETE", self.path(kind, name), body)
        assert answer.code in (200, 202), answer
        return answer

    def gone(self, kind: str, name: str) -> bool:
        return self.server.is_gone(self.path(kind, name))

    def now(self, kind: str) -> str:
        version: str = self.server.get(f"{self.path(kind)}?limit=1")["metadata"]["resourceVersion"]
        return version

    def history(self, kind: str, since: str, condition: Callable[[Event], Any]) -> list[Event]:
        """Return all that happened to the objects of a kind since a version, up to the first event that fits.

        Nothing between is missed, however short it lasted.
        """
        with self.server.watch(f"{self.path(kind)}?resourceVersion={since}") as watch:
            return watch.until(condition)

    def count_pods(self, since: str, before: set[str], counts: Callable[[Object], bool]) -> list[int]:
        """Return how many pods counted after each event since a version, until all that were there before are deleted.

        Those on their way out do not count.
        """
        present, left, numbers = set(before), set(before), []

        def is_last(event: Event) -> bool:
            stays = event.type != "DELETED" and not event.object["metadata"].get("deletionTimestamp")
            (present.add if stays and counts(event.object) else present.discard)(event.name)
            numbers.append(len(present))
            left.difference_update({event.name} if event.type == "DELETED" else ())
            return not left

        self.history("Pod", since, is_last)
        return numbers

    def await_(self, kind: str, name: str, condition: Callable[[Object], Any]) -> Object:
        selector = f"fieldSelector=metadata.name%3D{name}"
        with self.server.watch(f"{self.path(kind)}?{selector}") as watch:
            return watch.until(lambda event: event.type != "DELETED" and condition(event.object))[-1].object

    def await_gone(self, kind: str, name: str, *, seconds: float = SECONDS) -> None:
        until(lambda: self.gone(kind, name), seconds=seconds)

    def pods(self, labels: str = "") -> list[Object]:
        """Return the pods that are not on their way out."""
        return [pod for pod in self.every("Pod", labels) if not pod["metadata"].get("deletionTimestamp")]

    def await_pods(
        self, count: int, labels: str = "", condition: Callable[[Object], Any] | None = None
    ) -> list[Object]:
        """Return the pods once there are so many, and ``condition`` holds for each: by default, it is ready."""
        holds = condition or is_ready

        def found() -> list[Object]:
            pods = self.pods(labels)
            return pods if len(pods) == count and all(map(holds, pods)) else []

        return list(until(found))

    def await_no_pods(self, labels: str = "") -> None:
        until(lambda: not self.every("Pod", labels))

    def await_event(self, reason: str, name: str, holds: Callable[[Object], Any] = lambda _: True) -> Object:
        def found() -> Object | None:
            events = self.server.get(self.path("Event"))["items"]
            about = (one for one in events if (one["reason"], one["involvedObject"].get("name")) == (reason, name))
            return next(filter(holds, about), None)

        event: Object = until(found)
        return event


def is_ready(pod: Object) -> bool:
    return status_of(pod, "Ready") == "True"


def status_of(obj: Object, kind: str) -> str:
    return str(condition(obj, kind).get("status", ""))


def condition(obj: Object, kind: str) -> Object:
    """Return a condition; an empty one if the object has not got it."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


def names(objects: Iterable[Object]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects}


def nodes_of(pods: Iterable[Object]) -> list[str]:
    """Return the nodes of pods, sorted: one twice if two pods are on it."""
    return sorted(map(node_of, pods))
