"""Defaults and admission plugins of the built-in kinds."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.errors import Cause, StatusError, forbidden
from gpu_provision.sandbox.apiserver.resources import ResourceInfo
from gpu_provision.sandbox.apiserver.store import Store
from gpu_provision.sandbox.objects import deep_copy, value_at

_SERVICE_NETWORK, _FIRST_DYNAMIC = ipaddress.ip_network("10.96.0.0/12"), 10
_TOLERATED_SECONDS = 300
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_BATCH = "batch.kubernetes.io/"


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


def admit(store: Store, info: ResourceInfo, obj: Object, *, is_new: bool) -> None:
    """Run the admission plugins on an object with name and uid. Raises StatusError 403."""
    match info.storage:
        case "/services":
            _admit_service(store, info, obj)
        case "apps/daemonsets":
            _admit_daemonset(store, info, obj)
        case "/pods" if is_new:
            _admit_pod(store, info, obj)
        case "batch/jobs" if is_new:
            _admit_job(obj)
        case "/nodes" if is_new:
            taints = value_at(obj, "spec", "taints") or []
            if not any(taint.get("key") == _NOT_READY for taint in taints):
                obj.setdefault("spec", {})["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _admit_pod(store: Store, info: ResourceInfo, pod: Object) -> None:
    spec, name, namespace = pod["spec"], pod["metadata"]["name"], pod["metadata"]["namespace"]
    account_name = spec.get("serviceAccountName") or "default"
    account = store.get("/serviceaccounts", account_name, namespace)
    if account is None:
        why = f'service account {namespace}/{account_name}: serviceaccount "{account_name}" not found'
        raise forbidden(info, name, f"error looking up {why}")
    spec["serviceAccountName"] = spec["serviceAccount"] = account_name
    if secrets := account.object.get("imagePullSecrets"):
        fill_missing(spec, {"imagePullSecrets": deep_copy(secrets)})
    if priority_name := spec.get("priorityClassName"):
        priority = store.get("scheduling.k8s.io/priorityclasses", priority_name)
        if priority is None:
            raise forbidden(info, name, f"no PriorityClass with name {priority_name} was found")
        spec["priority"] = priority.object["value"]
        spec["preemptionPolicy"] = priority.object.get("preemptionPolicy", "PreemptLowerPriority")
    fill_missing(spec, {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
    if class_name := spec.get("runtimeClassName"):
        runtime = store.get("node.k8s.io/runtimeclasses", class_name)
        if runtime is None:
            raise forbidden(info, name, f'pod rejected: RuntimeClass "{class_name}" not found')
        if selector := value_at(runtime.object, "scheduling", "nodeSelector"):
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
        if tolerations := value_at(runtime.object, "scheduling", "tolerations"):
            spec["tolerations"] = [*(spec.get("tolerations") or []), *deep_copy(tolerations)]
    _tolerate_absence(spec)


def _tolerate_absence(spec: Object) -> None:
    tolerations = spec.get("tolerations") or []
    for key in (_NOT_READY, _UNREACHABLE):
        own = (row for row in tolerations if row.get("key") in (None, "", key))
        if not any(row.get("effect") in (None, "", "NoExecute") for row in own):
            default = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            tolerations = [*tolerations, {"key": key, **default}]
    spec["tolerations"] = tolerations


def _admit_job(job: Object) -> None:
    """Select the job's pods by its uid, unless the user sets a selector."""
    spec, uid, name = job["spec"], job["metadata"]["uid"], job["metadata"]["name"]
    if spec.get("manualSelector"):
        return
    own = {f"{prefix}controller-uid": uid for prefix in ("", _BATCH)} | {
        f"{prefix}job-name": name for prefix in ("", _BATCH)
    }
    spec["selector"] = {"matchLabels": {f"{_BATCH}controller-uid": uid}}
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    template["labels"] = {**(template.get("labels") or {}), **own}


def _admit_daemonset(store: Store, info: ResourceInfo, daemonset: Object) -> None:
    """Count template changes in the annotation ``deprecated.daemonset.template.generation``."""
    metadata = daemonset["metadata"]
    item = store.get(info.storage, metadata["name"], metadata["namespace"])
    old = item.object if item else {}
    count = int((value_at(old, "metadata", "annotations") or {}).get(_TEMPLATE_GENERATION, 0))
    same = value_at(old, "spec", "template") == value_at(daemonset, "spec", "template")
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {**annotations, _TEMPLATE_GENERATION: str(count if same else count + 1)}


