"""What the server adds to objects of the built-in kinds: defaults, then what admission plugins add or refuse."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import Cause, StatusError, forbidden
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.objects import at, deep_copy

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


def _admit_pod(store: Store, info: ResourceInfo, pod: Object) -> None:
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


def _admit_node(_store: Store, _info: ResourceInfo, node: Object) -> None:
    spec = node.setdefault("spec", {})
    taints: list[Any] = spec.get("taints") or []
    if not any(taint.get("key") == _NOT_READY for taint in taints):
        spec["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _admit_job(_store: Store, _info: ResourceInfo, job: Object) -> None:
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


def _admit_daemonset(store: Store, info: ResourceInfo, daemonset: Object) -> None:
    """Count the changes of a DaemonSet's template in the annotation that every real cluster shows."""
    metadata = daemonset["metadata"]
    item = store.get(info.storage, metadata["name"], metadata["namespace"])
    old = item.object if item else {}
    count = int((at(old, "metadata", "annotations") or {}).get(_TEMPLATE_GENERATION, 0))
    same = at(old, "spec", "template") == at(daemonset, "spec", "template")
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {**annotations, _TEMPLATE_GENERATION: str(count if same else count + 1)}


def _admit_service(store: Store, info: ResourceInfo, service: Object) -> None:
    """Give a Service the first free address, unless it has one, had one before, or needs none."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    item = store.get(info.storage, service["metadata"]["name"], service["metadata"]["namespace"])
    fill(spec, {"clusterIP": at(item.object, "spec", "clusterIP")} if item else {})
    if not spec.get("clusterIP"):
        taken = {at(item.object, "spec", "clusterIP") for item in store.select(info.storage)}
        hosts = (str(_SERVICE_NETWORK[number]) for number in range(_FIRST_DYNAMIC, _SERVICE_NETWORK.num_addresses))
        spec["clusterIP"] = next(address for address in hosts if address not in taken)
    fill(spec, {"clusterIPs": [spec["clusterIP"]]})


_Plugin = Callable[[Store, ResourceInfo, Object], None]
_ON_UPDATE: dict[str, _Plugin] = {"/services": _admit_service, "apps/daemonsets": _admit_daemonset}
_ON_CREATE: dict[str, _Plugin] = {**_ON_UPDATE, "/pods": _admit_pod, "/nodes": _admit_node, "batch/jobs": _admit_job}
_RBAC = "rbac.authorization.k8s.io"
_POD_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_HTTP_GET = {"path": "/", "scheme": "HTTP"}
_VOLUMES: dict[str, Object] = {
    "configMap": {"defaultMode": 0o644},
    "secret": {"defaultMode": 0o644},
    "downwardAPI": {"defaultMode": 0o644},
    "projected": {"defaultMode": 0o644},
    "hostPath": {"type": ""},
}


def set_defaults(obj: Object, info: ResourceInfo) -> None:
    """Fill in what a client left out; ``obj`` must be the caller's own copy."""
    if info.defaults:
        _fill_deep(obj, deep_copy(info.defaults))
    template = at(obj, "spec", "template")
    if isinstance(template, dict) and not info.custom:
        template.setdefault("metadata", {})
        if isinstance(template.get("spec"), dict):
            _set_pod_spec_defaults(template["spec"])
    if special := _KINDS.get(info.storage):
        special(obj)


def fill(target: Any, defaults: Object) -> None:
    """Set the keys that are missing; what is no object stays as it is."""
    for key, value in defaults.items() if isinstance(target, dict) else ():
        if target.get(key) is None:
            target[key] = value


def _fill_deep(target: Object, defaults: Object) -> None:
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _fill_deep(target[key], value)
        elif target.get(key) is None:
            target[key] = value


def list_containers(spec: Object) -> Iterator[Object]:
    """Every container of a pod specification, init containers first."""
    for field in ("initContainers", "containers"):
        yield from spec.get(field) or ()


