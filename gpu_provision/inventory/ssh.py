"""A private SSH configuration for nodes behind a bastion, and the password that sudo asks for.

Neither is part of an inventory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path

from gpu_provision import files
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.inventory import Inventory, Node

_SSH_HEAD = "# Written by gpu-provision from {path}; it is written anew whenever that file is read.\n"


def write_ssh_config(inventory: Inventory, nodes: Iterable[Node]) -> str:
    """Write the SSH configuration of the nodes behind a bastion; return its path, or "" if there are none.

    The file is readable by its owner only, and replaced as a whole, so that runs at the same time do no harm.
    Raises ProvisionError if it cannot be written.
    """
    behind = [node for node in nodes if node.ssh.bastion]
    if not behind:
        return ""
    file = files.state_folder() / "ssh" / f"{inventory.name}-{_short(inventory.path)}.config"
    text = _SSH_HEAD.format(path=inventory.path) + ssh_config(behind)
    try:
        if not (file.exists() and file.read_text(encoding="utf-8") == text):
            files.make_state_folder(file.parent)
            files.put(file, text, private=True)
    except OSError as error:
        raise ProvisionError(_unwritable(file, error)) from error
    return str(file)


def _unwritable(file: Path, error: OSError) -> Finding:
    what = "The SSH configuration for the nodes behind a bastion cannot be written."
    fix = "Set XDG_STATE_HOME to a directory that you may write to."
    return Finding(code="GP165", where=str(file), what=what, evidence=error.strerror or str(error), fix=fix)


def ssh_config(nodes: Iterable[Node]) -> str:
    """Return the text of an SSH configuration with one entry per node and per bastion.

    The first value of an option counts, so the user's own settings stand before our fallback for host keys.
    """
    nodes = list(nodes)
    bastions = {_host_of(node.ssh.bastion): node for node in nodes}
    entries = [*map(_node_entry, nodes), *map(_bastion_entry, bastions.values())]
    # As pyinfra does for hosts. For bastions it would ask, and a run has nobody to answer.
    fallbacks = [_entry(host, {"StrictHostKeyChecking": "accept-new"}) for host in bastions]
    return "\n".join([*filter(None, entries), "Host *", "  Include ~/.ssh/config", *fallbacks, ""])


def _node_entry(node: Node) -> str:
    options = {
        "HostName": node.address or node.name,
        "Port": str(node.ssh.port or ""),
        "ProxyJump": node.ssh.bastion,
    }
    return _entry(node.name, options)


def _bastion_entry(node: Node) -> str:
    options = {
        "IdentityFile": node.ssh.key,
        "UserKnownHostsFile": node.ssh.known_hosts_file,
    }
    return _entry(_host_of(node.ssh.bastion), options)


def _entry(host: str, options: dict[str, str]) -> str:
    lines = [f"  {key} {value}" for key, value in options.items() if value]
    return "\n".join([f"Host {host}", *lines]) if lines else ""


def _host_of(bastion: str) -> str:
    return bastion.rpartition("@")[2].partition(":")[0]


def _short(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:8]


VARIABLE = "GPU_PROVISION_SUDO_PASSWORD"
"""Environment variable for programs that cannot be asked."""

_given: ContextVar[str] = ContextVar("sudo_password", default="")


class Password(str):
    """A password that does not show itself where values are printed to look at them, as pyinfra --debug does."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return stars."""
        return "'***'"


def give(password: str) -> None:
    """Use a password for the rest of this program; it comes before that of the environment."""
    _given.set(password)


def password() -> Password:
    """Return the password; empty if sudo is not to be given one."""
    return Password(_given.get() or os.environ.get(VARIABLE, ""))
