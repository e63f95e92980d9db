"""The operation that starts a host's container runtime with proxies and trusted certificates."""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra.api.operation import operation
from pyinfra.context import host

from gpu_provision.hosts import environment_script, prerequisites
from gpu_provision.hosts.following import followed
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.runtime_environment import (
    Proxy,
    environment_change,
    left_without_proxy,
    no_trust_store,
    problem,
    shown,
)
from gpu_provision.hosts.runtime_shell import longest_seconds
from gpu_provision.hosts.telling import Commands, note, refuse, show_diff, tell

SECTIONS = ("system", "kernel", "runtimes", "kubernetes", "environment")


@operation()
def runtime_environment(proxy: Proxy, certificates: Sequence[str] = (), patience: int = 60) -> Commands:
    """Have the kubelet's container runtime pull images through proxies, and the system trust certificates.

    The runtime is restarted if either is new. If it does not answer then, the host takes all of it back by itself,
    whatever becomes of the connection, and the operation fails. What is no longer declared goes.

    Args:
        proxy: For the runtime alone: neither the kubelet nor containers are sent through it.
        certificates: Certificates in PEM, one a text.
        patience: Seconds that a restarted runtime may take to answer.
    """
    record = read(SECTIONS)
    if record is None:
        yield from refuse(prerequisites.unreadable(host.name))
        return
    if certificates and not record.environment.trust:
        yield from refuse(no_trust_store(host.name))
        return
    if left := left_without_proxy(record, host.name, proxy):
        tell(left)
    change = environment_change(record, proxy, certificates)
    if not change.files:
        host.noop("proxies and certificates are as declared")
        return
    note(change.words)
    for path, file in change.files.items():
        show_diff(path, ["(not shown)"] if path in record.environment.files else None, shown(path, file) or None)
    yield environment_script.start(change, patience=patience)
    yield followed(lambda name, result: problem(change, name, result), longest_seconds(patience))
