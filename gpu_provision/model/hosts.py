"""Hosts: connection, prerequisites, what preflight expects, and the files of each distribution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_provision.model.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionPaths:
    """Files of one distribution."""

    containerd_config: str  # what its containerd reads
    toolkit_config: str  # what has to be changed so that a change lasts: some write ``containerd_config`` at each start
    socket: str  # socket of its containerd
    binary: str = ""  # its own containerd; empty where that of the system is used
    units: tuple[str, ...]  # units that restart it, first the one of a server
    images: str  # directory that images are unpacked into
    kubelet_root: str = "/var/lib/kubelet"  # its ``--root-dir``
    marks: tuple[str, ...]  # files that only this distribution has


KUBEADM = "kubeadm"

OTHER = "other"


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


DISTRIBUTIONS: Mapping[str, DistributionPaths] = {
    name: DistributionPaths(**_with_tuples(entry))
    for name, entry in json.loads(Path(__file__).with_name("distributions.json").read_text(encoding="utf-8")).items()
}
"""Distribution -> its files; the first one whose marks exist counts. kubeadm is last: others have its marks, too."""


def paths_of(distribution: str) -> DistributionPaths:
    """Return the files of a distribution; for an unknown one, those of the system's containerd."""
    return DISTRIBUTIONS.get(distribution, DISTRIBUTIONS[KUBEADM])


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One node as its inventory declares it, in plain values."""

    node: str  # its name in Kubernetes
    pool: str
    os: str = ""  # declared operating system as in ``ubuntu22.04``; empty for whatever it is
    gpu_model: str = ""  # declared model; empty for a node without a GPU
    gpu_count: int = 0  # declared number of GPUs; 0 for a node without, or with any number
    any_gpu: bool = False  # whether the node may have GPUs of any model and number
    driver_container: bool = True  # whether the driver comes as a container; if not, it belongs to the host
    driver_auto: bool = False  # whether it is the container only on a host without a usable driver of its own
    driver_image: str = ""  # driver image without the tag; empty if the driver belongs to the host
    driver_version: str = ""  # version, or a digest that begins with ``sha256:``
    driver_precompiled: bool = False  # whether the container has kernel modules for one kernel, and builds none
    kernel_module_type: str = "auto"  # ``auto``, ``open`` or ``proprietary``
    rdma: bool = False  # whether the driver container loads nvidia-peermem
    # Whether the driver container has a proxy, or gets its packages from an own repository.
    driver_has_proxy: bool = False
    toolkit: bool = True  # whether the stack's container toolkit configures the runtime
    toolkit_version: str = ""  # version of its image, or a digest
    toolkit_dir: str = ""  # directory that it is installed in; empty if the stack does not install it
    toolkit_drop_in: str = ""  # drop-in file that the toolkit writes for the runtime; empty for its default
    toolkit_source: str = ""  # where the toolkit reads the runtime's configuration; empty for its default
    toolkit_config: str = ""  # runtime's configuration that the toolkit changes; empty for its default
    toolkit_socket: str = ""  # runtime's socket that the toolkit uses; empty for its default
    cdi: bool = True  # whether GPUs reach containers through CDI
    blacklist_nouveau: bool = True  # whether the host phase keeps nouveau away
    hold_packages: bool = False  # whether the host phase holds kernel and driver packages
    kernel_modules: tuple[str, ...] = ()  # modules that the host phase loads
    workload_known: bool = False  # whether the cluster was asked, and does not give the GPUs to virtual machines
    ask_registry: bool = False  # whether preflight may query the registry for the driver image
    ignore: tuple[str, ...] = ()  # codes of findings that do not stop a run

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Expectation:
        """Return the expectation from plain values, such as pyinfra's host data."""
        return cls(**_with_tuples(data))

    @property
    def builds_driver(self) -> bool:
        """Whether the driver container builds its kernel modules on the node."""
        return self.driver_container and not self.driver_precompiled

    @property
    def has_gpu(self) -> bool:
        """Whether the node is declared with a GPU."""
        return self.any_gpu or self.gpu_count > 0

    @property
    def gpus(self) -> str:
        """The declared GPUs in words."""
        return "GPUs of any kind" if self.any_gpu else f"{self.gpu_count} x {self.gpu_model}"


