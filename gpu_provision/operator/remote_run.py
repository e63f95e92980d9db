"""Runs by the controller: apply changes a GPUStack, release and destroy delete it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision.history import rollback
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope, scope_of_object
from gpu_provision.kube.lease import LEADER, holder_identity, lease_version
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, LockedError, RunFailedError, Severity
from gpu_provision.model.history import Record
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change, DestroyResult
from gpu_provision.model.progress import Event, LockHolder, NodeState, RunResult, State
from gpu_provision.operator.client import (
    StackResource,
    apply_stack,
    deletion_finding,
    get_stack,
    not_reached_finding,
    remove_finalizer,
)
from gpu_provision.operator.gitops import warn_if_declared_elsewhere
from gpu_provision.operator.manifests import editor_permissions
from gpu_provision.operator.stack import KEEP, ON_DELETE, STACK, is_released, lease_of, stack_label
from gpu_provision.operator.status import Reason, StackEvaluation, StackPhase, evaluate_status, failed_components
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.rbac import review
from gpu_provision.reconcile.observer import Observation, StackObserver, watched_scopes
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.run import Outcome
from gpu_provision.reconcile.states import ProgressReporter, with_steps
from gpu_provision.reconcile.status import collect_evidence

# Longest time between renewals: one controller may have ended just now, and another one takes over.
TAKEOVER_SECONDS = LEADER.lease_seconds + LEADER.renew_seconds
_NO_HOLDER_SECONDS = 3.0  # a controller that releases the lease has a successor at once
_LOOK_SECONDS = 2.0  # the renewal interval
_REPAIR_SECONDS = 30.0  # how long a controller may report ready with changes pending here


@dataclass(slots=True)
class LeaderMonitor:
    """Whether a controller leads: it renews its Lease while the client watches."""

    lease: ObjectRef
    holder: str = ""  # the leader; empty for none
    renewal_seen: bool = False  # whether the watch has seen a renewal
    _version: str = ""
    _since: float = field(default_factory=time.monotonic)

    @property
    def scope(self) -> Scope:
        """Return the scope to watch."""
        return scope_of_object(self.lease)

    def observe(self, cache: InformerCache) -> None:
        """Read the lease from the cache."""
        lease = next(iter(cache.list(self.scope).values()), None)
        self.holder, version = holder_identity(lease), lease_version(lease)
        if version != self._version:
            self.renewal_seen = self.renewal_seen or bool(self._version and self.holder)
            self._version, self._since = version, time.monotonic()

    def is_missing(self) -> bool:
        """Whether no controller leads: the lease has expired or has no holder."""
        limit = TAKEOVER_SECONDS if self.holder else _NO_HOLDER_SECONDS
        return time.monotonic() - self._since > limit


class RemoteRun:
    """One change of a GPUStack, and the wait for the controller. Call `execute` once."""

    def __init__(  # noqa: PLR0913 - inputs of a run, and its two callbacks
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        resource: StackResource,
        *,
        force: bool,
        rollback_to: int,
        listen: Callable[[Event], None],
        on_states: Callable[[Mapping[ComponentNode, NodeState]], None],
    ) -> None:
        """Prepare without any write. See `apply_stack` for ``force`` and ``rollback_to``."""
        self._cluster, self._reading, self._resource = cluster, reading, resource
        self._force, self._rollback_to, self._on_states = force, rollback_to, on_states
        self._leader = LeaderMonitor(lease_of(resource.live))
        self._stack, self._generation = scope_of_object(ref_of(resource.live)), 0  # 0 before the apply
        self._began, self._before = time.monotonic(), cluster.requests
        self._reporter = ProgressReporter(listen, self._began)
        self._cache: InformerCache | None = None
        self._cancelled = False
        self._ready_since = float("inf")

    @property
    def is_following(self) -> bool:
        """Whether the resource is applied, and the run waits for the controller."""
        return bool(self._generation)

    @property
    def continuation(self) -> str:
        """Return the message for an interrupt: the controller continues without this process."""
        return f"the controller goes on with {self._resource.name}" if self.is_following else ""

    def unfinished_nodes(self) -> tuple[Finding, ...]:
        """Return nothing: the controller continues."""
        return ()

    def cancel(self) -> None:
        """Stop waiting; the controller continues."""
        self._cancelled = True
        self._cluster.cancel_retries()
        if cache := self._cache:
            cache.notify()

    def execute(self) -> Outcome:
        """Apply the resource, and wait until the controller has reconciled it.

        Raises RunFailedError if no controller leads or another client changes the resource, ForbiddenError before
        any write, UnreachableError.
        """
        if errors := [each for each in self._resource.findings if each.severity is Severity.ERROR]:
            raise RunFailedError(*errors)
        inventory = self._reading.context.inventory
        if missing := review.missing_finding(self._cluster, inventory, editor_permissions(inventory), "--operator"):
            raise ForbiddenError(missing)
        last = rollback.read_history(self._cluster, inventory).last
        scopes = (*watched_scopes(self._reading), self._stack, self._leader.scope)
        with InformerCache(self._cluster, scopes) as cache:
            self._cache = cache
            self._require_leader(cache)
            while not (self._leader.renewal_seen or self._cancelled):
                cache.wait(_LOOK_SECONDS)
                self._require_leader(cache)
            stack = apply_stack(self._cluster, self._resource, force=self._force, rollback_to=self._rollback_to)
            self._generation = int(stack["metadata"]["generation"])
            state = "is changed" if self._resource.desired else "is already up to date"
            self._reporter.report_message(f"{self._resource.name} {state}; {self._leader.holder} carries it out")
            seen, findings = self._follow(cache)
        record = rollback.read_history(self._cluster, inventory).last
        if record and record.number <= (last.number if last else 0):
            record = None
        result = RunResult(
            changed=int(self._resource.desired is not None),
            requests=self._cluster.requests - self._before,
            run=record.number if record else 0,
            seconds=time.monotonic() - self._began,
            states=tuple(self._reporter.states.values()),
            evidence=tuple(collect_evidence(seen)),
            timeline=self._reporter.timeline,
        )
        return Outcome(result, seen, self._reading.plan, record or Record(id=""), findings=findings)

    def _require_leader(self, cache: InformerCache) -> None:
        self._leader.observe(cache)
        if self._leader.is_missing() and not cache.silence:
            name, lease, holder = self._resource.live["metadata"]["name"], self._leader.lease, self._leader.holder
            later = "the resource is changed, and the next controller reconciles it"
            no_leader = Finding(
                code=codes.NO_CONTROLLER,
                where=self._resource.name,
                what="this resource declares the stack, but no controller leads",
                evidence=f"{lease} {f'is held by {holder}, which does not renew it' if holder else 'has no holder'}",
                consequence=later if self.is_following else "nothing was written",
                fix=f"see gpu-provision operator status and kubectl -n {lease.namespace} get pods; "
                "start a controller: gpu-provision operator run; or "
                f"return the stack to the command line: gpu-provision operator release {name}",
            )
            raise RunFailedError(no_leader)

    def _follow(self, cache: InformerCache) -> tuple[ClusterState, tuple[Finding, ...]]:
        observer = StackObserver(self._reading, cache)
        while True:
            now = time.monotonic()
            observed, stack = observer.observe(now), self._current_stack(cache)
            if stack is not None:
                status = evaluate_status(stack)
                failed = _failed_states(observed.states, stack) if status.phase is StackPhase.FAILED else {}
                states = with_steps({**observed.states, **failed}, observed.cluster_state)
                self._reporter.report_states(states)
                self._on_states(states)
                if (findings := self._final_findings(status, observed, now)) is not None:
                    return observed.cluster_state, findings
            self._require_leader(cache)
            cache.wait(min(observer.next_deadline(now), _LOOK_SECONDS))

    def _current_stack(self, cache: InformerCache) -> Manifest | None:
        """Return the resource; None before the watch returns the write. Raises RunFailedError for a later change."""
        stack = next(iter(cache.list(self._stack).values()), None)
        is_gone = stack is None or stack["metadata"].get("deletionTimestamp")
        generation = 0 if stack is None else int(stack["metadata"]["generation"])
        if is_gone or generation > self._generation:
            why, label = "it was deleted" if is_gone else "it was changed in between", self._resource.name
            superseded = Finding(
                code=codes.RESOURCE_CHANGED,
                where=label,
                what=f"the command stops waiting for its change: {why}",
                fix=f"see kubectl get {label} -o yaml --show-managed-fields, then run again",
            )
            raise RunFailedError(superseded)
        return stack if generation == self._generation else None

    def _final_findings(self, status: StackEvaluation, observed: Observation, now: float) -> tuple[Finding, ...] | None:
        """Return at the end the findings that the states do not show; None before the end."""
        if self._cancelled:
            return ()
        if status.phase is StackPhase.FAILED:
            has_failures = any(state.state is State.FAILED for state in self._reporter.states.values())
            is_in_states = status.reason == Reason.FAILED and has_failures
            return () if is_in_states else (not_reached_finding(self._resource.name, status.summary),)
        self._ready_since = min(self._ready_since, now) if status.phase is StackPhase.READY else float("inf")
        if status.phase is StackPhase.READY and not observed.needs:
            return ()
        if now - self._ready_since <= _REPAIR_SECONDS:
            return None
        undone = Finding(
            code=codes.RESOURCE_NOT_READY,
            where=self._resource.name,
            what="the controller reports ready, and this version of gpu-provision would still change it",
            evidence=", ".join(sorted(observed.needs)),
            fix="bring the controller to the same version: gpu-provision operator install",
        )
        return (undone,)


def _failed_states(states: Mapping[ComponentNode, NodeState], stack: Manifest) -> dict[ComponentNode, NodeState]:
    """Return the states that failed for the controller, which has waited longer than this run."""
    return {
        key: replace(states[key], state=State.FAILED, reason=reason or states[key].reason)
        for key, reason in failed_components(stack).items()
        if key in states and states[key].state is not State.READY
    }


def release_stack(
    cluster: KubeClient, name: str, *, seconds: float, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Delete a GPUStack without its installed objects; return whether one existed.

    The controller ends its run and removes the finalizer; without a controller this function removes it. Raises
    RunFailedError if the stack is being removed, or if the finalizer is not removed in time.
    """
    ref = ObjectRef(*STACK, "", name)
    live = cluster.get(ref)
    if live is None:
        return False
    if live["metadata"].get("deletionTimestamp") and not is_released(live):
        raise RunFailedError(deletion_finding(live))
    uid, until = live["metadata"]["uid"], time.monotonic() + seconds
    try:
        cluster.merge_patch(ref, {"metadata": {"uid": uid, "annotations": {ON_DELETE: KEEP}}})
    except NotFoundError:
        return True
    cluster.delete(ref, uid=uid)
    scope, leader, is_reported = scope_of_object(ref), LeaderMonitor(lease_of(live)), False
    with InformerCache(cluster, (scope, leader.scope)) as cache:
        while any(each["metadata"]["uid"] == uid for each in cache.list(scope).values()):
            leader.observe(cache)
            if leader.is_missing():
                remove_finalizer(cluster, ref)
            elif time.monotonic() > until:
                late = Finding(
                    code=codes.NOT_IN_TIME,
                    where=stack_label(live),
                    what="the controller has not released the stack in time",
                    evidence=f"{leader.holder} works" if leader.holder else "",
                    consequence="the resource is deleted once the controller's run has ended; the stack stays",
                    fix=f"kubectl describe {stack_label(live)} shows its progress; then run again",
                )
                raise RunFailedError(late)
            elif not is_reported:
                is_reported = True
                say(f"waiting for the controller to release {stack_label(live)}")
            cache.wait(_LOOK_SECONDS)
    return True


