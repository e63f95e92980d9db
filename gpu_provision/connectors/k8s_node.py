"""``@k8s-node/<node>``: the host of a Kubernetes node, without SSH, through a helper pod on it.

pyinfra imports this module for every inventory, so it imports nothing of Kubernetes before a host connects.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypedDict

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.api.output import echo, format_text
from pyinfra.api.util import get_file_io
from pyinfra.connectors.base import DataMeta
from pyinfra.connectors.util import CommandOutput, OutputLine

from gpu_provision.connectors import ShellConnector
from gpu_provision.model.findings import ProvisionError, escape_control_characters
from gpu_provision.model.hosts import HelperPod

if TYPE_CHECKING:
    from gpu_provision.kube.client import KubeClient
    from gpu_provision.kube.node_shell import NodeShell

PREFIX = "@k8s-node/"
_CHUNK = 1024 * 1024
_OUTPUTS = {1: "stdout", 2: "stderr"}
_DEFAULTS = HelperPod()


class K8sNodeConnectorData(TypedDict, total=False):
    """The host data of this connector."""

    k8s_kubeconfig: str
    k8s_context: str
    k8s_namespace: str
    k8s_image: str
    k8s_image_pull_secrets: list[str]


class K8sNodeConnector(ShellConnector):
    """Runs commands on a node's host as root; removes its helper pod when it disconnects."""

    data_cls = K8sNodeConnectorData
    data_meta = {  # noqa: RUF012 - pyinfra's own convention
        "k8s_kubeconfig": DataMeta("Path of the kubeconfig", ""),
        "k8s_context": DataMeta("Name of the context; empty for the current one", ""),
        "k8s_namespace": DataMeta("Namespace of the helper pod", _DEFAULTS.namespace),
        "k8s_image": DataMeta("Image of the helper pod; it needs nsenter", _DEFAULTS.image),
        "k8s_image_pull_secrets": DataMeta("Secrets of that namespace to pull it with", []),
    }
    shell: NodeShell

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Yield the host of one node. The node's name is a group too, for ``--limit``."""
        if not name:
            message = "a node needs its name: @k8s-node/<node>"
            raise InventoryError(message)
        yield f"{PREFIX}{name}", {}, ["@k8s-node", name]

    def connect(self) -> None:
        """Start a helper pod on the node, a new one after a reboot; raises ConnectError."""
        from gpu_provision.kube import node_shell  # noqa: PLC0415 - with the cluster's client, 60 ms

        try:
            settings = HelperPod(
                image=self.data["k8s_image"],
                namespace=self.data["k8s_namespace"],
                image_pull_secrets=tuple(self.data["k8s_image_pull_secrets"]),
            )
            cluster = _cluster(self.data["k8s_kubeconfig"], self.data["k8s_context"], settings.namespace)
            self.disconnect()
            node = self.host.name.removeprefix(PREFIX)
            self.shell = node_shell.NodeShell(cluster, node, settings)
            atexit.register(self.shell.close)
            self.shell.open()
        except ProvisionError as error:
            from gpu_provision.hosts.operations import save_findings  # noqa: PLC0415 - only hosts that fail need it

            save_findings(self.host, error.findings)
            raise ConnectError(str(error)) from error

    def disconnect(self) -> None:
        """Remove the helper pod."""
        if hasattr(self, "shell"):
            atexit.unregister(self.shell.close)
            self.shell.close()

    def execute(self, command: str, control: Mapping[str, Any], *, shown: bool) -> tuple[int | None, CommandOutput]:
        """Run a command on the host."""
        lines = _OutputLines(self.host.print_prefix if shown else None)
        stdin, timeout = _stdin(control.get("_stdin")), control.get("_timeout")
        try:
            status = self.shell.run(command, listen=lines.add_data, stdin=stdin, timeout=timeout)
        except ProvisionError as error:
            lines.add_data(2, f"{error}\n".encode())
            return None, lines.output()
        return status, lines.output()

    def put_file(self, filename_or_io: Any, remote_filename: str, *_: Any, **arguments: Any) -> bool:
        """Write a file of the host; raises OSError with the shell's output."""
        with get_file_io(filename_or_io) as file, _as_os_error():
            size, parts = _content(file)
            self.shell.write_file(remote_filename, size, parts, within=partial(self._wrap_command, arguments))
        return True

    def get_file(self, remote_filename: str, filename_or_io: Any, *_: Any, **arguments: Any) -> bool:
        """Read a file of the host; raises OSError with the shell's output."""
        with get_file_io(filename_or_io, "wb") as file, _as_os_error():
            self.shell.read_file(remote_filename, file.write, within=partial(self._wrap_command, arguments))
        return True

    def _wrap_command(self, arguments: dict[str, Any], command: str) -> str:
        """Wrap a command as pyinfra's arguments require, such as in sudo."""
        return self.text_of(StringCommand(command), arguments)


class _OutputLines:
    """Output in lines, in the order of their ends, as pyinfra expects; printed immediately if there is a prefix."""

    def __init__(self, prefix: str | None) -> None:
        self._prefix, self._lines = prefix, list[OutputLine]()
        self._begun = dict.fromkeys(_OUTPUTS, b"")

    def add_data(self, channel: int, data: bytes) -> None:
        *ended, self._begun[channel] = (self._begun[channel] + data).split(b"\n")
        for line in ended:
            self._add(channel, line)

    def output(self) -> CommandOutput:
        for channel, line in self._begun.items():
            if line:
                self._add(channel, line)
        return CommandOutput(self._lines)

    def _add(self, channel: int, line: bytes) -> None:
        text, name = line.decode(errors="replace"), _OUTPUTS[channel]
        self._lines.append(OutputLine(name, text))
        if self._prefix is not None:
            shown = escape_control_characters(text)
            echo(f"{self._prefix}{format_text(shown, 'red') if name == 'stderr' else shown}", err=True)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise OSError, which pyinfra reports as the host's failure."""
    try:
        yield
    except ProvisionError as error:
        raise OSError(str(error)) from error


@cache
def _cluster(kubeconfig: str, context: str, namespace: str) -> KubeClient:
    """Return the client that all nodes of a cluster share, and remove helper pods of killed clients."""
    from gpu_provision.kube import node_shell  # noqa: PLC0415 - see above
    from gpu_provision.kube.client import connect  # noqa: PLC0415 - see above

    cluster = connect(kubeconfig, context)
    node_shell.remove_orphaned(cluster, namespace)
    return cluster


def _content(file: Any) -> tuple[int, Iterable[bytes]]:
    """Return a file's size and its content in parts; text is taken as UTF-8."""
    if isinstance(file.read(0), str):
        data = file.read().encode()
        return len(data), [data]
    size = file.seek(0, 2)
    file.seek(0)
    return size, iter(lambda: file.read(_CHUNK), b"")


def _stdin(value: Any) -> bytes | None:
    """Return pyinfra's ``_stdin``, a text, lines, or a file of lines, as bytes."""
    if not value:
        return None
    lines = value.readlines() if hasattr(value, "readlines") else value
    texts = [lines] if isinstance(lines, str) else lines
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in texts).encode()
