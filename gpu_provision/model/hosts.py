"""Hosts: how they are reached and what is made true on them, what preflight expects, and each distribution's files."""

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
    marks: tuple[str, ...]  # files that only this distribution has


KUBEADM = "kubeadm"

OTHER = "other"


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


DISTRIBUTIONS: Mapping[str, DistributionPaths] = {
    name: DistributionPaths(**_with_tuples(entry))
    for name, entry in json.loads(Path(__file__).with_name("distributions.json").read_text(encoding="utf-8")).items()
}
"""Distribution -> its files; the first whose marks are found is the one. kubeadm's are last: others have them too."""


def paths_of(distribution: str) -> DistributionPaths:
    """Return where a distribution keeps its files; those of a system's own containerd for any other."""
    return DISTRIBUTIONS.get(distribution, DISTRIBUTIONS[KUBEADM])


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One node as its inventory declares it, in plain values."""

    node: str  # its name in Kubernetes
    pool: str
    os: str = ""  # declared operating system as in ``ubuntu22.04``; empty for whatever it is
    gpu_model: str = ""  # declared model; empty for a node without a GPU
    gpu_count: int = 0  # declared number of GPUs; 0 for a node without
    driver_container: bool = True  # whether the driver comes as a container; if not, it belongs to the host
    driver_auto: bool = False  # whether it is the container only on a host without a usable driver of its own
    driver_image: str = ""  # driver image without the tag; empty if the driver belongs to the host
    driver_version: str = ""  # version, or a digest that begins with ``sha256:``
    kernel_module_type: str = "auto"  # ``auto``, ``open`` or ``proprietary``
    # Whether the driver container has a proxy, or gets its packages from an own repository.
    driver_has_proxy: bool = False
    toolkit: bool = True  # whether the stack installs the container toolkit
    toolkit_version: str = ""  # version of its image, or a digest
    toolkit_dir: str = ""  # directory that it is installed in; empty if the stack does not install it
    toolkit_drop_in: str = ""  # drop-in file that the toolkit writes for the runtime; empty for its default
    toolkit_config: str = ""  # runtime's configuration that the toolkit changes; empty for its default
    toolkit_socket: str = ""  # runtime's socket that the toolkit uses; empty for its default
    cdi: bool = True  # whether GPUs reach containers through CDI
    blacklist_nouveau: bool = True  # whether the host phase keeps nouveau away
    hold_packages: bool = False  # whether the host phase holds kernel and driver packages
    kernel_modules: tuple[str, ...] = ()  # modules that the host phase loads
    ask_registry: bool = False  # whether the registry may be asked for the driver image
    ignore: tuple[str, ...] = ()  # codes of findings that do not stop a run

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Expectation:
        """Return the expectation that was written out as plain values, as for pyinfra's host data."""
        return cls(**_with_tuples(data))


class ImageState(StrEnum):
    """What a registry says about an image."""

    PRESENT = "present"
    ABSENT = "absent"
    OTHER_ARCHITECTURE = "other-architecture"  # it is there, but not for this kind of processor
    REFUSED = "refused"  # the registry does not say: credentials are missing or not enough
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ImageAnswer:
    """A registry's answer: the image asked for, its state, and the registry's own words."""

    reference: str
    state: ImageState
    evidence: str = ""


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
        "Namespace that exists and admits privileged pods; the stack's own may not be there yet.",
        "object_name",
    )
    # Names of Secrets of that namespace; kubelet takes no notice of one that is not there.
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
        "their own. Teardown removes what was installed for this, unless something else needs it.",
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
