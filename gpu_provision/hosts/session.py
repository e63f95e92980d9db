"""One run of the host phase through pyinfra's API, in the worker process."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from logging.handlers import BufferingHandler
from multiprocessing.connection import Connection
from typing import Any, cast

import gevent
from gevent.event import AsyncResult
from gevent.pool import Pool
from gevent.socket import wait_read
from pyinfra.api.command import FunctionCommand, PyinfraCommand
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.operations import run_ops
from pyinfra.api.state import BaseStateCallback, State, StateOperationHostData, StateStage
from pyinfra.context import ctx_host, ctx_state, state

from gpu_provision.hosts import connection, errors
from gpu_provision.hosts.connection import ssh_target
from gpu_provision.hosts.deploy import GROUP, host_prerequisites, host_teardown
from gpu_provision.hosts.errors import unreadable_host
from gpu_provision.hosts.facts.host import HostFacts
from gpu_provision.hosts.messages import HostEvent, HostPhase, Maintenance, Question, WorkerReply
from gpu_provision.hosts.operations import GpuHost, read_host, report_findings, run_of, save_findings, with_cause
from gpu_provision.hosts.operations.reboot import reboot_reasons
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailedError, Severity

Emit = Callable[[HostEvent], None]
_Commands = Callable[[], Iterator[PyinfraCommand]]

_PHASES = {"prerequisites": host_prerequisites, "judge": host_prerequisites, "teardown": host_teardown}

_OUTCOME = ("system", "kernel", "modules", "pci", "driver")
"""Sections of facts that a host's outcome needs."""


def serve(connection: Connection) -> None:
    """Run the one host phase that the parent asks for at this end of a socket pair."""
    phase = connection.recv()
    maintenance = _RemoteMaintenance(connection)
    gevent.spawn(maintenance.receive_replies)
    connection.send(run(phase, connection.send, cast("Maintenance", maintenance) if phase.has_maintenance else None))


class _RemoteMaintenance:
    """`Maintenance` through the parent process, as this process has no Kubernetes client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._open: dict[int, AsyncResult[WorkerReply]] = {}
        self._is_over = False

    def receive_replies(self) -> None:
        """Receive replies until the parent ends; then all open questions fail."""
        try:
            while True:
                wait_read(self._connection.fileno())  # recv() alone would block all greenlets
                reply = self._connection.recv()
                self._open.pop(reply.number).set(reply)
        except Exception:  # noqa: BLE001 - the end of the connection, or a reply that cannot be read
            self._is_over = True
            for answer in self._open.values():
                answer.set_exception(EOFError())

    def __getattr__(self, method: str) -> Any:
        return partial(self._ask, method)

    def _ask(self, method: str, node: str, *arguments: Any) -> Any:
        what = "the process that started the host phase has ended"
        gone = RunFailedError(Finding(code=codes.ENDED_EARLY, what=what))
        if self._is_over:
            raise gone
        number = next(self._numbers)
        answer = self._open[number] = AsyncResult()
        try:
            sent = tuple(each for each in arguments if not callable(each))  # the parent reports progress itself
            self._connection.send(Question(number, method, node, sent, len(sent) < len(arguments)))
            reply = answer.get()
        except (EOFError, OSError) as error:
            raise gone from error
        if reply.errors:
            raise RunFailedError(*reply.errors)
        return reply.value


class _ProgressHandler(BaseStateCallback):
    """Sends the steps and changes of each host; pyinfra calls its methods."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def host_before_connect(self, state: State, host: Host) -> None:  # noqa: ARG002 - pyinfra passes it
        self._emit(HostEvent(node=_node(host), step="connecting"))

    def operation_host_start(self, state: State, host: Host, op_hash: str) -> None:
        if op_hash in state.ops[host]:
            self._emit(HostEvent(node=_node(host), step=_title(state, op_hash)))

    def operation_host_success(self, state: State, host: Host, op_hash: str, retry_count: int = 0) -> None:  # noqa: ARG002 - as above
        """Send the changes of the operation, as an interrupted run has no result."""
        if changes := run_of(host).changes.get(op_hash):
            self._emit(HostEvent(node=_node(host), changes=changes))


def _node(host: Host) -> str:
    return str(host.data.get("gpu_node") or host.name)


