"""The files that a fresh simulated host begins with: its system, kernel and devices, the software on it, its tools.

The tools are shell scripts in ``scripts/`` that keep their state in files of that host. They stand in front of the
real ones, which would speak to the kernel of the machine that the sandbox runs on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpu_provision.sandbox.hosts.spec import HostSpec, find_distribution


class HostRuntime(NamedTuple):
    """A container runtime: its program, client, service and socket, and its configuration for systemd's cgroups."""

    program: str
    client: str
    unit: str
    socket: str
    config: str
    text: str


RUNTIMES: Mapping[str, HostRuntime] = {
    "containerd": HostRuntime(
        *("containerd", "ctr", "containerd", "/run/containerd/containerd.sock", "/etc/containerd/config.toml"),
        'version = {schema}\nimports = ["/etc/containerd/conf.d/*.toml"]\nSystemdCgroup = true\n',
    ),
    "cri-o": HostRuntime(
        *("crio", "crictl", "crio", "/run/crio/crio.sock", "/etc/crio/crio.conf"),
        '[crio.runtime]\ncgroup_manager = "systemd"\n',
    ),
    "docker": HostRuntime(
        *("dockerd", "", "docker", "/run/docker.sock", "/etc/docker/daemon.json"),
        '{{"exec-opts": ["native.cgroupdriver=systemd"]}}\n',
    ),
}
"""By the name under which a node reports it."""

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

