"""The software of a simulated host: kubelet, container runtime, packages, perhaps a driver, and its system tools.

The tools are shell scripts in ``scripts/`` that keep their state in files of that host. They stand in front of the
real ones, which would speak to the kernel of the machine that the sandbox runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_provision.sandbox.hosts.spec import Distribution, HostSpec, find_distribution

PROGRAMS: Mapping[str, str] = {"containerd": "containerd", "cri-o": "crio", "docker": "dockerd"}
"""Container runtime as a node reports it -> its program."""

_SOCKETS: Mapping[str, str] = {
    "containerd": "/run/containerd/containerd.sock",
    "cri-o": "/run/crio/crio.sock",
    "docker": "/run/docker.sock",
}

_UNITS: Mapping[str, str] = {"containerd": "containerd", "cri-o": "crio", "docker": "docker"}
_STARTED = 2500
"""Ticks after the boot at which processes were started."""

_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max core file size        unlimited            unlimited            bytes
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         8388608              8388608              bytes
Max realtime priority     0                    0
"""

_DEBIAN_FAMILY = frozenset({"ubuntu", "debian"})
_RUNTIME_PID, _KUBELET_PID = 812, 977
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def software_files(spec: HostSpec) -> dict[str, str]:
    """Return path -> content, for a node that kubeadm or its distribution has joined to its cluster."""
    kind, _, version = spec.runtime.partition("://")
    program = PROGRAMS[kind]
    distribution = find_distribution(spec.kubelet) if kind == "containerd" else None
    socket = distribution.socket if distribution else _SOCKETS[kind]
    config = distribution.config if distribution else "/etc/containerd/config.toml"
    options = ["-c", config, "-a", socket] if distribution else []
    return {
        **_configuration(kind, version, config.lstrip("/")),
        **_process(_RUNTIME_PID, program, [f"/usr/bin/{program}", *options]),
        **_service(_RUNTIME_PID, distribution.process if distribution else _UNITS[kind]),
        **_kubelet(distribution, socket),
        **_packages(spec),
        **_firmware(spec),
        **({} if spec.headers else {".sandbox/no-headers": ""}),
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        ".sandbox/runtime": f"{program} version {version}\n",
        ".sandbox/sockets": f"{socket}\n",
        ".sandbox/disk": f"{max(2 * spec.disk_free, 1)} {spec.disk_free}\n",
        **(_driver(spec.driver) if spec.driver else {}),
    }


def software_links(spec: HostSpec) -> dict[str, str]:
    """Return path -> target of the links beside these files: which program the runtime's process is."""
    return {f"proc/{_RUNTIME_PID}/exe": f"/.sandbox/bin/{PROGRAMS[spec.runtime.partition('://')[0]]}"}


def _configuration(kind: str, version: str, config: str) -> dict[str, str]:
    if kind == "docker":
        return {"etc/docker/daemon.json": '{"exec-opts": ["native.cgroupdriver=systemd"]}\n'}
    if kind == "cri-o":
        return {"etc/crio/crio.conf": '[crio.runtime]\ncgroup_manager = "systemd"\n'}
    schema = 2 if version.startswith("1.") else 3
    lines = (f"version = {schema}", 'imports = ["/etc/containerd/conf.d/*.toml"]', "SystemdCgroup = true")
    return {config: "".join(f"{line}\n" for line in lines)}


def _kubelet(distribution: Distribution | None, socket: str) -> dict[str, str]:
    """Return the files of the kubelet, or of the process that has it in itself."""
    if distribution:
        return _process(_KUBELET_PID, distribution.process, [f"/usr/local/bin/{distribution.process}"])
    return {
        **_process(_KUBELET_PID, "kubelet", ["/usr/bin/kubelet", *_kubelet_flags(socket)]),
        **_service(_KUBELET_PID, "kubelet"),
        "etc/kubernetes/kubelet.conf": "",
        "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n",
    }


def _kubelet_flags(socket: str) -> list[str]:
    return ["--config=/var/lib/kubelet/config.yaml", f"--container-runtime-endpoint=unix://{socket}"]


