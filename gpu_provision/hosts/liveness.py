"""Watches that a host is still there while it works on a command, however long that takes.

What is limited is the silence of its SSH server, not the command: a server answers questions while a command runs for
an hour, and a host that hangs does not. paramiko sends keepalives, too, but never looks for an answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import gevent
from paramiko import SSHException, Transport
from pyinfra.api.host import Host
from pyinfra.connectors.base import BaseConnector

LIMIT = 60
"""Seconds of silence after which a host is given up, unless its data say otherwise."""

SETTING = "gpu_ssh_patience"
"""Key of the host's data."""

_SHARE = 4
"""A question comes a quarter of the limit after the last one, and waits as long for its answer."""

_KEEPALIVE = "keepalive@openssh.com"  # a request that every server has to answer, if only with no: RFC 4254, 4


class Watch:
    """What is known of the connection while a command runs.

    Attributes:
        limit: Seconds of silence that are borne.
        gave_up: Whether the connection was closed because the host was silent for as long.
    """

    def __init__(self, transport: Transport | None, limit: int, say: Callable[[str], None]) -> None:
        """Begin with a host that has just been heard of."""
        self.limit = limit
        self.gave_up = False
        self._transport = transport
        self._say = say

    @property
    def connection_closed(self) -> bool:
        """Whether the connection is gone."""
        return self._transport is not None and not self._transport.is_active()

    def go_on(self) -> None:
        """Ask the host every now and then whether it is there; close the connection if it has not been for long."""
        transport, pause = self._transport, self.limit / _SHARE
        heard = time.monotonic()
        while transport and transport.is_active():
            gevent.sleep(pause)
            if _answers(transport, pause):
                heard = time.monotonic()
                continue
            silence = time.monotonic() - heard
            if silence >= self.limit:
                self.gave_up = True
                transport.close()
                return
            self._say(f"no answer for {silence:.0f} s; given up after {self.limit} s")


def _answers(transport: Transport, seconds: float) -> bool:
    """Return whether the other side says anything; also if what it says is that the connection is over."""
    with contextlib.suppress(SSHException, OSError, EOFError), gevent.Timeout(seconds, exception=False):
        transport.global_request(_KEEPALIVE, wait=True)
        return True
    return not transport.is_active()


@contextlib.contextmanager
def watched(connector: BaseConnector, limit: int, say: Callable[[str], None]) -> Iterator[Watch]:
    """Watch the SSH connection of a connector during a block; connectors without one look after themselves."""
    client = getattr(connector, "client", None)
    watch = Watch(client.get_transport() if client else None, limit, say)
    greenlet = gevent.spawn(watch.go_on)
    try:
        yield watch
    finally:
        greenlet.kill(block=False)


def limit_of(host: Host) -> int:
    """Return how many seconds of silence are borne of a host."""
    return int(host.data.get(SETTING) or LIMIT)
