"""The inventory as values: what the user declared, validated and fully resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_provision.model.specs import DriverSpec, Specs


@dataclass(frozen=True, slots=True)
class OperatingSystem:
    """An operating system as /etc/os-release and NFD name it, such as ``ubuntu`` and ``22.04``."""

    id: str
    version: str

    @property
    def tag(self) -> str:
        """The suffix of driver images: ``ubuntu22.04``; RHEL and its kin by major version, ``rhel9``."""
        major_only = self.id in {"rhel", "rocky", "ol"}
        return f"{self.id}{self.version.split('.')[0] if major_only else self.version}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one node has: so many GPUs of one model, such as 8 times ``H100``."""

    model: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How a host is reached; empty strings and zero mean: as the user's own SSH configuration says."""

    user: str = ""
    port: int = 0
    key: str = ""
    known_hosts_file: str = ""
    bastion: str = ""  # [user@]host[:port] of a jump host
    sudo: bool = True


class Connect(StrEnum):
    """How a host is reached."""

    SSH = "ssh"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPod:
    """The pod through which hosts without SSH are reached; see gpu_provision.connectors.helper_pod.

    Attributes:
        image: Needs nsenter, and nothing else.
        namespace: Admits privileged pods.
        image_pull_secrets: Names of Secrets of that namespace; kubelet takes no notice of one that is not there.
    """

    image: str = "docker.io/library/busybox:1.37"
    namespace: str = "kube-system"
    image_pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrerequisites:
    """What the host phase makes true before any container runs.

    Attributes:
        hold_packages: Whether installed kernel and driver packages are held against upgrades.
        sysctls: Kernel parameters by name.
        dev_char_symlinks: Whether GPUs are linked in /dev/char whenever a driver loads.
    """

    enabled: bool = True
    kernel_modules: tuple[str, ...] = ("i2c_core", "ipmi_msghandler")
    blacklist_nouveau: bool = True
    hold_packages: bool = False
    runtime_imports: bool | str = "auto"  # or True, False
    sysctls: Mapping[str, str] = field(default_factory=dict)
    dev_char_symlinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """How preflight judges.

    Attributes:
        ignore: Codes of findings that do not stop a run.
        registry: Whether registries are asked for images.
    """

    ignore: tuple[str, ...] = ()
    registry: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes that are alike. A pool without ``gpu`` gets no GPU component.

    Attributes:
        os: Operating system of its nodes; None means: what each node itself reports.
        gpu: None for nodes without a GPU.
        driver: The driver settings of this pool, fully resolved.
        overrides_driver: Whether the pool itself changes driver settings (it then has its own DaemonSets).
        labels: Labels that its nodes get.
        node_selector: Nodes of the cluster that belong here without being listed; empty for none.
    """

    name: str
    os: OperatingSystem | None = None
    gpu: Gpu | None = None
    driver: DriverSpec
    overrides_driver: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    host_prerequisites: HostPrerequisites = field(default_factory=HostPrerequisites)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine: its name in Kubernetes, and how its host is reached."""

    name: str
    pool: str
    address: str = ""  # empty: the name itself
    ssh: Ssh = field(default_factory=Ssh)
    connect: Connect = Connect.SSH
    labels: Mapping[str, str] = field(default_factory=dict)
    host_prerequisites: HostPrerequisites | None = None  # None: as its pool has them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """Which cluster, and where in it.

    Attributes:
        kubeconfig: Path; empty for $KUBECONFIG or ~/.kube/config.
        context: Name of the context; empty for the current one.
        sandbox: Name or path of a sandbox fleet; empty for a real cluster.
        namespace: Namespace of the operands.
    """

    kubeconfig: str = ""
    context: str = ""
    sandbox: str = ""
    namespace: str = "gpu-operator-resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that one inventory file declares.

    Attributes:
        name: Name of the stack; objects in the cluster are members of it.
        path: Absolute path of the file, or empty if made in Python.
        digest: SHA-256 of the file's content, or empty.
        release: Name of the release, such as ``26.7.0``.
        nodes: In the order of the file; names are unique.
        pools: By name.
    """

    name: str
    path: str = ""
    digest: str = ""
    release: str
    cluster: ClusterTarget
    specs: Specs
    pools: Mapping[str, NodePool]
    nodes: tuple[Node, ...]
    preflight: Preflight = field(default_factory=Preflight)
    helper_pod: HelperPod = field(default_factory=HelperPod)

    def pool_of(self, node: Node) -> NodePool:
        """Return the pool that a node of this inventory belongs to."""
        return self.pools[node.pool]

    def prerequisites_of(self, node: Node) -> HostPrerequisites:
        """Return what the host phase makes true on a node: its own settings, or those of its pool."""
        return node.host_prerequisites or self.pool_of(node).host_prerequisites

    @property
    def gpu_nodes(self) -> tuple[Node, ...]:
        """The nodes that the inventory declares with a GPU."""
        return tuple(node for node in self.nodes if self.pool_of(node).gpu)

    @property
    def hosts_without_ssh(self) -> tuple[Node, ...]:
        """The nodes whose hosts are reached through the cluster itself; those of a sandbox never are."""
        reached = (node for node in self.nodes if self.prerequisites_of(node).enabled)
        return tuple(node for node in reached if node.connect is Connect.KUBERNETES and not self.cluster.sandbox)
