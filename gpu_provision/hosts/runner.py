"""The host phase for callers other than pyinfra; `gpu_provision.api` runs it before the cluster phase.

pyinfra runs in a separate process; see gpu_provision.hosts.worker.
"""

from __future__ import annotations

import contextlib
import difflib
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from gpu_provision.hosts.messages import HostEvent, HostPhase, LocalMaintenance, Question, WorkerReply
from gpu_provision.hosts.result import HostsResult
from gpu_provision.inventory import groups
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State
from gpu_provision.model.text import join_limited

COMPONENT = "host_prerequisites"
"""Component of the events."""

Listen = Callable[[Event], None]

_STOP_SECONDS = 10

_GROUPS = {"prerequisites": "gpu", "judge": "nodes", "teardown": "nodes"}
"""Phase -> pyinfra's group of the hosts that take part."""


def prepare(  # noqa: PLR0913 - all are options of one run
    inventory: Inventory,
    *,
    limit: Iterable[str] = (),
    dry_run: bool = False,
    listen: Listen = lambda _: None,
    maintenance: LocalMaintenance | None = None,
    for_vms: frozenset[str] | None = None,
) -> HostsResult:
    """Run the host phase on the GPU hosts of an inventory, all at the same time, or only plan it.

    Hosts whose pool has a GPU and whose host phase is on take part. A failed host raises nothing: see
    ``HostsResult.failed``.

    Args:
        limit: Names of nodes; none for all.
        dry_run: True reads the hosts, changes nothing, and returns the planned changes.
        listen: Called with the progress of hosts, in the calling thread.
        maintenance: Cordons and drains nodes around reboots (gpu_provision.nodes.maintenance). Without it, no
            host that runs a kubelet is rebooted.
        for_vms: Nodes that are left out, as the cluster says that their GPUs are for virtual machines; None if it
            was not asked: a GPU that is bound to vfio-pci is a warning then.

    Raises:
        UsageError: A name in ``limit`` is no node of the inventory.
        RunFailedError: pyinfra's process ended unexpectedly.
    """
    return _run(
        inventory,
        "prerequisites",
        limit=limit,
        dry_run=dry_run,
        listen=listen,
        maintenance=maintenance,
        for_vms=for_vms,
    )


def check_hosts(
    inventory: Inventory,
    *,
    limit: Iterable[str] = (),
    listen: Listen = lambda _: None,
    for_vms: frozenset[str] | None = None,
) -> HostsResult:
    """Check every host whose host phase is on, including those without a GPU; arguments and errors as of `prepare`."""
    return _run(inventory, "judge", limit=limit, dry_run=True, listen=listen, for_vms=for_vms)


def teardown(
    inventory: Inventory, *, limit: Iterable[str] = (), dry_run: bool = False, listen: Listen = lambda _: None
) -> HostsResult:
    """Restore every file that the host phase has changed, on all hosts, or only plan it.

    Kernel modules stay loaded until the next boot. Arguments, result and errors as for `prepare`; nodes without a GPU
    take part too, as they may have had one.
    """
    return _run(inventory, "teardown", limit=limit, dry_run=dry_run, listen=listen)


def _run(  # noqa: PLR0913 - the arguments of the three public functions
    inventory: Inventory,
    phase: str,
    *,
    limit: Iterable[str],
    dry_run: bool,
    listen: Listen,
    maintenance: LocalMaintenance | None = None,
    for_vms: frozenset[str] | None = None,
) -> HostsResult:
    declared = groups(inventory)
    selected = _select_nodes(inventory, tuple(limit))
    data = dict(declared["nodes"][0])
    members = (host for host, _ in declared[_GROUPS[phase]][0] if data[host]["gpu_node"] in selected)
    hosts = [host for host in members if data[host]["gpu_node"] not in (for_vms or ())]
    if not hosts:
        return HostsResult()
    own = {"gpu_judge_only": phase == "judge", "gpu_workload_known": for_vms is not None}
    declared["nodes"] = ([(host, {**each, **own}) for host, each in data.items()], {})
    shared = {name: members for name, members in declared.items() if name != "cluster"}
    has_maintenance = maintenance is not None
    request = HostPhase(name=phase, groups=shared, hosts=hosts, dry_run=dry_run, has_maintenance=has_maintenance)
    with contextlib.closing(maintenance) if maintenance else contextlib.nullcontext():
        result = _run_worker(request, listen, maintenance)
    for host in result.hosts:
        # Without the fix of a finding, which is reported at the end.
        message = "; ".join(finding.what for finding in host.errors) or host.reason
        listen(_event(host.name, State.FAILED if host.failed else State.READY, message))
    return result


def _select_nodes(inventory: Inventory, limit: tuple[str, ...]) -> frozenset[str]:
    known = [node.name for node in inventory.nodes]
    findings = []
    for name in limit:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"write {near[0]}" if near else f"known nodes: {', '.join(known)}"
            what = f"the inventory has no node {name}"
            findings.append(Finding(code=codes.UNKNOWN_HOST, what=what, where=name, fix=fix))
    if findings:
        raise UsageError(*findings)
    return frozenset(limit or known)


