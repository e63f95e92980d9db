"""What happens on each node of a real cluster, as a watch shows it; independent of what the tool reports."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.crowd import Times
from tests.scenarios.client import Client

_KINDS = ("daemonsets", "nodes", "pods")
_COMPONENT = "gpu-provision.io/component"
_Interval = tuple[float, float]


@dataclass
class _Pod:
    """Moments of one pod, 0 for what has not happened."""

    node: str
    owner: str
    component: str
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
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Follow each kind in a thread."""
        for kind in _KINDS:
            threading.Thread(target=self._follow, args=(kind,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End each thread with its watch."""
        self._is_over.set()

    def _follow(self, kind: str) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):  # a busy machine, or silence
                self._watch(kind)

    def _watch(self, kind: str) -> None:
        with contextlib.closing(Client(self.kubeconfig)) as client, client.watch(kind, "-n", "") as events:
            for event in events:
                self._take(kind, event.object, is_gone=event.type == "DELETED")
                if self._is_over.is_set():
                    return

    def _take(self, kind: str, item: Mapping[str, Any], *, is_gone: bool) -> None:
        metadata, now = item["metadata"], time.monotonic()
        labels = metadata.get("labels") or {}
        match kind:
            case "nodes":
                history = self._labels[metadata["name"]]
                before = history[-1][1] if history else {}
                if labels != before:
                    self.times[metadata["name"]].note(before, labels, now)
                    history.append((now, labels))
            case "daemonsets":
                selector = item["spec"]["template"]["spec"].get("nodeSelector") or {}
                self._selectors.setdefault(metadata["uid"], (now, selector))
            case _ if _COMPONENT in labels and item["spec"].get("nodeName"):
                self._take_pod(item, now, is_gone=is_gone)

    def _take_pod(self, item: Mapping[str, Any], now: float, *, is_gone: bool) -> None:
        metadata, status = item["metadata"], item.get("status") or {}
        owner = next((each["uid"] for each in metadata.get("ownerReferences", ())), "")
        pod = self._pods.setdefault(
            metadata["uid"], _Pod(item["spec"]["nodeName"], owner, metadata["labels"][_COMPONENT], now)
        )
        conditions = status.get("conditions") or ()
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if is_ready or status.get("phase") == "Succeeded":
            pod.ready = pod.ready or now
        if metadata.get("deletionTimestamp") or is_gone:
            pod.deleted = pod.deleted or now
        if is_gone:
            pod.gone = pod.gone or now

    def at_work(self, node: str, since: float, up_to: float, components: Container[str] | None = None) -> float:
        """Return for how many seconds of a time the cluster itself was at work on a node.

        It is while a pod of the stack is due there and not ready, or terminates, and while NFD has a worker there and
        the node has no label of NFD.

        Args:
            components: Only pods of these count; all by default.
        """
        pods = [pod for pod in self._pods.copy().values() if pod.node == node]
        counted = [pod for pod in pods if components is None or pod.component in components]
        found = [*(each for pod in counted for each in self._due(pod, pods)), *self._nfd(node, pods)]
        bounded = sorted((max(begin, since), min(end or up_to, up_to)) for begin, end in found)
        total, reached = 0.0, since
        for begin, end in bounded:
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def _due(self, pod: _Pod, pods: Sequence[_Pod]) -> Iterator[_Interval]:
        before = [each.gone for each in pods if each.owner == pod.owner and 0 < each.gone <= pod.created]
        begin = max([self._belongs(pod), *before]) if pod.owner in self._selectors else pod.created
        yield begin, pod.ready or pod.gone
        if pod.deleted:
            yield pod.deleted, pod.gone

    def _belongs(self, pod: _Pod) -> float:
        """Return since when the DaemonSet of a pod has selected its node."""
        exists, selector = self._selectors[pod.owner]
        since = 0.0
        for moment, labels in self._labels[pod.node]:
            if moment > pod.created:
                break
            matches = selector.items() <= labels.items()
            since = (since or moment) if matches else 0.0
        return max(exists, since or pod.created)

    def _nfd(self, node: str, pods: Sequence[_Pod]) -> Iterator[_Interval]:
        seen = self.times[node].seen
        if ready := [pod.ready for pod in pods if 0 < pod.ready <= seen]:
            yield min(ready), seen
