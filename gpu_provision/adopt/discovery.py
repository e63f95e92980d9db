"""Find the objects of the GPU Operator and its chart in a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpu_provision.components import labels, prerequisites
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.observe import MEMBER_KINDS, NODE, OPENSHIFT_KINDS, POD, node_facts, served_groups
from gpu_provision.kube.openshift import read_openshift
from gpu_provision.kube.transport import RequestPool
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, index_by_ref
from gpu_provision.model.inventory import Inventory

CLUSTER_POLICY = Kind("nvidia.com/v1", "ClusterPolicy")
NVIDIA_DRIVER = Kind("nvidia.com/v1alpha1", "NVIDIADriver")
REVISION = Kind("apps/v1", "ControllerRevision")
DRIVER_APP = "nvidia-driver-daemonset"

_PARALLEL = 12
_DEPLOYMENT, _DAEMON_SET = Kind("apps/v1", "Deployment"), Kind("apps/v1", "DaemonSet")
_OF_CLUSTER = frozenset(
    {
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "RuntimeClass"),
        *(kind.kind for kind in OPENSHIFT_KINDS),
    }
)
_NFD = "node-feature-discovery"
_NAME, _INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
_RELEASE, _RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
# Kinds of the chart's own objects. Those of a user's values (extraObjects) can be of any kind.
_RBAC_KINDS = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
_CHART_KINDS = frozenset({"ConfigMap", "DaemonSet", "Deployment", "Service", *_RBAC_KINDS})


@dataclass(frozen=True, kw_only=True)
class OperatorInstall:
    """The GPU Operator in a cluster."""

    cluster: str  # name and version of the cluster
    policies: tuple[Manifest, ...] = ()  # ClusterPolicies, the oldest first: the operator ignores the others
    drivers: tuple[Manifest, ...] = ()  # NVIDIADriver resources
    objects: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # the operator's and other objects
    pods: tuple[Manifest, ...] = ()  # pods of all namespaces with an object of the operator
    nodes: tuple[Manifest, ...] = ()
    facts: ClusterFacts = field(default_factory=ClusterFacts)

    @property
    def policy(self) -> Manifest | None:
        """The ClusterPolicy that the operator uses."""
        return next(iter(self.policies), None)

    @cached_property
    def policy_uids(self) -> frozenset[str]:
        """The uids of the owners that the adoption deletes."""
        return uids_of(self.policies)

    @cached_property
    def owned(self) -> dict[ObjectRef, Manifest]:
        """Objects that the operator owns: the garbage collector would delete them with the ClusterPolicy."""
        return {ref: item for ref, item in self.objects.items() if is_owned(item, self.policy_uids)}

    @cached_property
    def operators(self) -> tuple[Manifest, ...]:
        """Deployments of the operator."""
        return tuple(filter(is_operator, self.objects.values()))

    @property
    def namespace(self) -> str:
        """Namespace of the operator and its operands; empty without any."""
        namespaces = (item["metadata"].get("namespace", "") for item in (*self.operators, *self.owned.values()))
        return next(filter(None, namespaces), "")

    @property
    def release(self) -> tuple[str, str]:
        """Name and namespace of the Helm release; empty without one."""
        for item in (*self.operators, *self.policies):
            annotations = item["metadata"].get("annotations") or {}
            if _RELEASE in annotations:
                return annotations[_RELEASE], annotations.get(_RELEASE_NAMESPACE, "")
        return "", ""

    @cached_property
    def chart(self) -> dict[ObjectRef, Manifest]:
        """Helm's objects of the operator and of its Node Feature Discovery; the adoption deletes both."""
        name, _ = self.release
        return {ref: item for ref, item in self.objects.items() if _is_of_chart(item, name)} if name else {}

    @cached_property
    def discovery(self) -> dict[ObjectRef, Manifest]:
        """The chart's objects of Node Feature Discovery."""
        return {ref: item for ref, item in self.chart.items() if is_discovery(item)}

    def driver_pods(self) -> Iterator[Manifest]:
        """Yield the running driver pods of the operator, including orphaned ones."""
        for pod in self.pods:
            if is_of_driver(pod) and not pod["metadata"].get("deletionTimestamp"):
                yield pod


