"""Hosts as acceptance tests see them: testinfra over SSH, through a privileged pod, or on simulated hosts."""

from __future__ import annotations

import atexit
import re
import shlex
import shutil
from collections.abc import Mapping
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.backend.ssh import SshBackend
from testinfra.host import Host

from gpu_provision.inventory.pyinfra_inventory import groups
from gpu_provision.kube.exec import STDERR, STDOUT
from gpu_provision.kube.node_shell import NodeShell, open_shell
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ForbiddenError, ProvisionError, UnreachableError
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts as simulated

_ETC = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers: GPUs, not their sound or USB functions
_NVIDIA = "0x10de"
_DEVICES = "for device in /sys/bus/pci/devices/*; do echo $(cat $device/vendor) $(cat $device/class); done"
_RUNTIMES = (
    "for name in /proc/[0-9]*/comm; do grep -qxE 'containerd|crio|dockerd' $name && cat ${name%comm}limits; done"
)
_KILOBYTES = {"Ki": 1, "Mi": 1024, "Gi": 1024 * 1024}
_REBOOT = (
    ("/run/reboot-required exists", "test -e /run/reboot-required", 0),
    ("needs-restarting -r says so", "if command -v needs-restarting >/dev/null; then needs-restarting -r; fi", 1),
    ("zypper needs-rebooting says so", "if command -v zypper >/dev/null; then zypper needs-rebooting; fi", 102),
)


def canonical(module: str) -> str:
    """Write a module's name as the kernel does."""
    return module.strip().replace("-", "_")


def loaded(host: Any) -> frozenset[str]:
    """Return the kernel modules that are loaded."""
    return frozenset(canonical(line.split()[0]) for line in _lines(host, "cat /proc/modules"))


def built_in(host: Any) -> frozenset[str]:
    """Return the modules that are part of the running kernel."""
    lines = _lines(host, "cat /lib/modules/$(uname -r)/modules.builtin")
    return frozenset(canonical(line.rpartition("/")[2].partition(".ko")[0]) for line in lines)


def listed_for_boot(host: Any) -> frozenset[str]:
    """Return the modules that files list for loading at boot."""
    folders = " ".join(f"{folder}/modules-load.d/*.conf" for folder in _ETC)
    lines = _lines(host, f"cat /etc/modules {folders}")
    return frozenset(canonical(line) for line in lines if not line.startswith(("#", ";")))


def is_blacklisted(host: Any, module: str) -> bool:
    """Whether modprobe's configuration or the kernel's command line keeps a module from loading by itself."""
    folders = " ".join(f"{folder}/modprobe.d/*.conf" for folder in _ETC)
    lines = _lines(host, f"cat {folders}")
    never = rf"(blacklist\s+{module}\b|install\s+{module}\s+\S*/(false|true)\b)"
    if any(re.match(never, line) for line in lines):
        return True
    command_line = " ".join(_lines(host, "cat /proc/cmdline"))
    named = re.findall(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S*)", command_line)
    return any(module in value.split(",") for value in named)


def parameter(host: Any, key: str) -> str:
    """Return a kernel parameter's value, its words a space apart; empty if there is no such parameter."""
    return " ".join(" ".join(_lines(host, f"cat /proc/sys/{key.replace('.', '/')}")).split())


def huge_pages(host: Any, size: str) -> int:
    """Return the number of huge pages of a size such as ``2Mi``; -1 if the kernel has none of this size."""
    kilobytes = int(size[:-2]) * _KILOBYTES[size[-2:]]
    lines = _lines(host, f"cat /sys/kernel/mm/hugepages/hugepages-{kilobytes}kB/nr_hugepages")
    return int(lines[0]) if lines else -1


def limits_of_runtimes(host: Any, title: str) -> frozenset[str]:
    """Return the soft and hard limits of all processes of container runtimes, by the title that the kernel prints."""
    lines = (line for line in _lines(host, _RUNTIMES) if line.startswith(f"{title} "))
    return frozenset(value for line in lines for value in line.removeprefix(title).split()[:2])


def gpus(host: Any) -> int:
    """Return the number of NVIDIA's GPUs on the PCI bus."""
    found = (line.split() for line in _lines(host, _DEVICES))
    return sum(len(each) == 2 and each[0] == _NVIDIA and each[1].startswith(_DISPLAY) for each in found)  # noqa: PLR2004 - vendor and class


def reboot_reasons(host: Any) -> tuple[str, ...]:
    """Return who says that the machine has to be rebooted."""
    return tuple(reason for reason, command, status in _REBOOT if host.run(command).rc == status)


def _lines(host: Any, command: str) -> list[str]:
    """Return what a command prints, without what it says of files that are not there."""
    return [line.strip() for line in host.run(command).stdout.splitlines() if line.strip()]


