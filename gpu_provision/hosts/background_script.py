"""Runs a shell script on a host in the background, and polls its result over any connection.

A lost connection, or a helper pod that ends with its runtime, does not interrupt the script.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gpu_provision.hosts import errors, scripts
from gpu_provision.hosts.facts.runtime import ContainerRuntime
from gpu_provision.hosts.operations import add_finding, report_findings
from gpu_provision.hosts.scripts import WORK
from gpu_provision.model.findings import Finding, Severity


class ScriptOutcome(StrEnum):
    """The state of the script, or its result."""

    RUNNING = "running"
    GONE = "gone"  # killed from outside, such as by the kernel
    CHANGED = "changed"
    DOWN = "down"  # the runtime did not answer before the change; nothing was changed
    NO_TOOL = "no-tool"  # the host has no tool to restart or query the runtime; nothing was changed
    REJECTED_OLD = "rejected-old"  # the node's containerd rejects its current configuration; nothing was changed
    REJECTED_NEW = "rejected-new"  # likewise, the new one; nothing was changed
    NOT_KEPT = "not-kept"  # the backup of the original failed; nothing was changed
    RESTORED = "restored"  # the old configuration is restored, and the runtime answers
    DEAD = "dead"  # the old configuration is restored, and the runtime does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """The state of a script, or its result."""

    outcome: ScriptOutcome
    evidence: str = ""  # a line of a program's output; empty if there is none


def start_script(*names: str, takes_stdin: str = "", **variables: str) -> str:
    """Return the command that starts a script and returns at once.

    If an earlier run has started the same script with the same variables, that one continues; the command waits for
    the end of any other one. Files follow background.sh; the last one calls ``end``. With ``takes_stdin`` the standard
    input is in the file ``$work/input``, which only root can read.
    """
    text = scripts.assign(**variables) + "".join(map(scripts.load, ("background.sh", *names)))
    job = hashlib.sha256(text.encode()).hexdigest()
    start = scripts.assign(job=job, script=text, takes_stdin=takes_stdin)
    return f"{start}{scripts.load('start.sh')}"


def poll_command(*, seconds: int = 10) -> str:
    """Return the command that waits for the result for some seconds, and prints the result or the script's state."""
    return (
        f"ends() {{ [ -e {WORK}/result ] || {{ [ -e {WORK}/pid ] && ! kill -0 $(cat {WORK}/pid) 2>/dev/null; }}; }}; "
        f"left={seconds}; while ! ends && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done; "
        f"if [ -e {WORK}/result ]; then cat {WORK}/result; elif ends; then echo gone; else echo running; fi"
    )


def parse(lines: Sequence[str]) -> ScriptResult | None:
    """Parse the output; None if it is unknown."""
    words = [line.strip() for line in lines if line.strip()]
    if not words or words[0] not in tuple(ScriptOutcome):
        return None
    return ScriptResult(outcome=ScriptOutcome(words[0]), evidence=" ".join(words[1:]))


FindProblem = Callable[[str, ScriptResult | None], Finding | None]
"""From a host's name and its result, None without an answer, to a finding."""


class ChangeResult(FactBase[ScriptResult | None]):
    """The result of a change of the runtime's configuration; None without an answer."""

    def command(self) -> str:
        """Return the shell command."""
        return poll_command()

    def process(self, output: list[str]) -> ScriptResult | None:
        """Parse the command's output."""
        return parse(output)


def wait_for_result(judge: FindProblem, patience: int) -> FunctionCommand:
    """Return the command that waits for a result; a finding that is an error fails it.

    A script may take two restarts of 90 seconds, two waits for an answer, and some time between.
    """
    return FunctionCommand(_wait, (judge, 2 * 90 + 2 * patience + 180), {})


def _wait(state: State, host: Host, judge: FindProblem, seconds: int) -> bool:
    give_up = time.monotonic() + seconds
    result = None
    while (result is None or result.outcome is ScriptOutcome.RUNNING) and time.monotonic() < give_up:
        result = _poll_result(host)
    finding = judge(host.name, result)
    if finding and finding.severity is Severity.ERROR:
        return report_findings(state, host, finding)
    if finding:
        add_finding(finding)
    return True


def _poll_result(host: Host) -> ScriptResult | None:
    """Return the host's result; without an answer disconnect, and return None."""
    result: ScriptResult | None = None
    if not host.connected:
        host.connect(show_errors=False)
    if host.connected:
        with contextlib.suppress(PyinfraError, OSError):
            result = host.get_fact(ChangeResult, _ignore_errors=True)
    if result is None:
        host.disconnect()
        time.sleep(2)  # before the next connection
    return result


def runtime_variables(runtime: ContainerRuntime | None, patience: int) -> Mapping[str, str]:
    """Return the variables of runtime.sh; the runtime may take so many seconds to answer after a restart."""
    runtime = runtime or ContainerRuntime(kind="")
    names = ("kind", "config", "binary", "socket")
    return {**{name: getattr(runtime, name) for name in names}, "patience": str(patience)}


def restart_runtime(runtime: ContainerRuntime, *, patience: int) -> str:
    """Return the command that starts a restart of the runtime and returns at once."""
    return start_script("runtime.sh", "restart.sh", **runtime_variables(runtime, patience))


def script_problem(host: str, result: ScriptResult | None, *, kind: str, change: str, remedy: str) -> Finding | None:
    """Return the problem of a change of the runtime; None if the runtime answers.

    ``change``: in words, such as ``its proxy and certificates``. ``remedy``: for a runtime that rejects the change.
    """
    outcome = result.outcome if result else ScriptOutcome.RUNNING
    if outcome is ScriptOutcome.CHANGED:
        return None
    known = errors.texts()["script"]
    text = known.get(outcome.value, known["running"])
    return errors.fill(text, host, result.evidence if result else "", kind=kind, change=change, remedy=remedy)
