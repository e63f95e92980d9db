"""What the server adds to new objects, or why it refuses them, by looking at other objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.addresses import assign_addresses
from gpu_provision.sandbox.apiserver.objects import at, copied
from gpu_provision.sandbox.apiserver.pod_defaults import fill
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import Cause, StatusError, forbidden
from gpu_provision.sandbox.apiserver.store import Store

NAMESPACES = "/namespaces"
_TOLERATED_SECONDS = 300
_NOT_READY = "node.kubernetes.io/not-ready"
_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_UNREACHABLE = "node.kubernetes.io/unreachable"


def admitted_to_namespace(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Refuse a new object whose namespace is missing (404) or terminating (403)."""
    if not info.namespaced:
        return
    namespace = obj["metadata"]["namespace"]
    home = store.get(NAMESPACES, namespace)
    if home is None:
        details = {"name": namespace, "kind": "namespaces"}
        raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found', details=details)
    if home.object["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        raise forbidden(info, obj["metadata"].get("name", ""), why, causes=[cause])


def _pod(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec = pod["spec"]
    _service_account(store, info, pod)
    _priority(store, info, pod)
    _runtime_class(store, info, pod)
    tolerations = spec.get("tolerations") or []
    missing = [key for key in (_NOT_READY, _UNREACHABLE) if not any(_tolerates(row, key) for row in tolerations)]
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
        for key in missing
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: Object, key: str) -> bool:
    fits_key = toleration.get("key") in (None, "", key)
    return fits_key and toleration.get("effect") in (None, "", "NoExecute")


def _service_account(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    name = spec.get("serviceAccountName") or "default"
    account = store.get("/serviceaccounts", name, namespace)
    if account is None:
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden(info, pod["metadata"].get("name", ""), why)
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    secrets = account.object.get("imagePullSecrets")
    if secrets and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = copied(secrets)


def _priority(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName")
    if not name:
        defaults = [item.object for item in store.select("scheduling.k8s.io/priorityclasses")]
        chosen = next((row for row in defaults if row.get("globalDefault")), None)
        if chosen is None:
            fill(spec, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
            return
        spec["priorityClassName"] = chosen["metadata"]["name"]
    else:
        item = store.get("scheduling.k8s.io/priorityclasses", name)
        if item is None:
            raise forbidden(info, pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
        chosen = item.object
    spec["priority"] = chosen["value"]
    spec["preemptionPolicy"] = chosen.get("preemptionPolicy", "PreemptLowerPriority")


def _runtime_class(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec = pod["spec"]
    name = spec.get("runtimeClassName")
    if not name:
        return
    item = store.get("node.k8s.io/runtimeclasses", name)
    if item is None:
        why = f'pod rejected: RuntimeClass "{name}" not found'
        raise forbidden(info, pod["metadata"].get("name", ""), why)
    if overhead := at(item.object, "overhead", "podFixed"):
        spec["overhead"] = dict(overhead)
    if selector := at(item.object, "scheduling", "nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
    if tolerations := at(item.object, "scheduling", "tolerations"):
        spec["tolerations"] = [*(spec.get("tolerations") or []), *copied(tolerations)]


def _node(_store: Store, _info: ResourceInfo, node: Object) -> None:
    spec = node.setdefault("spec", {})
    taints: list[Any] = spec.get("taints") or []
    if not any(taint.get("key") == _NOT_READY for taint in taints):
        spec["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _job(_store: Store, _info: ResourceInfo, job: Object) -> None:
    """Select the job's own pods by its uid, unless the user does it."""
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return
    uid, name = metadata["uid"], metadata["name"]
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = {
        **(template.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }


def _template_generation(store: Store, info: ResourceInfo, daemonset: Object) -> None:
    """Count the changes of a DaemonSet's template in the annotation that every real cluster shows."""
    metadata = daemonset["metadata"]
    item = store.get(info.storage, metadata["name"], metadata["namespace"])
    old = item.object if item else {}
    count = int((at(old, "metadata", "annotations") or {}).get(_TEMPLATE_GENERATION, 0))
    same = at(old, "spec", "template") == at(daemonset, "spec", "template")
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {**annotations, _TEMPLATE_GENERATION: str(count if same else count + 1)}


def _service(store: Store, info: ResourceInfo, service: Object) -> None:
    assign_addresses(store, info, service)


Admit = Callable[[Store, ResourceInfo, Object], None]
_ON_UPDATE: dict[str, Admit] = {"/services": _service, "apps/daemonsets": _template_generation}
_ON_CREATE: dict[str, Admit] = {**_ON_UPDATE, "/pods": _pod, "/nodes": _node, "batch/jobs": _job}


def admit_new(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Complete a new object that has its name and uid. Raises StatusError 403 or 422."""
    if rule := _ON_CREATE.get(info.storage):
        rule(store, info, obj)


def admit_changed(store: Store, info: ResourceInfo, obj: Object) -> None:
    """Complete a changed object. Raises StatusError 403 or 422."""
    if rule := _ON_UPDATE.get(info.storage):
        rule(store, info, obj)
