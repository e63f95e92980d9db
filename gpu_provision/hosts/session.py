"""One run of the host phase through pyinfra's API: plain data in, plain data out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import gevent
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import OperationError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import BaseStateCallback, State, StateOperationHostData, StateStage
from pyinfra.context import ctx_host, ctx_state

from gpu_provision.facts.record import HostRecord
from gpu_provision.hosts.facts import GpuHost
from gpu_provision.hosts.phase import host_prerequisites, host_teardown
from gpu_provision.hosts.prerequisites import reboot_reasons
from gpu_provision.hosts.reading import RECORD
from gpu_provision.hosts.telling import CHANGES, FINDINGS
from gpu_provision.model.findings import Finding, Severity

Emit = Callable[[dict[str, Any]], None]

PHASES = {"prerequisites": host_prerequisites, "judge": host_prerequisites, "teardown": host_teardown}
"""What a request may ask for."""

OUTCOME = ("system", "kernel", "modules", "pci")
"""Sections that tell how a host is in the end."""

REASON = "gpu_provision_reason"
"""Key of ``host.connector_data`` for a failure that is no finding: no connection, an exception of pyinfra's."""


class Progress(BaseStateCallback):
    """Tells what happens on each host; pyinfra calls it."""

    def __init__(self, emit: Emit) -> None:
        """Keep the function that tells."""
        self.emit = emit

    def host_connect_error(self, state: State, host: Host, error: Exception) -> None:  # noqa: ARG002 - pyinfra passes it
        """Keep why nobody could connect."""
        host.connector_data[REASON] = str(error)

    def operation_host_start(self, state: State, host: Host, op_hash: str) -> None:
        """Tell what a host is at."""
        if op_hash in state.ops[host]:
            title = ", ".join(state.op_meta[op_hash].names)
            self.emit({"event": {"host": host.name, "message": title.split(" | ")[-1]}})


class Warnings(logging.Handler):
    """Collects what pyinfra and its connectors warn about before there are hosts."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.messages.append(record.getMessage())


def run(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Bring hosts to their prerequisites, or only look.

    Args:
        request: ``groups`` as pyinfra wants them, ``hosts`` to work on in order, ``phase``, ``dry_run``.
        emit: Called with ``{"event": {"host", "message"}}`` as things happen.

    Returns:
        ``outcomes``: host -> plain outcome; ``findings``: warnings; ``left_out``: why hosts are missing.
    """
    warnings = Warnings()
    logging.getLogger("pyinfra").addHandler(warnings)
    inventory = _inventory(request["groups"], request["hosts"])
    left_out = " ".join(warnings.messages) if len(inventory) < len(request["hosts"]) else ""
    if not len(inventory):  # pyinfra would take it for no inventory at all
        return {"outcomes": {}, "findings": [], "left_out": left_out}
    state = State(inventory, Config(), check_for_changes=request["dry_run"])
    state.add_callback_handler(Progress(emit))
    with ctx_state.use(state):
        _go(state, PHASES[request["phase"]], dry_run=request["dry_run"])
        records = _records(state)
    outcomes = {host.name: _outcome(state, host, records.get(host.name)) for host in inventory}
    return {"outcomes": outcomes, "findings": _warnings(inventory), "left_out": left_out}


def _inventory(groups: dict[str, Any], hosts: list[str]) -> Inventory:
    """Return pyinfra's inventory of the wanted hosts; it takes a host's data from whichever group has it."""
    wanted = {
        name: ([(host, data) for host, data in members if host in hosts], shared)
        for name, (members, shared) in groups.items()
    }
    return Inventory((hosts, {}), **wanted)


def _go(state: State, phase: Callable[[], Any], *, dry_run: bool) -> None:
    """Connect, prepare and execute; what fails is remembered with its host."""
    try:
        state.set_stage(StateStage.Connect)
        connect_all(state)
        state.set_stage(StateStage.Prepare)
        _each(state, lambda host: _prepare(host, phase))
        if not dry_run:
            state.set_stage(StateStage.Execute)
            run_ops(state)
    except PyinfraError:
        pass  # "No hosts remaining!": every host then has its own reason


