"""Hosts as acceptance tests see them: testinfra, over the inventory's SSH settings, in pods, or on simulated hosts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.backend.ssh import SshBackend
from testinfra.host import Host

from gpu_provision.inventory.groups import groups
from gpu_provision.model.findings import Finding, Refused, Unreachable
from gpu_provision.model.inventory import Inventory
from gpu_provision.sandbox import hosts as simulated
from gpu_provision.verify import codes

_ALWAYS = {
    "BatchMode": "yes",  # nobody is there to answer
    "StrictHostKeyChecking": "accept-new",  # as pyinfra does
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}


class LeftOut(Exception):
    """A host that nobody logs in to; the text says why."""


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
    """testinfra over OpenSSH; a connection that fails is told as such."""

    def run_ssh(self, command: str) -> CommandResult:
        """Run a command. Raises Unreachable if SSH itself fails."""
        try:
            return super().run_ssh(command)
        except RuntimeError as error:
            answer: Any = error.args[0]
            raise _unreachable(self.hostname, _last(answer.stderr_bytes.decode(errors="replace"))) from error


def host_of(inventory: Inventory, node: str) -> Host:
    """Return the host of a node, which answers.

    Raises:
        LeftOut: Nobody logs in to this host.
        Unreachable: It does not answer, or does not let us in.
    """
    data = {own["gpu_node"]: own for _, own in groups(inventory)["nodes"][0]}.get(node)
    if data is None:
        message = "its host phase is off, or no SSH settings stand under nodes"
        raise LeftOut(message)
    host = Host(_backend(inventory, node, data))
    answer = host.run("true")
    if answer.failed:
        raise _unreachable(node, _last(answer.stderr) or f"a command ends with {answer.rc}")
    return host


def _backend(inventory: Inventory, node: str, data: Mapping[str, Any]) -> BaseBackend:
    if "sandbox_fleet" in data:
        return _simulated(node, data["sandbox_fleet"])
    return _in_pod(inventory, node) if "k8s_kubeconfig" in data else _ssh(data)


def _in_pod(inventory: Inventory, node: str) -> BaseBackend:
    from gpu_provision.verify.node_pod import opened  # noqa: PLC0415 - with the cluster's client, for these hosts alone

    try:
        return opened(inventory, node)
    except Refused as error:
        message = f"it takes a privileged pod to look at it, which this account may not make: {error.findings[0].what}"
        raise LeftOut(message) from error


def _simulated(node: str, fleet: str) -> SandboxBackend:
    if problem := simulated.isolation_problem():
        message = f"simulated hosts are left out: {problem}"
        raise LeftOut(message)
    try:
        return SandboxBackend(simulated.find(node, fleet))
    except simulated.NoSuchHost as error:
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


def _unreachable(host: str, why: str) -> Unreachable:
    return Unreachable(
        Finding(
            code=codes.NO_SSH,
            what=f"cannot be logged in to: {why}",
            where=host,
            fix="see that ssh with the inventory's settings, and sudo where it is on, work without a question",
        )
    )


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word of why")
