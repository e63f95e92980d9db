"""Waits for the result of a script that runs detached on a host, over as many connections as it takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gpu_provision.hosts import detached
from gpu_provision.hosts.detached import Outcome, Result
from gpu_provision.hosts.telling import report, tell
from gpu_provision.model.findings import Finding, Severity

Judge = Callable[[str, Result | None], Finding | None]
"""From a host's name and its answer, None for none, to what is wrong."""

_PAUSE_SECONDS = 2
"""Between a failure to ask and the next connection."""


class ChangeResult(FactBase[Result | None]):
    """How a change of the runtime's configuration goes on; None without an answer."""

    def command(self) -> str:
        """Return the shell command, which waits for some seconds."""
        return detached.question()

    @staticmethod
    def default() -> Result | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> Result | None:
        """Read the command's output."""
        return detached.parse(output)


def followed(judge: Judge, seconds: int) -> FunctionCommand:
    """Return the command that waits for a result, so many seconds at most; a finding that is an error fails it."""
    return FunctionCommand(_follow, (judge, seconds), {})


def _follow(state: State, host: Host, judge: Judge, seconds: int) -> bool:
    give_up = time.monotonic() + seconds
    result = None
    while (result is None or result.outcome is Outcome.RUNNING) and time.monotonic() < give_up:
        result = _ask(host)
    finding = judge(host.name, result)
    if finding is None:
        return True
    if finding.severity is Severity.WARNING:
        tell(finding)
        return True
    return report(state, host, finding)


def _ask(host: Host) -> Result | None:
    """Return the host's answer; None if it gives none, and the connection is then a new one."""
    result: Result | None = None
    if not host.connected:
        host.connect(show_errors=False)
    if host.connected:
        with contextlib.suppress(PyinfraError, OSError):
            result = host.get_fact(ChangeResult, _ignore_errors=True)
    if result is None:
        host.disconnect()
        time.sleep(_PAUSE_SECONDS)
    return result
