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
