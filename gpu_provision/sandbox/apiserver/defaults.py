"""Defaults of the built-in kinds that clients rely on; objects are changed in place.

A kind that is missing here gets no defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver.objects import at, copied
from gpu_provision.sandbox.apiserver.pod_defaults import (
    fill,
    pod_spec,
    quality_of_service,
    requests_from_limits,
)

_RBAC = "rbac.authorization.k8s.io"
_SPECS: dict[str, Object] = {
    "apps/daemonsets": {
        "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate"},
    },
    "apps/deployments": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate"},
    },
    "apps/replicasets": {"replicas": 1},
    "/replicationcontrollers": {"replicas": 1},
    "apps/statefulsets": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    },
    "batch/jobs": {
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    },
    "batch/cronjobs": {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
    "/services": {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"},
    "/persistentvolumeclaims": {"volumeMode": "Filesystem"},
    "/persistentvolumes": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"},
}
# Fields beside spec.
_TOP: dict[str, Object] = {
    "/secrets": {"type": "Opaque"},
    "scheduling.k8s.io/priorityclasses": {"preemptionPolicy": "PreemptLowerPriority"},
    "storage.k8s.io/storageclasses": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
}
_PHASES = {
    "/namespaces": "Active",
    "/pods": "Pending",
    "/persistentvolumeclaims": "Pending",
    "/persistentvolumes": "Pending",
}
# Kinds whose objects always show a status.
_STATUSES: dict[str, Object] = {
    "apps/daemonsets": {
        "currentNumberScheduled": 0,
        "desiredNumberScheduled": 0,
        "numberMisscheduled": 0,
        "numberReady": 0,
    },
    "apps/deployments": {},
    "apps/replicasets": {"replicas": 0},
    "apps/statefulsets": {"replicas": 0, "availableReplicas": 0},
    "batch/jobs": {},
    "batch/cronjobs": {},
    "/services": {"loadBalancer": {}},
    "policy/poddisruptionbudgets": {
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "disruptionsAllowed": 0,
        "expectedPods": 0,
    },
}
_ROLLING: dict[str, Object] = {
    "apps/daemonsets": {"maxSurge": 0, "maxUnavailable": 1},
    "apps/deployments": {"maxSurge": "25%", "maxUnavailable": "25%"},
    "apps/statefulsets": {"partition": 0},
}


def _workload(obj: Object, storage: str) -> None:
    spec = obj["spec"]
    strategy = spec.get("strategy" if storage == "apps/deployments" else "updateStrategy")
    if isinstance(strategy, dict):
        fill(strategy, {"type": "RollingUpdate"})
        if strategy["type"] == "RollingUpdate":
            strategy["rollingUpdate"] = {**_ROLLING[storage], **(strategy.get("rollingUpdate") or {})}


def _job(obj: Object, _: str) -> None:
    spec = obj["spec"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill(spec, {"parallelism": 1})


def _replica_set(obj: Object, _: str) -> None:
    labels = at(obj, "spec", "template", "metadata", "labels")
    if labels and not obj["spec"].get("selector") and obj["kind"] == "ReplicationController":
        obj["spec"]["selector"] = dict(labels)


def _pod(obj: Object, _: str) -> None:
    spec = obj["spec"]
    fill(spec, {"enableServiceLinks": True})
    pod_spec(spec)
    requests_from_limits(spec)
    obj.setdefault("status", {}).setdefault("qosClass", quality_of_service(spec))


def _cron_job(obj: Object, _: str) -> None:
    template = at(obj, "spec", "jobTemplate", "spec", "template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        pod_spec(template["spec"])


def _namespace(obj: Object, _: str) -> None:
    fill(obj.setdefault("spec", {}), {"finalizers": ["kubernetes"]})
    labels = dict(obj["metadata"].get("labels") or {})
    obj["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": obj["metadata"].get("name", "")}


def _service(obj: Object, _: str) -> None:
    spec = obj["spec"]
    for port in spec.get("ports") or ():
        fill(port, {"protocol": "TCP"})
        fill(port, {"targetPort": port.get("port")})
    if spec["type"] in ("NodePort", "LoadBalancer"):
        fill(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] != "ExternalName":
        fill(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})


def _secret(obj: Object, _: str) -> None:
    text = obj.pop("stringData", None) or {}
    if text:
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _binding(obj: Object, _: str) -> None:
    if isinstance(obj.get("roleRef"), dict):
        fill(obj["roleRef"], {"apiGroup": _RBAC})
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            fill(subject, {"apiGroup": _RBAC})


def _endpoints(obj: Object, _: str) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            fill(port, {"protocol": "TCP"})


def _definition(obj: Object, _: str) -> None:
    spec, names = obj["spec"], obj["spec"].get("names") or {}
    kind = str(names.get("kind") or "")
    fill(names, {"singular": kind.lower(), "listKind": f"{kind}List"})
    fill(spec, {"conversion": {"strategy": "None"}})


def _network_policy(obj: Object, _: str) -> None:
    types = ["Ingress", "Egress"] if obj["spec"].get("egress") else ["Ingress"]
    fill(obj["spec"], {"policyTypes": types})


_KINDS: dict[str, Callable[[Object, str], None]] = {
    "/pods": _pod,
    "/namespaces": _namespace,
    "/services": _service,
    "/secrets": _secret,
    "/endpoints": _endpoints,
    "/replicationcontrollers": _replica_set,
    "apps/daemonsets": _workload,
    "apps/deployments": _workload,
    "apps/statefulsets": _workload,
    "batch/jobs": _job,
    "batch/cronjobs": _cron_job,
    f"{_RBAC}/rolebindings": _binding,
    f"{_RBAC}/clusterrolebindings": _binding,
    "apiextensions.k8s.io/customresourcedefinitions": _definition,
    "networking.k8s.io/networkpolicies": _network_policy,
}


def set_defaults(obj: Object, storage: str) -> None:
    """Fill in what a client left out; ``obj`` must be the caller's own copy."""
    if defaults := _SPECS.get(storage):
        _fill_part(obj, "spec", defaults)
    if defaults := _TOP.get(storage):
        fill(obj, copied(defaults))
    if isinstance(obj.get("spec"), dict):
        _template(obj["spec"].get("template"))
    if special := _KINDS.get(storage):
        special(obj, storage)


def set_initial_status(obj: Object, storage: str) -> None:
    """Give a new object the status that it starts with."""
    if storage in _STATUSES:
        _fill_part(obj, "status", _STATUSES[storage])
    if storage in _PHASES:
        _fill_part(obj, "status", {"phase": _PHASES[storage]})


def _fill_part(obj: Object, part: str, defaults: Object) -> None:
    if obj.get(part) is None:
        obj[part] = {}
    if isinstance(obj[part], dict):
        fill(obj[part], copied(defaults))


def _template(template: Any) -> None:
    if not isinstance(template, dict):
        return
    template.setdefault("metadata", {})
    if isinstance(template.get("spec"), dict):
        pod_spec(template["spec"])
