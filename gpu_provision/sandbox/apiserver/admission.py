"""What the API server makes of an object before it keeps it: completed, checked, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.addresses import assign_addresses
from gpu_provision.sandbox.apiserver.custom_resources import CustomResources
from gpu_provision.sandbox.apiserver.defaults import set_defaults, set_initial_status
from gpu_provision.sandbox.apiserver.metadata import carry_over, desired_state, start
from gpu_provision.sandbox.apiserver.objects import at, copied
from gpu_provision.sandbox.apiserver.pod_defaults import fill
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.status import Cause, StatusError, bad_request, forbidden, invalid
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.apiserver.subresources import restricted
from gpu_provision.sandbox.apiserver.validation import change_causes, name_causes, object_causes

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


_EMPTY_IS_ABSENT = ("managedFields", "finalizers", "ownerReferences", "labels", "annotations")

_BORN_WITH_STATUS = frozenset({"/nodes"})  # kubelets register with one


class Rules:
    """The rules of one cluster; they look at other objects, such as namespaces and priority classes."""

    def __init__(self, store: Store, custom: CustomResources) -> None:
        """``custom`` knows the schemas of custom resources."""
        self._store, self._custom = store, custom

    def new(self, obj: Object, info: ResourceInfo) -> None:
        """Complete and check a new object in place. Raises StatusError."""
        admitted_to_namespace(self._store, info, obj)
        if info.has_status and info.storage not in _BORN_WITH_STATUS:
            obj.pop("status", None)
        start(obj, info)
        self._complete(obj, info, admit_new)
        set_initial_status(obj, info.storage)
        self._check(obj, info, name_causes(obj["metadata"]["name"], info.storage))

    def changed(self, info: ResourceInfo, old: Object, body: Object, subresource: str) -> Object:
        """Return what ``old`` becomes by a write of ``body`` through a subresource. Raises StatusError."""
        new = restricted(old, body, info, subresource)
        carry_over(old, new)
        if not subresource:
            self._complete(new, info, admit_changed)
        for field in _EMPTY_IS_ABSENT:
            if not new["metadata"].get(field):
                new["metadata"].pop(field, None)
        if subresource != "status" or info.custom:
            self._check(new, info, [*_finalizer_causes(old, new), *self._change_causes(old, new, info)])
        _count_generation(info, old, new)
        return new

    def _complete(self, obj: Object, info: ResourceInfo, admit: Callable[[Store, ResourceInfo, Object], None]) -> None:
        try:
            self._custom.complete(obj, info)
            set_defaults(obj, info.storage)
            admit(self._store, info, obj)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(obj, error) from error

    def _check(self, obj: Object, info: ResourceInfo, causes: list[Cause]) -> None:
        try:
            causes = [*causes, *object_causes(obj, info.storage), *self._custom.causes(obj, info)]
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(obj, error) from error
        if causes:
            raise invalid(info, obj["metadata"]["name"], causes)

    @staticmethod
    def _change_causes(old: Object, new: Object, info: ResourceInfo) -> list[Cause]:
        try:
            return change_causes(old, new, info.storage)
        except (AttributeError, TypeError, KeyError) as error:
            raise _wrong_shape(new, error) from error


def _finalizer_causes(old: Object, new: Object) -> list[Cause]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
    if not added:
        return []
    names = ", ".join(f'"{name}"' for name in sorted(added))
    message = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{names}}}"
    return [Cause("FieldValueForbidden", f"Forbidden: {message}", "metadata.finalizers")]


def _count_generation(info: ResourceInfo, old: Object, new: Object) -> None:
    if not info.counts_generations:
        return
    without_status = info.has_status or not info.custom
    if desired_state(old, without_status=without_status) != desired_state(new, without_status=without_status):
        new["metadata"]["generation"] = (at(old, "metadata", "generation") or 0) + 1


def _wrong_shape(obj: Object, error: Exception) -> StatusError:
    kind, version = obj.get("kind"), obj.get("apiVersion")
    return bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}: a field has the wrong type: {error}'
    )
