"""Observed facts of a cluster: read once, then passed to pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from gpu_provision.model.inventory import ALL, Inventory, NodePool, OperatingSystem, RunSelection
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.model.openshift_specs import KUBERNETES, OPENSHIFT
from gpu_provision.model.progress import LockHolder

Manifest = dict[str, Any]
"""A Kubernetes object as a plain dict."""


class Kind(NamedTuple):
    """A kind of object, as ``apiVersion`` and ``kind`` name it."""

    api_version: str
    kind: str


class ObjectRef(NamedTuple):
    """Names one object. ``namespace`` is empty for objects of cluster scope."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def type(self) -> Kind:
        """The object's kind."""
        return Kind(self.api_version, self.kind)

    def __str__(self) -> str:
        """Return ``DaemonSet namespace/name`` as people write it."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def ref_of(manifest: Manifest) -> ObjectRef:
    """Return the reference of a manifest."""
    metadata = manifest["metadata"]
    return ObjectRef(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def index_by_ref(manifests: Iterable[Manifest]) -> dict[ObjectRef, Manifest]:
    """Return manifests by reference."""
    return {ref_of(manifest): manifest for manifest in manifests}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node of the cluster as its Node object describes it."""

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    os: OperatingSystem | None = None  # from NFD's labels, else from ``status.nodeInfo.osImage``; None if both lack it
    kernel: str = ""
    ostree: str = ""  # release of Red Hat Enterprise Linux CoreOS, such as ``418.94.202410090804-0``
    architecture: str = ""
    container_runtime: str = ""  # ``containerd``, ``cri-o`` or ``docker``; empty if unknown
    container_runtime_version: str = ""  # as the runtime reports it, such as ``1.7.27``; empty if unknown
    distribution: str = ""  # ``k3s``, ``rke2``, ``k0s``, ``microk8s`` or ``gke``; empty for others, or if unknown
    boot_id: str = ""  # changes with every boot of the machine
    ready: bool = False
    unschedulable: bool = False
    # Field manager that wrote ``spec.unschedulable`` last; empty if it is not cordoned, or if unknown.
    cordoned_by: str = ""
    cordoned_at: str = ""  # when that manager did, RFC 3339; empty where that is
    # ``status.allocatable`` of ``nvidia.com/gpu``; None until a device plugin registers it.
    gpus_allocatable: int | None = None
    other_devices: Mapping[str, int] = field(default_factory=dict)  # of shared GPUs and of MIG devices, by resource
    taints: tuple[Mapping[str, Any], ...] = ()  # as in its ``spec``
    # ``resourceVersion`` of a Node with the startup taint, the precondition of its removal. Empty for other
    # nodes, so that unchanged nodes compare equal.
    revision: str = ""

    @property
    def devices(self) -> dict[str, int]:
        """What the node offers to pods, by resource; empty until a device plugin registers any."""
        whole = {} if self.gpus_allocatable is None else {"nvidia.com/gpu": self.gpus_allocatable}
        return {**whole, **self.other_devices}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster at one moment. Empty means: nothing is known, as for offline rendering."""

    version: str = ""  # the API server's git version, such as ``v1.34.1``
    nodes: tuple[NodeFacts, ...] = ()  # all nodes
    # Names of served resources, such as ``servicemonitors.monitoring.coreos.com``.
    resources: frozenset[str] = frozenset()
    # ``data`` of the ConfigMaps in the operands' namespace that the inventory names.
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Digest of each Secret there that the inventory names; the content itself is not stored.
    secrets: Mapping[str, str] = field(default_factory=dict)
    secret_keys: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the same Secrets
    # Node -> version of a usable host driver, as the host phase read it; empty for none. Nodes whose hosts were
    # not read are missing.
    host_drivers: Mapping[str, str] = field(default_factory=dict)
    unverified: str = ""  # URL of the API server if the kubeconfig lets its certificate go unverified
    openshift: OpenShiftFacts | None = None  # None on plain Kubernetes


def openshift_of(inventory: Inventory, facts: ClusterFacts) -> OpenShiftFacts | None:
    """Return what is known of an OpenShift cluster; None on plain Kubernetes. The inventory overrides the cluster."""
    declared = inventory.cluster.platform
    found = facts.openshift or (OpenShiftFacts() if declared == OPENSHIFT else None)
    return None if declared == KUBERNETES else found


class DriverBasis(StrEnum):
    """How it is known whether a node's driver is the host's or a container's."""

    DECLARED = "declared"  # the inventory, whatever the host has
    READ = "read"  # the host itself, read in this run
    LABEL = "label"  # the node's labels: an earlier run, or the driver manager
    GUESS = "guess"  # nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverChoice:
    """Whether a node's driver is the host's or a container's."""

    on_host: bool  # whether it is the host's own; if not, a container brings it
    basis: DriverBasis
    version: str = ""  # of the host driver that ``driver.enabled: auto`` has chosen; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU node of this inventory: its declaration joined with its observed state."""

    name: str
    pool: NodePool
    os: OperatingSystem | None  # observed operating system, else the declared one; None if neither is known
    facts: NodeFacts | None  # the observed node; None if the cluster has no such node (yet), or offline
    driver: DriverChoice
    driver_group: str  # names the driver DaemonSet that serves this node; equal needs share one
    on_openshift: bool = False
    # Release of Red Hat Enterprise Linux CoreOS whose Driver Toolkit builds its driver; empty if none does.
    toolkit_release: str = ""
    toolkit_image: str = ""  # Driver Toolkit image of that release; empty if the ImageStream has no such tag

    @property
    def lacks_toolkit(self) -> bool:
        """Whether the cluster has no Driver Toolkit image for ``toolkit_release``."""
        return bool(self.toolkit_release and not self.toolkit_image)

    @property
    def labels(self) -> Mapping[str, str]:
        """The observed labels; empty if the cluster has no such node."""
        return self.facts.labels if self.facts else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderContext:
    """Input of a component besides its own spec."""

    inventory: Inventory
    facts: ClusterFacts
    targets: tuple[Target, ...]  # the GPU nodes, sorted by name; see gpu_provision.components.targets
    selection: RunSelection = ALL  # components and nodes that a run manages
    others: tuple[Target, ...] = ()  # the GPU nodes that are not in it

    @property
    def namespace(self) -> str:
        """Namespace of the operands."""
        return self.inventory.cluster.namespace

    @property
    def openshift(self) -> OpenShiftFacts | None:
        """What is known of an OpenShift cluster; None on plain Kubernetes."""
        return openshift_of(self.inventory, self.facts)


