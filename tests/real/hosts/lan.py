"""A network for a machine and its cluster: a network namespace of its own, with a cable to the machine.

Nothing else is in it, and nothing leads out of it. The machine's pods have addresses that everybody there reaches, as
in a cluster whose routers know the pods.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real.access import SERVICE_ADDRESS
from tests.real.hosts.machine import Link
from tests.real.node.settings import NODE_ADDRESS, POD_NETWORK
from tests.real.processes import NotReadyError, await_ready, process

SERVER_ADDRESS = "192.0.2.1"
_CABLE = "tap0"
_TUN = Path("/dev/net/tun")
_SET_UP = f"""set -e
ip link set lo up
ip address add {SERVICE_ADDRESS}/32 dev lo
ip tuntap add {_CABLE} mode tap
ip address add {SERVER_ADDRESS}/24 dev {_CABLE}
ip link set {_CABLE} up
ip route add {POD_NETWORK} via {NODE_ADDRESS}
touch "$1"
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Lan:
    """A network that is up; it ends with the process that holds it."""

    holder: int

    @property
    def network(self) -> tuple[str, ...]:
        return "nsenter", "--target", str(self.holder), "--net", "--"

    @property
    def link(self) -> Link:
        """How a machine is connected to it: with an address that it need not ask for."""
        told = f"ip={NODE_ADDRESS}::{SERVER_ADDRESS}:255.255.255.0::eth0:off"
        netdev = f"tap,id=net,ifname={_CABLE},script=no,downscript=no"
        return Link(NODE_ADDRESS, 22, netdev, told, self.network)


def missing() -> str:
    """Say what this computer lacks for such a network; an empty string if nothing."""
    if os.geteuid():
        return "a network of the tests' own needs root"
    if not _TUN.exists():
        return f"this computer has no {_TUN}"
    return "" if shutil.which("ip") else "not installed: apt-get install iproute2"


@contextlib.contextmanager
def lan(folder: Path) -> Iterator[Lan]:
    """Make a network that ends with the block, or with us, however we end.

    Raises:
        NotReadyError: It cannot be made; why is in ``lan.log`` in the folder.
    """
    ready, log = folder / "lan-is-up", folder / "lan.log"
    with process(log, ["unshare", "--net", "--", "sh", "-c", _SET_UP, "sh", str(ready)]) as holder:
        if not await_ready(ready.exists, holder):
            raise NotReadyError(log.read_text())
        yield Lan(holder.pid)