def release_findings(cluster: KubeClient, name: str) -> tuple[Finding, ...]:
    """Return the warnings before a release. Raises ForbiddenError, UnreachableError."""
    live = cluster.get(ObjectRef(*STACK, "", name))
    return warn_if_declared_elsewhere(live, "release") if live else ()


def add_to_removal(result: DestroyResult, stack: Manifest | None, *, dry_run: bool = False) -> DestroyResult:
    """Add the deletion of the GPUStack to a dry run of a removal, and a warning if another tool declares it."""
    if stack is None:
        return result
    result = replace(result, findings=(*result.findings, *warn_if_declared_elsewhere(stack, "destroy")))
    if not dry_run:
        return result
    effect = "the controller releases the stack, and its objects are removed after that"
    change = Change(component="operator", action=Action.DELETE, ref=ref_of(stack), effects=(effect,))
    return replace(result, changes=(change, *result.changes))


def refuse_adoption(cluster: KubeClient, inventory: Inventory) -> None:
    """Raise RunFailedError if a GPUStack exists: its controller would interfere with an adoption."""
    if stack := get_stack(cluster, inventory):
        raise RunFailedError(_managed_finding(stack, f"gpu-provision operator release {inventory.name}, then adopt"))


def refuse_controllers_lock(cluster: KubeClient, inventory: Inventory, lock: LockHolder) -> None:
    """Raise LockedError if the controller holds the lock, since it would acquire the lock again at once."""
    stack = get_stack(cluster, inventory)
    lease = cluster.get(lease_of(stack)) if stack else None  # without an operator no role allows this read
    if stack is not None and holder_identity(lease) == lock.holder:
        fix = f"change the resource, which ends its run; or gpu-provision operator release {inventory.name}"
        raise LockedError(_managed_finding(stack, fix))


def _managed_finding(stack: Manifest, fix: str) -> Finding:
    return Finding(
        code=codes.MANAGED_BY_OPERATOR,
        where=stack_label(stack),
        what="a controller manages this stack and would interfere; nothing was written",
        fix=fix,
    )