class Permission(NamedTuple):
    """The right to do one thing."""

    verb: str  # such as ``patch``
    group: str  # API group; empty for the core group
    resource: str  # plural name, with a subresource where there is one: ``pods/log``
    namespace: str = ""  # empty for the whole cluster
    name: str = ""  # of one object; empty for objects of any name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """One reading of a cluster; ``names``, by kind and namespace, of all objects of kinds that were listed whole."""

    cluster: str  # as people name it: its context
    facts: ClusterFacts
    members: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # live objects that carry the membership
    namespaces: frozenset[str] = frozenset()
    names: Mapping[tuple[Kind, str], frozenset[str]] = field(default_factory=dict)
    pods: Mapping[ObjectRef, Manifest] = field(default_factory=dict)  # of the stack's components, also of validations
    verdicts: Mapping[tuple[str, str], str] = field(default_factory=dict)  # on record, see `planning.verdicts`
    void_pod_uids: frozenset[str] = frozenset()  # uids of pods whose vectorAdd does not count, since it is to run again
    lock: LockHolder | None = None
    lock_version: str = ""  # of the lock's object; it changes whenever a run takes, renews or gives it back

    def is_absent(self, ref: ObjectRef) -> bool:
        """Whether it is known that there is no such object."""
        if ref in self.members:  # a controller has created it since its last observation
            return False
        if ref.kind == "Namespace":
            return ref.name not in self.namespaces
        place = ref.type, ref.namespace
        has_place = not ref.namespace or ref.namespace in self.namespaces
        return (place in self.names and ref.name not in self.names[place]) or not has_place

    @property
    def is_installed(self) -> bool:
        """Whether the cluster has objects of the stack besides CRDs, which a removal leaves."""
        return any(ref.kind != "CustomResourceDefinition" for ref in self.members)


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """Manifests of a component that concern nodes: its DaemonSets, and one manifest per node name."""

    daemonsets: tuple[Manifest, ...]
    single: Mapping[str, Manifest]
