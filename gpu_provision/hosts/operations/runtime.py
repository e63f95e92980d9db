"""The operation that has a host's containerd import the toolkit's drop-ins."""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gpu_provision.hosts.background_script import followed
from gpu_provision.hosts.changes import modules
from gpu_provision.hosts.changes.runtime_config import import_change, import_problem, left_alone
from gpu_provision.hosts.changes.runtime_environment import (
    Proxy,
    environment_change,
    environment_problem,
    left_without_proxy,
    no_trust_store,
    shown,
)
from gpu_provision.hosts.findings import Commands, add_finding, fail, record_changes, show_diff
from gpu_provision.hosts.gpu_host import read_host
from gpu_provision.hosts.scripts import runtime
from gpu_provision.hosts.scripts.runtime import longest_seconds


@operation()
def runtime_imports(pattern: str, insist: bool = True, patience: int = 60) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have the kubelet's containerd import files, such as the toolkit's drop-in; it is restarted if that is new.

    Its root configuration is changed in that alone, after the node's own containerd has accepted the result. If
    containerd does not answer after its restart, the host puts the old configuration back by itself, even if the
    connection is lost, and the operation fails (GP672). What was there before the first change is kept for teardown.
    Left alone: hosts without a kubelet, other runtimes, and the containerd of a distribution that writes its
    configuration at each start.

    Args:
        pattern: Absolute pattern of files.
        insist: Whether to warn where this cannot be done (GP670).
        patience: Seconds that a restarted containerd may take to answer.

    Example::

        runtime_imports(name="Drop-ins of the toolkit", pattern="/etc/containerd/conf.d/*.toml", _sudo=True)
    """
    record = read_host(("system", "kernel", "runtimes", "kubernetes"))
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    left = left_alone(record, host.name, pattern) if insist else None
    if left:
        add_finding(left)
    change = import_change(record, pattern)
    if change is None:
        host.noop("the container runtime needs no import")
        return
    record_changes(change.words)
    yield StringCommand(runtime.start_imports(change.runtime, pattern=pattern, patience=patience))
    yield followed(lambda name, result: import_problem(change, name, result), longest_seconds(patience))


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
    record = read_host(SECTIONS)
    if record is None:
        yield from fail(modules.unreadable(host.name))
        return
    if certificates and not record.environment.trust:
        yield from fail(no_trust_store(host.name))
        return
    if left := left_without_proxy(record, host.name, proxy):
        add_finding(left)
    change = environment_change(record, proxy, certificates)
    if not change.files:
        host.noop("proxies and certificates are as declared")
        return
    record_changes(change.words)
    for path, file in change.files.items():
        show_diff(path, ["(not shown)"] if path in record.environment.files else None, shown(path, file) or None)
    yield runtime.start_environment(change, patience=patience)
    yield followed(lambda name, result: environment_problem(change, name, result), longest_seconds(patience))
