"""What of the GPU Operator and its chart is in a cluster, told apart from everybody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpu_provision.components import labels
from gpu_provision.model.cluster import ClusterFacts, Kind, Manifest, ObjectRef, ref_of

CLUSTER_POLICY = Kind("nvidia.com/v1", "ClusterPolicy")
NVIDIA_DRIVER = Kind("nvidia.com/v1alpha1", "NVIDIADriver")
NODE_FEATURE = Kind("nfd.k8s-sigs.io/v1alpha1", "NodeFeature")
REVISION = Kind("apps/v1", "ControllerRevision")

DRIVER_APP = "nvidia-driver-daemonset"
OPERATOR = "gpu-operator"
"""Label ``app`` and component of the GPU Operator's own objects."""
_NFD = "node-feature-discovery"
_NAME, _INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
_RELEASE, _RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"

# What the chart makes for its own two programs. What it makes of a user's values (extraObjects) can be of any kind.
_CHART_KINDS = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
        "Deployment",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    }
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One look at a cluster.

    Attributes:
        cluster: The cluster as people name it.
        policies: ClusterPolicies, the oldest first: the operator heeds that one alone.
        drivers: NVIDIADriver resources.
        objects: Objects of every kind that a stack can have, whoever made them.
        pods: The pods of all namespaces that have an object of the operator.
        nodes: All nodes.
        facts: The same as facts.
    """

    cluster: str
    policies: tuple[Manifest, ...] = ()
    drivers: tuple[Manifest, ...] = ()
    objects: Mapping[ObjectRef, Manifest] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    nodes: tuple[Manifest, ...] = ()
    facts: ClusterFacts = field(default_factory=ClusterFacts)

    @property
    def policy(self) -> Manifest | None:
        """The ClusterPolicy that the operator heeds."""
        return next(iter(self.policies), None)

    @cached_property
    def policy_uids(self) -> frozenset[str]:
        """Owners that go with the adoption."""
        return frozenset(policy["metadata"]["uid"] for policy in self.policies)

    def is_owned(self, item: Manifest) -> bool:
        """Whether an object belongs to a ClusterPolicy, and would go with it."""
        return any(owner["uid"] in self.policy_uids for owner in item["metadata"].get("ownerReferences") or ())

    @cached_property
    def owned(self) -> dict[ObjectRef, Manifest]:
        """What the operator made and still owns."""
        return {ref: item for ref, item in self.objects.items() if self.is_owned(item)}

    @cached_property
    def operators(self) -> tuple[Manifest, ...]:
        """Deployments of the operator."""
        return tuple(item for item in self.objects.values() if is_operator(item))

    @property
    def namespace(self) -> str:
        """Where the operands run; the operator's own namespace. Empty if nothing is there."""
        spaces = [item["metadata"]["namespace"] for item in (*self.operators, *self.owned.values()) if _space(item)]
        return next(iter(spaces), "")

    @property
    def release(self) -> tuple[str, str]:
        """Name and namespace of the Helm release; empty if Helm did not install it."""
        for item in (*self.operators, *self.policies):
            notes = item["metadata"].get("annotations") or {}
            if _RELEASE in notes:
                return notes[_RELEASE], notes.get(_RELEASE_NAMESPACE, "")
        return "", ""

    @cached_property
    def chart(self) -> dict[ObjectRef, Manifest]:
        """What Helm made for the operator and for its Node Feature Discovery, which both go with the adoption."""
        name, _ = self.release
        return {ref: item for ref, item in self.objects.items() if _of_chart(item, name)} if name else {}

    @cached_property
    def discovery(self) -> dict[ObjectRef, Manifest]:
        """The part of that which is Node Feature Discovery."""
        return {ref: item for ref, item in self.chart.items() if is_discovery(item)}

    def driver_pods(self) -> Iterator[Manifest]:
        """Yield the driver pods that run for the operator, or that it has left behind."""
        for pod in self.pods:
            said = _labels(pod)
            if said.get(labels.APP) == DRIVER_APP and not pod["metadata"].get("deletionTimestamp"):
                yield pod


def is_operator(item: Manifest) -> bool:
    """Whether an object is the operator's Deployment."""
    if item["kind"] != "Deployment":
        return False
    selector = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    return selector.get(labels.COMPONENT_OF_APP) == OPERATOR or selector.get(labels.APP) == OPERATOR


def is_discovery(item: Manifest) -> bool:
    """Whether an object is of a Node Feature Discovery."""
    return _labels(item).get(_NAME) == _NFD


def _of_chart(item: Manifest, release: str) -> bool:
    """Whether Helm made an object for the operator or for its Node Feature Discovery.

    An object of somebody's own values carries neither's labels, and stays.
    """
    said, notes = _labels(item), item["metadata"].get("annotations") or {}
    if notes.get(_RELEASE) != release or item["kind"] not in _CHART_KINDS:
        return False
    discovery = is_discovery(item) and said.get(_INSTANCE) == release
    return discovery or said.get(labels.COMPONENT_OF_APP) == OPERATOR


def _labels(item: Manifest) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _space(item: Manifest) -> str:
    return str(item["metadata"].get("namespace", ""))


def by_ref(items: Iterable[Manifest]) -> dict[ObjectRef, Manifest]:
    """Return objects by reference."""
    return {ref_of(item): item for item in items}


def text_of(value: Any) -> str:
    """Return a value of a ClusterPolicy as people write it there."""
    return str(value).lower() if isinstance(value, bool) else str(value)
