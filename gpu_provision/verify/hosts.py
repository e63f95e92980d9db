"""Hosts as acceptance tests see them: testinfra over SSH, through a privileged pod, or on simulated hosts."""

from __future__ import annotations

import atexit
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
from gpu_provision.model.openshift_specs import OPENSHIFT
from gpu_provision.sandbox import hosts as simulated

_ALWAYS = {
    "BatchMode": "yes",  # ask no questions
    "StrictHostKeyChecking": "accept-new",  # as pyinfra does
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}


class SkippedHostError(Exception):
    """A host that is not logged in to; the text says why."""


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
            raise _unreachable(self.hostname, answer.stderr_bytes.decode(errors="replace")) from error


def host_of(inventory: Inventory, node: str) -> Host:
    """Return the host of a node, which answers. Raises SkippedHostError, UnreachableError."""
    data = {own["gpu_node"]: own for _, own in groups(inventory)["nodes"][0]}.get(node)
    if data is None:
        raise SkippedHostError(_without_host_phase(inventory))
    host = Host(_backend(inventory, node, data))
    answer = host.run("true")
    if answer.failed:
        raise _unreachable(node, answer.stderr)
    return host


def _without_host_phase(inventory: Inventory) -> str:
    if inventory.cluster.platform != OPENSHIFT:
        return "its host_prerequisites are off"
    command = f"gpu-provision status -i {shlex.quote(inventory.path)}"
    return f"the Machine Config Operator prepares the hosts of OpenShift; {command} shows their MachineConfigs"


def _backend(inventory: Inventory, node: str, data: Mapping[str, Any]) -> BaseBackend:
    if "k8s_kubeconfig" in data:
        place = inventory.cluster
        try:
            return NodePod(node, open_shell(place.kubeconfig, place.context, node, inventory.helper_pod))
        except ForbiddenError as error:
            what = "it takes a privileged pod to look at it, which this account may not make"
            message = f"{what}: {error.findings[0].what}"
            raise SkippedHostError(message) from error
        except ProvisionError as error:
            raise UnreachableError(*error.findings) from error
    if "sandbox_fleet" not in data:
        return _ssh(data)
    if problem := simulated.isolation_problem():
        message = f"simulated hosts are skipped: {problem}"
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


def _unreachable(host: str, said: str) -> UnreachableError:
    """Return the error of a host by the last line of what it said."""
    why = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no word of why")
    fix = "see that ssh with the inventory's settings, and sudo where it is on, work without a question"
    return UnreachableError(Finding(code=codes.NO_LOGIN, what=f"cannot be logged in to: {why}", where=host, fix=fix))
