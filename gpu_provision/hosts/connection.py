"""Isolates failures of hosts: pyinfra ends the run for all hosts at an unknown exception."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gevent
from paramiko import SSHException, Transport
from pyinfra import logger
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.host import Host
from pyinfra.connectors import util
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput

from gpu_provision.hosts import errors
from gpu_provision.hosts.errors import SshTarget
from gpu_provision.hosts.operations import run_of
from gpu_provision.model.findings import Finding

Say = Callable[[str], None]

_KNOWN = (OSError, SSHException)
"""Exceptions that pyinfra treats as the failure of one host, in operations and in facts."""


class HostError(OSError):
    """Any other exception of one host, as one that pyinfra treats as the failure of that host."""


class _IsolatedConnector:
    """A host's connector that records its last error, and raises only exceptions that fail the host alone."""

    def __init__(self, host: Host, say: Say) -> None:
        self._inner = host.connector
        self._host = host
        self._say = say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect(self) -> None:
        """Connect; raises ConnectError for every error."""
        try:
            self._inner.connect()
        except Exception as error:  # pyinfra raises no ConnectError for a missing key file, for example
            self._remember(errors.connect_error(error, ssh_target(self._host)))
            if isinstance(error, ConnectError):
                raise
            raise ConnectError(str(error) or type(error).__name__) from error

    def disconnect(self) -> None:
        try:
            self._inner.disconnect()
        except Exception as error:  # noqa: BLE001 - connectors may raise anything, and the run is over
            logger.debug("disconnecting from %s: %s", self._host.name, error)

    def run_shell_command(self, *args: Any, **kwargs: Any) -> tuple[bool, CommandOutput]:
        """Run a command, and check that the host answers; raises one of _KNOWN if the command does not end."""
        limit = int(self._host.data.get("gpu_ssh_patience") or _SILENCE_LIMIT_SECONDS)
        reached = ssh_target(self._host)
        with _watch_connection(self._inner, limit, self._say) as watch:
            try:
                done: tuple[bool, CommandOutput] = self._inner.run_shell_command(*args, **kwargs)
            except Exception as error:
                self._remember(watch.silence(reached) or errors.command_error(error, reached))
                if isinstance(error, _KNOWN):
                    raise
                raise HostError(str(error) or type(error).__name__) from error
        ok, output = done
        problem = None if ok else errors.output_error(output.output_lines, reached)
        if not ok and not problem and watch.connection_closed:
            lost = ConnectionError("the connection ended in the middle of a command")
            problem = errors.command_error(lost, reached)
        self._remember(watch.silence(reached) or problem)
        return done

    def _remember(self, finding: Finding | None) -> None:
        run_of(self._host).last_error = finding


def isolate_failures(host: Host, say: Say) -> None:
    """Isolate the failures of a host's connector; idempotent."""
    if not isinstance(host.connector, _IsolatedConnector):
        host.connector = cast("BaseConnector", _IsolatedConnector(host, say))


def disable_questions() -> None:
    """Prevent pyinfra's prompts for sudo passwords in a run."""

    def refuse(_prompt: str = "") -> str:
        raise HostError(util.SUDO_PASSWORD_REQUIRED_LINES[0])

    util.getpass = refuse


def disable_questions_without_terminal() -> None:
    """Prevent pyinfra's prompts without a terminal, where a prompt ends the run for all hosts."""
    try:
        Path("/dev/tty").open().close()
    except OSError:
        disable_questions()


def ssh_target(host: Host) -> SshTarget:
    """Return the SSH target of a host."""
    data = host.data
    return SshTarget(
        name=data.get("gpu_node") or host.name,
        address=data.get("ssh_hostname") or "",
        port=int(data.get("ssh_port") or 0),
        user=data.get("ssh_user") or "",
        key=data.get("ssh_key") or "",
        known_hosts=data.get("ssh_known_hosts_file") or "",
    )


_SILENCE_LIMIT_SECONDS = 60
"""Seconds without an answer after which the connection is closed, unless the host's data have another limit."""

_SHARE = 4
"""Keepalives per limit; each waits as long for its answer as for the next one."""

_KEEPALIVE = "keepalive@openssh.com"  # every server answers this request, if only with a failure: RFC 4254, 4


class _Watchdog:
    """Closes the connection of a command if the host does not answer within a limit."""

    def __init__(self, transport: Transport | None, limit: int, say: Say) -> None:
        self._limit = limit
        self._gave_up = False
        self._transport = transport
        self._say = say

    @property
    def connection_closed(self) -> bool:
        return self._transport is not None and not self._transport.is_active()

    def silence(self, reached: SshTarget) -> Finding | None:
        """Return the error about a host that did not answer; None if it did."""
        return errors.host_error("silent", reached, seconds=self._limit) if self._gave_up else None

    def watch(self) -> None:
        """Send keepalives; close the connection after the limit without an answer."""
        transport, pause = self._transport, self._limit / _SHARE
        heard = time.monotonic()
        while transport and transport.is_active():
            gevent.sleep(pause)
            if _answers(transport, pause):
                heard = time.monotonic()
                continue
            silence = time.monotonic() - heard
            if silence >= self._limit:
                self._gave_up = True
                transport.close()
                return
            self._say(f"no answer for {silence:.0f} s; given up after {self._limit} s")


def _answers(transport: Transport, seconds: float) -> bool:
    """Whether the other side answers, or closes the connection."""
    with contextlib.suppress(SSHException, OSError, EOFError), gevent.Timeout(seconds, exception=False):
        transport.global_request(_KEEPALIVE, wait=True)
        return True
    return not transport.is_active()


@contextlib.contextmanager
def _watch_connection(connector: BaseConnector, limit: int, say: Callable[[str], None]) -> Iterator[_Watchdog]:
    """Watch the SSH connection of a connector, if it has one, during a block."""
    client = getattr(connector, "client", None)
    watch = _Watchdog(client.get_transport() if client else None, limit, say)
    greenlet = gevent.spawn(watch.watch)
    try:
        yield watch
    finally:
        greenlet.kill(block=False)