class NodePod(BaseBackend):
    """testinfra in a node's own shell; ``close`` removes the pod that leads there."""

    NAME = "k8s-node"

    def __init__(self, node: str, shell: NodeShell) -> None:
        """Keep an open shell."""
        self.shell = shell
        atexit.register(shell.close)
        super().__init__(node)

    def close(self) -> None:
        """Remove the pod."""
        atexit.unregister(self.shell.close)
        self.shell.close()

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run a command there. Raises UnreachableError if it is not known how it ended."""
        line = self.quote(command, *args)
        said = {STDOUT: b"", STDERR: b""}

        def listen(channel: int, data: bytes) -> None:
            said[channel] += data

        try:
            status = self.shell.run(line, listen=listen)
        except ProvisionError as error:
            raise UnreachableError(*error.findings) from error
        return self.result(status, self.encode(line), said[STDOUT], said[STDERR])


def open_node_pod(inventory: Inventory, node: str) -> NodePod:
    """Return a node's host, with a pod on it. Raises UnreachableError; SkippedHostError without the right to pods."""
    cluster = inventory.cluster
    try:
        return NodePod(node, open_shell(cluster.kubeconfig, cluster.context, node, inventory.helper_pod))
    except ForbiddenError as error:
        message = f"it takes a privileged pod to look at it, which this account may not make: {error.findings[0].what}"
        raise SkippedHostError(message) from error
    except ProvisionError as error:
        raise UnreachableError(*error.findings) from error


_ALWAYS = {
    "BatchMode": "yes",  # ask no questions
    "StrictHostKeyChecking": "accept-new",  # as pyinfra does
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}


class SkippedHostError(Exception):
    """A host that is not logged in to; the text says why."""


class SandboxBackend(BaseBackend):
    """testinfra on a simulated host of the sandbox."""

    NAME = "sandbox"

    def __init__(self, host: simulated.SimulatedHost) -> None:
        """Keep the host."""
        self.simulated = host
        super().__init__(host.name)

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run a command there."""
        line = self.quote(command, *args)
        done = simulated.run(self.simulated, line)
        return self.result(done.returncode, self.encode(line), done.stdout, done.stderr)


class InventorySsh(SshBackend):
    """testinfra over OpenSSH; a connection that fails raises UnreachableError."""

    def run_ssh(self, command: str) -> CommandResult:
        """Run a command. Raises UnreachableError if SSH itself fails."""
        try:
            return super().run_ssh(command)
        except RuntimeError as error:
            answer: Any = error.args[0]
            raise _unreachable(self.hostname, _last(answer.stderr_bytes.decode(errors="replace"))) from error


def host_of(inventory: Inventory, node: str) -> Host:
    """Return the host of a node, which answers. Raises SkippedHostError, UnreachableError."""
    data = {own["gpu_node"]: own for _, own in groups(inventory)["nodes"][0]}.get(node)
    if data is None:
        message = "its host phase is off, or no SSH settings stand under nodes"
        raise SkippedHostError(message)
    host = Host(_backend(inventory, node, data))
    answer = host.run("true")
    if answer.failed:
        raise _unreachable(node, _last(answer.stderr) or f"a command ends with {answer.rc}")
    return host


def _backend(inventory: Inventory, node: str, data: Mapping[str, Any]) -> BaseBackend:
    if "sandbox_fleet" not in data:
        return open_node_pod(inventory, node) if "k8s_kubeconfig" in data else _ssh(data)
    if problem := simulated.isolation_problem():
        message = f"simulated hosts are left out: {problem}"
        raise SkippedHostError(message)
    try:
        return SandboxBackend(simulated.find(node, data["sandbox_fleet"]))
    except simulated.HostUnavailableError as error:
        raise _unreachable(node, str(error)) from error


def _ssh(data: Mapping[str, Any]) -> InventorySsh:
    """Return the connection that pyinfra would make of a host's data."""
    name = str(data["ssh_hostname"])
    if not shutil.which("ssh"):
        raise _unreachable(name, "this machine has no ssh; install OpenSSH's client")
    options = {
        **_ALWAYS,
        "User": data.get("ssh_user"),
        "Port": data.get("ssh_port"),
        "UserKnownHostsFile": data.get("ssh_known_hosts_file"),
    }
    words = [f"-o {shlex.quote(f'{key}={value}')}" for key, value in options.items() if value]
    return InventorySsh(
        f"[{name}]" if ":" in name else name,
        ssh_config=data.get("ssh_config_file") or None,
        ssh_identity_file=data.get("ssh_key") or None,
        ssh_extra_args=" ".join(words),
        controlpersist=0,
        sudo=bool(data.get("_sudo")),
    )


def _unreachable(host: str, why: str) -> UnreachableError:
    return UnreachableError(
        Finding(
            code=codes.NO_LOGIN,
            what=f"cannot be logged in to: {why}",
            where=host,
            fix="see that ssh with the inventory's settings, and sudo where it is on, work without a question",
        )
    )


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word of why")
