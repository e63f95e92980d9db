"""The inventory as pyinfra sees it: hosts, their data and groups, SSH settings and sudo's password."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_provision import files
from gpu_provision.inventory.expectation import expected_of
from gpu_provision.inventory.loader import load
from gpu_provision.model.findings import Finding, ProvisionError
from gpu_provision.model.hosts import ConnectionMethod, SshOptions
from gpu_provision.model.inventory import Inventory, Node

Host = tuple[str, dict[str, Any]]

Groups = dict[str, tuple[list[Host], dict[str, Any]]]
"""Group name -> its hosts with their data, and data of the group."""


def hosts_of(script: str) -> Groups:
    """Return the groups of the YAML file beside a pyinfra inventory script, ``__file__``; for use at its top level.

    An invalid file ends the process with the findings on stderr and exit code 65, since pyinfra shows a traceback for
    every exception of an inventory script.
    """
    path = Path(script).with_suffix(".yaml")
    try:
        return groups(path)
    except ProvisionError as error:
        sys.stderr.writelines(f"{finding.severity}: {finding}\n" for finding in error.findings)
        raise SystemExit(int(error.exit_code)) from error


def groups(inventory: Inventory | str | Path) -> Groups:
    """Return pyinfra's groups: ``nodes``, ``gpu``, ``pool_<name>`` for each pool, and ``cluster``.

    Nodes whose host phase is off are left out: pyinfra does not connect to them. Only ``nodes`` has the data of hosts.
    Raises InvalidInventoryError for the path of an invalid file.
    """
    if not isinstance(inventory, Inventory):
        inventory = load(inventory)
    reachable = [*filter(inventory.has_host_phase, inventory.nodes)]
    by_ssh = [node for node in reachable if node.connect is ConnectionMethod.SSH and not inventory.cluster.sandbox]
    ssh_config = write_ssh_config(inventory, by_ssh)
    named = [(node, _host_name(inventory, node)) for node in reachable]
    result: Groups = {
        "nodes": ([(name, _host_data(inventory, node, ssh_config)) for node, name in named], {}),
        "gpu": ([(name, {}) for node, name in named if inventory.pool_of(node).gpu], {}),
    }
    for pool in inventory.pools:
        result[f"pool_{pool}"] = ([(name, {}) for node, name in named if node.pool == pool], {})
    cluster = f"@cluster/{context_name(inventory)}"
    return result | {"cluster": ([(cluster, {"gpu_inventory": inventory.path})], {})}


def context_name(inventory: Inventory) -> str:
    """Return the name of the cluster's context: that of the sandbox, the declared one, or ``current``."""
    sandbox = inventory.cluster.sandbox
    if not sandbox:
        return inventory.cluster.context or "current"
    name = Path(sandbox).stem
    return "sandbox" if name == "default" else f"sandbox-{name}"


def _host_name(inventory: Inventory, node: Node) -> str:
    if inventory.cluster.sandbox:
        return f"@sandbox/{node.name}"
    return f"@k8s-node/{node.name}" if node.connect is ConnectionMethod.KUBERNETES else node.name


def _host_data(inventory: Inventory, node: Node, ssh_config: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "gpu_inventory": inventory.path,
        "gpu_node": node.name,
        "gpu_expected": _with_lists(asdict(expected_of(inventory, node))),
        "host_prerequisites": _with_lists(asdict(inventory.prerequisites_of(node))),
    }
    if inventory.cluster.sandbox:
        return data | {"sandbox_fleet": inventory.cluster.sandbox}
    if node.connect is ConnectionMethod.SSH:
        return data | _ssh_data(node, ssh_config)
    cluster, pod = inventory.cluster, inventory.helper_pod
    return data | {
        "k8s_kubeconfig": cluster.kubeconfig,
        "k8s_context": cluster.context,
        "k8s_namespace": pod.namespace,
        "k8s_image": pod.image,
        "k8s_image_pull_secrets": list(pod.image_pull_secrets),
    }


