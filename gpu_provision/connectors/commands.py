"""Commands as pyinfra's global arguments (sudo, environment, timeout) want them on any host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from pyinfra import logger
from pyinfra.api.arguments import ConnectorArguments
from pyinfra.api.command import StringCommand
from pyinfra.api.output import echo
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import extract_control_arguments, make_unix_command_for_host

from gpu_provision.model.findings import visible

_OF_TRANSFERS = ("remote_temp_filename", "print_output", "print_input")


def prepare_command(
    connector: BaseConnector, command: StringCommand, arguments: dict[str, Any], *, is_shown: bool
) -> tuple[str, Mapping[str, Any]]:
    """Return a command's text, and the arguments that control its process; tells the log, and if wanted the user."""
    control = _pop_control_arguments(arguments)
    made = make_unix_command_for_host(connector.state, connector.host, command, **arguments)
    logger.debug("--> Running command on %s: %s", connector.host.name, made)
    if is_shown:
        echo(f"{connector.host.print_prefix}>>> {visible(str(made))}", err=True)
    return str(made.get_raw_value()), control


def transfer_command(connector: BaseConnector, arguments: dict[str, Any]) -> Callable[[StringCommand], str]:
    """Return what makes the text of a command that transfers a file."""
    for name in _OF_TRANSFERS:
        arguments.pop(name, None)
    _pop_control_arguments(arguments)

    def text_of(command: StringCommand) -> str:
        made = make_unix_command_for_host(connector.state, connector.host, command, **arguments)
        return str(made.get_raw_value())

    return text_of


def succeeded(status: int, control: Mapping[str, Any]) -> bool:
    """Whether a process ended as it was to."""
    return status in (control.get("_success_exit_codes") or [0])


def _pop_control_arguments(arguments: dict[str, Any]) -> Mapping[str, Any]:
    """Take out of the arguments what controls a process and is no part of its command."""
    return dict(extract_control_arguments(cast("ConnectorArguments", arguments)))
