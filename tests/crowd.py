"""A cluster of thousands of nodes whose kubelets and controllers act at once and cost next to nothing.

The API server is the sandbox's, over HTTPS, in a thread of this process. What kubelets, NFD's worker and the
controllers of workloads would write is written into its store, so that the processors are left to the API server and
the program that is measured. A node has the size of a real one: NFD's labels, conditions, thirty images, managed
fields; a pod has the status that a kubelet reports.
"""

from __future__ import annotations

import copy
import json
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.request import StreamResponse
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest, requests
from gpu_provision.sandbox.apiserver.resources import RequestInfo
from gpu_provision.sandbox.apiserver.store import StoredObject
from tests.data_file import document
from tests.sandbox.apiserver.conftest import Running

TOOL = "gpu-provision"
"""Beginning of the tool's user agent."""

NFD = "feature.node.kubernetes.io/"
OURS = "nvidia.com/gpu.present"
STATE = "nvidia.com/gpu-driver-upgrade-state"
RESTED = frozenset({"", "upgrade-done", "upgrade-required"})
"""Values of that label while no upgrade is under way."""

_COMPONENT = "gpu-provision.io/component"
_NODES, _PODS, _DAEMONSETS, _DEPLOYMENTS = "/nodes", "/pods", "apps/daemonsets", "apps/deployments"
_STATUS_SECONDS = 0.02
_BATCH, _BATCH_SECONDS = 20, 0.02
_VERSION, _TERMINATION_LOG = b'"resourceVersion":"', "/dev/termination-log"
_RANKS = {"toolkit": 1, "device_plugin": 2, "validator": 3, "device_plugin_validation": 4}
"""Order in which pods of a node start; all others are first."""


@dataclass
class Times:
    """When something happened to a node, by a monotonic clock; 0 until then."""

    seen: float = 0.0  # NFD's labels were there
    labelled: float = 0.0  # the label that makes it a GPU node was there
    first_pod: float = 0.0  # its first driver pod was created
    started: float = 0.0  # its driver's upgrade started, the last time
    ended: float = 0.0  # that upgrade ended

    def note(self, before: Mapping[str, str], now: Mapping[str, str], moment: float) -> None:
        if any(key.startswith(NFD) for key in now):
            self.seen = self.seen or moment
        if OURS in now:
            self.labelled = self.labelled or moment
        old, new = (labels.get(STATE, "") for labels in (before, now))
        if old in RESTED and new not in RESTED:
            self.started = moment
        if old != new == "upgrade-done":
            self.ended = moment


@dataclass(frozen=True)
class _Running:
    name: str
    uid: str
    generation: int