class ImageAvailability(StrEnum):
    """State of an image in a registry."""

    PRESENT = "present"
    ABSENT = "absent"
    OTHER_ARCHITECTURE = "other-architecture"  # present, but not for this architecture
    REFUSED = "refused"  # unknown: credentials are missing or insufficient
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ImageLookup:
    """A registry's answer: the image, its state, and the registry's message."""

    reference: str
    state: ImageAvailability
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How hosts are reached; the user's SSH configuration applies where a value is empty or zero."""

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
    sudo: bool = setting(True, "Whether commands run through sudo; without effect for root.")
    patience: int = setting(
        60,
        "Seconds without an answer of the host's SSH server after which a command fails. The duration of the command "
        "itself is not limited.",
        minimum=1,
    )


class ConnectionMethod(StrEnum):
    """How a host is reached."""

    SSH = "ssh"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPod:
    """The pod through which hosts without SSH are reached; see gpu_provision.kube.node_shell."""

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
        "Existing namespace that admits privileged pods; the stack's own may not exist yet.",
        "object_name",
    )
    # Names of Secrets of that namespace; the kubelet ignores missing ones.
    image_pull_secrets: tuple[str, ...] = ()


_BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
UNLIMITED = "unlimited"


def limit_values(limits: Mapping[str, str]) -> dict[str, str]:
    """Return limits as the kernel prints them: ``unlimited``, or a number of bytes or whatever is limited."""
    return {
        name: str(int(text[:-2]) * _BYTES[text[-2:]]) if text[-2:] in _BYTES else text for name, text in limits.items()
    }


def unit_limits(limits: Mapping[str, str]) -> list[str]:
    """Return the lines of a systemd unit that set limits."""
    values = limit_values(limits).items()
    return [f"Limit{name.upper()}={value.replace(UNLIMITED, 'infinity')}" for name, value in values]


