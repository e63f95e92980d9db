"""The transform of the informer: of nodes and pods only the fields that planning, rollouts and diagnosis read are kept.

A node is 10 KB on the wire and 100 KB as a dict, a driver pod 14 KB, most of it images, field managers, heartbeats and
volumes. The types here name the fields that are read; msgspec decodes these alone and skips the rest, which costs a
tenth of decoding all. Parts that are equal on many objects are held once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from sys import intern
from typing import Any, TypedDict

import msgspec

from gpu_provision.components.labels import COMPONENT, STACK
from gpu_provision.model.cluster import Kind, Manifest

_KINDS_OF_PARTS = 4096  # of parts that are held once; a stack has some fifty, each failing pod some of its own
_DRIVER = "driver"
# Components of which the starts and ends of containers are read, see planning.verdicts.
_TIMED = frozenset({_DRIVER, "toolkit", "device_plugin", "validator", "device_plugin_validation"})

_OF_CONTAINERS = frozenset({"containerStatuses", "initContainerStatuses"})


def _fields(*names: str, **parts: Any) -> Any:
    """Return the type of a map of which these fields are read; those of ``parts`` have a type of their own."""
    make: Any = TypedDict
    return make("Fields", dict.fromkeys(names, Any) | parts, total=False)


_LIST: Any = list
_OBJECT = ("apiVersion", "kind")
_METADATA_FIELDS = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"),
)
_METADATA = _fields(*_METADATA_FIELDS)
_CONDITION_FIELDS = ("type", "status", "reason", "message")
_CONDITIONS = _LIST[_fields(*_CONDITION_FIELDS)] | None
_TIMED_CONDITIONS = _LIST[_fields(*_CONDITION_FIELDS, "lastTransitionTime")] | None
# Who cordoned a node decides whose it is to uncordon it.
_OWNED = _fields(**{"f:spec": _fields("f:unschedulable") | None})
_FIELD_MANAGER = _fields("manager", "time", fieldsV1=_OWNED | None)
_NODE_INFO = _fields(
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion"),
    *("kubeletVersion", "operatingSystem", "osImage"),
)
_NODE = _fields(
    *_OBJECT,
    metadata=_fields(*_METADATA_FIELDS, managedFields=_LIST[_FIELD_MANAGER] | None),
    spec=_fields("unschedulable", "taints"),
    status=_fields("allocatable", "capacity", conditions=_CONDITIONS, nodeInfo=_NODE_INFO),
)
_STATE = _fields(
    "waiting",
    running=_fields("startedAt") | None,
    terminated=_fields("exitCode", "signal", "reason", "message", "startedAt", "finishedAt") | None,
)
_STATUSES = _LIST[_fields("name", "ready", "restartCount", state=_STATE | None, lastState=_STATE | None)] | None
_STACK_POD = _fields(
    *_OBJECT,
    metadata=_METADATA,
    # The installation of a driver is read off its variables, and the node of a DaemonSet's pod off its affinity.
    spec=_fields("nodeName", "affinity", containers=_LIST[_fields("name", "image", "env")] | None),
    status=_fields(
        *("phase", "reason", "message"),
        conditions=_TIMED_CONDITIONS,
        containerStatuses=_STATUSES,
        initContainerStatuses=_STATUSES,
    ),
)
# A pod that belongs to no stack: a rollout asks its spec whether it uses GPUs.
_POD = _fields(*_OBJECT, "spec", "status", metadata=_METADATA)
# Has hundreds of lines of what a node has, which changes all the time.
_NODE_FEATURE = _fields(*_OBJECT, metadata=_METADATA)
for _shape in (_NODE, _STACK_POD, _POD, _NODE_FEATURE):  # before there are threads, as in `transport`
    msgspec.json.Decoder(_shape)


def keep_all(_kind: Kind, item: Manifest | msgspec.Raw) -> Manifest:
    """Return an object with all of its fields."""
    return item if isinstance(item, dict) else msgspec.json.decode(item, type=dict[str, Any])


def trim(kind: Kind, item: Manifest | msgspec.Raw) -> Manifest:
    """Return of a node, a pod or a NodeFeature what is read of it here; anything else as it is."""
    match kind.kind:
        case "Node":
            return _node(_read(item, _NODE))
        case "Pod":
            mine = _read(item, _STACK_POD)
            if STACK in (mine["metadata"].get("labels") or {}):
                return _stack_pod(mine)
            other = _read(item, _POD)
            return {**other, "metadata": _metadata(other["metadata"])}
        case "NodeFeature":
            return _read(item, _NODE_FEATURE)
        case _:
            return keep_all(kind, item)


def _read(item: Manifest | msgspec.Raw, shape: Any) -> Manifest:
    found: Manifest = msgspec.convert(item, shape) if isinstance(item, dict) else msgspec.json.decode(item, type=shape)
    return found


def is_same(one: Manifest, other: Manifest) -> bool:
    """Whether two versions of an object differ in nothing but their version: a heartbeat, once both are trimmed."""
    version = one["metadata"].get("resourceVersion")
    return one == {**other, "metadata": {**other["metadata"], "resourceVersion": version}}


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept = _share_values(metadata, "labels", "annotations", "ownerReferences")
    return kept | _intern_strings({key: kept[key] for key in ("namespace", "creationTimestamp") if key in kept})


def _node(node: Manifest) -> Manifest:
    metadata: dict[str, Any] = {**node["metadata"]}
    status: dict[str, Any] = {**(node.get("status") or {})}
    words = {key: _intern_strings(metadata[key]) for key in ("labels", "annotations") if metadata.get(key)}
    entries = metadata.pop("managedFields", None) or ()
    cordons = [each for each in entries if "f:unschedulable" in ((each.get("fieldsV1") or {}).get("f:spec") or {})]
    managers = {"managedFields": cordons} if cordons else {}
    kept = _share_values({"conditions": (), **status}, "allocatable", "capacity", "conditions")
    info = {"nodeInfo": _intern_strings(status.get("nodeInfo") or {})}
    return {**node, "metadata": metadata | words | managers, "status": kept | info}


def _intern_strings(words: Mapping[str, str]) -> dict[str, str]:
    return {intern(key): intern(value) for key, value in words.items()}


def _stack_pod(pod: Manifest) -> Manifest:
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if node := spec.pop("nodeName", ""):
        spec = {"containers": spec.get("containers"), "nodeName": intern(node)}
    status = {key: value for key, value in (pod.get("status") or {}).items() if value}
    component = metadata["labels"].get(COMPONENT)
    if component != _DRIVER:  # a vectorAdd that has failed is compared with when the driver got ready
        for condition in status.get("conditions", ()):
            condition.pop("lastTransitionTime", None)
    if component in _TIMED:  # one of its containers alone may have something of its own to say
        own = {key: [*map(_deduplicate, status[key])] for key in _OF_CONTAINERS & status.keys()}
        status = _share_values(status, "phase", "conditions") | own
    else:
        status = _deduplicate(_without_times(status))
    return {**pod, "metadata": _metadata(metadata), "spec": _share_values(spec, "containers"), "status": status}


def _without_times(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status whose containers do not say when they started and ended, so that many pods have the same."""
    for each in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
        for state in (each.get("state") or {}, each.get("lastState") or {}):
            for ran in (state.get("running") or {}, state.get("terminated") or {}):
                ran.pop("startedAt", None)
                ran.pop("finishedAt", None)
    return status


def _share_values(whole: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a map of whose values under ``keys`` there is one each, however many objects have an equal one."""
    return {**whole, **{key: _deduplicate(whole[key]) for key in keys if key in whole}}


def _deduplicate(part: Any) -> Any:
    return _decode_cached(msgspec.json.encode(part))


@lru_cache(_KINDS_OF_PARTS)
def _decode_cached(part: bytes) -> Any:
    return msgspec.json.decode(part)
