"""Writes the record of a run while it goes, in the cluster and on this machine; also of a run on hosts alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Self

from gpu_provision.history import store
from gpu_provision.history.restore import redact
from gpu_provision.history.store import (
    encode,
    expired_records,
    fit_to_size,
    parse_history,
    plan_digest,
    unfinished_runs,
)
from gpu_provision.inventory.redaction import hide_users
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.config import find_context
from gpu_provision.kube.lease import process_identity
from gpu_provision.kube.lock import WriteLock
from gpu_provision.model import codes
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.findings import (
    Finding,
    ForbiddenError,
    InvalidError,
    ProvisionError,
    Severity,
    UnreachableError,
)
from gpu_provision.model.history import OF_RESOURCE, Ending, History, Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Plan
from gpu_provision.model.progress import NodeState, RunResult, State
from gpu_provision.model.text import pluralize
from gpu_provision.planning.states import Desired

HOSTS = "hosts"  # as Record.only: what a run with --hosts-only looked after
KEEP_SECONDS = 5.0  # how old the local record of a run that goes on may be
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_MAX_REASON = 300  # characters; the local record has all of them
_SHARE_OF_TIME = 0.01  # that a run spends on its local record while it goes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run is about."""

    inventory: Inventory
    plan: Plan  # what it changes in the cluster
    is_first: bool = False  # whether the stack probably has no record yet
    rollback_to: int = 0  # number of the run whose inventory this is; 0 if it is no rollback
    scope: str = ""  # as in Record


def run_spec(
    inventory: Inventory, plan: Plan, desired: Desired, members: Collection[ObjectRef], *, rollback_to: int = 0
) -> RunSpec:
    """Return what a run is about that carries a plan out; ``members`` are objects of the stack that the cluster has."""
    is_first = ref_of(desired["prerequisites"][-1]) not in members
    return RunSpec(inventory=inventory, plan=plan, is_first=is_first, rollback_to=rollback_to)


def new_record(spec: RunSpec) -> Record:
    """Return the record of a run that begins now."""
    inventory, now = spec.inventory, datetime.now(UTC)
    return Record(
        id=f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(3)}",
        began=f"{now:{_TIME}}",
        holder=process_identity(),
        tool=version("gpu-provision"),
        inventory=inventory.name,
        release=inventory.release,
        plan=plan_digest(spec.plan),
        back_to=spec.rollback_to,
        only=spec.scope,
        source=OF_RESOURCE if inventory.is_of_resource else "",
        text=redact(inventory.text) if inventory.text else "",
        lacks="" if inventory.text else "its inventory was made in Python, not read from a file",
    )


def finish_record(record: Record, ending: Ending, *, changed: int = 0, reason: str = "") -> Record:
    """Return the record of a run that ends now."""
    ended, reason = f"{datetime.now(UTC):{_TIME}}", hide_users(reason)[:_MAX_REASON]
    return replace(record, ending=ending, changed=changed, reason=reason, ended=ended)


