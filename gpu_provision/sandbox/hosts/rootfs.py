"""The files that a fresh simulated host begins with, as its operating system would have laid them out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_provision.sandbox.hosts.software import PROGRAMS, SCRIPTS, TOOLS, software_files, software_links
from gpu_provision.sandbox.hosts.spec import HostSpec

TITLES: Mapping[str, str] = {
    "ubuntu": "Ubuntu",
    "debian": "Debian GNU/Linux",
    "rhel": "Red Hat Enterprise Linux",
    "rocky": "Rocky Linux",
    "ol": "Oracle Linux Server",
    "sles": "SLES",
}

DRACUT_FAMILY = frozenset({"rhel", "rocky", "ol", "centos", "fedora", "sles"})

_APT_TOOLS = frozenset(
    {"update-initramfs", "dpkg-query", "apt-config", "apt-mark", "apt-get", "dpkg", "update-ca-certificates"}
)

_RPM_TOOLS = frozenset({"dracut", "rpm", "dnf", "zypper", "update-ca-trust"})
_CLIENTS = {"containerd": "ctr", "cri-o": "crictl"}

DIRECTORIES = (
    *("root", "home", "opt", "mnt", "srv", "boot", "run", "tmp", "var/lib", "var/log", "var/tmp"),
    *("etc/modules-load.d", "sys/module", "sys/bus/pci/devices"),
)

_ETC: Mapping[str, str] = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "modules": "# Names of kernel modules to load at boot time, one per line.\n",
    "modprobe.d/blacklist.conf": "# Loaded on request only.\nblacklist evbug\n",
}


def write_root(root: Path, spec: HostSpec) -> None:
    """Fill a new private root directory; it has not booted yet."""
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "var/run").symlink_to("/run")
    files = {**_etc(spec), **machine_files(spec), **_boot(spec), **software_files(spec)}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    link_proc(root)
    for path, target in software_links(spec).items():
        (root / path).symlink_to(target)
    _write_tools(root, spec)


def _etc(spec: HostSpec) -> dict[str, str]:
    title = TITLES.get(spec.os_id, spec.os_id.title())
    release = {
        "PRETTY_NAME": f"{title} {spec.os_version}",
        "NAME": title,
        "VERSION_ID": spec.os_version,
        "ID": spec.os_id,
    }
    os_release = "".join(f'{key}="{value}"\n' for key, value in release.items())
    names = {
        "hostname": f"{spec.name}\n",
        "hosts": f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n",
        "os-release": os_release,
    }
    return {f"etc/{name}": content for name, content in {**_ETC, **names}.items()}


def machine_files(spec: HostSpec) -> dict[str, str]:
    """Return path -> content of what speaks of a machine rather than of the system on it: kernel and PCI devices."""
    return {**_proc(spec), **_kernel(spec), **_pci(spec)}


def _proc(spec: HostSpec) -> dict[str, str]:
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
    }


def _kernel(spec: HostSpec) -> dict[str, str]:
    """Return the index files of /lib/modules; real ones write some names with dashes."""
    stock = f"lib/modules/{spec.kernel}"
    built_in = [f"kernel/drivers/{name.replace('_', '-')}.ko" for name in spec.builtin]
    driver = ["nvidia"] if spec.driver else []
    modules = dict.fromkeys([*spec.available, *spec.modules, *spec.in_use, *driver])
    return {
        f"{stock}/modules.builtin": "".join(f"{path}\n" for path in built_in),
        f"{stock}/modules.dep": "".join(f"kernel/drivers/{name}.ko:\n" for name in modules),
        ".sandbox/builtin": "".join(f"{name}\n" for name in spec.builtin),
        ".sandbox/modules": "".join(f"{name}\n" for name in spec.modules if name != "nouveau"),
    }


def _pci(spec: HostSpec) -> dict[str, str]:
    """Return the PCI devices: a bridge, which is no GPU, and the GPUs."""
    bridge = ("0000:00:00.0", "8086", "1237", "0600")
    gpus = [(f"0000:{0x10 + slot:02x}:00.0", "10de", *gpu) for slot, gpu in enumerate(spec.gpus)]
    return {path: content for device in (bridge, *gpus) for path, content in _pci_device(*device)}


def _pci_device(address: str, vendor: str, device: str, kind: str) -> Iterator[tuple[str, str]]:
    for name, content in (("vendor", vendor), ("device", device), ("class", f"{kind}00")):
        yield f"sys/bus/pci/devices/{address}/{name}", f"0x{content}\n"


def _boot(spec: HostSpec) -> dict[str, str]:
    image = f"initramfs-{spec.kernel}.img" if spec.os_id in DRACUT_FAMILY else f"initrd.img-{spec.kernel}"
    flag = {".sandbox/has-nvidia-gpu": ""} if spec.gpus else {}
    return {f"boot/{image}": _ETC["modprobe.d/blacklist.conf"], f"boot/vmlinuz-{spec.kernel}": "", **flag}


def link_proc(root: Path) -> None:
    """Let the parts of /proc that speak of a process, not of the machine, be the real ones."""
    for name in ("self", "thread-self", "mounts", "filesystems", "cpuinfo", "stat", "loadavg"):
        (root / "proc" / name).symlink_to(f"/.proc/{name}")
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev" / name).symlink_to(target)


def _write_tools(root: Path, spec: HostSpec) -> None:
    tools, scripts = root / ".sandbox/bin", root / ".sandbox/scripts"
    for directory in (tools, scripts):
        directory.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS.glob("*.sh"):
        shutil.copyfile(script, scripts / script.stem)
        (scripts / script.stem).chmod(0o755)
    foreign = _APT_TOOLS if spec.os_id in DRACUT_FAMILY else _RPM_TOOLS
    foreign |= {"dnf"} if spec.os_id == "sles" else {"zypper"}
    foreign |= set(PROGRAMS.values()) - {PROGRAMS[spec.runtime.partition("://")[0]]}
    foreign |= {"ctr", "crictl"} - {_CLIENTS.get(spec.runtime.partition("://")[0], "")}
    for tool, name in TOOLS.items():
        if tool not in foreign:
            (tools / tool).symlink_to(f"../scripts/{name}")
