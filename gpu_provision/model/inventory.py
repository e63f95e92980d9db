"""The inventory as values: what the user declared, validated and fully resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_provision.model.findings import Finding
from gpu_provision.model.specs import DriverSpec, RolloutPolicy, Specs


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
    patience: int = 60  # seconds that a host may be silent in the middle of a command


class Connect(StrEnum):
    """How a host is reached."""

    SSH = "ssh"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPod:
    """The pod through which hosts without SSH are reached; see gpu_provision.kube.node_shell.

    Attributes:
        image: Needs nsenter, and nothing else.
        namespace: Admits privileged pods.
        image_pull_secrets: Names of Secrets of that namespace; kubelet takes no notice of one that is not there.
    """

    # The index for all architectures, of 22 May 2026, as docker-library/repo-info records it: tags move.
    image: str = (
        "docker.io/library/busybox:1.37@sha256:9db7b59979c38555a39def84a31fb98b5296952f9e3afd4f6f11f05b07adfab0"
    )
    namespace: str = "kube-system"
    image_pull_secrets: tuple[str, ...] = ()


class Reboot(StrEnum):
    """Whether a host may be rebooted."""

    NEVER = "never"
    IF_REQUIRED = "if-required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How pods are taken off a node; names as in the GPU Operator's upgrade policy.

    Attributes:
        timeout_seconds: After which a drain that goes on fails; 0 for never.
        force: Whether pods go that no controller would bring back.
        delete_empty_dir: Whether pods go whose emptyDir volumes are lost with them.
    """

    timeout_seconds: int = 300
    force: bool = False
    delete_empty_dir: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrerequisites:
    """What the host phase makes true before any container runs.

    Attributes:
        kernel_headers: Whether kernel headers are installed: ``auto``, or True, False.
        hold_packages: Whether installed kernel and driver packages are held against upgrades.
        sysctls: Kernel parameters by name.
        dev_char_symlinks: Whether GPUs are linked in /dev/char whenever a driver loads.
        hugepages: Number of huge pages by size, such as 16 of ``1Gi``.
        persistence_mode: Whether a host's own driver stays initialized while nobody uses its GPUs.
        limits: Limits that containers begin with, by name: numbers, sizes such as ``64Mi``, or ``unlimited``.
        proxy: Proxies of the container runtime: ``http_proxy``, ``https_proxy``, ``no_proxy``; may hold credentials.
        ca_certificates: Certificates that the system trusts, in PEM, one a text.
        max_parallel_reboots: So many machines of the whole inventory are away at a time when this one joins them.
        reboot_timeout: Seconds that a machine may take to come back, and its node to be ready.
        drain: How its node is emptied before.
    """

    enabled: bool = True
    kernel_modules: tuple[str, ...] = ("i2c_core", "ipmi_msghandler")
    blacklist_nouveau: bool = True
    kernel_headers: bool | str = "auto"
    hold_packages: bool = False
    runtime_imports: bool | str = "auto"  # or True, False
    sysctls: Mapping[str, str] = field(default_factory=dict)
    dev_char_symlinks: bool = False
    hugepages: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    persistence_mode: bool = True
    proxy: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_certificates: tuple[str, ...] = field(default=(), repr=False)
    reboot: Reboot = Reboot.NEVER
    max_parallel_reboots: int = 1
    reboot_timeout: int = 900
    drain: Drain = field(default_factory=Drain)


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
        overrides_upgrades: Whether it has an upgrade policy of its own (it then has its own limits).
        labels: Labels that its nodes get.
        node_selector: Nodes of the cluster that belong here without being listed; empty for none.
    """

    name: str
    os: OperatingSystem | None = None
    gpu: Gpu | None = None
    driver: DriverSpec
    overrides_driver: bool = False
    overrides_upgrades: bool = False
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
        path: Absolute path of the file; empty if made in Python, or of a stack's resource, which has a text.
        digest: SHA-256 of the file's content, or empty.
        text: The file's content, secrets included; empty if made in Python.
        release: Name of the release, such as ``26.7.0``.
        nodes: In the order of the file; names are unique.
        pools: By name.
        kept_runs: How many runs stay on record in the cluster.
        warnings: What the loader found that makes nothing invalid, such as a version that no release has.
    """

    name: str
    path: str = ""
    digest: str = ""
    text: str = field(default="", repr=False)
    release: str
    cluster: ClusterTarget
    specs: Specs
    pools: Mapping[str, NodePool]
    nodes: tuple[Node, ...]
    preflight: Preflight = field(default_factory=Preflight)
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    helper_pod: HelperPod = field(default_factory=HelperPod)
    kept_runs: int = 10
    warnings: tuple[Finding, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_of_resource(self) -> bool:
        """Whether a stack's resource declares it, which has no file."""
        return bool(self.text and not self.path)

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
    def may_reboot(self) -> tuple[Node, ...]:
        """The nodes with a GPU whose machines may be rebooted."""
        reached = (node for node in self.gpu_nodes if self.prerequisites_of(node).enabled)
        return tuple(node for node in reached if self.prerequisites_of(node).reboot is Reboot.IF_REQUIRED)

    @property
    def hosts_without_ssh(self) -> tuple[Node, ...]:
        """The nodes whose hosts are reached through the cluster itself; those of a sandbox never are."""
        reached = (node for node in self.nodes if self.prerequisites_of(node).enabled)
        return tuple(node for node in reached if node.connect is Connect.KUBERNETES and not self.cluster.sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Components and nodes; what is not in it is neither changed, nor removed, nor validated.

    Attributes:
        components: Empty for all. What they require is among them.
        nodes: Empty for all.
    """

    components: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

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


ALL = Part()
