"""Connectors that pyinfra finds by entry point: a cluster, nodes without SSH, the sandbox's simulated hosts.

pyinfra imports them for every inventory, so they import nothing of Kubernetes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from pyinfra import logger
from pyinfra.api.arguments import ConnectorArguments
from pyinfra.api.command import StringCommand
from pyinfra.api.output import echo
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput, extract_control_arguments, make_unix_command_for_host

from gpu_provision.model.findings import escape_control_characters

_OF_TRANSFERS = ("remote_temp_filename", "print_output", "print_input")


class ShellConnector(BaseConnector):
    """A host with a shell, on which pyinfra's global arguments (sudo, environment, timeout) work as on any other."""

    handles_execution = True

    @abstractmethod
    def execute(self, command: str, control: Mapping[str, Any], *, shown: bool) -> tuple[int | None, CommandOutput]:
        """Run a command and return its status, None if it did not end, and its output.

        Args:
            control: Arguments of the process, such as ``_timeout`` and ``_stdin``.
            shown: Whether to print its output immediately.
        """

    def run_shell_command(
        self,
        command: StringCommand,
        print_output: bool = False,  # noqa: FBT001, FBT002 - pyinfra's signature
        print_input: bool = False,  # noqa: FBT001, FBT002 - pyinfra's signature
        **arguments: Any,
    ) -> tuple[bool, CommandOutput]:
        """Run a command on the host, with pyinfra's global arguments as on any host."""
        control: dict[str, Any] = dict(extract_control_arguments(cast("ConnectorArguments", arguments)))
        made = make_unix_command_for_host(self.state, self.host, command, **arguments)
        logger.debug("--> Running command on %s: %s", self.host.name, made)
        if print_input:
            echo(f"{self.host.print_prefix}>>> {escape_control_characters(str(made))}", err=True)
        status, output = self.execute(str(made.get_raw_value()), control, shown=print_output)
        return status in (control.get("_success_exit_codes") or [0]), output

    def text_of(self, command: StringCommand, arguments: dict[str, Any]) -> str:
        """Return the text of a command that transfers a file, with pyinfra's arguments such as sudo."""
        own = {name: value for name, value in arguments.items() if name not in _OF_TRANSFERS}
        extract_control_arguments(cast("ConnectorArguments", own))  # removes them
        return str(make_unix_command_for_host(self.state, self.host, command, **own).get_raw_value())
