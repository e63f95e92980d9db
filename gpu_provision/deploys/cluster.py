"""The cluster phase as pyinfra operations: one for each component, which wait for the same run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import gevent
from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand
from pyinfra.api.deploy import deploy
from pyinfra.api.exceptions import DeployError
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gpu_provision import components
from gpu_provision.components import driver
from gpu_provision.connectors.cluster import GROUP
from gpu_provision.deploys.hosts import maintenance_of
from gpu_provision.diagnostics.failures import is_failure
from gpu_provision.hosts.operations import Commands, host_operation, report_findings
from gpu_provision.hosts.session import count_changed_hosts, host_drivers
from gpu_provision.inventory import load
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, ProvisionError, Severity, UsageError, attached_findings, one_line
from gpu_provision.model.plan import Action
from gpu_provision.operator.executor import OperatorExecutor
from gpu_provision.output import object_text, rollout
from gpu_provision.output.plan import effects, resource_text
from gpu_provision.reconcile.session import Session

TAKE_OVER = "gpu_take_over"
"""Key of host data for ``--take-over`` of gpu-provision apply; pyinfra's --data sets it."""


@deploy("GPU stack")
def gpu_stack() -> None:
    """Install every component of the inventory on the cluster host; does nothing on other hosts.

    The cluster host's data must hold ``gpu_inventory``, the path of the inventory file, as
    `gpu_provision.inventory.groups` sets it. Raises DeployError if pyinfra's inventory has no cluster host.
    """
    if not is_cluster_host("gpu_stack"):
        return
    for component in components.COMPONENTS:
        wait_for_component(name=component.title, component=component.name)
    require_stack_ready(name="Every declared node is ready")


@cache
def session_of(path: Path, *, take_over: bool) -> Session:
    """Return the session that all operations on an inventory share."""
    return Session(load(path), executor=OperatorExecutor(force=take_over))


_executing: set[Path] = set()
"""Inventories whose plan was computed again for the execution, as the printed one may be minutes old."""


def _session() -> Session:
    path = inventory_path()
    session = session_of(path, take_over=is_set(TAKE_OVER))
    if state.is_executing and path not in _executing:
        _executing.add(path)
        maintenance_of(path).close()
        session.discard_plan()
    if not session.has_plan and any(pool.driver.prefer_host for pool in session.inventory.pools.values()):
        session.host_drivers = host_drivers()
    return session


@host_operation
def wait_for_component(component: str) -> Commands:
    """Apply one component, and wait until it is ready on every node."""
    session = _session()
    if refused := session.refusals():
        raise ProvisionError(*refused)
    plan = session.cluster_plan().plan
    changes = plan.changes_of(component)
    # The first component starts the run even without changes if the GPUStack changes.
    if not changes and not (component == _FIRST and plan.resource and plan.resource.fields):
        host.noop("as declared")
        return
    if component == _FIRST:  # the executor is the same for all components
        _log(resource_text(plan.resource))
    for change in changes if state.config.DIFF and not state.is_executing else ():
        in_full = change.action in {Action.CREATE, Action.UPDATE}
        for line in (*(object_text.diff_lines(change) if in_full else (str(change.ref),)), *effects(change)):
            host.log(line)
    if component == driver.NAME and plan.rollout and not state.is_executing:
        _log(rollout.text(plan.rollout))  # also without --diff, as it has the evictions
    yield FunctionCommand(_bring_up, (session, component), {})


def _log(text: str) -> None:
    for line in text.splitlines():
        host.log(line)


_FIRST = components.COMPONENTS[0].name


@host_operation
def require_stack_ready() -> Commands:
    """Fail if any declared node is not ready."""
    session = _session()
    if not state.is_executing:
        host.noop("reported at the end of the run")
        return
    # A run without changes in the cluster is recorded as well if it has changed hosts.
    if session.finish() is None and session.cluster_plan().plan.is_empty and (hosts := count_changed_hosts()):
        session.record_host_changes(hosts=hosts)
    problems = session.explain()
    for problem in problems:
        if problem.severity is Severity.WARNING:
            host.log(str(problem), log_func=logger.warning)
    if errors := [problem for problem in problems if problem.severity is Severity.ERROR]:
        yield FunctionCommand(report_findings, errors, {})


