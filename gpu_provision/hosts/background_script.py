"""Runs a shell script on a host detached from the client that started it, and asks for its result over any connection.

A lost connection, or a helper pod that ends with its runtime, cannot stop it halfway.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyinfra.api.command import FunctionCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gpu_provision.hosts.findings import add_finding, report
from gpu_provision.model.findings import Finding, Severity

WORK = "/run/gpu-provision/runtime"
"""Directory of the script, its process number and its result; a reboot empties it."""


class Outcome(StrEnum):
    """Where the script is, or how it ended."""

    RUNNING = "running"
    GONE = "gone"  # it was ended from outside, such as by the kernel
    CHANGED = "changed"
    DOWN = "down"  # the runtime did not answer to begin with; nothing was changed
    NO_TOOL = "no-tool"  # it cannot be restarted or asked here; nothing was changed
    REJECTED_OLD = "rejected-old"  # the node's containerd rejects its present configuration; nothing was changed
    REJECTED_NEW = "rejected-new"  # likewise, the new one; nothing was changed
    NOT_KEPT = "not-kept"  # the original could not be put aside; nothing was changed
    RESTORED = "restored"  # the old configuration is back, and the runtime answers
    DEAD = "dead"  # the old configuration is back, and the runtime does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The script's last words.

    Attributes:
        outcome: Where it is, or how it ended.
        evidence: A line of a program's output; empty if there is none.
    """

    outcome: Outcome
    evidence: str = ""


BEGIN = r"""
umask 077
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
echo $$ >"$work/pid.new" && mv "$work/pid.new" "$work/pid"
said=$work/said
command -v timeout >/dev/null || timeout() { shift; "$@"; }
clean_up() { :; }
end() {
  clean_up
  printf '%s\n' "$@" | cut -c 1-300 >"$work/result.new"
  mv "$work/result.new" "$work/result"
  exit 0
}
last() { grep -v '^[[:space:]]*$' "$said" | tail -n 1; }
"""
"""The beginning of every script: ``end OUTCOME EVIDENCE``; ``last`` prints the last line of the file ``$said``."""


def start(script: str, variables: Mapping[str, str], *, takes_stdin: bool = False) -> str:
    """Return the command that starts a script and returns at once.

    The same script with the same variables that runs already, started by a run that is gone, is left to run; the end
    of any other one is waited for.

    Args:
        script: What follows ``BEGIN``; ends by calling ``end``.
        variables: Shell variables for it; ``work`` is there in any case.
        takes_stdin: Whether standard input is kept for it, in the file ``$work/input``, which only root can read.
    """
    assigned = "".join(f"{name}={shlex.quote(value)}\n" for name, value in {"work": WORK, **variables}.items())
    text = assigned + BEGIN + script
    return _START.format(
        work=WORK,
        job=hashlib.sha256(text.encode()).hexdigest(),
        script=shlex.quote(text),
        patience=_PATIENCE_SECONDS,
        input=f"cat >{WORK}/input" if takes_stdin else ":",
    )


_PATIENCE_SECONDS = 600
"""For the end of another script."""

# What runs has no result yet; it may still be there for a moment after it has one. Without systemd it leaves the
# control groups of whoever started it: with a helper pod, all that is in the pod's would end.
_START = r"""mkdir -p -m 700 {work} && (
umask 077
cd {work} || exit
runs() {{ [ ! -e result ] && kill -0 "$(cat pid 2>/dev/null || echo none)" 2>/dev/null; }}
left={patience}
while runs && [ "$(cat job)" != {job} ] && [ "$left" -gt 0 ]; do sleep 1; left=$((left - 1)); done
runs && exit
rm -f result pid && {input} && echo {job} >job && printf %s {script} >change.sh || exit
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
  systemd-run --quiet --collect --unit="gpu-provision-runtime-$$" sh {work}/change.sh
else
  setsid sh -c '
    groups=/sys/fs/cgroup/cgroup.procs
    [ -e "$groups" ] || groups=/sys/fs/cgroup/*/cgroup.procs
    for group in $groups; do echo $$ >"$group"; done
    exec sh {work}/change.sh' </dev/null >/dev/null 2>&1 &
fi)"""


def question(*, seconds: int = 10) -> str:
    """Return the command that waits for the result for some seconds, and prints it or where the script is."""
    return (
        f"ends() {{ [ -e {WORK}/result ] || {{ [ -e {WORK}/pid ] && ! kill -0 $(cat {WORK}/pid) 2>/dev/null; }}; }}; "
        f"left={seconds}; while ! ends && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done; "
        f"if [ -e {WORK}/result ]; then cat {WORK}/result; elif ends; then echo gone; else echo running; fi"
    )


def parse(lines: Sequence[str]) -> Result | None:
    """Read the answer; None if there is none that is known."""
    words = [line.strip() for line in lines if line.strip()]
    if not words or words[0] not in tuple(Outcome):
        return None
    return Result(outcome=Outcome(words[0]), evidence=" ".join(words[1:]))


Judge = Callable[[str, Result | None], Finding | None]
"""From a host's name and its answer, None for none, to what is wrong."""

_PAUSE_SECONDS = 2
"""Between a failure to ask and the next connection."""


class ChangeResult(FactBase[Result | None]):
    """How a change of the runtime's configuration goes on; None without an answer."""

    def command(self) -> str:
        """Return the shell command, which waits for some seconds."""
        return question()

    @staticmethod
    def default() -> Result | None:
        """Return None: nothing is known."""
        return None

    def process(self, output: list[str]) -> Result | None:
        """Read the command's output."""
        return parse(output)


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
        add_finding(finding)
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
