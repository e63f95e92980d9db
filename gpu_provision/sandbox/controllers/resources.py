"""The built-in resources of a cluster as controllers need to know them: a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gpu_provision.sandbox.api import Resource

PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
NAMESPACES = Resource("", "v1", "namespaces")
SERVICES = Resource("", "v1", "services")
ENDPOINTS = Resource("", "v1", "endpoints")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions")
JOBS = Resource("batch", "v1", "jobs")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")


class BuiltIn(NamedTuple):
    """A built-in resource with the kind of its objects."""

    resource: Resource
    kind: str
    namespaced: bool = True


_RBAC = "rbac.authorization.k8s.io"

BUILT_IN: tuple[BuiltIn, ...] = (
    BuiltIn(PODS, "Pod"),
    BuiltIn(NODES, "Node", namespaced=False),
    BuiltIn(NAMESPACES, "Namespace", namespaced=False),
    BuiltIn(SERVICES, "Service"),
    BuiltIn(ENDPOINTS, "Endpoints"),
    BuiltIn(EVENTS, "Event"),
    BuiltIn(CONFIG_MAPS, "ConfigMap"),
    BuiltIn(Resource("", "v1", "secrets"), "Secret"),
    BuiltIn(Resource("", "v1", "serviceaccounts"), "ServiceAccount"),
    BuiltIn(Resource("", "v1", "persistentvolumeclaims"), "PersistentVolumeClaim"),
    BuiltIn(Resource("", "v1", "persistentvolumes"), "PersistentVolume", namespaced=False),
    BuiltIn(Resource("", "v1", "resourcequotas"), "ResourceQuota"),
    BuiltIn(Resource("", "v1", "limitranges"), "LimitRange"),
    BuiltIn(Resource("", "v1", "replicationcontrollers"), "ReplicationController"),
    BuiltIn(DAEMON_SETS, "DaemonSet"),
    BuiltIn(DEPLOYMENTS, "Deployment"),
    BuiltIn(REPLICA_SETS, "ReplicaSet"),
    BuiltIn(STATEFUL_SETS, "StatefulSet"),
    BuiltIn(CONTROLLER_REVISIONS, "ControllerRevision"),
    BuiltIn(JOBS, "Job"),
    BuiltIn(Resource("batch", "v1", "cronjobs"), "CronJob"),
    BuiltIn(Resource(_RBAC, "v1", "roles"), "Role"),
    BuiltIn(Resource(_RBAC, "v1", "rolebindings"), "RoleBinding"),
    BuiltIn(Resource(_RBAC, "v1", "clusterroles"), "ClusterRole", namespaced=False),
    BuiltIn(Resource(_RBAC, "v1", "clusterrolebindings"), "ClusterRoleBinding", namespaced=False),
    BuiltIn(Resource("node.k8s.io", "v1", "runtimeclasses"), "RuntimeClass", namespaced=False),
    BuiltIn(Resource("scheduling.k8s.io", "v1", "priorityclasses"), "PriorityClass", namespaced=False),
    BuiltIn(LEASES, "Lease"),
    BuiltIn(DISRUPTION_BUDGETS, "PodDisruptionBudget"),
    BuiltIn(DEFINITIONS, "CustomResourceDefinition", namespaced=False),
    BuiltIn(ENDPOINT_SLICES, "EndpointSlice"),
    BuiltIn(Resource("networking.k8s.io", "v1", "ingresses"), "Ingress"),
    BuiltIn(Resource("networking.k8s.io", "v1", "networkpolicies"), "NetworkPolicy"),
    BuiltIn(Resource("storage.k8s.io", "v1", "storageclasses"), "StorageClass", namespaced=False),
)

KINDS: Mapping[Resource, str] = MappingProxyType({row.resource: row.kind for row in BUILT_IN})
CLUSTER_SCOPED = frozenset(row.resource for row in BUILT_IN if not row.namespaced)


def built_in_resources() -> tuple[Resource, ...]:
    """Return every built-in resource."""
    return tuple(row.resource for row in BUILT_IN)


def api_version(resource: Resource) -> str:
    """Return ``apps/v1`` for the apps group, ``v1`` for the core group."""
    return f"{resource.group}/{resource.version}" if resource.group else resource.version


def resource_of(version: str, kind: str, known: Iterable[Resource]) -> Resource | None:
    """Find the resource that serves ``kind`` of apiVersion ``version``; None if no known one does.

    Kinds that are not built in are found by the plural that English gives them.
    """
    group = version.partition("/")[0] if "/" in version else ""
    for row in BUILT_IN:
        if (row.resource.group, row.kind) == (group, kind):
            return row.resource
    plurals = _plurals(kind.lower())
    return next((one for one in known if one.group == group and one.plural in plurals), None)


def _plurals(singular: str) -> set[str]:
    plurals = {singular, f"{singular}s", f"{singular}es"}
    return plurals | {f"{singular[:-1]}ies"} if singular.endswith("y") else plurals


def defined_resource(definition: Mapping[str, Any]) -> Resource | None:
    """Return the resource that a CustomResourceDefinition stores; None if it stores none."""
    spec = definition["spec"]
    stored = [version["name"] for version in spec.get("versions", ()) if version.get("storage")]
    return Resource(spec["group"], stored[0], spec["names"]["plural"]) if stored else None