def _process(pid: int, name: str, words: list[str]) -> dict[str, str]:
    return {
        f"proc/{pid}/comm": f"{name}\n",
        f"proc/{pid}/cmdline": "\0".join([*words, ""]),
        f"proc/{pid}/status": f"Name:\t{name}\nUid:\t0\t0\t0\t0\n",
        f"proc/{pid}/stat": f"{pid} ({name}) S {'0 ' * 18}{_STARTED}\n",
    }


def _service(pid: int, unit: str) -> dict[str, str]:
    """Return the files of an enabled service and of its process, which has the limits that systemd gives."""
    return {
        f"proc/{pid}/cgroup": f"0::/system.slice/{unit}.service\n",
        f"proc/{pid}/limits": _LIMITS,
        f".sandbox/units/{unit}.service": "active enabled\n",
    }


def _packages(spec: HostSpec) -> dict[str, str]:
    """Return what the package manager prints when it is asked for drivers and kernels."""
    branch = spec.driver.partition(".")[0]
    if spec.os_id in _DEBIAN_FAMILY:
        names = [(f"linux-image-{spec.kernel}", "1"), *([(f"nvidia-driver-{branch}", spec.driver)] if branch else [])]
        lines = [f"ii  {name} {version}" for name, version in names]
        return {".sandbox/packages": "\n".join([*lines, ""]), "var/lib/dpkg/status": "Package: dpkg\n"}
    kernel = ("kernel-default", f"{spec.kernel.removesuffix('-default')}.1")
    names = [
        kernel if spec.os_id == "sles" else ("kernel-core", spec.kernel),
        *([("nvidia-driver", f"{spec.driver}-1")] if branch else []),
    ]
    plugin = {} if spec.os_id == "sles" else {"etc/dnf/plugins/versionlock.conf": "[main]\nenabled = 1\n"}
    return {".sandbox/packages": "".join(f"package i {name} {version}\n" for name, version in names), **plugin}


def _driver(version: str) -> dict[str, str]:
    """Return the files of a driver on the host, and of the daemon that comes with it."""
    daemon = "/usr/bin/nvidia-persistenced --user nvidia-persistenced"
    return {
        ".sandbox/nvidia": f"{version}\n",
        ".sandbox/units/nvidia-persistenced.service": f"active enabled {daemon}\n",
    }


def _firmware(spec: HostSpec) -> dict[str, str]:
    """Return the variable of Secure Boot: four bytes of attributes, then the value."""
    return {_SECURE_BOOT: "\6\0\0\0\1"} if spec.secure_boot else {}


SCRIPTS = Path(__file__).with_name("scripts")

TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("modprobe", "lsmod", "rmmod", "insmod", "depmod", "modinfo", "kmod"), "modules"),
    **dict.fromkeys(("boot", "reboot", "shutdown", "halt", "poweroff", "systemctl"), "power"),
    **dict.fromkeys(("update-initramfs", "dracut"), "initramfs"),
    **dict.fromkeys(("uname", "hostname"), "names"),
    **dict.fromkeys(("dpkg-query", "apt-config", "rpm", "containerd", "crio", "dockerd"), "software"),
    **dict.fromkeys(("apt-mark", "dnf", "zypper"), "holds"),
    **dict.fromkeys(("update-ca-certificates", "update-ca-trust"), "trust"),
    **dict.fromkeys(("ctr", "crictl"), "runtime-clients"),
    "sudo": "sudo",
    "df": "df",
    "prlimit": "limits",
    "apt-get": "packages",
    "dpkg": "packages",
}
"""Which script each tool is; a host has those of its family and its container runtime."""

ABSENT = ("lspci", "grubby", "mokutil", "kubelet", "lsinitramfs", "lsinitrd", "apt-cache")
"""Tools that no simulated host has, whether or not the machine that the sandbox runs on has them."""

MULTI_CALL = frozenset({"kmod", "systemctl"})
"""Real programs with many names, all of which have a script here."""