def _ssh_data(node: Node, ssh_config: str) -> dict[str, Any]:
    """Return the data of pyinfra's SSH connector, without empty values."""
    ssh, behind_bastion = node.ssh, bool(node.ssh.bastion)
    data: dict[str, Any] = {
        # Behind a bastion, the name selects the host's entry in the generated SSH configuration.
        "ssh_hostname": node.name if behind_bastion else node.address or node.name,
        "ssh_port": ssh.port,
        "ssh_user": ssh.user,
        "ssh_key": ssh.key,
        "ssh_known_hosts_file": ssh.known_hosts_file,
        "ssh_config_file": ssh_config if behind_bastion else "",
        "ssh_connect_retries": 1,  # a bastion rejects some of a hundred connections at once
        "gpu_ssh_patience": ssh.patience,
    }
    if ssh.sudo and ssh.user != "root":  # pyinfra does not log the password
        data |= {"_sudo": True, "_sudo_password": sudo_password()}
    return {key: value for key, value in data.items() if value}


def _with_lists(data: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


_SSH_HEAD = "# Written by gpu-provision from {path}; it is written again whenever that file is read.\n"


def write_ssh_config(inventory: Inventory, nodes: Iterable[Node]) -> str:
    """Write the SSH configuration of the nodes behind a bastion; return its path, or "" if there are none.

    The file is readable by its owner only, and replaced atomically, so that parallel runs do no harm.
    Raises ProvisionError if it cannot be written.
    """
    behind = [node for node in nodes if node.ssh.bastion]
    if not behind:
        return ""
    digest = hashlib.sha256(inventory.path.encode()).hexdigest()[:8]
    file = files.state_folder() / "ssh" / f"{inventory.name}-{digest}.config"
    text = _SSH_HEAD.format(path=inventory.path) + ssh_config(behind)
    try:
        if not (file.exists() and file.read_text(encoding="utf-8") == text):
            files.make_state_folder(file.parent)
            files.write_atomic(file, text, private=True)
    except OSError as error:
        what = "The SSH configuration for the nodes behind a bastion cannot be written."
        fix = "Set XDG_STATE_HOME to a directory that you may write to."
        reason = error.strerror or str(error)
        finding = Finding(code="GP165", where=str(file), what=what, evidence=reason, fix=fix)
        raise ProvisionError(finding) from error
    return str(file)


def ssh_config(nodes: Iterable[Node]) -> str:
    """Return the text of an SSH configuration with one entry per node and per bastion.

    The first value of an option counts, so the user's settings precede the fallback for host keys.
    """
    entries, bastions = [], dict[str, SshOptions]()
    for node in nodes:
        port, jump = str(node.ssh.port or ""), node.ssh.bastion
        entries.append(_host_entry(node.name, {"HostName": node.address or node.name, "Port": port, "ProxyJump": jump}))
        bastions[jump.rpartition("@")[2].partition(":")[0]] = node.ssh
    for host, ssh in bastions.items():
        entries.append(_host_entry(host, {"IdentityFile": ssh.key, "UserKnownHostsFile": ssh.known_hosts_file}))
    # As pyinfra does for hosts. For bastions, ssh would prompt, and a run has no terminal.
    fallbacks = [_host_entry(host, {"StrictHostKeyChecking": "accept-new"}) for host in bastions]
    return "\n".join([*filter(None, entries), "Host *", "  Include ~/.ssh/config", *fallbacks, ""])


def _host_entry(host: str, options: dict[str, str]) -> str:
    lines = [f"  {key} {value}" for key, value in options.items() if value]
    return "\n".join([f"Host {host}", *lines]) if lines else ""


SUDO_VARIABLE = "GPU_PROVISION_SUDO_PASSWORD"
"""Environment variable with the sudo password, for use without a terminal."""

_sudo_password: ContextVar[str] = ContextVar("sudo_password", default="")


class Password(str):
    """A password whose repr() hides it, such as from pyinfra --debug."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return stars."""
        return "'***'"


def set_sudo_password(password: str) -> None:
    """Set the sudo password of this process; it overrides that of the environment."""
    _sudo_password.set(password)


def sudo_password() -> Password:
    """Return the sudo password; empty if there is none."""
    return Password(_sudo_password.get() or os.environ.get(SUDO_VARIABLE, ""))
