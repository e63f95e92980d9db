"""Runs that the controller carries out: apply changes a stack's resource, release and destroy delete it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpu_provision.history import rollback
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
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
    warn_if_declared_elsewhere,
)
from gpu_provision.operator.manifests import of_editor
from gpu_provision.operator.stack import KEEP, ON_DELETE, STACK, is_released, lease_of, stack_label
from gpu_provision.operator.status import Reason, StackEvaluation, StackPhase, evaluate_status, failed_components
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.rbac import review
from gpu_provision.reconcile.observer import Observation, StackObserver, scope_of_object, watched_scopes
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.run import Outcome
from gpu_provision.reconcile.states import ProgressReporter, with_steps
from gpu_provision.reconcile.status import collect_evidence

# How long a renewal may take to come: one controller may have ended just now, and another one takes over.
TAKEOVER_SECONDS = LEADER.lease_seconds + LEADER.renew_seconds
_NO_HOLDER_SECONDS = 3.0  # a controller that ends in order is followed at once
_LOOK_SECONDS = 2.0  # the lease is renewed as often
_REPAIR_SECONDS = 30.0  # for a controller that calls ready what we would change


@dataclass(slots=True)
class LeaderMonitor:
    """Whether a controller leads, as a client sees it: it renews its Lease while we watch."""

    lease: ObjectRef
    holder: str = ""  # the leader; empty for none
    renewal_seen: bool = False  # whether the lease was renewed since we watch
    _version: str = ""
    _since: float = field(default_factory=time.monotonic)

    @property
    def scope(self) -> Scope:
        """Return what a mirror has to follow."""
        return scope_of_object(self.lease)

    def observe(self, mirror: InformerCache) -> None:
        """Read the lease."""
        lease = next(iter(mirror.of(self.scope).values()), None)
        self.holder, version = holder_identity(lease), lease_version(lease)
        if version != self._version:
            self.renewal_seen = self.renewal_seen or bool(self._version and self.holder)
            self._version, self._since = version, time.monotonic()

    def is_missing(self) -> bool:
        """Whether the lease was not renewed for so long that no controller leads."""
        limit = TAKEOVER_SECONDS if self.holder else _NO_HOLDER_SECONDS
        return time.monotonic() - self._since > limit


class RemoteRun:
    """One change of a stack's resource, followed to its end. Make it, `execute` it once."""

    def __init__(  # noqa: PLR0913 - what a run is made from, and the two that are the controller's
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        resource: StackResource,
        *,
        force: bool,
        back_to: int,
        listen: Callable[[Event], None],
        on_states: Callable[[Mapping[Key, NodeState]], None],
    ) -> None:
        """Prepare; nothing is written. See `apply_stack` for ``force`` and ``back_to``."""
        self._cluster, self._reading, self._resource = cluster, reading, resource
        self._force, self._back_to, self._on_states = force, back_to, on_states
        self._leader = LeaderMonitor(lease_of(resource.live))
        self._stack, self._generation = scope_of_object(ref_of(resource.live)), 0  # 0 until it is applied
        self._began, self._before = time.monotonic(), cluster.requests
        self._reporter = ProgressReporter(listen, self._began)
        self._mirror: InformerCache | None = None
        self._cancelled = False
        self._ready_since = float("inf")

    @property
    def is_following(self) -> bool:
        """Whether the resource says what is wanted, and the controller is at work."""
        return bool(self._generation)

    @property
    def continuation(self) -> str:
        """Return who carries out what is declared now."""
        return f"the controller goes on with {self._resource.name}" if self.is_following else ""

    def unfinished_nodes(self) -> tuple[Finding, ...]:
        """Return nothing: the controller goes on."""
        return ()

    def cancel(self) -> None:
        """Stop following; the controller goes on."""
        self._cancelled = True
        self._cluster.cancel_retries()
        if mirror := self._mirror:
            mirror.wake()

    def execute(self) -> Outcome:
        """Change the resource if need be, and wait until the controller has reconciled it.

        Raises RunFailedError if no controller leads, or the resource is changed in between, ForbiddenError before
        anything was written, UnreachableError.
        """
        if errors := [each for each in self._resource.findings if each.severity is Severity.ERROR]:
            raise RunFailedError(*errors)
        inventory = self._reading.context.inventory
        if missing := review.missing_finding(self._cluster, inventory, of_editor(inventory), "--operator"):
            raise ForbiddenError(missing)
        last = rollback.read_history(self._cluster, inventory).last
        scopes = (*watched_scopes(self._reading), self._stack, self._leader.scope)
        with InformerCache(self._cluster, scopes) as mirror:
            self._mirror = mirror
            self._require_leader(mirror)
            while not (self._leader.renewal_seen or self._cancelled):
                mirror.wait(_LOOK_SECONDS)
                self._require_leader(mirror)
            stack = apply_stack(self._cluster, self._resource, force=self._force, back_to=self._back_to)
            self._generation = int(stack["metadata"]["generation"])
            said = "is changed" if self._resource.wanted else "says so already"
            self._reporter.report_message(f"{self._resource.name} {said}; {self._leader.holder} carries it out")
            seen, told = self._follow(mirror)
        record = rollback.read_history(self._cluster, inventory).last
        if record and record.number <= (last.number if last else 0):
            record = None
        result = RunResult(
            changed=int(self._resource.wanted is not None),
            requests=self._cluster.requests - self._before,
            run=record.number if record else 0,
            seconds=time.monotonic() - self._began,
            states=tuple(self._reporter.states.values()),
            evidence=tuple(collect_evidence(seen)),
            timeline=self._reporter.timeline,
        )
        return Outcome(result, seen, self._reading.plan, record or Record(id=""), findings=told)

    def _require_leader(self, mirror: InformerCache) -> None:
        self._leader.observe(mirror)
        if self._leader.is_missing() and not mirror.silence:
            name, lease, holder = self._resource.live["metadata"]["name"], self._leader.lease, self._leader.holder
            later = "the resource is changed, and a controller that comes later carries it out"
            no_leader = Finding(
                code=codes.NO_CONTROLLER,
                where=self._resource.name,
                what="this resource declares the stack, and no controller works that would look after it",
                evidence=f"{lease} {f'is held by {holder}, who does not renew it' if holder else 'has no holder'}",
                consequence=later if self.is_following else "nothing was written",
                fix=f"see gpu-provision operator status and kubectl -n {lease.namespace} get pods; "
                "gpu-provision operator run is a controller, too; "
                f"gpu-provision operator release {name} gives the stack back to the command line",
            )
            raise RunFailedError(no_leader)

    def _follow(self, mirror: InformerCache) -> tuple[ClusterState, tuple[Finding, ...]]:
        observer = StackObserver(self._reading, mirror)
        while True:
            now = time.monotonic()
            found, stack = observer.look(now), self._current_stack(mirror)
            if stack is not None:
                status = evaluate_status(stack)
                failed = _failed_states(found.states, stack) if status.phase is StackPhase.FAILED else {}
                states = with_steps({**found.states, **failed}, found.seen)
                self._reporter.report_states(states)
                self._on_states(states)
                if (told := self._end(status, found, now)) is not None:
                    return found.seen, told
            self._require_leader(mirror)
            mirror.wait(min(observer.next_deadline(now), _LOOK_SECONDS))

    def _current_stack(self, mirror: InformerCache) -> Manifest | None:
        """Return the resource; None before the watch has shown the write. Raises RunFailedError if it changed since."""
        stack = next(iter(mirror.of(self._stack).values()), None)
        is_gone = stack is None or stack["metadata"].get("deletionTimestamp")
        generation = 0 if stack is None else int(stack["metadata"]["generation"])
        if is_gone or generation > self._generation:
            why, label = "it was deleted" if is_gone else "it was changed in between", self._resource.name
            superseded = Finding(
                code=codes.IN_BETWEEN,
                where=label,
                what=f"what this command has declared is not waited for any more: {why}",
                fix=f"see kubectl get {label} -o yaml --show-managed-fields, then run again",
            )
            raise RunFailedError(superseded)
        return stack if generation == self._generation else None

    def _end(self, status: StackEvaluation, found: Observation, now: float) -> tuple[Finding, ...] | None:
        """Return at the end what the states alone do not tell; None before."""
        if self._cancelled:
            return ()
        if status.phase is StackPhase.FAILED:
            has_failures = any(state.state is State.FAILED for state in self._reporter.states.values())
            is_in_states = status.reason == Reason.FAILED and has_failures
            return () if is_in_states else (not_reached_finding(self._resource.name, status.told),)
        self._ready_since = min(self._ready_since, now) if status.phase is StackPhase.READY else float("inf")
        if status.phase is StackPhase.READY and not found.needs:
            return ()
        if now - self._ready_since <= _REPAIR_SECONDS:
            return None
        undone = Finding(
            code=codes.NOT_REACHED,
            where=self._resource.name,
            what="the controller calls the stack ready, and this version of gpu-provision would still change it",
            evidence=", ".join(sorted(found.needs)),
            fix="bring the controller to the same version: gpu-provision operator install",
        )
        return (undone,)


