"""What admission plugins of a real cluster add to new objects, or refuse; kind by kind."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.defaults import fill
from gpu_provision.sandbox.apiserver.errors import Cause, StatusError, forbidden
from gpu_provision.sandbox.apiserver.objects import at, deep_copy
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Store

_SERVICE_NETWORK, _FIRST_DYNAMIC = ipaddress.ip_network("10.96.0.0/12"), 10
_TOLERATED_SECONDS = 300
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_PRIORITIES = "scheduling.k8s.io/priorityclasses"


def check_namespace(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Refuse a new object whose namespace is missing (404) or terminating (403)."""
    if not info.namespaced:
        return
    namespace = obj["metadata"]["namespace"]
    item = store.get("/namespaces", namespace)
    if item is None:
        details = {"name": namespace, "kind": "namespaces"}
        raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found', details=details)
    if item.object["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        raise forbidden(info, obj["metadata"].get("name", ""), why, causes=[cause])


def admit_new(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Complete a new object that has its name and uid. Raises StatusError 403."""
    if plugin := _ON_CREATE.get(info.storage):
        plugin(store, info, obj)


def admit_changed(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Complete a changed object."""
    if plugin := _ON_UPDATE.get(info.storage):
        plugin(store, info, obj)


def _pod(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec, name = pod["spec"], pod["metadata"]["name"]
    _set_service_account(store, info, pod)
    _set_priority(store, info, spec, name)
    _set_runtime_class(store, info, spec, name)
    tolerations = spec.get("tolerations") or []
    for key in (_NOT_READY, _UNREACHABLE):
        if not any(_tolerates(row, key) for row in tolerations):
            default = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            tolerations = [*tolerations, {"key": key, **default}]
    spec["tolerations"] = tolerations


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def _set_service_account(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    name = spec.get("serviceAccountName") or "default"
    account = store.get("/serviceaccounts", name, namespace)
    if account is None:
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden(info, pod["metadata"]["name"], why)
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    if secrets := account.object.get("imagePullSecrets"):
        fill(spec, {"imagePullSecrets": deep_copy(secrets)})


def _set_priority(store: Store, info: ResourceInfo, spec: Object, pod: str) -> None:
    if name := spec.get("priorityClassName"):
        item = store.get(_PRIORITIES, name)
        if item is None:
            raise forbidden(info, pod, f"no PriorityClass with name {name} was found")
        spec["priority"] = item.object["value"]
        spec["preemptionPolicy"] = item.object.get("preemptionPolicy", "PreemptLowerPriority")
    fill(spec, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})


def _set_runtime_class(store: Store, info: ResourceInfo, spec: Object, pod: str) -> None:
    name = spec.get("runtimeClassName")
    if not name:
        return
    item = store.get("node.k8s.io/runtimeclasses", name)
    if item is None:
        raise forbidden(info, pod, f'pod rejected: RuntimeClass "{name}" not found')
    if selector := at(item.object, "scheduling", "nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
    if tolerations := at(item.object, "scheduling", "tolerations"):
        spec["tolerations"] = [*(spec.get("tolerations") or []), *deep_copy(tolerations)]


def _node(_store: Store, _info: ResourceInfo, node: Object) -> None:
    spec = node.setdefault("spec", {})
    taints: list[Any] = spec.get("taints") or []
    if not any(taint.get("key") == _NOT_READY for taint in taints):
        spec["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _job(_store: Store, _info: ResourceInfo, job: Object) -> None:
    """Select the job's own pods by its uid, unless the user does it."""
    spec, uid, name = job["spec"], job["metadata"]["uid"], job["metadata"]["name"]
    if spec.get("manualSelector"):
        return
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = {
        **(template.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }


def _daemonset(store: Store, info: ResourceInfo, daemonset: Object) -> None:
    """Count the changes of a DaemonSet's template in the annotation that every real cluster shows."""
    metadata = daemonset["metadata"]
    item = store.get(info.storage, metadata["name"], metadata["namespace"])
    old = item.object if item else {}
    count = int((at(old, "metadata", "annotations") or {}).get(_TEMPLATE_GENERATION, 0))
    same = at(old, "spec", "template") == at(daemonset, "spec", "template")
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {**annotations, _TEMPLATE_GENERATION: str(count if same else count + 1)}


def _service(store: Store, info: ResourceInfo, service: Object) -> None:
    """Give a Service the first free address, unless it has one or needs none."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        taken = {at(item.object, "spec", "clusterIP") for item in store.select(info.storage)}
        hosts = (str(_SERVICE_NETWORK[number]) for number in range(_FIRST_DYNAMIC, _SERVICE_NETWORK.num_addresses))
        spec["clusterIP"] = next(address for address in hosts if address not in taken)
    fill(spec, {"clusterIPs": [spec["clusterIP"]]})


_Plugin = Callable[[Store, ResourceInfo, Object], None]
_ON_UPDATE: dict[str, _Plugin] = {"/services": _service, "apps/daemonsets": _daemonset}
_ON_CREATE: dict[str, _Plugin] = {**_ON_UPDATE, "/pods": _pod, "/nodes": _node, "batch/jobs": _job}