def _title(state: State, op_hash: str) -> str:
    return ", ".join(state.op_meta[op_hash].names).split(" | ")[-1]


def run(phase: HostPhase, emit: Emit, maintenance: Maintenance | None = None) -> HostsResult:
    """Run a host phase."""
    warnings = BufferingHandler(capacity=1000)  # of connectors, while the inventory is made
    warnings.setLevel(logging.WARNING)
    logging.getLogger("pyinfra").addHandler(warnings)
    inventory = _inventory(phase)
    skipped: tuple[Finding, ...] = ()
    if len(inventory) < len(phase.hosts):
        why = " ".join(record.getMessage() for record in warnings.buffer)
        fix = "run as root, or allow user namespaces; see docs/sandbox.md"
        skipped = (Finding(code=codes.HOSTS_LEFT_OUT, what=why, fix=fix, severity=Severity.WARNING),)
    if not len(inventory):  # pyinfra would treat it as no inventory at all
        return HostsResult(findings=skipped)
    state = State(inventory, Config(), check_for_changes=phase.dry_run)
    state.add_callback_handler(_ProgressHandler(emit))
    connection.disable_questions()
    for host in inventory:
        report_step = partial(_report_step, emit, _node(host))
        run_of(host).maintenance, run_of(host).on_progress = maintenance, report_step
        connection.isolate_failures(host, report_step)
    with ctx_state.use(state):
        _execute(state, _PHASES[phase.name], dry_run=phase.dry_run)
        errors_of = {host.name: _failures(state, host) for host in inventory}
        records = _records(state)
    findings = (finding for host in inventory for finding in run_of(host).findings)
    return HostsResult(
        hosts=tuple(_outcome(state, host, errors_of[host.name], records.get(host.name)) for host in inventory),
        findings=(*skipped, *(finding for finding in findings if finding.severity is Severity.WARNING)),
    )


def _report_step(emit: Emit, node: str, step: str) -> None:
    emit(HostEvent(node=node, step=step))


def _inventory(phase: HostPhase) -> Inventory:
    groups = {
        name: ([(host, data) for host, data in members if host in phase.hosts], shared)
        for name, (members, shared) in phase.groups.items()
    }
    return Inventory((list(phase.hosts), {}), **groups)


def _execute(state: State, phase: Callable[[], Any], *, dry_run: bool) -> None:
    """Connect, prepare and execute; failures are recorded with their hosts."""
    try:
        state.set_stage(StateStage.Connect)
        connect_all(state)
        state.set_stage(StateStage.Prepare)
        _run_on_hosts(state, state.inventory.get_active_hosts(), lambda host: _prepare(host, phase))
        if not dry_run:
            for host in state.inventory:
                for operation in state.ops[host].values():
                    operation.command_generator = _guard_commands(host, operation.command_generator)
            state.set_stage(StateStage.Execute)
            run_ops(state)
    except PyinfraError:
        pass  # "No hosts remaining!": every host has its own error


def _run_on_hosts(state: State, hosts: Iterable[Host], work: Callable[[Host], None]) -> None:
    def within(host: Host) -> None:
        with ctx_host.use(host):
            work(host)

    gevent.joinall([state.pool.spawn(within, host) for host in hosts], raise_error=True)


def _prepare(host: Host, phase: Callable[[], Any]) -> None:
    try:
        phase()
    except Exception as error:  # noqa: BLE001 - an unexpected exception of one host must not end the run for all
        if not run_of(host).findings:
            save_findings(host, _findings_of(host, error))


def _guard_commands(host: Host, commands: _Commands) -> _Commands:
    """Turn an exception of an operation into a failure of its host; pyinfra would end the run for all hosts."""

    def generate() -> Iterator[PyinfraCommand]:
        try:
            yield from commands()
        except Exception as error:  # noqa: BLE001 - as above
            yield FunctionCommand(report_findings, _findings_of(host, error), {})

    return generate


def _findings_of(host: Host, error: Exception) -> tuple[Finding, ...]:
    """Return an exception of one host as findings; the last error of its connection comes first."""
    reached = ssh_target(host)
    unread = isinstance(error, PyinfraError)  # "No hosts remaining!", when a fact of the last one fails
    return with_cause(host, [unreadable_host(reached.name) if unread else errors.unexpected_error(error, reached)])


