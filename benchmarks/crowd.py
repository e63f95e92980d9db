"""A cluster with thousands of nodes that do at once what is asked of them; ``benchmarks.operator`` measures on it.

The API server is the sandbox's, over HTTPS; nodes, DaemonSets' pods and validations are objects that are put into its
store: nothing is simulated, so that the machine's processors are left to the server and to whoever is measured. A node
is as large as a real one: NFD's labels, conditions, thirty images, managed fields; its pods have all that a kubelet
reports.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.item import Item
from gpu_provision.sandbox.apiserver.registry import WriteOptions
from gpu_provision.sandbox.apiserver.requestlog import Request, requests
from gpu_provision.sandbox.apiserver.targets import Target
from tests.sandbox.apiserver.conftest import Running

NFD = "feature.node.kubernetes.io/"
OURS = "nvidia.com/gpu.present"
_COMPONENT = "gpu-provision.io/component"
_NODES, _PODS, _DAEMONSETS, _DEPLOYMENTS = "/nodes", "/pods", "apps/daemonsets", "apps/deployments"
_CPU_FLAGS = [f"FLAG{number}" for number in range(16)]


@dataclass
class Times:
    """What happened to one node that joined, by a monotonic clock; 0 for what has not."""

    seen: float = 0.0
    labelled: float = 0.0
    first_pod: float = 0.0


@dataclass
class Crowd:
    """The cluster; `close` ends it."""

    folder: Path
    times: dict[str, Times] = field(default_factory=dict)
    _models: dict[str, Object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the server, and do what kubelets and controllers do, whenever something is written."""
        self.running = Running(self.folder / "server", [])
        self._registry = self.running.server.registry
        for storage, react in {
            _NODES: self._on_node,
            _PODS: self._on_pod,
            _DAEMONSETS: self._on_daemonset,
            _DEPLOYMENTS: self._on_deployment,
        }.items():
            self._registry.on_change(storage, react)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.running.server.kubeconfig

    def close(self) -> None:
        """End the server."""
        self.running.stop()

    def requests(self, since: str = "") -> list[Request]:
        """Return what the tool has asked."""
        found = requests(self.running.server.request_log, since)
        return [each for each in found if each.agent.startswith("gpu-provision")]

    def join(self, *names: str, features: bool = True) -> None:
        """Let nodes join; NFD has labelled them already, or says nothing yet."""
        self._on_loop(lambda: [self._put(_NODES, _node(name, features=features)) for name in names])

    def speak(self, name: str) -> None:
        """Let NFD label a node that has joined."""

        def label() -> None:
            node = self._thawed(_NODES, name)
            node["metadata"]["labels"] |= _features()
            self._put(_NODES, node)

        self._on_loop(label)

    def beat(self, *names: str) -> None:
        """Let kubelets report that nothing has changed, as each does every five minutes."""

        def report() -> None:
            for name in names:
                node = self._thawed(_NODES, name)
                for condition in node["status"]["conditions"]:
                    condition["lastHeartbeatTime"] = _now()
                self._put(_NODES, node)

        self._on_loop(report)

    def lose(self, component: str) -> None:
        """Let all pods of a component stop being ready."""

        def stop() -> None:
            for item in self._registry.store.select(_PODS):
                if item.object["metadata"]["labels"].get(_COMPONENT) == component:
                    pod = copy.deepcopy(item.object)
                    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
                    self._put(_PODS, pod)

        self._on_loop(stop)

    def generation(self, name: str) -> int:
        """Return how often a DaemonSet's spec has been written."""
        found = (each.object for each in self._registry.store.select(_DAEMONSETS))
        return next(int(each["metadata"]["generation"]) for each in found if each["metadata"]["name"] == name)

    def _on_loop(self, work: Any) -> None:
        """Do something between two requests."""

        async def working() -> None:
            work()

        self.running.run(working())

    def _put(self, storage: str, obj: Object) -> None:
        """Write an object past the registry, which would check it field by field; tell whoever is to react."""
        before = self._registry.store.get(storage, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
        after = self._registry.store.put(storage, obj)
        if storage == _NODES:
            self._on_node(before, after)

    def _thawed(self, storage: str, name: str, namespace: str = "") -> Object:
        item = self._registry.store.get(storage, name, namespace)
        if item is None:
            raise LookupError(name)
        return copy.deepcopy(item.object)

    def _on_node(self, before: Item | None, after: Item | None) -> None:
        if after is None:
            return
        old, new = (_labels(item.object) if item else {} for item in (before, after))
        if old == new:
            return
        name, now = after.object["metadata"]["name"], time.monotonic()
        times = self.times.setdefault(name, Times())
        if any(key.startswith(NFD) for key in new):
            times.seen = times.seen or now
        if OURS in new:
            times.labelled = times.labelled or now
        for item in self._registry.store.select(_DAEMONSETS):
            self._start(item.object, after.object)

    def _on_daemonset(self, before: Item | None, after: Item | None) -> None:
        if before is not None or after is None:
            return
        for node in self._registry.store.select(_NODES):
            self._start(after.object, node.object)

    def _start(self, daemonset: Object, node: Object) -> None:
        """Have a DaemonSet's pod run on a node, if it belongs there and does not."""
        selector = daemonset["spec"]["template"]["spec"].get("nodeSelector", {})
        labels = _labels(node)
        if any(labels.get(key) != value for key, value in selector.items()):
            return
        owner, name = daemonset["metadata"], node["metadata"]["name"]
        pod_name = f"{owner['name']}-{name}"
        if self._registry.store.get(_PODS, pod_name, owner["namespace"]):
            return
        model = self._models.get(owner["uid"]) or self._models.setdefault(owner["uid"], self._model(daemonset))
        pod = {
            **model,
            "metadata": {**model["metadata"], "name": pod_name, "uid": str(uuid.uuid4())},
            "spec": {**model["spec"], "nodeName": name},
        }
        self._put(_PODS, pod)
        if model["metadata"]["labels"][_COMPONENT] == "driver":
            self.times[name].first_pod = self.times[name].first_pod or time.monotonic()
        if model["metadata"]["labels"][_COMPONENT] == "device_plugin":
            self._offer(name)

    def _model(self, daemonset: Object) -> Object:
        """Return a pod of a DaemonSet as the server itself completes it, ready."""
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
        made = self._registry.create(Target(pods, owner["namespace"], metadata["name"]), body, controller).object
        return {**made, "status": _running(made)}

    def _offer(self, name: str) -> None:
        """Let a device plugin register its GPU, and GPU Feature Discovery count it."""
        node = self._thawed(_NODES, name)
        for part in ("capacity", "allocatable"):
            node["status"][part]["nvidia.com/gpu"] = "1"
        node["metadata"]["labels"] |= {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "Tesla-T4"}
        self._put(_NODES, node)

    def _on_pod(self, before: Item | None, after: Item | None) -> None:
        """End what runs once, and let go what is deleted."""
        if after is None:
            return
        pod, metadata = after.object, after.object["metadata"]
        if metadata.get("deletionTimestamp"):
            self._later(lambda: self._registry.store.remove(_PODS, metadata["name"], metadata["namespace"]))
        elif before is None and pod["spec"].get("restartPolicy") == "Never":
            self._later(lambda: self._succeed(pod))

    def _later(self, work: Any) -> None:
        self.running._loop.call_soon(work)  # noqa: SLF001 - reactions follow the write that they are to

    def _succeed(self, pod: Object) -> None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        self.running.server.append_log(
            metadata["namespace"], metadata["name"], metadata["uid"], container, "Test PASSED\n"
        )
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}
        status = _running(pod) | {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}
        status["containerStatuses"] = [
            {**each, "ready": False, "state": {"terminated": ended}} for each in status["containerStatuses"]
        ]
        self._put(_PODS, {**pod, "metadata": dict(metadata), "status": status})

    def _on_deployment(self, _: Item | None, after: Item | None) -> None:
        if after is None or "availableReplicas" in after.object.get("status", {}):
            return
        count = after.object["spec"].get("replicas", 1)
        generation = after.object["metadata"].get("generation", 1)
        status = {
            "observedGeneration": generation,
            "replicas": count,
            "availableReplicas": count,
            "updatedReplicas": count,
        }
        changed = {**after.object, "metadata": dict(after.object["metadata"]), "status": status}
        self._later(lambda: self._put(_DEPLOYMENTS, changed))


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _features() -> dict[str, str]:
    cpu = {f"{NFD}cpu-cpuid.{flag}": "true" for flag in _CPU_FLAGS}
    kernel = {
        f"{NFD}kernel-version.{part}": value
        for part, value in {"full": "5.15.0-122-generic", "major": "5", "minor": "15"}.items()
    }
    system = {f"{NFD}system-os_release.ID": "ubuntu", f"{NFD}system-os_release.VERSION_ID": "22.04"}
    devices = {f"{NFD}pci-10de.present": "true", f"{NFD}pci-10de.sriov.capable": "true"}
    return cpu | kernel | system | devices


