"""The inventory as values: what the user declared, validated and fully resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_provision.model.driver_specs import MODULE_SECTIONS, DriverSpec, GdrcopySpec, GdsSpec
from gpu_provision.model.findings import Finding
from gpu_provision.model.hosts import ConnectionMethod, HelperPod, HostPrerequisites, Preflight, Reboot, SshOptions
from gpu_provision.model.openshift_specs import KUBERNETES, OPENSHIFT, OpenShiftSection
from gpu_provision.model.operand_specs import ContainerSpec
from gpu_provision.model.rollout_policy import RolloutPolicy
from gpu_provision.model.settings import REQUIRED, setting
from gpu_provision.model.specs import Specs


@dataclass(frozen=True, slots=True)
class OperatingSystem:
    """An operating system as /etc/os-release and NFD name it, such as ``ubuntu`` and ``22.04``."""

    id: str
    version: str

    @classmethod
    def parse(cls, text: str) -> OperatingSystem | None:
        """Return ``ubuntu22.04`` in its two parts, or None if it has another form."""
        match = re.fullmatch(r"([a-z]+(?:-[a-z]+)*)([0-9]+(?:\.[0-9]+)*)", text)
        return cls(match[1], match[2]) if match else None

    @property
    def tag(self) -> str:
        """The suffix of driver images: ``ubuntu22.04``; RHEL and its kin by major version, ``rhel9``."""
        major_only = self.id in {"rhel", "rocky", "ol"}
        return f"{self.id}{self.version.split('.')[0] if major_only else self.version}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPUs of each node of a pool. `{}`: any GPUs.

    A pool for any GPUs gets the nodes of the cluster that have a GPU and that no other pool gets; its node_selector
    limits them.
    """

    model: str = setting("", "Model of the GPUs.", "line", maxLength=100, examples=["T4", "A100-SXM4-80GB", "H100"])
    count: int = setting(
        0,
        "Physical GPUs per node, whatever MIG or sharing offers of them. A run reports a node with another number.",
        shown=False,
        minimum=1,
        maximum=256,
        examples=[1, 8],
    )

    @property
    def is_any(self) -> bool:
        """Whether these may be GPUs of any model and number."""
        return not (self.model or self.count)

    def __str__(self) -> str:
        """Return them in words, such as ``8 x H100``."""
        return "GPUs of any kind" if self.is_any else f"{self.count} x {self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlugin:
    """Settings of the device plugin on the nodes of a pool."""

    config: str = setting(
        "",
        "Configuration of these nodes, one of `device_plugin.config`; the value of their label "
        "`nvidia.com/device-plugin.config`.",
        "plugin_config_name",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """The MIG devices of a pool's GPUs, which the MIG manager makes. A change of them is rolled out as a driver is."""

    config: str = setting(
        REQUIRED,
        "Name of a configuration: of `mig_manager.config`, or one that the MIG manager has for every GPU: "
        "`all-disabled`, `all-balanced`, and `all-` with a profile. Without the key, the GPUs stay as they are.",
        "mig_config",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes of one kind. A pool without `gpu` gets no GPU component."""

    name: str
    os: OperatingSystem | None = setting(
        None,
        "Operating system of its nodes: ID and VERSION_ID of /etc/os-release, joined. The system that a node reports "
        "overrides it. Default: as each node reports.",
        "os",
    )
    gpu: Gpu | None = setting(None, dependentRequired={"model": ["count"], "count": ["model"]})
    mig: MigGeometry | None = setting(None)
    # Fully resolved.
    driver: DriverSpec = setting(
        REQUIRED,
        "Driver settings of this pool, which override the inventory's `driver`. Such a pool has DaemonSets of its own.",
        required=False,
    )
    gds: GdsSpec = setting(
        REQUIRED,
        "GPUDirect Storage in this pool, which overrides the inventory's `gds`. Such a pool has DaemonSets of its own.",
        required=False,
    )
    gdrcopy: GdrcopySpec = setting(
        REQUIRED,
        "GDRCopy in this pool, which overrides the inventory's `gdrcopy`. Such a pool has DaemonSets of its own.",
        required=False,
    )
    overrides_driver: bool = False  # whether the pool itself changes what its driver pods are (own DaemonSets then)
    overrides_upgrades: bool = False  # whether it has an upgrade policy of its own (it then has its own limits)
    device_plugin: PoolPlugin = setting(PoolPlugin())
    labels: Mapping[str, str] = setting({}, "Labels of its nodes.", "labels")
    node_selector: Mapping[str, str] = setting(
        {},
        "Nodes of the cluster with these labels belong to this pool without an entry in `nodes`. Of two pools for any "
        "GPUs (`gpu: {}`), the one with more of a node's labels gets the node.",
        "labels",
    )
    host_prerequisites: HostPrerequisites = setting(
        HostPrerequisites(), "Host prerequisites of this pool, which override the inventory's `host_prerequisites`."
    )

    @property
    def takes_any_gpu(self) -> bool:
        """Whether the pool is for nodes with any GPUs."""
        return self.gpu is not None and self.gpu.is_any

    @property
    def module_builders(self) -> dict[str, ContainerSpec]:
        """Those of the containers beside the driver that are on, by section."""
        return {name: spec for name in MODULE_SECTIONS if (spec := getattr(self, name)).enabled}

    @property
    def has_driver_container(self) -> bool:
        """Whether its nodes get a driver container, unless they keep a host driver."""
        return self.gpu is not None and self.driver.enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str = setting(REQUIRED, kind="node_name")
    pool: str = setting(REQUIRED, "Name of the pool that the node belongs to.", minLength=1, maxLength=63)
    address: str = setting("", "Host name or IP address for SSH. Default: the node's name.", "address")
    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH, "How this node's host is reached; overrides the pool's `connect`.", shown=False
    )
    ssh: SshOptions = setting(SshOptions(), "SSH settings of this node; they override those of the inventory.")
    labels: Mapping[str, str] = setting({}, "Labels of this node, in addition to those of its pool.", "labels")
    host_prerequisites: HostPrerequisites | None = setting(
        None, "Host prerequisites of this node, which override those of its pool."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Which cluster, and where in it: a real one by kubeconfig and context, or a sandbox."""

    kubeconfig: str = setting(
        "",
        "Path of a kubeconfig file; relative paths begin at this file. Default: $KUBECONFIG, else ~/.kube/config.",
        "line",
        examples=["~/.kube/config"],
    )
    context: str = setting(
        "", "Context of the kubeconfig. Default: its current one, which other tools may change.", "line"
    )
    sandbox: str = setting(
        "",
        "Name of a sandbox fleet (`default`), or path of a fleet file, relative to this file. Not together with "
        "kubeconfig or context.",
        "line",
        examples=["default", "./fleets/eight-nodes.yaml"],
    )
    namespace: str = setting(
        "gpu-operator-resources", "Namespace of the operands; created if it does not exist.", "name"
    )
    platform: str = setting(
        "",
        "Platform of the cluster. Default: as the cluster's API shows; offline, and for the roles of `rbac`, "
        "Kubernetes.",
        enum=[KUBERNETES, OPENSHIFT],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySection:
    """Records of runs in the cluster: `gpu-provision history`, docs/history.md."""

    keep: int = setting(10, "Number of runs on record. The last successful run is always kept.", minimum=1, maximum=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that one inventory file declares."""

    name: str  # name of the stack; objects in the cluster are members of it
    path: str = ""  # absolute path of the file; empty if made in Python or read from a GPUStack
    digest: str = ""  # SHA-256 of the file's content, or empty
    text: str = field(default="", repr=False)  # the file's content, secrets included; empty if made in Python
    release: str  # name of the release, such as ``26.7.0``
    cluster: ClusterConfig
    specs: Specs
    pools: Mapping[str, NodePool]  # by name
    nodes: tuple[Node, ...]  # in the order of the file; names are unique
    preflight: Preflight = field(default_factory=Preflight)
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    helper_pod: HelperPod = field(default_factory=HelperPod)
    openshift: OpenShiftSection | None = None  # None without that section
    extra_objects: tuple[Mapping[str, Any], ...] = ()  # further objects of the stack, as manifests
    kept_runs: int = HistorySection().keep  # how many runs stay on record in the cluster
    # Warnings of the loader, such as a version that no release has.
    warnings: tuple[Finding, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_of_resource(self) -> bool:
        """Whether a GPUStack declares it, which has no file."""
        return bool(self.text and not self.path)

    def pool_of(self, node: Node) -> NodePool:
        """Return the pool that a node of this inventory belongs to."""
        return self.pools[node.pool]

    def prerequisites_of(self, node: Node) -> HostPrerequisites:
        """Return the host prerequisites of a node: its own, or those of its pool."""
        return node.host_prerequisites or self.pool_of(node).host_prerequisites

    def has_host_phase(self, node: Node) -> bool:
        """Whether the tool connects to a node's host; hosts of OpenShift are the Machine Config Operator's."""
        return self.cluster.platform != OPENSHIFT and self.prerequisites_of(node).enabled

    @property
    def may_evict(self) -> bool:
        """Whether runs evict GPU pods: for a driver rollout, or from nodes that left the inventory."""
        drivers = (self.specs.driver, *(pool.driver for pool in self.pools.values()))
        return any(each.upgrade_policy.auto_upgrade for each in drivers)

    @property
    def uses_driver_toolkit(self) -> bool:
        """Whether drivers on CoreOS are built in the Driver Toolkit image, if the cluster is OpenShift."""
        return (self.openshift or OpenShiftSection()).use_ocp_driver_toolkit

    @property
    def gpu_nodes(self) -> tuple[Node, ...]:
        """The nodes that the inventory declares with a GPU."""
        return tuple(node for node in self.nodes if self.pool_of(node).gpu)

    @property
    def rebootable_nodes(self) -> tuple[Node, ...]:
        """The nodes with a GPU whose machines may be rebooted."""
        reached = filter(self.has_host_phase, self.gpu_nodes)
        return tuple(node for node in reached if self.prerequisites_of(node).reboot is Reboot.IF_REQUIRED)

    @property
    def hosts_without_ssh(self) -> tuple[Node, ...]:
        """The nodes whose hosts are reached through the cluster; none in a sandbox."""
        reached = filter(self.has_host_phase, self.nodes)
        return tuple(
            node for node in reached if node.connect is ConnectionMethod.KUBERNETES and not self.cluster.sandbox
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Components and nodes of a run; all others are neither changed nor validated."""

    components: frozenset[str] = frozenset()  # empty for all. What they require is among them.
    nodes: frozenset[str] = frozenset()  # empty for all

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return not (self.components or self.nodes)

    def has_component(self, name: str) -> bool:
        """Whether a component is in it."""
        return not self.components or name in self.components

    def has_node(self, name: str) -> bool:
        """Whether a node is in it."""
        return not self.nodes or name in self.nodes

    def has(self, component: str, node: str) -> bool:
        """Whether a component is in it on a node."""
        return self.has_component(component) and self.has_node(node)


ALL = RunSelection()
