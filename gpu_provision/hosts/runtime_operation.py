"""The operation that has a host's containerd import the toolkit's drop-ins."""

from __future__ import annotations

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gpu_provision.hosts import prerequisites, runtime_script
from gpu_provision.hosts.following import followed
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.runtime_config import import_change, left_alone, problem
from gpu_provision.hosts.runtime_shell import longest_seconds
from gpu_provision.hosts.telling import Commands, note, refuse, tell


@operation()
def runtime_imports(pattern: str, insist: bool = False, patience: int = 60) -> Commands:  # noqa: FBT001, FBT002 - pyinfra operations take their state so
    """Have the kubelet's containerd import files, such as the toolkit's drop-in; it is restarted if that is new.

    Its root configuration is changed in that alone, after the node's own containerd has accepted the result. If
    containerd does not answer after its restart, the host puts the old configuration back by itself, whatever becomes
    of the connection, and the operation fails. What was there before the first change is kept for teardown. Other
    runtimes, and the containerd of a distribution, which writes its configuration at each start, are left alone.

    Args:
        pattern: Absolute pattern of files, such as ``/etc/containerd/conf.d/*.toml``.
        insist: Whether to warn where this cannot be done.
        patience: Seconds that a restarted containerd may take to answer.
    """
    record = read(("system", "kernel", "runtimes", "kubernetes"))
    if record is None:
        yield from refuse(prerequisites.unreadable(host.name))
        return
    left = left_alone(record, host.name, pattern) if insist else None
    if left:
        tell(left)
    change = import_change(record, pattern)
    if change is None:
        host.noop("the container runtime needs no import")
        return
    note(change.words)
    yield StringCommand(runtime_script.start(change.runtime, pattern=pattern, patience=patience))
    yield followed(lambda name, result: problem(change, name, result), longest_seconds(patience))
