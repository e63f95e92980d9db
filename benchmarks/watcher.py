"""What happens on each node of a real cluster, as a watch shows it; independent of what the tool reports."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpu_provision.cluster.client import connect
from gpu_provision.cluster.stream import WatchStream
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import ProvisionError
from tests.crowd import NFD, Times

_KINDS = (Kind("apps/v1", "DaemonSet"), Kind("v1", "Node"), Kind("v1", "Pod"))
_COMPONENT = "gpu-provision.io/component"
_Interval = tuple[float, float]


@dataclass
class _Pod:
    """Moments of one pod, 0 for what has not happened."""

    node: str
    owner: str
    created: float
    ready: float = 0.0
    deleted: float = 0.0
    gone: float = 0.0


@dataclass
class Watcher:
    """Follows nodes, DaemonSets and pods of the stack, in a thread for each kind, until its context ends."""

    kubeconfig: Path
    times: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))
    _labels: dict[str, list[tuple[float, Mapping[str, str]]]] = field(default_factory=lambda: defaultdict(list))
    _selectors: dict[str, tuple[float, Mapping[str, str]]] = field(default_factory=dict)
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _streams: dict[Kind, WatchStream] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """List each kind, then follow it."""
        for kind in _KINDS:
            cluster = connect(str(self.kubeconfig))
            listing = cluster.list(kind)
            for item in listing.items:
                self._take(kind.kind, item, is_gone=False)
            work = (cluster, kind, listing.resource_version)
            threading.Thread(target=self._follow, args=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the streams, and each thread with its stream."""
        self._is_over.set()
        for stream in self._streams.values():
            stream.close()

    def _follow(self, cluster: Any, kind: Kind, version: str) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(ProvisionError):
                self._streams[kind] = cluster.watch(kind, version)
                for event in self._streams[kind]:
                    if event.type != "BOOKMARK":
                        self._take(kind.kind, event.object, is_gone=event.type == "DELETED")
                    version = event.object["metadata"]["resourceVersion"]
            if not self._is_over.wait(1.0):  # the stream broke on a busy machine
                with contextlib.suppress(ProvisionError):
                    version = cluster.list(kind).resource_version

    def _take(self, kind: str, item: Mapping[str, Any], *, is_gone: bool) -> None:
        metadata, now = item["metadata"], time.monotonic()
        labels = metadata.get("labels") or {}
        match kind:
            case "Node":
                history = self._labels[metadata["name"]]
                before = history[-1][1] if history else {}
                if labels != before:
                    self.times[metadata["name"]].note(before, labels, now)
                    history.append((now, labels))
            case "DaemonSet":
                selector = item["spec"]["template"]["spec"].get("nodeSelector") or {}
                self._selectors.setdefault(metadata["uid"], (now, selector))
            case _ if _COMPONENT in labels and item["spec"].get("nodeName"):
                self._take_pod(item, now, is_gone=is_gone)

    def _take_pod(self, item: Mapping[str, Any], now: float, *, is_gone: bool) -> None:
        metadata, status = item["metadata"], item.get("status") or {}
        owner = next((each["uid"] for each in metadata.get("ownerReferences", ())), "")
        pod = self._pods.setdefault(metadata["uid"], _Pod(item["spec"]["nodeName"], owner, now))
        conditions = status.get("conditions") or ()
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if is_ready or status.get("phase") == "Succeeded":
            pod.ready = pod.ready or now
        if metadata.get("deletionTimestamp") or is_gone:
            pod.deleted = pod.deleted or now
        if is_gone:
            pod.gone = pod.gone or now

    def at_work(self, node: str, since: float, up_to: float) -> float:
        """Return for how many seconds of a time the cluster itself was at work on a node.

        It is while a pod of the stack is due there and not ready, or terminates, and while NFD has a worker there and
        the node has no label of NFD.
        """
        found = [*self._due(node), *self._nfd(node)]
        bounded = sorted((max(begin, since), min(end or up_to, up_to)) for begin, end in found)
        total, reached = 0.0, since
        for begin, end in bounded:
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def _due(self, node: str) -> Iterator[_Interval]:
        pods = [pod for pod in self._pods.copy().values() if pod.node == node]
        for pod in pods:
            before = [each.gone for each in pods if each.owner == pod.owner and 0 < each.gone <= pod.created]
            begin = max([self._belongs(pod, node), *before]) if pod.owner in self._selectors else pod.created
            yield begin, pod.ready or pod.gone
            if pod.deleted:
                yield pod.deleted, pod.gone

    def _belongs(self, pod: _Pod, node: str) -> float:
        """Return since when the DaemonSet of a pod has selected the node."""
        exists, selector = self._selectors[pod.owner]
        since = 0.0
        for moment, labels in self._labels[node]:
            if moment > pod.created:
                break
            matches = selector.items() <= labels.items()
            since = (since or moment) if matches else 0.0
        return max(exists, since or pod.created)

    def _nfd(self, node: str) -> Iterator[_Interval]:
        seen, pods = self.times[node].seen, self._pods.copy().values()
        ready = [pod.ready for pod in pods if pod.node == node and 0 < pod.ready <= seen]
        first = [moment for moment, labels in self._labels[node] if any(key.startswith(NFD) for key in labels)]
        if ready and first:
            yield min(ready), first[0]
