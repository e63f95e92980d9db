"""What changes when an object changes hands and is not worth a reader's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.plan import FieldChange
from gpu_provision.planning.membership import PART_OF

_OUR_MARKS = (
    labels.MANAGED_BY,
    PART_OF,
    labels.COMPONENT,
    labels.STACK,
    labels.DIGEST,
    labels.CONFIG,
    "deprecated.daemonset.template.generation",
)

# Values that the API server fills in: they belong to whoever created the object, and come back when nobody wants them.
_FILLED_IN: Mapping[str, tuple[Any, ...]] = {
    "apiVersion": ("v1",),
    "conversion": ({"strategy": "None"},),
    "defaultMode": (0o644,),
    "dnsPolicy": ("ClusterFirst",),
    "failureThreshold": (3,),
    "internalTrafficPolicy": ("Cluster",),
    "ipFamilyPolicy": ("SingleStack",),
    "maxSurge": (0,),
    "periodSeconds": (10,),
    "progressDeadlineSeconds": (600,),
    "protocol": ("TCP",),
    "resources": ({},),
    "restartPolicy": ("Always",),
    "revisionHistoryLimit": (10,),
    "schedulerName": ("default-scheduler",),
    "scheme": ("HTTP",),
    "securityContext": ({},),
    "sessionAffinity": ("None",),
    "successThreshold": (1,),
    "terminationGracePeriodSeconds": (30,),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "timeoutSeconds": (1,),
    "type": ("", "ClusterIP"),
}
_ALLOTTED = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "serviceAccount"})  # whatever their values


def is_noise(change: FieldChange) -> bool:
    """Whether a field is a mark of ours, or a value of the server's that comes back."""
    if change.path.endswith(tuple(f'"{mark}"' for mark in _OUR_MARKS)):
        return True
    name = change.path.rpartition(".")[2]
    return change.new is None and (name in _ALLOTTED or change.old in _FILLED_IN.get(name, ()))


def whole(item: Manifest) -> Manifest:
    """Return an object that has labels and annotations, if only empty ones, so that each key is told by itself."""
    template = (item.get("spec") or {}).get("template")
    if template is None:
        return {**item, "metadata": _whole(item["metadata"])}
    full = {**template, "metadata": _whole(template.get("metadata") or {})}
    return {**item, "metadata": _whole(item["metadata"]), "spec": {**item["spec"], "template": full}}


def _whole(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"labels": {}, "annotations": {}, **metadata}