def labels_of(item: Manifest) -> Mapping[str, str]:
    """Return the labels of an object."""
    return item["metadata"].get("labels") or {}


def uids_of(items: Iterable[Manifest]) -> frozenset[str]:
    """Return the uids of objects."""
    return frozenset(item["metadata"]["uid"] for item in items)


def is_owned(item: Manifest, uids: frozenset[str]) -> bool:
    """Whether an object has one of these owners."""
    return any(owner["uid"] in uids for owner in item["metadata"].get("ownerReferences") or ())


def is_operator(item: Manifest) -> bool:
    """Whether an object is the operator's Deployment."""
    if item["kind"] != "Deployment":
        return False
    selector = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    return labels.OPERATOR in {selector.get(labels.COMPONENT_OF_APP), selector.get(labels.APP)}


def is_of_driver(item: Manifest) -> bool:
    """Whether an object belongs to a driver DaemonSet of the operator.

    Where a Driver Toolkit builds, the label ends in the release of CoreOS (transformOpenShiftDriverToolkitContainer).
    """
    app = labels_of(item).get(labels.APP, "")
    return app == DRIVER_APP or app.startswith(f"{DRIVER_APP}-")


def is_discovery(item: Manifest) -> bool:
    """Whether an object belongs to a Node Feature Discovery."""
    return labels_of(item).get(_NAME) == _NFD


def _is_of_chart(item: Manifest, release: str) -> bool:
    """Whether an object is the chart's own one, and not from a user's values."""
    annotations, marks = item["metadata"].get("annotations") or {}, labels_of(item)
    if annotations.get(_RELEASE) != release or item["kind"] not in _CHART_KINDS:
        return False
    is_of_discovery = is_discovery(item) and marks.get(_INSTANCE) == release
    return is_of_discovery or marks.get(labels.COMPONENT_OF_APP) == labels.OPERATOR


def discover(cluster: KubeClient, inventory: Inventory | None = None) -> OperatorInstall:
    """Read the operator's objects, to adopt them with an inventory or to derive one. Raises ProvisionError."""
    version = cluster.version()
    policies = sorted(
        cluster.list(CLUSTER_POLICY).items,
        key=lambda item: (item["metadata"].get("creationTimestamp", ""), item["metadata"]["name"]),
    )
    nodes = tuple(sorted(cluster.list(NODE).items, key=lambda node: str(node["metadata"]["name"])))
    own = prerequisites.namespaces(inventory) if inventory else ()
    operators = filter(is_operator, cluster.list(_DEPLOYMENT).items)
    operands = (item for item in cluster.list(_DAEMON_SET).items if is_owned(item, uids_of(policies)))
    namespaces = sorted({*own, *(item["metadata"]["namespace"] for item in (*operators, *operands))})
    found_nodes = tuple(map(node_facts, nodes))
    openshift = read_openshift(cluster, served_groups(cluster), found_nodes)
    kinds = MEMBER_KINDS.union(OPENSHIFT_KINDS if openshift else ())
    scopes = [
        (kind, namespace)
        for kind in (*sorted(kinds), POD)
        for namespace in ([""] if kind.kind in _OF_CLUSTER else namespaces)
    ]
    with RequestPool(cluster, _PARALLEL) as pool:
        drivers = pool.submit(cluster.list, NVIDIA_DRIVER)
        lists = list(pool.map(lambda scope: cluster.list(scope[0], namespace=scope[1]).items, scopes))
    found = [item for items in lists for item in items]
    return OperatorInstall(
        cluster=f"{cluster.name} ({version})",
        policies=tuple(policies),
        drivers=tuple(drivers.result().items),
        objects=index_by_ref(item for item in found if item["kind"] != "Pod"),
        pods=tuple(item for item in found if item["kind"] == "Pod"),
        nodes=nodes,
        facts=ClusterFacts(version=version, nodes=found_nodes, openshift=openshift),
    )
