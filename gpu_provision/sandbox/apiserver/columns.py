"""The columns of the tables of built-in kinds. A cell is a path into the object, or a function of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Object
from gpu_provision.sandbox.apiserver import cells
from gpu_provision.sandbox.apiserver.objects import at

Cell = str | Callable[[Object], Any]


class Column(NamedTuple):
    """One column; ``priority`` 1 is shown with ``-o wide`` only. ``empty`` stands for a missing value."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    empty: Any = cells.NONE


def _number(name: str, path: str, priority: int = 0) -> Column:
    return Column(name, path, "integer", priority, 0)


def _wide(name: str, cell: Cell, empty: Any = cells.NONE) -> Column:
    return Column(name, cell, "string", 1, empty)


def _count(*path: str) -> Callable[[Object], int]:
    return lambda obj: len(at(obj, *path) or ())


def _of(path: str) -> Callable[[Object], int]:
    """Return ready replicas of wanted ones."""

    def text(obj: Object) -> Any:
        return f"{at(obj, 'status', path) or 0}/{at(obj, 'spec', 'replicas') or 0}"

    return text


NAME = Column("Name", "metadata.name")
AGE = Column("Age", cells.age)
CREATED = Column("Created At", "metadata.creationTimestamp", "date")
_SELECTOR = _wide("Selector", lambda obj: cells.selector_text(at(obj, "spec", "selector")))
_TEMPLATE = (
    _wide("Containers", lambda obj: cells.template(obj, "name")),
    _wide("Images", lambda obj: cells.template(obj, "image")),
)
_REPLICAS = (
    NAME,
    _number("Desired", "spec.replicas"),
    _number("Current", "status.replicas"),
    _number("Ready", "status.readyReplicas"),
    AGE,
    *_TEMPLATE,
    _SELECTOR,
)
_ROLE = Column("Role", lambda obj: f"{at(obj, 'roleRef', 'kind')}/{at(obj, 'roleRef', 'name')}")
_SUBJECTS = (
    NAME,
    _ROLE,
    AGE,
    _wide("Users", partial(cells.subjects, kind="User")),
    _wide("Groups", partial(cells.subjects, kind="Group")),
    _wide("ServiceAccounts", partial(cells.subjects, kind="ServiceAccount")),
)
DEFAULT = (NAME, AGE)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "/pods": (
        NAME,
        Column("Ready", cells.ready),
        Column("Status", cells.status),
        Column("Restarts", cells.restarts),
        AGE,
        _wide("IP", cells.address),
        _wide("Node", "spec.nodeName"),
        _wide("Nominated Node", "status.nominatedNodeName"),
        _wide("Readiness Gates", cells.gates),
    ),
    "/nodes": (
        NAME,
        Column("Status", cells.node_status),
        Column("Roles", cells.node_roles),
        AGE,
        Column("Version", "status.nodeInfo.kubeletVersion", empty=""),
        _wide("Internal-IP", partial(cells.node_address, kind="InternalIP")),
        _wide("External-IP", partial(cells.node_address, kind="ExternalIP")),
        _wide("OS-Image", "status.nodeInfo.osImage", cells.UNKNOWN),
        _wide("Kernel-Version", "status.nodeInfo.kernelVersion", cells.UNKNOWN),
        _wide("Container-Runtime", "status.nodeInfo.containerRuntimeVersion", cells.UNKNOWN),
    ),
    "/namespaces": (NAME, Column("Status", "status.phase", empty=""), AGE),
    "/services": (
        NAME,
        Column("Type", "spec.type"),
        Column("Cluster-IP", "spec.clusterIP"),
        Column("External-IP", cells.external_ip),
        Column("Port(s)", cells.service_ports),
        AGE,
        _SELECTOR,
    ),
    "/configmaps": (
        NAME,
        Column("Data", lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {})),
        AGE,
    ),
    "/secrets": (NAME, Column("Type", "type"), Column("Data", _count("data"), "integer"), AGE),
    "/serviceaccounts": (NAME, Column("Secrets", _count("secrets"), "integer"), AGE),
    "/endpoints": (NAME, Column("Endpoints", cells.endpoints), AGE),
    "/events": (
        Column("Last Seen", partial(cells.event_time, first=False)),
        Column("Type", "type", empty=""),
        Column("Reason", "reason", empty=""),
        Column("Object", cells.event_object),
        _wide("Subobject", "involvedObject.fieldPath", ""),
        _wide("Source", cells.event_source, ""),
        Column("Message", lambda obj: str(obj.get("message") or "").strip()),
        _wide("First Seen", partial(cells.event_time, first=True)),
        _wide("Count", lambda obj: str(obj.get("count") or 1)),
        _wide("Name", "metadata.name"),
    ),
    "/persistentvolumeclaims": (
        NAME,
        Column("Status", "status.phase", empty=""),
        Column("Volume", "spec.volumeName", empty=""),
        Column("Capacity", "status.capacity.storage", empty=""),
        Column("Access Modes", lambda obj: cells.joined(at(obj, "spec", "accessModes") or (), "")),
        Column("StorageClass", "spec.storageClassName", empty=""),
        AGE,
        _wide("VolumeMode", "spec.volumeMode", cells.UNSET),
    ),
    "/replicationcontrollers": _REPLICAS,
    "apps/daemonsets": (
        NAME,
        _number("Desired", "status.desiredNumberScheduled"),
        _number("Current", "status.currentNumberScheduled"),
        _number("Ready", "status.numberReady"),
        _number("Up-to-date", "status.updatedNumberScheduled"),
        _number("Available", "status.numberAvailable"),
        Column("Node Selector", lambda obj: cells.labels_text(at(obj, "spec", "template", "spec", "nodeSelector"))),
        AGE,
        *_TEMPLATE,
        _SELECTOR,
    ),
    "apps/deployments": (
        NAME,
        Column("Ready", _of("readyReplicas")),
        _number("Up-to-date", "status.updatedReplicas"),
        _number("Available", "status.availableReplicas"),
        AGE,
        *_TEMPLATE,
        _SELECTOR,
    ),
    "apps/replicasets": _REPLICAS,
    "apps/statefulsets": (NAME, Column("Ready", _of("readyReplicas")), AGE, *_TEMPLATE),
    "apps/controllerrevisions": (
        NAME,
        Column("Controller", cells.controller),
        Column("Revision", "revision", "integer"),
        AGE,
    ),
    "batch/jobs": (
        NAME,
        Column("Status", cells.job_status),
        Column("Completions", cells.job_completions),
        Column("Duration", cells.job_duration),
        AGE,
        *_TEMPLATE,
        _SELECTOR,
    ),
    "batch/cronjobs": (
        NAME,
        Column("Schedule", "spec.schedule"),
        Column("Timezone", "spec.timeZone"),
        Column("Suspend", lambda obj: str(bool(at(obj, "spec", "suspend")))),
        Column("Active", _count("status", "active"), "integer"),
        Column("Last Schedule", lambda obj: _ago(at(obj, "status", "lastScheduleTime"))),
        AGE,
        *_TEMPLATE,
        _SELECTOR,
    ),
    "rbac.authorization.k8s.io/roles": (NAME, CREATED),
    "rbac.authorization.k8s.io/clusterroles": (NAME, CREATED),
    "rbac.authorization.k8s.io/rolebindings": _SUBJECTS,
    "rbac.authorization.k8s.io/clusterrolebindings": _SUBJECTS,
    "node.k8s.io/runtimeclasses": (NAME, Column("Handler", "handler"), AGE),
    "scheduling.k8s.io/priorityclasses": (
        NAME,
        Column("Value", "value", "integer"),
        Column("Global-Default", lambda obj: bool(obj.get("globalDefault")), "boolean"),
        AGE,
        _wide("PreemptionPolicy", "preemptionPolicy", ""),
    ),
    "coordination.k8s.io/leases": (NAME, Column("Holder", "spec.holderIdentity", empty=""), AGE),
    "policy/poddisruptionbudgets": (
        NAME,
        Column("Min Available", "spec.minAvailable", empty="N/A"),
        Column("Max Unavailable", "spec.maxUnavailable", empty="N/A"),
        _number("Allowed Disruptions", "status.disruptionsAllowed"),
        AGE,
    ),
    "apiextensions.k8s.io/customresourcedefinitions": (NAME, CREATED),
    "discovery.k8s.io/endpointslices": (
        NAME,
        Column("AddressType", "addressType"),
        Column("Ports", lambda obj: cells.joined((row.get("port") for row in obj.get("ports") or ()), cells.UNSET)),
        Column("Endpoints", cells.slice_addresses),
        AGE,
    ),
    "networking.k8s.io/networkpolicies": (
        NAME,
        Column("Pod-Selector", lambda obj: cells.selector_text(at(obj, "spec", "podSelector"))),
        AGE,
    ),
    "storage.k8s.io/storageclasses": (
        NAME,
        Column("Provisioner", "provisioner"),
        Column("ReclaimPolicy", "reclaimPolicy"),
        Column("VolumeBindingMode", "volumeBindingMode"),
        Column("AllowVolumeExpansion", lambda obj: str(bool(obj.get("allowVolumeExpansion"))).lower()),
        AGE,
    ),
    "/limitranges": (NAME, CREATED),
}


def _ago(text: Any) -> str:
    return cells.since(text) if text else cells.NONE


def value(column: Column, obj: Object) -> Any:
    """Return the cell of an object in a column."""
    if callable(column.cell):
        return column.cell(obj)
    found = at(obj, *column.cell.split("."))
    return column.empty if found in (None, "") else found
