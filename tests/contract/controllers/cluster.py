"""A namespace of a cluster with nodes, to create objects and wait for their state."""

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
    """A client of one test, for its namespace and for cluster-scoped objects."""

    def __init__(self, server: Server, namespace: str) -> None:
        """Use an existing namespace."""
        self.server, self.namespace = server, namespace

    @property
    def mark(self) -> str:
        """A unique label key."""
        return f"contract.example/{self.namespace}"

    def version_of(self, kind: str) -> str:
        """Return the server's apiVersion of a kind."""
        if kind == "PodDisruptionBudget":
            return "policy/v1" if self.server.at_least(1, 21) else "policy/v1beta1"
        return _PLACES[kind]

    def path(self, kind: str, name: str = "", part: str = "") -> str:
        """Return the path of an object, a subresource or a collection."""
        version = self.version_of(kind)
        plural = f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        scope = "" if kind in _OF_CLUSTER else f"namespaces/{self.namespace}"
        return "/".join(word for word in (root, scope, plural, name, part) if word)

    def create(self, kind: str, name: str, *, metadata: Object | None = None, **body: Any) -> Object:
        """Create an object and return it; an error fails."""
        whole = {"apiVersion": self.version_of(kind), "kind": kind, "metadata": {"name": name, **(metadata or {})}}
        return self.server.make(self.path(kind), whole | body)

    def get(self, kind: str, name: str) -> Object:
        """Return an object."""
        return self.server.get(self.path(kind, name))

    def every(self, kind: str, labels: str = "") -> list[Object]:
        """Return the objects of a label selector, with the kind, which servers omit in lists."""
        items = self.server.get(f"{self.path(kind)}?labelSelector={quote(labels)}")["items"]
        return [{"apiVersion": self.version_of(kind), "kind": kind, **item} for item in items]

    def patch(self, kind: str, name: str, change: Any, part: str = "", content_type: str = MERGE) -> Object:
        """Patch an object."""
        return self.server.patch(self.path(kind, name, part), change, content_type)

    def delete(self, kind: str, name: str, **options: Any) -> Answer:
        """Delete an object with DeleteOptions."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        answer = self.server.ask("DELETE", self.path(kind, name), body)
        assert answer.code in (200, 202), answer
        return answer

    def gone(self, kind: str, name: str) -> bool:
        """Whether an object does not exist."""
        return self.server.is_gone(self.path(kind, name))

    def now(self, kind: str) -> str:
        """Return the resourceVersion of a collection, as the start of a history."""
        version: str = self.server.get(f"{self.path(kind)}?limit=1")["metadata"]["resourceVersion"]
        return version

    def history(self, kind: str, since: str, condition: Callable[[Event], Any]) -> list[Event]:
        """Return all events of a kind since a version, up to the first event that matches a condition."""
        with self.server.watch(f"{self.path(kind)}?resourceVersion={since}") as watch:
            return watch.until(condition)

    def await_(self, kind: str, name: str, condition: Callable[[Object], Any]) -> Object:
        """Watch an object until it meets a condition, and return it."""
        selector = f"fieldSelector=metadata.name%3D{name}"
        with self.server.watch(f"{self.path(kind)}?{selector}") as watch:
            return watch.until(lambda event: event.type != "DELETED" and condition(event.object))[-1].object

    def await_gone(self, kind: str, name: str, *, seconds: float = SECONDS) -> None:
        """Wait until an object is deleted."""
        until(lambda: self.gone(kind, name), seconds=seconds)

    def pods(self, labels: str = "") -> list[Object]:
        """Return the pods that are not terminating."""
        return [pod for pod in self.every("Pod", labels) if not pod["metadata"].get("deletionTimestamp")]

    def await_pods(
        self, count: int, labels: str = "", condition: Callable[[Object], Any] | None = None
    ) -> list[Object]:
        """Wait for a number of pods that meet a condition, by default ready ones."""
        holds = condition or is_ready

        def found() -> list[Object]:
            pods = self.pods(labels)
            return pods if len(pods) == count and all(map(holds, pods)) else []

        return list(until(found))

    def await_no_pods(self, labels: str = "") -> None:
        """Wait until no pod is left, not even a terminating one."""
        until(lambda: not self.every("Pod", labels))

    def await_event(self, reason: str, name: str, text: str = "") -> Object:
        """Wait for an Event about the object of this name."""

        def found() -> Object | None:
            events = self.server.get(self.path("Event"))["items"]
            about = (event for event in events if event["involvedObject"].get("name", "").startswith(name))
            return next((event for event in about if event["reason"] == reason and text in event["message"]), None)

        event: Object = until(found)
        return event


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready."""
    return status_of(pod, "Ready") == "True"


def status_of(obj: Object, kind: str) -> str:
    """Return the status of a condition; empty for a missing one."""
    return str(condition(obj, kind).get("status", ""))


def condition(obj: Object, kind: str) -> Object:
    """Return a condition; empty for a missing one."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def node_of(pod: Object) -> str:
    """Return the node that a pod is bound to."""
    return str(pod["spec"].get("nodeName", ""))


def names(objects: Iterable[Object]) -> set[str]:
    return {obj["metadata"]["name"] for obj in objects}


def nodes_of(pods: Iterable[Object]) -> list[str]:
    """Return the sorted nodes of pods, with duplicates."""
    return sorted(map(node_of, pods))
