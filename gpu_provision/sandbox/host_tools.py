"""System tools of a simulated host: shell scripts that keep their state in files of that host.

They stand in front of the real tools, because those would speak to the kernel of the machine that the sandbox
runs on. Each script serves several names, as kmod and systemctl do, and needs nothing but a POSIX shell.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_provision.sandbox.host_kernel import INITRAMFS, MODULES, POWER
from gpu_provision.sandbox.host_packages import HOLDS, PACKAGES, SOFTWARE
from gpu_provision.sandbox.host_services import LIMITS, RUNTIME_CLIENTS, SERVICES, TRUST

_NAMES = r"""#!/bin/sh
# Who this host says it is; the system call would name the machine that the sandbox runs on.
read -r release </proc/sys/kernel/osrelease
read -r node </proc/sys/kernel/hostname
read -r machine </proc/sys/kernel/arch
version="#1 SMP"
[ "${0##*/}" = hostname ] && { echo "$node"; exit 0; }
[ $# -eq 0 ] && set -- -s
line=
for word in "$@"; do
  case $word in
    --all) word=-a ;;
    --kernel-name) word=-s ;;
    --nodename) word=-n ;;
    --kernel-release) word=-r ;;
    --kernel-version) word=-v ;;
    --machine) word=-m ;;
    --processor | --hardware-platform) word=-p ;;
    --operating-system) word=-o ;;
  esac
  case $word in *[as]*) line="$line Linux" ;; esac
  case $word in *[an]*) line="$line $node" ;; esac
  case $word in *[ar]*) line="$line $release" ;; esac
  case $word in *[av]*) line="$line $version" ;; esac
  case $word in *[ampi]*) line="$line $machine" ;; esac
  case $word in *[ao]*) line="$line GNU/Linux" ;; esac
done
echo "${line# }"
"""

_SUDO = r"""#!/bin/sh
# Everybody is root on a simulated host, so all that is left of sudo is its command.
while [ $# -gt 0 ]; do
  case $1 in
    -u | -g | -p | -C | -h | -r | -t | -U | -D) shift 2 ;;
    -k | -K | -v | -l) [ $# -gt 1 ] || exit 0; shift ;;
    --) shift; break ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
exec "$@"
"""

_DF = r"""#!/bin/sh
# One disk; the real one would be that of the machine that the sandbox runs on.
read -r size free </.sandbox/disk
echo "Filesystem     1024-blocks      Used Available Capacity Mounted on"
for word in "$@"; do
  case $word in -*) continue ;; esac
  [ -e "$word" ] && echo "/dev/vda1 $size $((size - free)) $free $(((size - free) * 100 / size))% /"
done
"""

SCRIPTS: Mapping[str, str] = {
    "modules": MODULES,
    "power": POWER,
    "initramfs": INITRAMFS,
    "names": _NAMES,
    "sudo": _SUDO,
    "software": SOFTWARE,
    "holds": HOLDS,
    "df": _DF,
    "packages": PACKAGES,
    "services": SERVICES,
    "runtime-clients": RUNTIME_CLIENTS,
    "trust": TRUST,
    "limits": LIMITS,
}
"""The scripts by their own name."""

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
"""Tools that no simulated host has, whatever the machine has that the sandbox runs on."""

MULTI_CALL = frozenset({"kmod", "systemctl"})
"""Real programs with many names, all of which have a script here."""