def _node(name: str, *, features: bool) -> Object:
    """Return a node as its kubelet and NFD have written it."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "fleet": "gpu",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "g4dn.xlarge",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": "eu-central-1a",
        **(_features() if features else {}),
    }
    amounts = {"cpu": "64", "memory": "527940436Ki", "pods": "250", "ephemeral-storage": "1843Gi"}
    metadata = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": _now(), "labels": labels}
    metadata["annotations"] = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    metadata["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": _now(), "fieldsV1": _owned(labels)}
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"aws:///eu-central-1a/{name}"},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": list(_conditions()),
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": str(uuid.uuid4()),
                "containerRuntimeVersion": "containerd://1.7.27",
                "kernelVersion": "5.15.0-122-generic",
                "kubeletVersion": "v1.34.1",
                "operatingSystem": "linux",
                "osImage": "Ubuntu 22.04.5 LTS",
            },
            "images": [_image(number) for number in range(30)],
        },
    }


def _owned(labels: Mapping[str, str]) -> Object:
    return {
        "f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in labels}}},
        "f:status": {"f:conditions": {f'k:{{"type":"{kind}"}}': {"f:lastHeartbeatTime": {}} for kind in _CONDITIONS}},
    }


_CONDITIONS = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}


def _conditions() -> Iterator[Object]:
    for kind, status in _CONDITIONS.items():
        yield {
            "type": kind,
            "status": status,
            "reason": f"Kubelet{kind}",
            "message": "kubelet reports this every five minutes",
            "lastHeartbeatTime": _now(),
            "lastTransitionTime": _now(),
        }


def _image(number: int) -> Object:
    digest = f"{number:064x}"
    return {
        "names": [
            f"registry.example.com/team/image-{number}@sha256:{digest}",
            f"registry.example.com/team/image-{number}:1",
        ],
        "sizeBytes": 123456789 + number,
    }


def _running(pod: Mapping[str, Any]) -> Object:
    """Return what a kubelet reports of a pod all of whose containers are ready."""

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

    over = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}}
    spec = pod["spec"]
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _now()}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.0.0.2",
        "podIPs": [{"ip": "10.0.0.2"}],
        "startTime": _now(),
        "qosClass": "BestEffort",
        "initContainerStatuses": [of(each, over) for each in spec.get("initContainers", ())],
        "containerStatuses": [of(each, {"running": {"startedAt": _now()}}) for each in spec["containers"]],
    }