def _bring_up(state: State, host: Host, session: Session, component: str) -> bool:
    try:
        with report_unfinished(partial(host.log, log_func=logger.warning)):
            session.start()
            broken = session.wait(component, tick=_Ticker(host, component).report)
        problems = session.explain() if broken else ()
    except ProvisionError as error:
        problems = error.findings
    return report_findings(state, host, *problems) if problems else True


class _Ticker:
    """Logs the progress of a component: at once for a new count or a problem, else twice a minute."""

    def __init__(self, cluster_host: Any, component: str) -> None:
        self._host, self._component, self._last_line, self._ticks = cluster_host, component, "", 0

    def report(self, summary: str) -> None:
        self._ticks += 1
        line = summary if is_failure(summary) else summary.partition(";")[0]
        if line == self._last_line and self._ticks < _QUIET_TICKS:
            return
        self._last_line, self._ticks = line, 0
        self._host.log(f"{self._component}: {one_line(summary)}", log_func=logger.info)


_QUIET_TICKS = 30

_DECLARATION = 'cluster = [("@cluster/CONTEXT", {"gpu_inventory": "inventories/gpu.yaml"})]'


def is_cluster_host(deploy: str) -> bool:
    """Whether the current host is a cluster host; warns once if ``--limit`` leaves every cluster host out.

    Args:
        deploy: Name of the function that the deploy file calls, for messages.

    Raises:
        DeployError: The pyinfra inventory has no cluster host.
    """
    clusters = [other for other in state.inventory if GROUP in other.groups]
    if not clusters:
        what = f"{deploy}() needs a cluster host, and pyinfra's inventory has none"
        fix = f"add {_DECLARATION} to it; for hosts alone, call {_HOST_DEPLOYS[deploy]} without {deploy}()"
        raise DeployError(str(Finding(code=codes.NO_CLUSTER_HOST, what=what, fix=fix)))
    if not any(map(state.is_host_in_limit, clusters)):
        _warn_once(f"{deploy}() does nothing: {', '.join(map(str, clusters))} excluded by --limit or --exclude")
    return GROUP in host.groups


def inventory_path() -> Path:
    """Return the path of the inventory file; raises UsageError if the cluster host's data names none."""
    path = host.data.get("gpu_inventory")
    if path:
        return Path(path)
    raise UsageError(
        Finding(
            code=codes.NO_INVENTORY_FILE,
            what="the data of the cluster host has no gpu_inventory, the path of an inventory file",
            where=host.name,
            fix=f"write in pyinfra's inventory: {_DECLARATION}",
        )
    )


@cache
def _warn_once(message: str) -> None:
    logger.warning(f"--> {message}; to include it, add --limit {GROUP}")


_HOST_DEPLOYS = {"gpu_stack": "host_prerequisites()", "gpu_stack_removed": "host_teardown()"}


def is_set(key: str) -> bool:
    """Whether a key of the host's data is switched on."""
    return str(host.data.get(key, "")).lower() in {"1", "true", "yes"}


class _SigintHandler:
    """Handler of SIGINT during waits for runs, as pyinfra's own handler drops a run in the middle of a step."""

    def __init__(self) -> None:
        self.waiting: set[gevent.Greenlet] = set()
        self.end = signal.getsignal(signal.SIGINT)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Interrupt waiting greenlets; the next Ctrl-C ends the process at once."""
        signal.signal(number, self.end)
        for each in self.waiting:
            gevent.kill(each, KeyboardInterrupt)

    @contextlib.contextmanager
    def install(self) -> Iterator[None]:
        here = gevent.getcurrent()
        if not self.waiting:
            self.end = signal.signal(signal.SIGINT, self)
        self.waiting.add(here)
        try:
            yield
        finally:
            self.waiting.discard(here)
            if not self.waiting:
                signal.signal(signal.SIGINT, self.end)


_HANDLER = _SigintHandler()


@contextlib.contextmanager
def report_unfinished(tell: Callable[[str], None]) -> Iterator[None]:
    """Interrupt a wait for a run on Ctrl-C, report unfinished work, and end the process as pyinfra does.

    For pyinfra's command, which runs operations in the main thread; elsewhere Python's handler stays.
    """
    if signal.getsignal(signal.SIGINT) in {signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None}:
        yield
        return
    try:
        with _HANDLER.install():
            yield
    except KeyboardInterrupt as interrupt:
        for each in (*getattr(interrupt, "__notes__", ()), *attached_findings(interrupt)):
            tell(str(each))
        if not callable(_HANDLER.end):
            raise
        _HANDLER.end(signal.SIGINT, None)