class RunRecorder:
    """Keeps the record of one run, a context manager; a record that cannot be written fails no run."""

    def __init__(
        self,
        cluster: KubeClient,
        spec: RunSpec,
        *,
        say: Callable[[str], None] = lambda _: None,
        progress: Callable[[], RunResult] = RunResult,
    ) -> None:
        """Prepare; nothing is written. ``say`` hears of runs that never ended; ``progress`` returns how far this is."""
        self._cluster, self._spec, self._say, self._progress = cluster, spec, say, progress
        self._limit, self._next_local = spec.inventory.kept_runs, 0.0
        self.earlier = History(())
        self.record = new_record(spec)
        self.problem: Finding | None = None

    def __enter__(self) -> Self:
        """Write down that the run has begun. Raises UnreachableError."""
        texts = self._write((self.record,), is_first=self._spec.is_first)
        found = parse_history(texts, holder="")  # this run has the lock, so no other one is going
        number = next((each.number for each in found.records if each.id == self.record.id), 0)
        self.record = replace(self.record, number=number)
        self.earlier = replace(found, records=tuple(each for each in found.records if each.id != self.record.id))
        self.save_local(time.monotonic())
        for each in unfinished_runs(self.earlier):
            self._say(f"resuming after run {each.number} ({each.user}, {each.began}), which was interrupted")
        if gone := expired_records(self.earlier, self._limit + 1):  # several were killed in a row
            self._write((*unfinished_runs(self.earlier), self.record), gone)
        return self

    def save_local(self, now: float) -> None:
        """Write a local record of how far the run has come, if it is time: that of a large fleet is long."""
        if now < self._next_local:
            return
        store.write_local(self.record, self._details)
        self._next_local = now + max(KEEP_SECONDS, (time.monotonic() - now) / _SHARE_OF_TIME)

    def _details(self, findings: tuple[Finding, ...] = ()) -> Mapping[str, Any]:
        return store.run_details(self._spec.plan, self._progress(), findings)

    def end(self, ending: Ending, *, changed: int = 0, reason: str = "") -> None:
        """Say how the run ended; it is written on leaving."""
        self.record = finish_record(self.record, ending, changed=changed, reason=reason)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Write down how the run ended, and delete records that are too old."""
        findings = error.findings if isinstance(error, ProvisionError) else ()
        if findings:
            self.end(Ending.FAILED, changed=self._progress().changed, reason=str(findings[0].what))
        elif error is not None:
            self.end(Ending.INTERRUPTED, changed=self._progress().changed)
        if isinstance(error, UnreachableError) or (error is not None and not isinstance(error, Exception)):
            self._cluster.retry_seconds = 0.0  # the server was waited for already, or a person ends the run
        store.write_local(self.record, lambda: self._details(findings))
        gone = expired_records(History((*self.earlier.records, self.record), self.earlier.damaged), self._limit)
        try:
            self._write((*unfinished_runs(self.earlier), self.record), gone)
        except ProvisionError as failure:  # the lock may be gone as well
            self.problem = _not_recorded_finding(failure)

    def _write(
        self, records: Iterable[Record], gone: Iterable[str] = (), *, is_first: bool = False
    ) -> Mapping[str, str]:
        changes = {each.id: encode(fit_to_size(each, self._limit)) for each in records} | dict.fromkeys(gone)
        try:
            return store.write_records(self._cluster, self._spec.inventory, changes, is_first=is_first)
        except (InvalidError, ForbiddenError) as refused:
            self.problem = _not_recorded_finding(refused)
            return {}


def _not_recorded_finding(error: ProvisionError) -> Finding:
    """Return the warning that a run is not on record, and why."""
    first = error.findings[0]
    return Finding(
        code=codes.UNRECORDED,
        what="this run is not, or not completely, on record in the cluster; the local record has all of it",
        where=first.where,
        evidence=first.evidence or first.what,
        consequence="gpu-provision history shows it as interrupted, or not at all",
        fix=first.fix,
        severity=Severity.WARNING,
    )


def reason_of(states: Iterable[NodeState]) -> str:
    """Return the first cause of a failure, and how many there are: empty if everything is ready."""
    found = tuple(states)
    failed = [state for state in found if state.state is State.FAILED]
    failed = failed or [state for state in found if state.state is State.BLOCKED]  # a rollout that may not begin
    if not failed:
        return ""
    first = failed[0]
    where = f"{first.component} on {first.node}" if first.node else first.component
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{where}: {first.reason}{more}"


Recorded = tuple[int, tuple[Finding, ...]]  # the number of a run, and what kept it from being on record


def record_host_changes(cluster: KubeClient, spec: RunSpec, hosts: int, *, planned_at: str) -> Recorded:
    """Record that so many hosts were changed where the cluster was as declared at the lock's version ``planned_at``."""
    reason = f"{_host_count_text(hosts)}, and nothing else"
    return _record_at_once(cluster, spec, Ending.SUCCEEDED, reason, planned_at=planned_at)


def record_host_only_run(inventory: Inventory, hosts: int, *, failure: str = "", rollback_to: int = 0) -> Recorded:
    """Record that so many hosts were changed, and the cluster left alone; ``failure`` says why one is not as declared.

    The number is 0 if it is on record here alone: a cluster that is not there, or has nothing of the stack, is no
    problem, as hosts may come first.
    """
    plan = Plan(inventory=inventory.name, release=inventory.release, cluster="not asked", components=(), changes=())
    spec = RunSpec(inventory=inventory, plan=plan, rollback_to=rollback_to, scope=HOSTS)
    reason = "; ".join(filter(None, (f"{_host_count_text(hosts)}, and left the cluster alone", failure)))
    ending = Ending.FAILED if failure else Ending.SUCCEEDED
    if (cluster := _cluster_with_stack(inventory)) is not None:
        return _record_at_once(cluster, spec, ending, reason)
    store.write_local(finish_record(new_record(spec), ending, reason=reason))
    return 0, ()


def _host_count_text(hosts: int) -> str:
    return f"changed {pluralize(hosts, 'host')}"


def _cluster_with_stack(inventory: Inventory) -> KubeClient | None:
    """Return the cluster if it answers, and has the namespace in which records are kept."""
    try:
        if (place := find_context(inventory)) is None:
            return None
        cluster = connect(*place)
        home = cluster.get(ObjectRef("v1", "Namespace", "", inventory.cluster.namespace))
    except ProvisionError:
        return None
    return cluster if home and not home["metadata"].get("deletionTimestamp") else None


def _record_at_once(
    cluster: KubeClient, spec: RunSpec, ending: Ending, reason: str, *, planned_at: str | None = None
) -> Recorded:
    recorder = RunRecorder(cluster, spec)
    lock = WriteLock(cluster, spec.inventory, on_wait=lambda _: None, planned_at=planned_at)
    try:
        with lock, recorder:
            recorder.end(ending, reason=reason)
    except ProvisionError as error:
        store.write_local(finish_record(recorder.record, ending, reason=reason))
        return recorder.record.number, (_not_recorded_finding(error),)
    return recorder.record.number, tuple(filter(None, [recorder.problem]))