def _failed_states(states: Mapping[Key, NodeState], stack: Manifest) -> dict[Key, NodeState]:
    """Return the states that the controller calls failed: it has waited for longer than we have."""
    return {
        key: replace(states[key], state=State.FAILED, reason=reason or states[key].reason)
        for key, reason in failed_components(stack).items()
        if key in states and states[key].state is not State.READY
    }


def release_stack(
    cluster: KubeClient, name: str, *, seconds: float, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Delete a stack's resource, and leave what it has installed; say whether there was one.

    The controller ends its run before it lets go. Where none works the resource goes all the same. Raises
    RunFailedError if the stack is being removed, or if the controller has not let go in time.
    """
    ref = ObjectRef(*STACK, "", name)
    live = cluster.get(ref)
    if live is None:
        return False
    if live["metadata"].get("deletionTimestamp") and not is_released(live):
        raise RunFailedError(deletion_finding(live))
    uid, until = live["metadata"]["uid"], time.monotonic() + seconds
    try:
        cluster.merge(ref, {"metadata": {"uid": uid, "annotations": {ON_DELETE: KEEP}}})
    except NotFoundError:
        return True
    cluster.delete(ref, uid=uid)
    scope, leader, is_reported = scope_of_object(ref), LeaderMonitor(lease_of(live)), False
    with InformerCache(cluster, (scope, leader.scope)) as mirror:
        while any(each["metadata"]["uid"] == uid for each in mirror.of(scope).values()):
            leader.observe(mirror)
            if leader.is_missing():
                remove_finalizer(cluster, ref)
            elif time.monotonic() > until:
                late = Finding(
                    code=codes.NOT_IN_TIME,
                    where=stack_label(live),
                    what="the controller has not let go of the stack in time",
                    evidence=f"{leader.holder} works" if leader.holder else "",
                    consequence="the resource goes as soon as the controller's run has ended; the stack stays",
                    fix=f"kubectl describe {stack_label(live)} tells what it does; then run again",
                )
                raise RunFailedError(late)
            elif not is_reported:
                is_reported = True
                say(f"waiting for the controller to let go of {stack_label(live)}")
            mirror.wait(_LOOK_SECONDS)
    return True


def release_findings(cluster: KubeClient, name: str) -> tuple[Finding, ...]:
    """Return what a reader should know before a stack is released. Raises ForbiddenError, UnreachableError."""
    live = cluster.get(ObjectRef(*STACK, "", name))
    return warn_if_declared_elsewhere(live, "release") if live else ()


def add_to_removal(result: DestroyResult, stack: Manifest | None, *, dry_run: bool = False) -> DestroyResult:
    """Return a removal with the end of the stack's resource before all else, and a warning if that may come back."""
    if stack is None:
        return result
    result = replace(result, findings=(*result.findings, *warn_if_declared_elsewhere(stack, "destroy")))
    if not dry_run:
        return result
    effect = "the controller lets go of the stack, and what it has installed is removed after that"
    change = Change(component="operator", action=Action.DELETE, ref=ref_of(stack), effects=(effect,))
    return replace(result, changes=(change, *result.changes))


def refuse_adoption(cluster: KubeClient, inventory: Inventory) -> None:
    """Raise RunFailedError if a controller looks after the stack: it would undo an adoption half way."""
    if stack := get_stack(cluster, inventory):
        raise RunFailedError(_in_the_way(stack, f"gpu-provision operator release {inventory.name}, then adopt"))


def refuse_controllers_lock(cluster: KubeClient, inventory: Inventory, lock: LockHolder) -> None:
    """Raise LockedError if a lock is the controller's, which would take it again at once."""
    stack = get_stack(cluster, inventory)
    lease = cluster.get(lease_of(stack)) if stack else None  # without an operator there is no role that allows it
    if stack is not None and holder_identity(lease) == lock.holder:
        fix = f"change the resource, which ends its run; or gpu-provision operator release {inventory.name}"
        raise LockedError(_in_the_way(stack, fix))


def _in_the_way(stack: Manifest, fix: str) -> Finding:
    return Finding(
        code=codes.LOOKED_AFTER,
        where=stack_label(stack),
        what="a controller looks after this stack, and would get in the way; nothing was written",
        fix=fix,
    )