_APT_TOOLS = {"update-initramfs", "dpkg-query", "apt-config", "apt-mark", "apt-get", "dpkg", "update-ca-certificates"}
_RPM_TOOLS = {"dracut", "rpm", "dnf", "zypper", "update-ca-trust"}
_DRACUT_FAMILY = {"rhel", "rhcos", "rocky", "ol", "centos", "fedora", "sles"}
_DEBIAN_FAMILY = {"ubuntu", "debian"}
_TITLES = {
    "ubuntu": "Ubuntu",
    "debian": "Debian GNU/Linux",
    "rhel": "Red Hat Enterprise Linux",
    "rhcos": "Red Hat Enterprise Linux CoreOS",
    "rocky": "Rocky Linux",
    "ol": "Oracle Linux Server",
    "sles": "SLES",
}
_DIRECTORIES = (
    *("root", "home", "opt", "mnt", "srv", "boot", "run", "tmp", "var/lib", "var/log", "var/tmp"),
    *("etc/modules-load.d", "sys/module", "sys/bus/pci/devices"),
)
_BLACKLIST = "# Loaded on request only.\nblacklist evbug\n"
_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max core file size        unlimited            unlimited            bytes
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         8388608              8388608              bytes
Max realtime priority     0                    0
"""
_RUNTIME_PID, _KUBELET_PID = 812, 977
_STARTED = 2500  # ticks after the boot at which processes were started
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def write_root(root: Path, spec: HostSpec) -> None:
    """Fill a new private root directory; it has not booted yet."""
    for directory in _DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "var/run").symlink_to("/run")
    files = {**_system_files(spec), **machine_files(spec), **_software_files(spec), **_package_files(spec)}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    link_proc(root)
    runtime = RUNTIMES[spec.runtime.partition("://")[0]]
    (root / f"proc/{_RUNTIME_PID}/exe").symlink_to(f"/.sandbox/bin/{runtime.program}")
    tools, scripts = root / ".sandbox/bin", root / ".sandbox/scripts"
    for folder in (tools, scripts):
        folder.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS.glob("*.sh"):
        shutil.copyfile(script, scripts / script.stem)
        (scripts / script.stem).chmod(0o755)
    foreign = {*(_APT_TOOLS if spec.os_id in _DRACUT_FAMILY else _RPM_TOOLS)}
    foreign |= {"dnf"} if spec.os_id == "sles" else {"zypper"}
    foreign |= {name for other in RUNTIMES.values() if other != runtime for name in (other.program, other.client)}
    for tool, name in TOOLS.items():
        if tool not in foreign:
            (tools / tool).symlink_to(f"../scripts/{name}")


def _system_files(spec: HostSpec) -> dict[str, str]:
    title = _TITLES.get(spec.os_id, spec.os_id.title())
    release = {
        "PRETTY_NAME": f"{title} {spec.os_version}",
        "NAME": title,
        "VERSION_ID": spec.os_version,
        "ID": spec.os_id,
        **spec.os_release,
    }
    image = f"initramfs-{spec.kernel}.img" if spec.os_id in _DRACUT_FAMILY else f"initrd.img-{spec.kernel}"
    return {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": "root:x:0:\nnogroup:x:65534:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "etc/modules": "# Names of kernel modules to load at boot time, one per line.\n",
        "etc/modprobe.d/blacklist.conf": _BLACKLIST,
        "etc/hostname": f"{spec.name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n",
        "etc/os-release": _lines([f'{key}="{value}"' for key, value in release.items()]),
        f"boot/{image}": _BLACKLIST,
        f"boot/vmlinuz-{spec.kernel}": "",
        **({".sandbox/has-nvidia-gpu": ""} if spec.gpus else {}),
    }


def machine_files(spec: HostSpec) -> dict[str, str]:
    """Return path -> content of what speaks of a machine rather than of the system on it: kernel and PCI devices.

    In the index files of /lib/modules, real kernels write some names with dashes.
    """
    stock = f"lib/modules/{spec.kernel}"
    modules = dict.fromkeys([*spec.available, *spec.modules, *spec.in_use, *(["nvidia"] if spec.driver else [])])
    bridge = ("0000:00:00.0", "8086", "1237", "0600")
    cards = [("0000:5e:00.0", "15b3", "101b", "0207")] if spec.mellanox else []
    gpus = [(f"0000:{0x10 + slot:02x}:00.0", "10de", *gpu) for slot, gpu in enumerate(spec.gpus)]
    return {
        "proc/modules": "",
        "proc/uptime": "86400.00 86400.00\n",
        "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{spec.kernel} root=/dev/vda1 ro console=ttyS0\n",
        "proc/version": f"Linux version {spec.kernel}\n",
        "proc/sys/kernel/osrelease": f"{spec.kernel}\n",
        "proc/sys/kernel/ostype": "Linux\n",
        "proc/sys/kernel/arch": f"{spec.architecture}\n",
        "proc/sys/kernel/hostname": f"{spec.name}\n",
        "proc/sys/kernel/random/boot_id": "",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
        "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        "proc/meminfo": "MemTotal:       263856076 kB\nMemFree:        198765432 kB\n",
        "proc/sys/vm/max_map_count": "65530\n",
        "proc/sys/fs/inotify/max_user_instances": "128\n",
        "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        f"{stock}/modules.builtin": _lines([f"kernel/drivers/{name.replace('_', '-')}.ko" for name in spec.builtin]),
        f"{stock}/modules.dep": _lines([f"kernel/drivers/{name}.ko:" for name in modules]),
        ".sandbox/builtin": _lines([*spec.builtin]),
        ".sandbox/modules": _lines([name for name in spec.modules if name != "nouveau"]),
        **{
            f"sys/bus/pci/devices/{address}/{name}": f"0x{content}\n"
            for address, vendor, device, kind in (bridge, *cards, *gpus)
            for name, content in (("vendor", vendor), ("device", device), ("class", f"{kind}00"))
        },
    }


def link_proc(root: Path) -> None:
    """Let the parts of /proc that speak of a process, not of the machine, be the real ones."""
    for name in ("self", "thread-self", "mounts", "filesystems", "cpuinfo", "stat", "loadavg"):
        (root / "proc" / name).symlink_to(f"/.proc/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).symlink_to(target)


def _software_files(spec: HostSpec) -> dict[str, str]:
    """Return the files of runtime and kubelet, for a node that kubeadm or its distribution has joined to a cluster."""
    kind, _, version = spec.runtime.partition("://")
    runtime = RUNTIMES[kind]
    distribution = find_distribution(spec.kubelet) if kind == "containerd" else None
    socket, config = (distribution.socket, distribution.config) if distribution else (runtime.socket, runtime.config)
    options = ["-c", config, "-a", socket] if distribution else []
    files = {
        config.lstrip("/"): runtime.text.format(schema=2 if version.startswith("1.") else 3),
        **_process_files(_RUNTIME_PID, runtime.program, [f"/usr/bin/{runtime.program}", *options]),
        **_service_files(_RUNTIME_PID, distribution.process if distribution else runtime.unit),
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        ".sandbox/runtime": f"{runtime.program} version {version}\n",
        ".sandbox/sockets": f"{socket}\n",
        ".sandbox/disk": f"{max(2 * spec.disk_free, 1)} {spec.disk_free}\n",
    }
    if distribution:  # its process has the kubelet in itself
        return files | _process_files(_KUBELET_PID, distribution.process, [f"/usr/local/bin/{distribution.process}"])
    flags = ["--config=/var/lib/kubelet/config.yaml", f"--container-runtime-endpoint=unix://{socket}"]
    return {
        **files,
        **_process_files(_KUBELET_PID, "kubelet", ["/usr/bin/kubelet", *flags]),
        **_service_files(_KUBELET_PID, "kubelet"),
        "etc/kubernetes/kubelet.conf": "",
        "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n",
    }


def _process_files(pid: int, name: str, words: list[str]) -> dict[str, str]:
    return {
        f"proc/{pid}/comm": f"{name}\n",
        f"proc/{pid}/cmdline": "\0".join([*words, ""]),
        f"proc/{pid}/status": f"Name:\t{name}\nUid:\t0\t0\t0\t0\n",
        f"proc/{pid}/stat": f"{pid} ({name}) S {'0 ' * 18}{_STARTED}\n",
    }


def _service_files(pid: int, unit: str) -> dict[str, str]:
    return {
        f"proc/{pid}/cgroup": f"0::/system.slice/{unit}.service\n",
        f"proc/{pid}/limits": _LIMITS,
        f".sandbox/units/{unit}.service": "active enabled\n",
    }


def _package_files(spec: HostSpec) -> dict[str, str]:
    """Return what package manager, firmware and, if the host has one, the driver of its own show."""
    branch, suse = spec.driver.partition(".")[0], spec.os_id == "sles"
    files = {} if spec.headers else {".sandbox/no-headers": ""}
    if spec.secure_boot:
        files[_SECURE_BOOT] = "\6\0\0\0\1"  # four bytes of attributes, then the value
    if spec.driver:
        daemon = "/usr/bin/nvidia-persistenced --user nvidia-persistenced"
        files[".sandbox/nvidia"] = f"{spec.driver}\n"
        files[".sandbox/units/nvidia-persistenced.service"] = f"active enabled {daemon}\n"
    if spec.os_id in _DEBIAN_FAMILY:
        driver = [f"ii  nvidia-driver-{branch} {spec.driver}"] if branch else []
        files[".sandbox/packages"] = _lines([f"ii  linux-image-{spec.kernel} 1", *driver])
        files["var/lib/dpkg/status"] = "Package: dpkg\n"
        return files
    kernel = f"kernel-default {spec.kernel.removesuffix('-default')}.1" if suse else f"kernel-core {spec.kernel}"
    driver = [f"package i nvidia-driver {spec.driver}-1"] if branch else []
    files[".sandbox/packages"] = _lines([f"package i {kernel}", *driver])
    if not suse:
        files["etc/dnf/plugins/versionlock.conf"] = "[main]\nenabled = 1\n"
    return files
