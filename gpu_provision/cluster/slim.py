"""What is kept of nodes and pods by who follows thousands of them; pure.

A node is 20 KB on the wire and 100 KB as a dict, most of it images, books of field managers and heartbeats that nobody
here reads; ten pods of a stack on it are five times that. What is equal on many nodes is held once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from sys import intern
from typing import Any

from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.model.cluster import Manifest

_KINDS_OF_PARTS = 8192  # of parts that are held once; a stack has some twenty, each failing pod some of its own

_NODE_STATUS = ("allocatable", "capacity")
_NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeletVersion",
    "operatingSystem",
    "osImage",
)
_NODE_CONDITION = ("type", "status", "reason", "message")
_POD_CONDITION = ("type", "status", "reason", "message")
_CONTAINER_STATUS = ("name", "ready", "restartCount", "state", "lastState")
_NOT_READ = frozenset({"startedAt", "finishedAt", "containerID"})
_NOT_READ_OF_TIMED = frozenset({"containerID"})
_TIMED = frozenset(
    {"driver", "toolkit", "device_plugin", "validator", "device_plugin_validation"}
)  # see planning.verdicts


def slim(item: Manifest) -> Manifest:
    """Return of a node or a pod what planning, rollouts and diagnosis read; anything else as it is.

    Of pods that belong to no stack the whole spec is kept: a rollout asks it whether the pod uses GPUs.
    """
    match item["kind"]:
        case "Node":
            return {**item, "metadata": _node_metadata(item["metadata"]), "status": _node_status(item)}
        case "Pod" if STACK in (item["metadata"].get("labels") or {}):
            return {
                **item,
                "metadata": _metadata(item["metadata"]),
                "spec": _spec(item["spec"]),
                "status": _status(item.get("status") or {}, is_timed=_is_timed(item)),
            }
        case "Pod":
            return {**item, "metadata": _metadata(item["metadata"])}
        case _:
            return item


def is_same(one: Manifest, other: Manifest) -> bool:
    """Whether two versions of an object differ in nothing but their version: a heartbeat, once both are slim."""
    return {**one, "metadata": _without_version(one)} == {**other, "metadata": _without_version(other)}


def _without_version(item: Manifest) -> dict[str, Any]:
    return {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    kept |= _interned({key: kept[key] for key in ("namespace", "creationTimestamp") if key in kept})
    shared = {key: _once(kept[key]) for key in ("labels", "annotations", "ownerReferences") if key in kept}
    return kept | shared


def _node_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    words = {key: _interned(kept[key]) for key in ("labels", "annotations") if kept.get(key)}
    books = [entry for entry in metadata.get("managedFields") or () if _is_of_cordon(entry)]
    return kept | words | ({"managedFields": _once(books)} if books else {})


def _is_of_cordon(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says who cordoned the node, which decides whose it is to uncordon it."""
    return "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})


def _interned(words: Mapping[str, str]) -> dict[str, str]:
    return {intern(key): intern(value) for key, value in words.items()}


def _node_status(node: Manifest) -> dict[str, Any]:
    status = node.get("status") or {}
    kept = {key: _once(status[key]) for key in _NODE_STATUS if key in status}
    info = _only(_NODE_INFO, status.get("nodeInfo") or {})
    return kept | {
        "conditions": _once([_only(_NODE_CONDITION, each) for each in status.get("conditions") or ()]),
        "nodeInfo": _interned(info),
    }


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Keep where a pod of ours runs, and what is in its containers: the installation of a driver is read off that."""
    kept = {key: _once(_containers(spec[key])) for key in ("containers",) if key in spec}
    return kept | (_interned(_only(("nodeName",), spec)) or _only(("affinity",), spec))


def _containers(containers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [_only(("name", "image", "env"), each) for each in containers]


def _is_timed(pod: Mapping[str, Any]) -> bool:
    return pod["metadata"]["labels"].get(COMPONENT) in _TIMED


def _status(status: Mapping[str, Any], *, is_timed: bool) -> dict[str, Any]:
    dropped = _NOT_READ_OF_TIMED if is_timed else _NOT_READ
    of_container = partial(_container_status, dropped)
    kept: dict[str, Any] = _only(("phase", "reason", "message"), status)
    lists: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "conditions": lambda each: _only(_POD_CONDITION, each),
        "containerStatuses": of_container,
        "initContainerStatuses": of_container,
    }
    return kept | {key: _once(list(map(of, status[key]))) for key, of in lists.items() if status.get(key)}


def _container_status(dropped: Collection[str], status: Mapping[str, Any]) -> dict[str, Any]:
    kept = _only(_CONTAINER_STATUS, status)
    return kept | {key: _without(dropped, kept[key]) for key in ("state", "lastState") if kept.get(key)}


def _without(dropped: Collection[str], state: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: {key: value for key, value in each.items() if key not in dropped} for name, each in state.items()}


def _only(keys: Iterable[str], whole: Mapping[str, Any]) -> dict[str, Any]:
    return {key: whole[key] for key in keys if key in whole}


def _once(part: Any) -> Any:
    """Return an equal value of which there is one, however many objects have it."""
    return _parsed(json.dumps(part))


@lru_cache(_KINDS_OF_PARTS)
def _parsed(text: str) -> Any:
    return json.loads(text)
