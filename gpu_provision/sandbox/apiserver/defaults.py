"""Defaults of the built-in kinds that clients rely on; objects are changed in place.

resources.yaml holds those that are plain values; a kind that stands neither there nor here gets no defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at, deep_copy
from gpu_provision.sandbox.apiserver.resources import ResourceInfo

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


def _workload(obj: Object) -> None:
    strategy = obj["spec"].get("strategy") or obj["spec"].get("updateStrategy")
    if isinstance(strategy, dict) and strategy["type"] != "RollingUpdate":
        strategy.pop("rollingUpdate", None)


def _job(obj: Object) -> None:
    spec = obj["spec"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill(spec, {"parallelism": 1})


def _pod(obj: Object) -> None:
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


def _namespace(obj: Object) -> None:
    labels = dict(obj["metadata"].get("labels") or {})
    obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}


def _service(obj: Object) -> None:
    spec = obj["spec"]
    for port in spec.get("ports") or ():
        fill(port, {"protocol": "TCP", "targetPort": port.get("port")})
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] != "ExternalName":
        fill(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})


def _secret(obj: Object) -> None:
    text = obj.pop("stringData", None) or {}
    if text:
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _role_binding(obj: Object) -> None:
    fill(obj.get("roleRef"), {"apiGroup": _RBAC})
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            fill(subject, {"apiGroup": _RBAC})


_KINDS: dict[str, Callable[[Object], None]] = {
    "/pods": _pod,
    "/namespaces": _namespace,
    "/services": _service,
    "/secrets": _secret,
    "apps/daemonsets": _workload,
    "apps/deployments": _workload,
    "apps/statefulsets": _workload,
    "batch/jobs": _job,
    f"{_RBAC}/rolebindings": _role_binding,
    f"{_RBAC}/clusterrolebindings": _role_binding,
}
