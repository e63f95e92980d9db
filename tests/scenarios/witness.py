"""Watches a cluster and tells on which nodes vectorAdd has passed since their stack last changed.

It shares no code with the product: births, restarts and boots are ordered by the API server's own versions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.sandbox.client import load_credentials
from tests.contract.client import Event, Server
from tests.scenarios.world import OPERANDS, World

STANDS_ON = {
    "driver_validation": ("driver", "toolkit"),
    "device_plugin_validation": ("driver", "toolkit", "device_plugin"),
}
"""Validation -> the pods without which it says nothing."""

RUNS_IN = {"driver_validation": "validator", "device_plugin_validation": "device_plugin_validation"}

_PATHS = ("/api/v1/nodes", f"/api/v1/namespaces/{OPERANDS}/pods")
_MARK, _MARKED_NODE, _MARKED_POD = "example.com/seen", "control-1", "witness"
_LIMIT_SECONDS = 120


@dataclass(slots=True)
class _Seen:
    """An object as the watch told of it; times are the cluster's versions, but for ``began``."""

    name: str
    component: str
    renewed: int  # when it last began: when it was created, restarted or booted
    node: str = ""
    count: Any = None  # restarts of a pod's first container, or the boot of a node
    is_there: bool = True
    began: str = ""  # when the pod's vectorAdd began, by its kubelet
    first_seen: int = 0
    proven: int = 0  # when that vectorAdd was first seen; 0 if it has not passed


@dataclass(slots=True)
class Witness:
    """Follows nodes and operands of a world until it is closed."""

    world: World
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _marks: dict[str, str] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _is_closed: bool = False
    _count: int = 0

    def watch(self) -> None:
        """Begin, before the stack is there: of what exists already only the last change is known."""
        for path in _PATHS:
            threading.Thread(target=self._follow, args=(path,), daemon=True).start()

    def close(self) -> None:
        self._is_closed = True

    def _follow(self, path: str) -> None:
        server = Server("any", self.world.kubeconfig, self.world.folder, load_credentials(self.world.kubeconfig))
        version = ""
        while not self._is_closed:
            with (
                contextlib.suppress(OSError, AssertionError),
                server.watch(f"{path}?resourceVersion={version}") as seen,
            ):
                for event in seen:
                    version = event.object["metadata"]["resourceVersion"]
                    with self._news:
                        self._take(event, int(version))
                        self._news.notify_all()

    def _take(self, event: Event, version: int) -> None:
        live = event.object
        metadata, status = live["metadata"], live.get("status", {})
        self._marks[event.name] = metadata.get("annotations", {}).get(_MARK, "")
        component = metadata.get("labels", {}).get("gpu-provision.io/component", "")
        # A Node that registers again in the same boot is the same machine.
        key = metadata["uid"] if live["kind"] == "Pod" else event.name
        known = self._seen.setdefault(key, _Seen(event.name, component, version))
        known.node = live["spec"].get("nodeName", "")
        count = status.get("nodeInfo", {}).get("bootID") or _restarts(live)
        if known.count is not None and count != known.count:
            known.renewed = version
        known.count = count
        known.is_there = event.type != "DELETED" and "deletionTimestamp" not in metadata
        began, has_passed = _vector_add(status)
        if began and began != known.began:
            known.began, known.first_seen = began, version
        known.proven = known.first_seen if has_passed else 0 if began else known.proven

    def catch_up(self) -> None:
        """Wait until everything has been told that has happened so far."""
        self._count += 1
        mark = str(self._count)
        self.world.api.annotate("node", _MARKED_NODE, annotations={_MARK: mark})
        metadata = {"name": _MARKED_POD, "namespace": OPERANDS, "annotations": {_MARK: mark}}
        spec = {"schedulerName": "none", "containers": [{"name": "none", "image": "none"}]}
        self.world.submit({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        with self._news:
            marks = (_MARKED_NODE, _MARKED_POD)
            assert self._news.wait_for(lambda: all(self._marks.get(each) == mark for each in marks), _LIMIT_SECONDS)

    def unproven(self, node: str) -> Iterator[str]:
        """Yield what lacks a proof on a node, as of the last time that the witness caught up."""
        with self._news:
            seen = list(self._seen.values())
        machines = [each for each in seen if each.name == node and each.is_there and not each.component]
        for validation, basis in STANDS_ON.items():
            stack = [each for each in seen if each.node == node and each.component in basis and each.is_there]
            if missing := sorted(set(basis) - {each.component for each in stack}):
                yield f"{validation}: no {', '.join(missing)} on {node}"
                continue
            last = max((*machines, *stack), key=lambda each: each.renewed)
            proofs = [each for each in seen if (each.component, each.node) == (RUNS_IN[validation], node)]
            if not any(proof.proven > last.renewed for proof in proofs):
                yield f"{validation} on {node}: none has passed since {last.component or 'boot'} {last.name} began"


def _restarts(pod: dict[str, Any]) -> int:
    main = pod["spec"].get("containers", [{"name": ""}])[0]["name"]
    found = pod.get("status", {}).get("containerStatuses", [])
    return next((each["restartCount"] for each in found if each["name"] == main), 0)


def _vector_add(status: dict[str, Any]) -> tuple[str, bool]:
    """Return when a pod's vectorAdd began, and whether it has passed."""
    inits = [each for each in status.get("initContainerStatuses", ()) if each["name"] == "cuda-validation"]
    for each in inits or status.get("containerStatuses", ()):
        state = each.get("state", {})
        ended = state.get("terminated", {})
        return (ended or state.get("running", {})).get("startedAt", ""), ended.get("exitCode") == 0
    return "", False
