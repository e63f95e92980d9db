"""Keeps one host's trouble to that host: pyinfra ends the whole run at an exception that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.connectors import util
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput

from gpu_provision.hosts import liveness, trouble
from gpu_provision.hosts.telling import TROUBLE
from gpu_provision.hosts.trouble import Reached
from gpu_provision.model.findings import Finding

Say = Callable[[str], None]

_KNOWN = (OSError, SSHException)
"""What pyinfra takes for the trouble of one host, in operations and in facts."""


class HostTrouble(OSError):
    """Any other exception of one host, in a form that pyinfra takes for the trouble of that host."""


class Contained:
    """A host's connector that remembers what went wrong last, and lets no exception out that would end the run."""

    def __init__(self, host: Host, say: Say) -> None:
        """Take the place of the connector that the host has."""
        self._inner = host.connector
        self._host = host
        self._say = say

    def __getattr__(self, name: str) -> Any:
        """Return what the connector itself has."""
        return getattr(self._inner, name)

    def connect(self) -> None:
        """Connect; raises ConnectError for whatever goes wrong."""
        try:
            self._inner.connect()
        except Exception as error:  # a key file that is missing, for example, is no ConnectError of pyinfra's
            self._remember(trouble.of_connecting(error, reached(self._host)))
            if isinstance(error, ConnectError):
                raise
            raise ConnectError(str(error) or type(error).__name__) from error

    def disconnect(self) -> None:
        """Disconnect; what fails then is of no use to anybody."""
        try:
            self._inner.disconnect()
        except Exception as error:  # noqa: BLE001 - connectors may raise anything, and the run is over
            logger.debug("disconnecting from %s: %s", self._host.name, error)

    def run_shell_command(self, *args: Any, **kwargs: Any) -> tuple[bool, CommandOutput]:
        """Run a command, and watch that the host is still there.

        Raises:
            OSError: The command came to no end.
            SSHException: Likewise.
        """
        with liveness.watched(self._inner, liveness.limit_of(self._host), self._say) as watch:
            try:
                done: tuple[bool, CommandOutput] = self._inner.run_shell_command(*args, **kwargs)
            except Exception as error:
                self._remember(self._silence(watch) or trouble.of_command(error, reached(self._host)))
                if isinstance(error, _KNOWN):
                    raise
                raise HostTrouble(str(error) or type(error).__name__) from error
        self._remember(self._silence(watch) or self._told(*done, closed=watch.connection_closed))
        return done

    def _silence(self, watch: liveness.Watch) -> Finding | None:
        return trouble.silent(reached(self._host), watch.limit) if watch.gave_up else None

    def _told(self, ok: bool, output: CommandOutput, *, closed: bool) -> Finding | None:  # noqa: FBT001 - as pyinfra has it
        """Return what a command tells about its host; None if it tells nothing, above all if all is well."""
        if ok:
            return None
        found = trouble.of_output(output.output_lines, reached(self._host))
        return found or (trouble.cut_off(reached(self._host)) if closed else None)

    def _remember(self, finding: Finding | None) -> None:
        self._host.connector_data[TROUBLE] = finding


class _Questions(Protocol):
    getpass: Callable[[str], str]


def contain(host: Host, say: Say) -> None:
    """Have a host's connector keep trouble to the host; more than once is no difference."""
    if not isinstance(host.connector, Contained):
        host.connector = cast("BaseConnector", Contained(host, say))


def ask_nobody() -> None:
    """Have pyinfra never ask for a password of sudo's: nobody is there to answer, once per host, in the middle."""
    cast("_Questions", util).getpass = _refuse


def ask_people_only() -> None:
    """Have pyinfra ask nobody where there is no terminal; it would end the run for all."""
    try:
        Path("/dev/tty").open().close()
    except OSError:
        ask_nobody()


def _refuse(_prompt: str = "") -> str:
    raise HostTrouble(util.SUDO_PASSWORD_REQUIRED_LINES[0])


def reached(host: Host) -> Reached:
    """Return how pyinfra reaches a host."""
    data = host.data
    return Reached(
        name=data.get("gpu_node") or host.name,
        address=data.get("ssh_hostname") or "",
        port=int(data.get("ssh_port") or 0),
        user=data.get("ssh_user") or "",
        key=data.get("ssh_key") or "",
        known_hosts=data.get("ssh_known_hosts_file") or "",
    )