def _records(state: State) -> dict[str, HostFacts]:
    """Return the facts of every connected host, read again after an execution."""
    records: dict[str, HostFacts] = {}

    def read(host: Host) -> None:
        known = None if state.is_executing else run_of(host).record
        with contextlib.suppress(Exception):  # a host without a record has failed
            if record := known or host.get_fact(GpuHost, sections=_OUTCOME, _ignore_errors=True):
                records[host.name] = record

    _run_on_hosts(state, state.activated_hosts, read)
    disconnect_all(state)
    return records


def host_drivers() -> dict[str, str]:
    """Return node -> version of a usable host driver, empty for none; only hosts of this run that answer.

    Reads hosts that were not read yet, as pyinfra prepares hosts concurrently.
    """

    def record(other: Host) -> HostFacts | None:
        with ctx_host.use(other), contextlib.suppress(Exception):  # the host's own operations report the error
            return read_host(("kernel", "driver"))
        return None

    nodes = [other for other in _active_hosts() if other.data.get("gpu_node")]
    # Not pyinfra's own pool, which runs this function and may have only one greenlet.
    records = Pool(state.config.PARALLEL).map(record, nodes)
    return {other.data.gpu_node: read.driver.usable for other, read in zip(nodes, records, strict=True) if read}


def count_changed_hosts() -> int:
    """Return the number of hosts that this run has changed."""
    return sum(bool(_changes(state, other)) for other in _active_hosts())


def _active_hosts() -> list[Host]:
    return [other for other in state.inventory.get_active_hosts() if GROUP not in other.groups]


def _failures(state: State, host: Host) -> tuple[Finding, ...]:
    """Return why a host failed in the run; empty if it did not. To be called before the host is read again."""
    if own := tuple(finding for finding in run_of(host).findings if finding.severity is Severity.ERROR):
        return own
    reached, failed = ssh_target(host), None
    for op_hash, operation in state.ops[host].items():
        meta = operation.operation_meta
        if meta.is_complete() and meta.did_error():
            last = next((line.strip() for line in reversed(meta.stderr_lines) if line.strip()), "")
            failed = failed or errors.host_error("step_failed", reached, last, title=_title(state, op_hash))
    if failed or host in state.failed_hosts:
        return (run_of(host).last_error or failed or unreadable_host(reached.name),)
    finished = not state.is_executing or all(map(_has_succeeded, state.ops[host].values()))
    return () if finished else (errors.host_error("not_finished", reached),)


def _has_succeeded(operation: StateOperationHostData) -> bool:
    return bool(operation.operation_meta.is_complete() and operation.operation_meta.did_succeed())


def _outcome(state: State, host: Host, failures: tuple[Finding, ...], record: HostFacts | None) -> HostOutcome:
    """Return a host's outcome; a host that could not be read after the run has failed."""
    failures = failures or (() if record else (errors.host_error("outcome_unknown", ssh_target(host)),))
    unwanted = bool((host.data.get("host_prerequisites") or {}).get("blacklist_nouveau", True))
    reasons = run_of(host).reboot_reasons or (record and reboot_reasons(record, nouveau_unwanted=unwanted))
    return HostOutcome(
        name=_node(host),
        changes=tuple(_changes(state, host)),
        failed=bool(failures),
        reason=_summary(failures),
        reboot_needed=bool(reasons),
        gpus=len(record.pci.gpus) if record else None,
        kernel=record.kernel.running if record else "",
        driver=record.driver.usable if record else None,
        errors=failures,
    )


def _changes(state: State, host: Host) -> list[str]:
    """Return the changes of operations in words, planned ones if nothing was executed."""
    words = run_of(host).changes
    done = (key for key, each in state.ops[host].items() if not state.is_executing or _has_succeeded(each))
    return [each for op_hash in done for each in words.get(op_hash, ())]


def _summary(errors: Sequence[Finding]) -> str:
    """Return the first error of a host and the number of the others; empty without errors."""
    if not errors:
        return ""
    first, *others = errors
    what = f"{first.what} ({first.evidence})" if first.evidence else first.what
    return "; ".join(filter(None, (what, first.fix))) + (f" (and {len(others)} more)" if others else "")