class Reboot(StrEnum):
    """Whether a host may be rebooted."""

    NEVER = "never"
    IF_REQUIRED = "if-required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How a node is drained; names as in the GPU Operator's upgrade policy."""

    timeout_seconds: int = setting(300, "Seconds until a drain fails and the node is uncordoned. 0: never.", minimum=0)
    force: bool = setting(
        False, "Whether pods without a controller are evicted. Otherwise a node with such a pod is not drained."
    )
    delete_empty_dir: bool = setting(
        False,
        "Whether pods with `emptyDir` volumes, which are lost, are evicted. Otherwise a node with such a pod is not "
        "drained.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrerequisites:
    """What the host phase configures on the machines, before any container runs.

    ``proxy`` has the credentials, and ``ca_certificates`` the certificates themselves, in PEM.
    """

    enabled: bool = setting(
        True,
        "Whether the host phase runs. If off, the tool connects to no machine, as for managed clusters without SSH.",
    )
    kernel_modules: tuple[str, ...] = setting(
        ("i2c_core", "ipmi_msghandler"),
        "Modules to load, now and at every boot. A module that is built into the kernel counts as loaded. Pools "
        "without a GPU default to none.",
        "kernel_modules",
    )
    blacklist_nouveau: bool = setting(
        True,
        "Whether the kernel's own drivers of NVIDIA GPUs, nouveau and nova_core, are blacklisted, and unloaded if they "
        "are not in use. Pools without a GPU default to false.",
    )
    kernel_headers: bool | str = setting(
        "auto",
        "Whether headers of the running kernel, and of the one that boots next, are installed in its exact version. "
        "`auto`: if the host compiles its own driver, by DKMS or NVIDIA's installer; driver containers have their own "
        "headers. Teardown removes the packages that were installed for this, unless others need them.",
        enum=["auto", True, False],
    )
    hold_packages: bool = setting(
        False,
        "Whether installed kernel and driver packages are held against upgrades: by apt-mark, zypper's locks or dnf's "
        "versionlock plugin. If turned off, and on teardown, the packages that gpu-provision holds are released.",
    )
    runtime_imports: bool | str = setting(
        "auto",
        "Whether the configuration of the kubelet's containerd imports the directory of the toolkit's drop-in. "
        "containerd checks the change, which is reverted if containerd does not answer after its restart. `auto`: if "
        "the stack's toolkit writes a drop-in (since 1.18) and the import is missing. `true`: also without that "
        "toolkit, with a warning if it fails.",
        enum=["auto", True, False],
    )
    sysctls: Mapping[str, str] = setting(
        {},
        "Kernel parameters by name, set now and at every boot. A parameter that is no longer declared keeps its value "
        "until the next boot.",
        "sysctls",
    )
    dev_char_symlinks: bool = setting(
        False,
        "Whether a udev rule links the GPUs' device nodes in /dev/char whenever a driver loads. Without the links, "
        "containers of the toolkit's legacy mode lose their GPUs at `systemctl daemon-reload`; those of CDI keep them.",
    )
    hugepages: Mapping[str, int] = setting(
        {},
        "Number of huge pages by size, reserved now and at every boot; the kubelet is restarted if it has to count "
        "them again. Sizes as in Kubernetes. Pages of a size that is no longer declared stay until the next boot.",
        "hugepages",
    )
    kernel_arguments: tuple[str, ...] = setting(
        (),
        "Arguments of the kernel's command line. Only MachineConfigs of OpenShift carry them; other hosts need them in "
        "their boot loader.",
        "kernel_arguments",
        examples=[["intel_iommu=on"]],
    )
    limits: Mapping[str, str] = setting(
        {},
        "Initial limits of containers, soft and hard: set for the container runtime's process and in its unit, "
        "without a restart. RDMA in pods without root needs `memlock: unlimited`. Sizes are bytes, or end in Ki, Mi, "
        "Gi.",
        "limits",
    )
    persistence_mode: bool = setting(
        True,
        "Whether a driver of the host stays initialized while no process uses its GPUs: by NVIDIA's daemon if the host "
        "has it, else by nvidia-smi at every boot. Driver containers always do so.",
    )
    proxy: Mapping[str, str] = setting(
        {},
        "Proxies of the kubelet's container runtime only; they override the inventory's `proxy`, key by key. A change "
        "restarts the runtime, and is reverted if the runtime does not answer.",
        "proxy",
        secret=True,
    )
    ca_certificates: tuple[str, ...] = setting(
        (),
        "Files of PEM certificates that the hosts trust in addition to those of their system, such as that of a "
        "registry or of a TLS proxy. A change restarts the container runtime.",
        "files",
        secret=True,
        examples=[["certs/registry-ca.pem"]],
    )
    reboot: Reboot = setting(
        Reboot.NEVER,
        "Whether a machine is rebooted if a change needs it. `if-required`: the node is cordoned and drained before, "
        "and uncordoned when it is ready again. `never`: the needed reboot is only reported.",
    )
    max_parallel_reboots: int = setting(
        1, "Number of machines of all pools that may reboot at the same time.", minimum=1
    )
    reboot_timeout: int = setting(
        900, "Seconds until a rebooting machine has to answer, and again until its node has to be ready.", minimum=1
    )
    drain: Drain = setting(
        Drain(),
        "How a node is drained before its machine is rebooted: by the Eviction API, so that PodDisruptionBudgets "
        "apply. Pods of DaemonSets, static and finished pods stay.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Checks of hosts before any change; docs/preflight.md lists the findings."""

    ignore: tuple[str, ...] = setting(
        (),
        "Codes of findings that do not stop a run: an error becomes a warning, a warning is not shown.",
        "preflight_codes",
    )
    registry: bool = setting(
        True,
        "Whether preflight checks that the registry has each node's driver image. A registry that does not answer is a "
        "warning.",
    )
