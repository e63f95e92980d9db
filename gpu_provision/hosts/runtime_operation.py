"""The operation that has a host's containerd import the toolkit's drop-ins."""

from __future__ import annotations

import time

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from gpu_provision.hosts import prerequisites, runtime_script
from gpu_provision.hosts.reading import read
from gpu_provision.hosts.runtime_config import ImportChange, import_change, left_alone, problem
from gpu_provision.hosts.runtime_script import Outcome, Result
from gpu_provision.hosts.telling import Commands, note, refuse, report, tell

_PAUSE_SECONDS = 2
"""Between a failure to ask and the next connection."""


class ChangeResult(FactBase[Result | None]):
    """How a change of the runtime's configuration goes on; None without an answer."""

    def command(self) -> str:
        """Return the shell command, which waits for some seconds."""
        return runtime_script.question()

    @staticmethod
    def default() -> Result | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> Result | None:
        """Read the command's output."""
        return runtime_script.parse(output)


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
    runtime = change.runtime
    yield StringCommand(
        runtime_script.start(
            config=runtime.config,
            pattern=pattern,
            binary=runtime.binary,
            socket=runtime.socket,
            patience=patience,
        )
    )
    yield FunctionCommand(follow, (change, runtime_script.longest_seconds(patience)), {})


def follow(state: State, host: Host, change: ImportChange, seconds: int) -> bool:
    """Wait for the host's own word on how the change ended, over as many connections as it takes."""
    give_up = time.monotonic() + seconds
    result = None
    while (result is None or result.outcome is Outcome.RUNNING) and time.monotonic() < give_up:
        result = _ask(host)
    finding = problem(change, host.name, result)
    return report(state, host, finding) if finding else True


def _ask(host: Host) -> Result | None:
    """Return the host's answer; None if it gives none, and the connection is then a new one."""
    try:
        result: Result | None = host.get_fact(ChangeResult, _ignore_errors=True)
    except (PyinfraError, OSError):
        result = None
    if result is None:
        host.disconnect()
        time.sleep(_PAUSE_SECONDS)
        host.connect(show_errors=False)
    return result
