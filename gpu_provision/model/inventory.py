"""The inventory as values: what the user declared, validated and fully resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_provision.model.findings import Finding
from gpu_provision.model.rollout_policy import RolloutPolicy
from gpu_provision.model.settings import REQUIRED, setting
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
    """What each of its nodes has."""

    model: str = setting(
        REQUIRED, "Model of the GPUs.", "line", maxLength=100, examples=["T4", "A100-SXM4-80GB", "H100"]
    )
    count: int = setting(
        REQUIRED, "GPUs per node. The run says so if a node has another number.", minimum=1, examples=[1, 8]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How hosts are reached; empty texts and zero mean: as the user's own SSH configuration says."""

    user: str = setting("", "User to log in as.", "user")
    port: int = setting(
        0,
        "Port of the SSH server. Default: your SSH configuration, else 22.",
        minimum=1,
        maximum=65535,
        examples=[22],
        shown=False,
    )
    key: str = setting(
        "",
        "Path of a private key; relative paths begin at this file. Default: the agent, and your own keys.",
        "line",
        examples=["~/.ssh/id_ed25519"],
    )
    known_hosts_file: str = setting(
        "",
        "Path of a file with the keys of known hosts; relative paths begin at this file. Default: ~/.ssh/known_hosts.",
        "line",
    )
    bastion: str = setting("", "Jump host, as [user@]host[:port].", "bastion")
    sudo: bool = setting(True, "Whether commands run through sudo; has no effect for root.")
    patience: int = setting(
        60,
        "Seconds that a host may be silent in the middle of a command before it is given up. A command may take as "
        "long as it likes while the host's SSH server answers.",
        minimum=1,
    )


class ConnectionMethod(StrEnum):
    """How a host is reached."""

    SSH = "ssh"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPod:
    """The pod through which hosts without SSH are reached; see gpu_provision.kube.node_shell.

    Attributes:
        image_pull_secrets: Names of Secrets of that namespace; kubelet takes no notice of one that is not there.
    """

    # The index for all architectures, of 22 May 2026, as docker-library/repo-info records it: tags move.
    image: str = setting(
        "docker.io/library/busybox:1.37@sha256:9db7b59979c38555a39def84a31fb98b5296952f9e3afd4f6f11f05b07adfab0",
        "Image with nsenter; it needs nothing else. Default: busybox 1.37 of Docker Hub, pinned by its digest, 2 MB, "
        "behind the `registry` mirror if one is set.",
        "image_reference",
        shown=False,
    )
    namespace: str = setting(
        "kube-system",
        "Namespace that exists and admits privileged pods; the stack's own may not be there yet.",
        "object_name",
    )
    image_pull_secrets: tuple[str, ...] = ()


