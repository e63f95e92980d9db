"""Defaults of a pod's specification, as Kubernetes 1.34 fills them in; objects are changed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at

_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_FILE_MODE = 0o644


def fill(target: Object, defaults: Object) -> None:
    """Set the keys that are missing."""
    for key, value in defaults.items():
        if target.get(key) is None:
            target[key] = value


def containers(spec: Object) -> Iterator[Object]:
    """Every container of a pod specification, init containers first."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def pod_spec(spec: Object) -> None:
    """Fill in the defaults of a pod specification, as for a pod and for a template."""
    fill(spec, _SPEC)
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for volume in spec.get("volumes") or ():
        _volume(volume)
    for container in containers(spec):
        _container(container, host_network=bool(spec.get("hostNetwork")))


def _container(container: Object, *, host_network: bool) -> None:
    fill(container, _CONTAINER)
    if container.get("resources") is None:
        container["resources"] = {}
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(str(container.get("image") or ""))
    for port in container.get("ports") or ():
        fill(port, {"protocol": "TCP"})
        if host_network and port.get("containerPort"):
            fill(port, {"hostPort": port["containerPort"]})
    for variable in container.get("env") or ():
        _field_reference(at(variable, "valueFrom", "fieldRef"))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(name), dict):
            _probe(container[name])
    for hook in (at(container, "lifecycle", "postStart"), at(container, "lifecycle", "preStop")):
        _http_get(at(hook, "httpGet"))


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _probe(probe: Object) -> None:
    fill(probe, _PROBE)
    _http_get(probe.get("httpGet"))
    if isinstance(probe.get("grpc"), dict):
        fill(probe["grpc"], {"service": ""})


def _http_get(action: Any) -> None:
    if isinstance(action, dict):
        fill(action, {"path": "/", "scheme": "HTTP"})


def _field_reference(reference: Any) -> None:
    if isinstance(reference, dict):
        fill(reference, {"apiVersion": "v1"})


def _mode(source: Object) -> None:
    fill(source, {"defaultMode": _FILE_MODE})


def _downward(source: Object) -> None:
    for item in source.get("items") or ():
        _field_reference(item.get("fieldRef"))


def _downward_volume(source: Object) -> None:
    _mode(source)
    _downward(source)


def _projected(source: Object) -> None:
    _mode(source)
    for part in source.get("sources") or ():
        if isinstance(part.get("serviceAccountToken"), dict):
            fill(part["serviceAccountToken"], {"expirationSeconds": 3600})
        if isinstance(part.get("downwardAPI"), dict):
            _downward(part["downwardAPI"])


_VOLUMES: dict[str, Callable[[Object], None]] = {
    "configMap": _mode,
    "secret": _mode,
    "downwardAPI": _downward_volume,
    "projected": _projected,
    "hostPath": lambda source: fill(source, {"type": ""}),
}


def _volume(volume: Object) -> None:
    sources = set(volume) - {"name"}
    if not sources:
        volume["emptyDir"] = {}
    for name in sources & set(_VOLUMES):
        if isinstance(volume[name], dict):
            _VOLUMES[name](volume[name])


def requests_from_limits(spec: Object) -> None:
    """Set missing requests to the limits; this holds for pods and not for templates."""
    for container in containers(spec):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}


def quality_of_service(spec: Object) -> str:
    """Return the pod's class: Guaranteed, Burstable or BestEffort."""
    parts = [container.get("resources") or {} for container in containers(spec)]
    named = ("cpu", "memory")
    asked = any((part.get(side) or {}).get(name) for part in parts for side in ("requests", "limits") for name in named)
    if not asked:
        return "BestEffort"
    whole = all(
        (part.get("limits") or {}).get(name)
        and (part.get("requests") or part["limits"]).get(name) == part["limits"][name]
        for part in parts
        for name in named
    )
    return "Guaranteed" if whole else "Burstable"
