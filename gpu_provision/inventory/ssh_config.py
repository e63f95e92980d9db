"""A private SSH configuration for nodes behind a bastion.

pyinfra's SSH connector follows ProxyJump, but takes it from an SSH configuration file only. It asks that file
for the bastion too, and knows nothing else about it: without an entry of ours it would prompt for an unknown
host key. The user's own configuration is included last, where it fills what the inventory leaves open.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpu_provision.model.inventory import Inventory, Node

_HEAD = "# Written by gpu-provision from {path}; it is written anew whenever that file is read.\n"


def write_ssh_config(inventory: Inventory, nodes: Iterable[Node]) -> str:
    """Write the SSH configuration of the nodes behind a bastion; return its path, or "" if there are none.

    The file is readable by its owner only, and replaced as a whole, so that runs at the same time do no harm.
    """
    behind = [node for node in nodes if node.ssh.bastion]
    if not behind:
        return ""
    file = _state() / "ssh" / f"{inventory.name}-{_short(inventory.path)}.config"
    text = _HEAD.format(path=inventory.path) + ssh_config(behind)
    if not (file.exists() and file.read_text(encoding="utf-8") == text):
        _replace(file, text)
    return str(file)


def ssh_config(nodes: Iterable[Node]) -> str:
    """Return the text of an SSH configuration with one entry per node and per bastion."""
    nodes = list(nodes)
    bastions = {_host_of(node.ssh.bastion): _bastion_entry(node) for node in nodes}
    entries = [*map(_node_entry, nodes), *bastions.values()]
    return "\n".join([*entries, "Host *", "  Include ~/.ssh/config", ""])


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
        "StrictHostKeyChecking": "accept-new",  # as pyinfra does for hosts; its default for bastions asks
    }
    return _entry(_host_of(node.ssh.bastion), options)


def _entry(host: str, options: dict[str, str]) -> str:
    lines = [f"  {key} {value}" for key, value in options.items() if value]
    return "\n".join([f"Host {host}", *lines])


def _host_of(bastion: str) -> str:
    return bastion.rpartition("@")[2].partition(":")[0]


def _short(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:8]


def _state() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "gpu-provision"


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=file.parent)  # mkstemp makes it 0600
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(file)
