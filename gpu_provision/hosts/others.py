"""What the cluster phase of a pyinfra run needs to know of the hosts that the same run works on."""

from __future__ import annotations

from gevent.pool import Pool
from pyinfra.api.host import Host
from pyinfra.context import ctx_host, state

from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts.barrier import GROUP
from gpu_provision.hosts.outcomes import changes
from gpu_provision.hosts.reading import read


def drivers() -> dict[str, str]:
    """Return node -> version of a usable driver of the host's own, empty for none; hosts of this run that answer.

    While pyinfra prepares, hosts prepare side by side, so one that was not read yet is read now.
    """
    ours = [other for other in _others() if other.data.get("gpu_node")]
    # Not pyinfra's own pool: we are in it, and it may have one place only.
    records = Pool(state.config.PARALLEL).map(_record, ours)
    return {other.data.gpu_node: record.driver.usable for other, record in zip(ours, records, strict=True) if record}


def changed() -> int:
    """Return the number of hosts that this run has changed."""
    return sum(bool(changes(state, other)) for other in _others())


def _others() -> list[Host]:
    return [other for other in state.inventory.get_active_hosts() if GROUP not in other.groups]


def _record(other: Host) -> HostRecord | None:
    with ctx_host.use(other):
        try:
            return read(("kernel", "driver"))
        except Exception:  # noqa: BLE001 - whatever broke, that host says so itself; here it is one that nobody read
            return None