def _each(state: State, work: Callable[[Host], None]) -> None:
    """Do something on all hosts that are left, at the same time."""
    gevent.joinall(
        [state.pool.spawn(_within, host, work) for host in state.inventory.get_active_hosts()],
        raise_error=True,
    )


def _within(host: Host, work: Callable[[Host], None]) -> None:
    with ctx_host.use(host):
        work(host)


def _prepare(host: Host, phase: Callable[[], Any]) -> None:
    try:
        phase()
    except OperationError as error:
        host.connector_data[REASON] = str(error)
    except PyinfraError as error:
        host.connector_data.setdefault(REASON, str(error))


def _records(state: State) -> dict[str, HostRecord]:
    """Return every connected host as it is now, not as it was meant to be; read anew if something was executed."""
    records: dict[str, HostRecord] = {}

    def read(host: Host) -> None:
        known = None if state.is_executing else host.connector_data.get(RECORD)
        try:
            record = known or host.get_fact(GpuHost, sections=OUTCOME, _ignore_errors=True)
        except PyinfraError:
            return
        if record:
            records[host.name] = record

    connected: Iterable[Host] = state.activated_hosts
    gevent.joinall([state.pool.spawn(_within, host, read) for host in connected], raise_error=True)
    disconnect_all(state)
    return records


def _outcome(state: State, host: Host, record: HostRecord | None) -> dict[str, Any]:
    reason = _reason(state, host)
    held = bool(record and reboot_reasons(record, nouveau_unwanted=_nouveau_unwanted(host)))
    return {
        "changes": _changes(state, host),
        "failed": bool(reason),
        "reason": reason,
        "reboot_needed": held,
        "gpus": len(record.pci.gpus) if record else None,
        "kernel": record.kernel.running if record else "",
        "errors": [asdict(finding) for finding in _errors(host)],
    }


def _nouveau_unwanted(host: Host) -> bool:
    return bool((host.data.get("host_prerequisites") or {}).get("blacklist_nouveau", True))


def _changes(state: State, host: Host) -> list[str]:
    """Return in words what operations changed, or would change if nothing was executed."""
    words = host.connector_data.get(CHANGES, {})
    done = {op_hash: not state.is_executing or _succeeded(operation) for op_hash, operation in state.ops[host].items()}
    return [each for op_hash in state.ops[host] if done[op_hash] for each in words.get(op_hash, ())]


def _succeeded(operation: StateOperationHostData) -> bool:
    return bool(operation.operation_meta.is_complete() and operation.operation_meta.did_succeed())


def _reason(state: State, host: Host) -> str:
    """Return why a host failed, most telling first; empty if it did not."""
    errors = _errors(host)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{errors[0].what}; {errors[0].fix}{more}"
    if REASON in host.connector_data:
        return str(host.connector_data[REASON])
    for op_hash, operation in state.ops[host].items():
        meta = operation.operation_meta
        if meta.is_complete() and meta.did_error():
            title = ", ".join(state.op_meta[op_hash].names).split(" | ")[-1]
            return f"{title}: {_last(meta.stderr_lines) or 'its command failed'}"
    return "pyinfra gave it up" if host in state.failed_hosts else ""


def _errors(host: Host) -> list[Finding]:
    kept: list[Finding] = host.connector_data.get(FINDINGS, [])
    return [finding for finding in kept if finding.severity is Severity.ERROR]


def _last(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _warnings(inventory: Inventory) -> list[dict[str, Any]]:
    found: list[Finding] = [
        finding
        for host in inventory
        for finding in host.connector_data.get(FINDINGS, [])
        if finding.severity is Severity.WARNING
    ]
    return [asdict(finding) for finding in found]