def _run_worker(request: HostPhase, listen: Listen, maintenance: LocalMaintenance | None) -> HostsResult:
    """Run a phase in a worker process, which ends with this call, also if it raises."""
    events: list[HostEvent] = []

    def on_event(event: HostEvent) -> None:
        events.append(event)
        if event.step:
            listen(_event(event.node, State.PROGRESSING, event.step))

    with tempfile.TemporaryFile() as output, _worker(output) as (process, connection):
        worker = _Worker(connection, maintenance)
        try:
            result = worker.run(request, on_event)
        except BaseException as error:
            process.kill()  # first, so that no other host is rebooted
            worker.stop(error)
            if isinstance(error, KeyboardInterrupt):
                error.add_note(_partial_progress([*events, *worker.pending_events()]))
            raise
        if result is None:
            process.kill()  # a process that has ended keeps its status
            failure = RunFailedError(_ended_early_finding(process.wait(), output))
            worker.stop(failure)
            raise failure
    return result


@contextlib.contextmanager
def _worker(output: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start a worker with a file for its output, and kill it at the end."""
    package = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    connection, other_end = multiprocessing.Pipe()
    with connection, other_end:
        number = other_end.fileno()
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "gpu_provision.hosts.worker", str(number)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[number],
            env={**os.environ, "PYTHONPATH": path},
        )
        other_end.close()  # so that the connection ends with the worker
        with process:
            try:
                yield process, connection
            finally:
                process.kill()


class _Worker:
    """Receives the events of one worker process, and answers its questions in threads."""

    def __init__(self, connection: Connection, maintenance: LocalMaintenance | None) -> None:
        self._connection, self._maintenance = connection, maintenance
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._receiver = threading.Thread(target=self._receive, name="host phase", daemon=True)
        self._answering: list[threading.Thread] = []

    def run(self, request: HostPhase, on_event: Callable[[HostEvent], None]) -> HostsResult | None:
        """Send the request and return the result; None if the worker ends without one. Calls ``on_event`` itself."""
        self._receiver.start()
        self._send(request)
        while True:
            match self._received.get():
                case HostEvent() as event:
                    on_event(event)
                case Question() as question:
                    name = f"maintenance of {question.node}"
                    thread = threading.Thread(target=self._answer, args=(question,), name=name, daemon=True)
                    self._answering.append(thread)
                    thread.start()
                case result:
                    return result  # type: ignore[no-any-return]

    def stop(self, error: BaseException) -> None:
        """End all threads of a worker that was killed, and note on the error which nodes stay cordoned."""
        self._receiver.join(_STOP_SECONDS)  # otherwise it could read from a new file with this descriptor
        if self._maintenance is None:
            return
        self._maintenance.stop()
        for thread in self._answering:
            thread.join(_STOP_SECONDS)
        if self._maintenance.cordoned:
            error.add_note(f"still cordoned: {', '.join(sorted(self._maintenance.cordoned))}")

    def pending_events(self) -> Iterator[HostEvent]:
        """Yield the events that were received and not handled, as on a busy machine."""
        while not self._received.empty():
            match self._received.get():
                case HostEvent() as event:
                    yield event

    def _receive(self) -> None:
        message = None
        try:
            while not isinstance(message, HostsResult):
                message = self._connection.recv()
                self._received.put(message)
        except (EOFError, OSError):  # the worker has ended
            pass
        finally:  # also where a message cannot be read
            self._received.put(None)

    def _send(self, message: HostPhase | WorkerReply) -> None:
        with self._sending, contextlib.suppress(OSError):  # the worker has ended
            self._connection.send(message)

    def _answer(self, question: Question) -> None:
        def report(message: str) -> None:
            self._received.put(HostEvent(node=question.node, step=message))

        steps = (report,) if question.reports_progress else ()
        what = f"maintenance of the node failed unexpectedly ({question.method})"
        failed = Finding(code=codes.ENDED_EARLY, what=what, where=question.node, fix="please report it")
        try:
            value = getattr(self._maintenance, question.method)(question.node, *question.arguments, *steps)
            self._send(WorkerReply(question.number, value))
        except ProvisionError as error:
            self._send(WorkerReply(question.number, errors=error.findings))
        except BaseException:  # this thread prints the traceback
            self._send(WorkerReply(question.number, errors=(failed,)))
            raise


def _ended_early_finding(status: int, output: IO[bytes]) -> Finding:
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return Finding(
        code=codes.ENDED_EARLY,
        what=f"the host phase ended unexpectedly with status {status}",
        evidence=lines[-1] if lines else "",
        fix="run: pyinfra INVENTORY deploys/host_prerequisites.py, which shows more",
    )


def _event(node: str, state: State, message: str) -> Event:
    return Event(component=COMPONENT, node=node, state=state, message=message)


def _partial_progress(events: Sequence[HostEvent]) -> str:
    """Return the changes and each host's last step of an interrupted run; commands on hosts may continue."""
    steps = {event.node: event.step for event in events if event.step}
    if not steps:
        return "no host was reached yet"
    changes = _group_by_text((text, event.node) for event in events for text in event.changes)
    begun = _group_by_text((step, node) for node, step in steps.items())
    return f"changed so far: {changes or 'nothing'}. Last begun: {begun}"


def _group_by_text(pairs: Iterable[tuple[str, str]]) -> str:
    nodes: dict[str, list[str]] = {}
    for text, node in pairs:
        nodes.setdefault(text, []).append(node)
    return "; ".join(f"{text} ({join_limited(sorted(names), _MAX_NODES)})" for text, names in nodes.items())


_MAX_NODES = 8
