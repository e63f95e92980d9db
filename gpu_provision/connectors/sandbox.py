"""``@sandbox/<node>``: a simulated host of the sandbox, on which real shell commands run.

Host data ``sandbox_fleet`` names the sandbox; ``default`` without it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypedDict

from pyinfra import logger
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.api.util import get_file_io
from pyinfra.connectors.base import DataMeta
from pyinfra.connectors.util import CommandOutput, run_local_process

from gpu_provision.connectors import ShellConnector
from gpu_provision.sandbox import hosts


class SandboxConnectorData(TypedDict, total=False):
    """The host data of this connector."""

    sandbox_fleet: str


@cache
def _can_isolate() -> bool:
    """Whether simulated hosts can run here; logs once why not."""
    problem = hosts.isolation_problem()
    if problem:
        logger.warning("The sandbox's hosts are skipped: %s; the cluster is not affected", problem)
    return not problem


class SandboxConnector(ShellConnector):
    """Runs real commands on simulated hosts, which keep their state from run to run."""

    data_cls = SandboxConnectorData
    data_meta = {  # noqa: RUF012 - pyinfra's own convention
        "sandbox_fleet": DataMeta("Name or path of the sandbox's fleet", "default")
    }

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Yield the host of one node, or none where the machine cannot isolate hosts.

        The node's name is a group too, for ``--limit``.
        """
        if not name:
            message = "a simulated host needs a name: @sandbox/<node>"
            raise InventoryError(message)
        if _can_isolate():
            yield f"@sandbox/{name}", {}, ["@sandbox", name]

    def connect(self) -> None:
        """Find or create the host's state; raises ConnectError if its fleet has no such node."""
        node = self.host.name.removeprefix("@sandbox/")
        try:
            self.simulated = hosts.find(node, self.data["sandbox_fleet"])
        except hosts.HostUnavailableError as error:
            raise ConnectError(str(error)) from error

    def execute(self, command: str, control: Mapping[str, Any], *, shown: bool) -> tuple[int | None, CommandOutput]:
        """Run a command on the simulated host."""
        done: tuple[int, CommandOutput] = run_local_process(
            f"exec {shlex.join(hosts.argv(self.simulated, command))}",
            stdin=control.get("_stdin"),
            timeout=control.get("_timeout"),
            print_output=shown,
            print_prefix=self.host.print_prefix,
        )
        return done

    def put_file(self, filename_or_io: Any, remote_filename: str, *_: Any, **arguments: Any) -> bool:
        """Write a file of the simulated host; raises OSError with the shell's output."""
        with get_file_io(filename_or_io) as file:
            content = file.read()
        data = content.encode() if isinstance(content, str) else content
        self._run(StringCommand("cat", ">", QuoteString(remote_filename)), arguments, data)
        return True

    def get_file(self, remote_filename: str, filename_or_io: Any, *_: Any, **arguments: Any) -> bool:
        """Read a file of the simulated host; raises OSError with the shell's output."""
        content = self._run(StringCommand("cat", QuoteString(remote_filename)), arguments)
        with get_file_io(filename_or_io, "wb") as file:
            file.write(content)
        return True

    def _run(self, command: StringCommand, arguments: dict[str, Any], stdin: bytes = b"") -> bytes:
        """Return the output of a command as bytes, which pyinfra would decode."""
        done = hosts.run(self.simulated, self.text_of(command, arguments), stdin)
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace").strip())
        return done.stdout
