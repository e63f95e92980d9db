"""What the bodies of operations tell: changes in words, differences of files, findings, failures."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from difflib import unified_diff

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import OperationError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import host, state

from gpu_provision.model.findings import Finding

Commands = Generator[StringCommand | FunctionCommand, None, None]
"""What the body of an operation is."""

FINDINGS = "gpu_provision_findings"
"""Key of ``host.connector_data`` for the findings about a host, kept for whoever drives the run."""

CHANGES = "gpu_provision_changes"
"""Likewise, for what operations change in words: operation's hash -> words."""


def show_diff(path: str, old: Sequence[str] | None, new: Sequence[str] | None) -> None:
    """Log what will change in a file if the user asked for it.

    Comes before the first change is yielded: while preparing, pyinfra reads no further than that.
    """
    if old == new or not state.config.DIFF or state.is_executing:
        return
    host.log(f"Will modify {path}" if old and new else f"Will {'create' if new else 'remove'} {path}")
    for line in unified_diff(old or (), new or (), lineterm="", n=1):
        if not line.startswith(("---", "+++")):
            host.log(f"  {line}")


def note(words: Sequence[str]) -> None:
    """Keep in words what the operation changes, for whoever drives the run."""
    host.connector_data.setdefault(CHANGES, {})[host.current_op_hash] = tuple(words)


def tell(finding: Finding) -> None:
    """Keep a finding for whoever drives the run, and log it on one line."""
    kept = host.connector_data.setdefault(FINDINGS, [])
    if finding not in kept:
        kept.append(finding)
        host.log_styled(finding.what, fg="yellow", log_func=logger.warning)


def refuse(*findings: Finding) -> Commands:
    """Fail this host with findings: while preparing, the run stops before anything is touched there."""
    if not state.is_executing:
        _keep(host, findings)
        raise OperationError("\n".join(map(str, findings)))
    yield FunctionCommand(report, findings, {})


def report(state: State, host: Host, *findings: Finding) -> bool:  # noqa: ARG001 - pyinfra recognises these names
    """Fail an operation with findings, without a traceback."""
    _keep(host, findings)
    for line in "\n".join(map(str, findings)).splitlines():
        host.log_styled(line, fg="red", log_func=logger.error)
    return False


def _keep(host: Host, findings: Iterable[Finding]) -> None:
    """Keep findings for whoever drives the run, each once: pyinfra runs what is here twice."""
    kept = host.connector_data.setdefault(FINDINGS, [])
    kept += [finding for finding in findings if finding not in kept]