class Reboot(StrEnum):
    """Whether a host may be rebooted."""

    NEVER = "never"
    IF_REQUIRED = "if-required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How pods are taken off a node; names as in the GPU Operator's upgrade policy."""

    timeout_seconds: int = setting(
        300, "Seconds after which a drain is given up, and the node is uncordoned again. 0: never.", minimum=0
    )
    force: bool = setting(
        False,
        "Whether pods are evicted that no controller brings back. Otherwise a node with such a pod is left alone.",
    )
    delete_empty_dir: bool = setting(
        False,
        "Whether pods are evicted whose `emptyDir` volumes are lost with them. Otherwise a node with such a pod is "
        "left alone.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrerequisites:
    """What the host phase makes true on the machines over SSH, before any container runs.

    ``proxy`` has the credentials, and ``ca_certificates`` the certificates themselves, in PEM.
    """

    enabled: bool = setting(
        True,
        "Whether the host phase runs. If it is off, no machine is connected to: right for managed clusters without "
        "SSH.",
    )
    kernel_modules: tuple[str, ...] = setting(
        ("i2c_core", "ipmi_msghandler"),
        "Modules that are loaded now and at every boot. One that is built into the kernel counts as loaded. Pools "
        "without a GPU default to none.",
        "kernel_modules",
    )
    blacklist_nouveau: bool = setting(
        True,
        "Whether the nouveau driver is kept from loading, and unloaded where it is loaded and not in use. Pools "
        "without a GPU default to false.",
    )
    kernel_headers: bool | str = setting(
        "auto",
        "Whether headers of the running kernel, and of the one that boots next, are installed in its exact version. "
        "`auto`: where the host compiles a driver of its own, by DKMS or NVIDIA's installer; driver containers bring "
        "their own. Teardown removes what was installed for this, unless something else needs it by then.",
        enum=["auto", True, False],
    )
    hold_packages: bool = setting(
        False,
        "Whether installed kernel and driver packages are held against upgrades: by apt-mark, zypper's locks or dnf's "
        "versionlock plugin. Off again, and on teardown, the packages that gpu-provision holds are released.",
    )
    runtime_imports: bool | str = setting(
        "auto",
        "Whether the root configuration of the kubelet's containerd is made to import the directory of the toolkit's "
        "drop-in, checked by containerd itself and taken back if it does not answer after its restart. `auto`: where "
        "the stack's toolkit writes a drop-in (since 1.18) and the import is missing; `true`: without that toolkit, "
        "too, and a warning where it cannot be done.",
        enum=["auto", True, False],
    )
    sysctls: Mapping[str, str] = setting(
        {},
        "Kernel parameters by name, set now and at every boot. One that is not declared any more is no longer set at "
        "the boot, and keeps its value until then.",
        "sysctls",
    )
    dev_char_symlinks: bool = setting(
        False,
        "Whether a udev rule links the GPUs' device nodes in /dev/char whenever a driver loads. Without the links, "
        "containers that get their GPUs from the toolkit's legacy mode lose them at `systemctl daemon-reload`; those "
        "of CDI keep them.",
    )
    hugepages: Mapping[str, int] = setting(
        {},
        "Number of huge pages by size, reserved now and at every boot; the kubelet is restarted where it has to count "
        "them again. Sizes as Kubernetes writes them. One that is not declared any more is no longer reserved at the "
        "boot, and stays until then.",
        "hugepages",
    )
    limits: Mapping[str, str] = setting(
        {},
        "Limits that containers begin with, soft and hard: set for the container runtime's process and kept in its "
        "unit, without a restart. `memlock` unlimited is what RDMA wants of pods that are not root's. Sizes are "
        "bytes, or end in Ki, Mi, Gi.",
        "limits",
    )
    persistence_mode: bool = setting(
        True,
        "Whether a driver of the host's own stays initialized while no process uses its GPUs: by NVIDIA's daemon "
        "where the host has it, else by nvidia-smi at every boot. Driver containers do so by themselves.",
    )
    proxy: Mapping[str, str] = setting(
        {},
        "Proxies of the kubelet's container runtime, for it alone; on top of the inventory's `proxy`, key by key. It "
        "is restarted if they change, and has them taken back if it does not answer.",
        "proxy",
        secret=True,
    )
    ca_certificates: tuple[str, ...] = setting(
        (),
        "Files of certificates in PEM that the hosts trust besides those of their system, such as that of a registry "
        "or of a proxy that looks into TLS. The container runtime is restarted if they change.",
        "files",
        secret=True,
        examples=[["certs/registry-ca.pem"]],
    )
    reboot: Reboot = setting(
        Reboot.NEVER,
        "Whether a machine is rebooted where something takes effect only then. `if-required`: its node is cordoned and "
        "drained before, and uncordoned when it is ready again. `never`: that it is needed is only reported.",
    )
    max_parallel_reboots: int = setting(
        1, "How many machines of all pools together may be away at a time, this one among them.", minimum=1
    )
    reboot_timeout: int = setting(
        900,
        "Seconds that a machine may take to come back from a reboot, and its node to be ready after that.",
        minimum=1,
    )
    drain: Drain = setting(
        Drain(),
        "How pods are taken off a node before its machine is rebooted: by the Eviction API, so that disruption budgets "
        "hold. Pods of daemon sets, static and finished pods stay.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """How hosts are judged before anything is changed on them; docs/preflight.md lists the findings."""

    ignore: tuple[str, ...] = setting(
        (),
        "Codes of findings that do not stop a run: an error becomes a warning, a warning is not shown.",
        "preflight_codes",
    )
    registry: bool = setting(
        True,
        "Whether the registry is asked if it has each node's driver image. A registry that does not answer is a "
        "warning.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes that are alike. A pool without `gpu` gets no GPU component.

    Attributes:
        driver: Fully resolved.
        overrides_driver: Whether the pool itself changes driver settings (it then has its own DaemonSets).
        overrides_upgrades: Whether it has an upgrade policy of its own (it then has its own limits).
    """

    name: str
    os: OperatingSystem | None = setting(
        None,
        "Operating system of its nodes: ID and VERSION_ID of /etc/os-release, joined. What a node reports wins. "
        "Default: what each node reports.",
        "os",
    )
    gpu: Gpu | None = setting(None)
    driver: DriverSpec = setting(
        REQUIRED,
        "Driver settings of this pool; what is not set here is as in the inventory's `driver`. Such a pool has "
        "DaemonSets of its own.",
        required=False,
    )
    overrides_driver: bool = False
    overrides_upgrades: bool = False
    labels: Mapping[str, str] = setting({}, "Labels that its nodes get.", "labels")
    node_selector: Mapping[str, str] = setting(
        {}, "Labels of nodes in the cluster that belong to this pool without being listed under `nodes`.", "labels"
    )
    host_prerequisites: HostPrerequisites = setting(
        HostPrerequisites(),
        "Host prerequisites of this pool; what is not set here is as in the inventory's `host_prerequisites`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str = setting(REQUIRED, kind="node_name")
    pool: str = setting(REQUIRED, "Name of the pool that the node belongs to.", minLength=1, maxLength=63)
    address: str = setting("", "Host name or IP address for SSH. Default: the node's name.", "address")
    connect: ConnectionMethod = setting(
        ConnectionMethod.SSH, "How this node's host is reached; wins over what its pool says.", shown=False
    )
    ssh: SshOptions = setting(SshOptions(), "SSH settings of this node; they win over those of the inventory.")
    labels: Mapping[str, str] = setting({}, "Labels that this node gets, beyond those of its pool.", "labels")
    host_prerequisites: HostPrerequisites | None = setting(
        None, "Host prerequisites of this node; what is not set here is as in those of its pool."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Which cluster, and where in it: a real one by kubeconfig and context, or an embedded sandbox."""

    kubeconfig: str = setting(
        "",
        "Path of a kubeconfig file; relative paths begin at this file. Default: $KUBECONFIG, else ~/.kube/config.",
        "line",
        examples=["~/.kube/config"],
    )
    context: str = setting(
        "", "Context of the kubeconfig. Default: its current one, which other tools may change under you.", "line"
    )
    sandbox: str = setting(
        "",
        "Name of a sandbox fleet (`default`), or path of a fleet file, relative to this file. Not together with "
        "kubeconfig or context.",
        "line",
        examples=["default", "./fleets/eight-nodes.yaml"],
    )
    namespace: str = setting(
        "gpu-operator-resources", "Namespace of the operands; it is made if it does not exist.", "name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySection:
    """What is kept of runs, in the cluster: `gpu-provision history`, docs/history.md."""

    keep: int = setting(
        10,
        "How many runs stay on record. The last one that succeeded stays in any case.",
        minimum=1,
        maximum=100,
    )


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
    cluster: ClusterConfig
    specs: Specs
    pools: Mapping[str, NodePool]
    nodes: tuple[Node, ...]
    preflight: Preflight = field(default_factory=Preflight)
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    helper_pod: HelperPod = field(default_factory=HelperPod)
    kept_runs: int = HistorySection().keep
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
        return tuple(
            node for node in reached if node.connect is ConnectionMethod.KUBERNETES and not self.cluster.sandbox
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
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


ALL = RunSelection()
