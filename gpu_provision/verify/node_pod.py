"""Hosts without SSH as acceptance tests see them: testinfra, through a privileged pod on the node."""

from __future__ import annotations

import atexit
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult

from gpu_provision.cluster.host_shell import HostShell, shell_of
from gpu_provision.cluster.processes import STDERR, STDOUT
from gpu_provision.model.findings import ProvisionError, Refused, Unreachable
from gpu_provision.model.inventory import Inventory


class NodePod(BaseBackend):
    """testinfra in a node's own shell; ``close`` removes the pod that leads there."""

    NAME = "k8s-node"

    def __init__(self, node: str, shell: HostShell) -> None:
        """Keep an open shell."""
        self.shell = shell
        atexit.register(shell.close)
        super().__init__(node)

    def close(self) -> None:
        """Remove the pod."""
        atexit.unregister(self.shell.close)
        self.shell.close()

    def run(self, command: str, *args: str, **_: Any) -> CommandResult:
        """Run a command there. Raises Unreachable if nobody knows how it ended."""
        line = self.quote(command, *args)
        said = {STDOUT: b"", STDERR: b""}

        def listen(channel: int, data: bytes) -> None:
            said[channel] += data

        try:
            status = self.shell.run(line, listen=listen)
        except ProvisionError as error:
            raise Unreachable(*error.findings) from error
        return self.result(status, self.encode(line), said[STDOUT], said[STDERR])


def opened(inventory: Inventory, node: str) -> NodePod:
    """Return a node's host, with a pod on it.

    Raises:
        Refused: The account may not make such pods.
        Unreachable: There is no way to run commands on the node.
    """
    cluster = inventory.cluster
    try:
        return NodePod(node, shell_of(cluster.kubeconfig, cluster.context, node, inventory.helper_pod))
    except Refused:
        raise
    except ProvisionError as error:
        raise Unreachable(*error.findings) from error