@dataclass
class Crowd:
    folder: Path
    takes: Mapping[str, float] = field(default_factory=dict)  # seconds until pods of a component are ready, or done
    times: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))  # of each node
    served: int = 0  # objects sent to clients so far, in lists, in watches and alone
    _models: dict[tuple[str, int], Object] = field(default_factory=dict)
    _pods: dict[str, dict[str, _Running]] = field(default_factory=lambda: defaultdict(dict))
    _ready: set[str] = field(default_factory=set)
    _drivers: dict[str, str] = field(default_factory=dict)
    _starts: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    _due: set[str] = field(default_factory=set)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.running = Running(self.folder / "server")
        self._registry = self.running.server.registry
        for storage, react in {
            _NODES: self._on_node,
            _PODS: self._on_pod,
            _DAEMONSETS: self._on_daemonset,
            _DEPLOYMENTS: self._on_deployment,
        }.items():
            self._registry.on_change(storage, react)
        self._count()

    @property
    def kubeconfig(self) -> Path:
        return self.running.server.kubeconfig

    def close(self) -> None:
        self._is_over = True
        self.running.stop()

    def requests(self, since: str = "") -> list[LoggedRequest]:
        found = requests(self.running.server.request_log, since)
        return [each for each in found if each.agent.startswith(TOOL)]

    def join(self, *names: str) -> None:
        self._on_loop(lambda: [self._put(_NODES, _node(name)) for name in names])

    def beat(self, *names: str) -> None:
        """Write nodes' conditions with a new heartbeat time, as a kubelet does every five minutes."""

        def report() -> None:
            for name in names:
                node = self._thawed(_NODES, name)
                for condition in node["status"]["conditions"]:
                    condition["lastHeartbeatTime"] = _now()
                self._put(_NODES, node)

        self._on_loop(report)

    def daemonset(self, name: str) -> Object | None:
        found = (each.object for each in self._registry.store.select(_DAEMONSETS))
        return next((each for each in found if each["metadata"]["name"] == name), None)

    def _on_loop(self, work: Any) -> None:
        async def working() -> None:
            work()

        self.running.run(working())

    def _later(self, work: Any, seconds: float = 0.0) -> None:
        self.running._loop.call_later(seconds, lambda: None if self._is_over else work())

    def _count(self) -> None:
        """Count the objects of each answer: each has one resourceVersion."""
        face = self.running.server.http
        answer = face._answer

        async def counted(request: Any) -> Any:
            reply, user = await answer(request)
            if not request.headers.get("User-Agent", "").startswith(TOOL):
                return reply, user
            if isinstance(reply, StreamResponse):
                return replace(reply, pieces=self._counted(reply.pieces)), user
            self.served += reply.body.count(_VERSION)
            return reply, user

        face._answer = counted

    async def _counted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            self.served += piece.count(_VERSION)
            yield piece

    def _put(self, storage: str, obj: Object) -> None:
        """Write an object without the registry's validation, which would cost most of the time."""
        before = self._registry.store.get(storage, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
        after = self._registry.store.put(storage, obj)
        if storage == _NODES:
            self._on_node(before, after)

    def _thawed(self, storage: str, name: str, namespace: str = "") -> Object:
        item = self._registry.store.get(storage, name, namespace)
        if item is None:
            raise LookupError(name)
        return item.copy()

    def _on_node(self, before: StoredObject | None, after: StoredObject | None) -> None:
        if after is None:
            return
        old, new = (_labels(item.object) if item else {} for item in (before, after))
        if old == new:
            return
        self.times[after.object["metadata"]["name"]].note(old, new, time.monotonic())
        for item in self._registry.store.select(_DAEMONSETS):
            self._place(item.object, after.object)

    def _on_daemonset(self, before: StoredObject | None, after: StoredObject | None) -> None:
        if after is None:
            self._end_pods(before)
            return
        if before and before.object["metadata"]["generation"] == after.object["metadata"]["generation"]:
            return
        metadata = after.object["metadata"]
        self._report(metadata["uid"])

        def place(node: str) -> None:
            now = self.daemonset(metadata["name"])
            if now and now["metadata"]["uid"] == metadata["uid"]:
                self._place(now, self._thawed(_NODES, node))

        self._in_batches(place, [node.object["metadata"]["name"] for node in self._registry.store.select(_NODES)])

    def _end_pods(self, before: StoredObject | None) -> None:
        metadata = before.object["metadata"] if before else {"uid": "", "namespace": ""}

        def end(pod: str) -> None:
            if self._registry.store.get(_PODS, pod, metadata["namespace"]):
                self._registry.store.remove(_PODS, pod, metadata["namespace"])

        self._in_batches(end, [pod.name for pod in self._pods.pop(metadata["uid"], {}).values()])

    def _in_batches(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        """Do something with many names beside requests, as the controller manager does, not within one."""
        self._later(lambda: self._batch(work, names))

    def _batch(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        """Begin a pause with the end of each batch: on a busy machine, too, requests are answered in between."""
        for name in names[:_BATCH]:
            work(name)
        if rest := names[_BATCH:]:
            self._later(lambda: self._batch(work, rest), _BATCH_SECONDS)

    def _place(self, daemonset: Object, node: Object) -> None:
        owner, name = daemonset["metadata"], node["metadata"]["name"]
        pods, selector = self._pods[owner["uid"]], daemonset["spec"]["template"]["spec"].get("nodeSelector") or {}
        pod, belongs = pods.get(name), selector.items() <= _labels(node).items()
        waits = daemonset["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
        if belongs and pod and (waits or pod.generation == owner["generation"]):
            return
        if pod:
            self._registry.store.remove(_PODS, pods.pop(name).name, owner["namespace"])
        if belongs:
            self._start(daemonset, node)
        if pod or belongs:
            self._report(owner["uid"])

    def _start(self, daemonset: Object, node: Object) -> None:
        owner, name = daemonset["metadata"], node["metadata"]["name"]
        key = owner["uid"], owner["generation"]
        model = self._models.get(key) or self._models.setdefault(key, self._model(daemonset))
        made = _Running(f"{owner['name']}-{uuid.uuid4().hex[:8]}", str(uuid.uuid4()), owner["generation"])
        self._pods[owner["uid"]][name] = made
        pod = {
            **model,
            "metadata": {**model["metadata"], "name": made.name, "uid": made.uid},
            "spec": {**model["spec"], "nodeName": name},
        }
        component = _labels(model)[_COMPONENT]
        if component == "driver":
            self.times[name].first_pod = self.times[name].first_pod or time.monotonic()
            self._drivers[name] = made.uid
        seconds = self.takes.get(component, 0.0)
        if seconds:
            self._put(_PODS, {**pod, "metadata": dict(pod["metadata"]), "status": {"phase": "Pending"}})
        self._run(pod, seconds)

    def _run(self, pod: Object, seconds: float) -> None:
        """Let a pod of a DaemonSet get ready after so many seconds; the validator's begins once the driver's is."""
        driver = self._drivers.get(pod["spec"]["nodeName"]) if _labels(pod)[_COMPONENT] == "validator" else None
        if driver and driver not in self._ready and self._is_due(pod):
            self._later(lambda: self._run(pod, seconds), _STATUS_SECONDS)
        elif seconds:
            self._later(lambda: self._show(pod), seconds)
        else:
            self._show(pod)

    def _is_due(self, pod: Object) -> bool:
        uid = pod["metadata"]["ownerReferences"][0]["uid"]
        now = self._pods[uid].get(pod["spec"]["nodeName"])
        return now is not None and now.uid == pod["metadata"]["uid"]

    def _show(self, pod: Object) -> None:
        metadata, name, component = pod["metadata"], pod["spec"]["nodeName"], _labels(pod)[_COMPONENT]
        uid = metadata["ownerReferences"][0]["uid"]
        if not self._is_due(pod):
            return
        node = self._thawed(_NODES, name)
        self._put(_PODS, {**pod, "status": _running(pod, self._begins(name, component), self._verdict(node))})
        self._ready.add(metadata["uid"])
        self._report(uid)
        if component == "device_plugin":
            self._offer(node)

    def _begins(self, node: str, component: str) -> str:
        """Return a container's start, in whole seconds: after those of the pods that it depends on."""
        starts, rank = self._starts[node], _RANKS.get(component, 0)
        below = [start + 1 for name, start in starts.items() if _RANKS.get(name, 0) < rank]
        starts[component] = max([time.time() + rank, starts.get(component, 0.0) + 1, *below])
        return _as_time(datetime.fromtimestamp(starts[component], UTC))

    def _model(self, daemonset: Object) -> Object:
        owner, template = daemonset["metadata"], daemonset["spec"]["template"]
        reference = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": owner["name"],
            "uid": owner["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {**template["metadata"], "name": f"{owner['name']}-model", "ownerReferences": [reference]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template["spec"])}
        pods = self._registry.catalog.find("", "v1", "pods")
        if pods is None:
            raise LookupError
        controller = WriteOptions(manager="kube-controller-manager", dry_run=True)
        made = self._registry.create(RequestInfo(pods, owner["namespace"], metadata["name"]), body, controller).object
        return {**made, "status": {}}

    def _verdict(self, node: Object) -> str:
        lines = [f"boot {node['status']['nodeInfo']['bootID']}"]
        for item in self._registry.store.select(_DAEMONSETS):
            if _labels(item.object).get(_COMPONENT) == "driver":
                image = item.object["spec"]["template"]["spec"]["containers"][0]["image"]
                lines.append(f"driver {image.rpartition(':')[2].partition('-')[0]}")
        return "\n".join([*lines, "Test PASSED", "Done"])

    def _offer(self, node: Object) -> None:
        """Write what the device plugin and GPU Feature Discovery report of a node."""
        labels = {
            "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.product": "Tesla-T4",
            "nvidia.com/cuda.driver.major": "595",
        }
        if labels.items() <= _labels(node).items():
            return
        for part in ("capacity", "allocatable"):
            node["status"][part]["nvidia.com/gpu"] = "1"
        node["metadata"]["labels"] |= labels
        self._put(_NODES, node)

    def _on_pod(self, before: StoredObject | None, after: StoredObject | None) -> None:
        """Complete a pod that runs once, remove one that is deleted, and replace that of a DaemonSet."""
        if after is None:
            self._later(lambda: self._replace(before.object if before else {}))
            return
        pod, metadata = after.object, after.object["metadata"]
        if metadata.get("deletionTimestamp"):
            self._later(lambda: self._remove(pod))
        elif before is None and pod["spec"].get("restartPolicy") == "Never":
            self._later(lambda: self._succeed(pod), self.takes.get(_labels(pod).get(_COMPONENT, ""), 0.0))

    def _remove(self, pod: Object) -> None:
        self._registry.store.remove(_PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        self._replace(pod)

    def _replace(self, pod: Object) -> None:
        for owner in pod["metadata"].get("ownerReferences", ()):
            gone = self._pods[owner["uid"]].get(pod["spec"].get("nodeName", ""))
            if gone is None or gone.name != pod["metadata"]["name"]:
                continue
            del self._pods[owner["uid"]][pod["spec"]["nodeName"]]
            self._report(owner["uid"])
            if daemonset := self.daemonset(owner["name"]):
                self._place(daemonset, self._thawed(_NODES, pod["spec"]["nodeName"]))
            if _labels(pod).get(_COMPONENT) == "driver":
                self._evict_validator(pod["spec"]["nodeName"])

    def _evict_validator(self, node: str) -> None:
        """Remove the validator's pod, as a driver pod's manager does before it unloads the modules."""
        owner = (self.daemonset("nvidia-operator-validator") or {}).get("metadata", {})
        if running := self._pods[owner.get("uid", "")].get(node):
            self._remove(self._thawed(_PODS, running.name, owner["namespace"]))

    def _succeed(self, pod: Object) -> None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        if self._registry.store.get(_PODS, metadata["name"], metadata["namespace"]) is None:
            return
        self.running.server.api.append_log(
            metadata["namespace"], metadata["name"], metadata["uid"], container, "Test PASSED\n"
        )
        name = _node_of(pod)
        began = self._begins(name, _labels(pod).get(_COMPONENT, ""))
        message = self._verdict(self._thawed(_NODES, name))
        ended = {"exitCode": 0, "reason": "Completed", "message": message, "startedAt": began, "finishedAt": began}
        done = {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}
        status = _running(pod, began, message) | done
        status["containerStatuses"] = [
            {**each, "ready": False, "state": {"terminated": ended}} for each in status["containerStatuses"]
        ]
        spec = {**pod["spec"], "nodeName": name}
        self._put(_PODS, {**pod, "metadata": dict(metadata), "spec": spec, "status": status})

    def _on_deployment(self, _: StoredObject | None, after: StoredObject | None) -> None:
        if after is None:
            return
        count, generation = after.object["spec"].get("replicas", 1), after.object["metadata"].get("generation", 1)
        if after.object.get("status", {}).get("observedGeneration") == generation:
            return
        numbers = dict.fromkeys(("replicas", "availableReplicas", "updatedReplicas", "readyReplicas"), count)
        self._later(lambda: self._set_status(_DEPLOYMENTS, after.object, {"observedGeneration": generation, **numbers}))

    def _report(self, uid: str) -> None:
        """Write a DaemonSet's status soon: once for all pods that change until then."""
        if uid not in self._due:
            self._due.add(uid)
            self._later(lambda: self._set_numbers(uid), _STATUS_SECONDS)

    def _set_numbers(self, uid: str) -> None:
        self._due.discard(uid)
        found = (each.object for each in self._registry.store.select(_DAEMONSETS))
        daemonset = next((each for each in found if each["metadata"]["uid"] == uid), None)
        if daemonset is None:
            return
        generation, pods = daemonset["metadata"]["generation"], self._pods[uid].values()
        there, ready = len(pods), sum(pod.uid in self._ready for pod in pods)
        numbers = {
            **dict.fromkeys(("desiredNumberScheduled", "currentNumberScheduled"), there),
            **dict.fromkeys(("numberReady", "numberAvailable"), ready),
            "numberMisscheduled": 0,
            "numberUnavailable": there - ready,
            "updatedNumberScheduled": sum(pod.generation == generation for pod in pods),
            "observedGeneration": generation,
        }
        self._set_status(_DAEMONSETS, daemonset, numbers)

    def _set_status(self, storage: str, seen: Object, status: Object) -> None:
        metadata = seen["metadata"]
        if self._registry.store.get(storage, metadata["name"], metadata["namespace"]):
            now = self._thawed(storage, metadata["name"], metadata["namespace"])
            self._put(storage, {**now, "status": status})


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _node_of(pod: Object) -> str:
    """Return the node of a pod, or the one that the scheduler has to choose."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])


def _now() -> str:
    return _as_time(datetime.now(UTC))


def _as_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _template() -> str:
    """Return a node as its kubelet and NFD write it, as JSON with names to fill in."""
    node, labels = _DATA["node"], _DATA["node"]["metadata"]["labels"]
    labels |= _DATA["features"] | {f"{NFD}cpu-cpuid.FLAG{number}": "true" for number in range(16)}
    owned = node["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"]
    owned |= {f"f:{key}": {} for key in labels}
    for condition in node["status"]["conditions"]:
        condition |= {"message": "as the kubelet reports it", "lastHeartbeatTime": "NOW", "lastTransitionTime": "NOW"}
    names = [f"registry.example.com/team/image-{number}" for number in range(30)]
    node["status"]["images"] = [
        {"names": [f"{name}@sha256:{number:064x}", f"{name}:1"], "sizeBytes": 123456789 + number}
        for number, name in enumerate(names)
    ]
    return json.dumps(node)


_DATA = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_NODE = _template()


def _node(name: str) -> Object:
    made = _NODE.replace("NAME", name).replace("NOW", _now())
    node: Object = json.loads(made.replace("UID", str(uuid.uuid4())).replace("BOOT", str(uuid.uuid4())))
    return node


def _running(pod: Mapping[str, Any], began: str, verdict: str) -> Object:
    def of(container: Mapping[str, Any], state: Object) -> Object:
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"{container['image']}@sha256:{0:064x}",
            "containerID": f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}",
            "ready": True,
            "restartCount": 0,
            "started": True,
            "state": state,
            "lastState": {},
        }

    def over(container: Mapping[str, Any]) -> Object:
        script = json.dumps([container.get("command"), container.get("args")])
        message = {"message": verdict} if _TERMINATION_LOG in script else {}
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": began}
        return of(container, {"terminated": {**ended, **message}})

    spec, now = pod["spec"], _now()
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        **_DATA["running"],
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now} for kind in kinds
        ],
        "startTime": now,
        "initContainerStatuses": [over(each) for each in spec.get("initContainers", ())],
        "containerStatuses": [of(each, {"running": {"startedAt": began}}) for each in spec["containers"]],
    }