def _set_pod_spec_defaults(spec: Object) -> None:
    """Fill in the defaults of a pod specification, as for a pod and for a template."""
    fill(spec, {**_POD_SPEC, "securityContext": {}})
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for volume in spec.get("volumes") or ():
        if set(volume) <= {"name"}:
            volume["emptyDir"] = {}
        for source, defaults in _VOLUMES.items():
            fill(volume.get(source), defaults)
        for part in at(volume, "projected", "sources") or ():
            fill(part.get("serviceAccountToken"), {"expirationSeconds": 3600})
    for container in list_containers(spec):
        _set_container_defaults(container, host_network=bool(spec.get("hostNetwork")))


def _set_container_defaults(container: Object, *, host_network: bool) -> None:
    fill(container, {**_CONTAINER, "resources": {}})
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(str(container.get("image") or ""))
    for port in container.get("ports") or ():
        fill(port, {"protocol": "TCP"})
        if host_network and port.get("containerPort"):
            fill(port, {"hostPort": port["containerPort"]})
    for variable in container.get("env") or ():
        fill(at(variable, "valueFrom", "fieldRef"), {"apiVersion": "v1"})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        fill(container.get(name), _PROBE)
        fill(at(container, name, "httpGet"), _HTTP_GET)
        fill(at(container, name, "grpc"), {"service": ""})
    for hook in ("postStart", "preStop"):
        fill(at(container, "lifecycle", hook, "httpGet"), _HTTP_GET)


def _pull_policy(image: str) -> str:
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return "Always" if tag in ("", "latest") and "@" not in image else "IfNotPresent"


def _workload_defaults(obj: Object) -> None:
    strategy = obj["spec"].get("strategy") or obj["spec"].get("updateStrategy")
    if isinstance(strategy, dict) and strategy["type"] != "RollingUpdate":
        strategy.pop("rollingUpdate", None)


def _job_defaults(obj: Object) -> None:
    spec = obj["spec"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill(spec, {"parallelism": 1})


def _pod_defaults(obj: Object) -> None:
    spec = obj["spec"]
    _set_pod_spec_defaults(spec)
    for container in list_containers(spec):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
    obj.setdefault("status", {}).setdefault("qosClass", _quality_of_service(spec))


def _quality_of_service(spec: Object) -> str:
    parts = [container.get("resources") or {} for container in list_containers(spec)]
    pairs = [
        ((part.get("requests") or {}).get(name), (part.get("limits") or {}).get(name))
        for part in parts
        for name in ("cpu", "memory")
    ]
    if not any(request or limit for request, limit in pairs):
        return "BestEffort"
    return "Guaranteed" if all(limit and request == limit for request, limit in pairs) else "Burstable"


def _namespace_defaults(obj: Object) -> None:
    labels = dict(obj["metadata"].get("labels") or {})
    obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}


def _service_defaults(obj: Object) -> None:
    spec = obj["spec"]
    for port in spec.get("ports") or ():
        fill(port, {"protocol": "TCP", "targetPort": port.get("port")})
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] != "ExternalName":
        fill(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})


def _secret_defaults(obj: Object) -> None:
    text = obj.pop("stringData", None) or {}
    if text:
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _role_binding_defaults(obj: Object) -> None:
    fill(obj.get("roleRef"), {"apiGroup": _RBAC})
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            fill(subject, {"apiGroup": _RBAC})


_KINDS: dict[str, Callable[[Object], None]] = {
    "/pods": _pod_defaults,
    "/namespaces": _namespace_defaults,
    "/services": _service_defaults,
    "/secrets": _secret_defaults,
    "apps/daemonsets": _workload_defaults,
    "apps/deployments": _workload_defaults,
    "apps/statefulsets": _workload_defaults,
    "batch/jobs": _job_defaults,
    f"{_RBAC}/rolebindings": _role_binding_defaults,
    f"{_RBAC}/clusterrolebindings": _role_binding_defaults,
}