def _admit_service(store: Store, info: ResourceInfo, service: Object) -> None:
    """Allocate the first free cluster IP, unless the Service has or had one, or needs none."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    item = store.get(info.storage, service["metadata"]["name"], service["metadata"]["namespace"])
    fill_missing(spec, {"clusterIP": value_at(item.object, "spec", "clusterIP")} if item else {})
    if not spec.get("clusterIP"):
        taken = {value_at(item.object, "spec", "clusterIP") for item in store.select(info.storage)}
        hosts = (str(_SERVICE_NETWORK[number]) for number in range(_FIRST_DYNAMIC, _SERVICE_NETWORK.num_addresses))
        spec["clusterIP"] = next(address for address in hosts if address not in taken)
    fill_missing(spec, {"clusterIPs": [spec["clusterIP"]]})


_POD_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_HTTP_GET = {"path": "/", "scheme": "HTTP"}
_VOLUMES: dict[str, Object] = {"hostPath": {"type": ""}}
_VOLUMES |= {source: {"defaultMode": 0o644} for source in ("configMap", "secret", "downwardAPI", "projected")}


def set_defaults(obj: Object, info: ResourceInfo) -> None:
    """Set defaults in place; ``obj`` must be the caller's own copy."""
    if info.defaults:
        fill_missing(obj, deep_copy(info.defaults))
    template = value_at(obj, "spec", "template")
    if isinstance(template, dict) and not info.custom:
        template.setdefault("metadata", {})
        if isinstance(template.get("spec"), dict):
            _set_pod_spec_defaults(template["spec"])
    _set_defaults_of_kind(obj, info.storage)


def _set_defaults_of_kind(obj: Object, storage: str) -> None:
    spec: Any = obj.get("spec")
    match storage:
        case "/pods":
            _pod_defaults(obj)
        case "/services":
            _service_defaults(spec)
        case "/namespaces":
            labels = obj["metadata"].get("labels") or {}
            obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}
        case "/secrets":
            text = obj.pop("stringData", None) or {}
            encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in text.items()}
            obj |= {"data": {**(obj.get("data") or {}), **encoded}} if text else {}
        case "batch/jobs":
            fill_missing(spec, {"completions": 1} if spec.get("parallelism") is None else {})
            fill_missing(spec, {"parallelism": 1})
        case "apps/daemonsets" | "apps/deployments" | "apps/statefulsets":
            strategy = spec.get("strategy") or spec.get("updateStrategy")
            if isinstance(strategy, dict) and strategy["type"] != "RollingUpdate":
                strategy.pop("rollingUpdate", None)
        case "rbac.authorization.k8s.io/rolebindings" | "rbac.authorization.k8s.io/clusterrolebindings":
            people = [one for one in obj.get("subjects") or () if one.get("kind") in ("User", "Group")]
            for reference in (obj.get("roleRef"), *people):
                fill_missing(reference, {"apiGroup": "rbac.authorization.k8s.io"})


def fill_missing(target: Any, defaults: Object) -> None:
    """Set missing keys at every depth; values other than objects do not change."""
    for key, value in defaults.items() if isinstance(target, dict) else ():
        if target.get(key) is None:
            target[key] = value
        elif isinstance(value, dict):
            fill_missing(target[key], value)


def list_containers(spec: Object) -> Iterator[Object]:
    """Yield the containers of a pod spec, init containers first."""
    for field in ("initContainers", "containers"):
        yield from spec.get(field) or ()


def _set_pod_spec_defaults(spec: Object) -> None:
    fill_missing(spec, {**_POD_SPEC, "securityContext": {}})
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for volume in spec.get("volumes") or ():
        if set(volume) <= {"name"}:
            volume["emptyDir"] = {}
        for source, defaults in _VOLUMES.items():
            fill_missing(volume.get(source), defaults)
        for part in value_at(volume, "projected", "sources") or ():
            fill_missing(part.get("serviceAccountToken"), {"expirationSeconds": 3600})
    for container in list_containers(spec):
        _set_container_defaults(container, host_network=bool(spec.get("hostNetwork")))


def _set_container_defaults(container: Object, *, host_network: bool) -> None:
    fill_missing(container, {**_CONTAINER, "resources": {}})
    if not container.get("imagePullPolicy"):
        image = str(container.get("image") or "")
        is_moving = "@" not in image and image.rsplit("/", 1)[-1].partition(":")[2] in ("", "latest")
        container["imagePullPolicy"] = "Always" if is_moving else "IfNotPresent"
    for port in container.get("ports") or ():
        fill_missing(port, {"protocol": "TCP"})
        if host_network and port.get("containerPort"):
            fill_missing(port, {"hostPort": port["containerPort"]})
    for variable in container.get("env") or ():
        fill_missing(value_at(variable, "valueFrom", "fieldRef"), {"apiVersion": "v1"})
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        fill_missing(container.get(name), _PROBE)
        fill_missing(value_at(container, name, "httpGet"), _HTTP_GET)
        fill_missing(value_at(container, name, "grpc"), {"service": ""})
    for hook in ("postStart", "preStop"):
        fill_missing(value_at(container, "lifecycle", hook, "httpGet"), _HTTP_GET)


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


def _service_defaults(spec: Object) -> None:
    for port in spec.get("ports") or ():
        fill_missing(port, {"protocol": "TCP", "targetPort": port.get("port")})
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill_missing(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] != "ExternalName":
        fill_missing(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})
