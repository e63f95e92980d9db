"""Where an API server has the objects of each kind: a table of the few that we handle, so no discovery is needed."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.model.cluster import Kind, ObjectRef

KINDS: Mapping[Kind, str] = {
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"): "customresourcedefinitions",
    Kind("apps/v1", "ControllerRevision"): "controllerrevisions",
    Kind("apps/v1", "DaemonSet"): "daemonsets",
    Kind("apps/v1", "Deployment"): "deployments",
    Kind("coordination.k8s.io/v1", "Lease"): "leases",
    Kind("gpu-provision.io/v1alpha1", "GPUStack"): "gpustacks",
    Kind("monitoring.coreos.com/v1", "ServiceMonitor"): "servicemonitors",
    Kind("nfd.k8s-sigs.io/v1alpha1", "NodeFeature"): "nodefeatures",
    Kind("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    Kind("node.k8s.io/v1", "RuntimeClass"): "runtimeclasses",
    Kind("nvidia.com/v1", "ClusterPolicy"): "clusterpolicies",
    Kind("nvidia.com/v1alpha1", "NVIDIADriver"): "nvidiadrivers",
    Kind("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    Kind("policy/v1beta1", "PodDisruptionBudget"): "poddisruptionbudgets",  # before Kubernetes 1.22
    Kind("rbac.authorization.k8s.io/v1", "ClusterRole"): "clusterroles",
    Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "clusterrolebindings",
    Kind("rbac.authorization.k8s.io/v1", "Role"): "roles",
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    Kind("resource.k8s.io/v1", "ResourceClaim"): "resourceclaims",
    Kind("resource.k8s.io/v1alpha3", "ResourceClaim"): "resourceclaims",
    Kind("resource.k8s.io/v1beta1", "ResourceClaim"): "resourceclaims",
    Kind("resource.k8s.io/v1beta2", "ResourceClaim"): "resourceclaims",
    Kind("v1", "ConfigMap"): "configmaps",
    Kind("v1", "Event"): "events",
    Kind("v1", "Namespace"): "namespaces",
    Kind("v1", "Node"): "nodes",
    Kind("v1", "Pod"): "pods",
    Kind("v1", "Secret"): "secrets",
    Kind("v1", "Service"): "services",
    Kind("v1", "ServiceAccount"): "serviceaccounts",
}
"""Every kind that this tool reads or writes, and its plural name in the REST path."""


def path_to(kind: Kind, namespace: str = "", name: str = "") -> str:
    """Return the REST path of an object, or of all objects of a kind if it has no name."""
    prefix = "/apis/" if "/" in kind.api_version else "/api/"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{kind.api_version}{scope}/{KINDS[kind]}{f'/{name}' if name else ''}"


def path_of(ref: ObjectRef) -> str:
    """Return an object's REST path."""
    return path_to(ref.type, ref.namespace, ref.name)
