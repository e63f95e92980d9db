"""A run that the controller carries out: change the resource, and follow its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpu_provision.history import rollback
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror
from gpu_provision.model import codes
from gpu_provision.model.cluster import Manifest, ref_of
from gpu_provision.model.findings import Finding, Refused, RunFailed
from gpu_provision.model.history import Record
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.operator.client import StackResource, apply_stack, not_reached_finding, raise_on_errors
from gpu_provision.operator.leader_election import DEFAULT_LEASE, LeaderMonitor, lease_for, no_leader_finding
from gpu_provision.operator.manifests import of_editor
from gpu_provision.operator.status import Reason, StackEvaluation, StackPhase, evaluate_status, failed_components
from gpu_provision.planning.states import ClusterState, Key
from gpu_provision.rbac import review
from gpu_provision.reconcile.observer import Observation, StackObserver, scope_of_object, watched_scopes
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.run import Outcome
from gpu_provision.reconcile.states import ProgressReporter, with_steps
from gpu_provision.reconcile.status import evidence

_LOOK_SECONDS = 2.0  # the lease is renewed as often
_REPAIR_SECONDS = 30.0  # for a controller that calls ready what we would change


class RemoteRun:
    """One change of a stack's resource, seen through. Make it, `execute` it once."""

    def __init__(  # noqa: PLR0913 - what a run is made from, and the two that are the controller's
        self,
        cluster: Cluster,
        reading: ClusterPlan,
        resource: StackResource,
        *,
        force: bool,
        back_to: int,
        listen: Callable[[Event], None],
        on_states: Callable[[Mapping[Key, NodeState]], None],
    ) -> None:
        """Prepare; nothing is written.

        Args:
            force: Whether fields are taken over from other managers.
            back_to: Number of the run that declared this before; 0 if it is no rollback.
            listen: Like ``on_states``, called from the executing thread.
        """
        self._cluster, self._reading, self._resource = cluster, reading, resource
        self._force, self._back_to = force, back_to
        self._on_states, self._leader = on_states, LeaderMonitor(lease_for(resource.live))
        self._began, self._before = time.monotonic(), cluster.requests
        self._announcer = ProgressReporter(listen, self._began)
        self._stack, self._generation = scope_of_object(ref_of(resource.live)), 0
        self._mirror: Mirror | None = None
        self._cancelled = False
        self._wanting_since = float("inf")

    @property
    def is_following(self) -> bool:
        """Whether the resource says what is wanted, and the controller is at work."""
        return bool(self._generation)

    @property
    def going_on(self) -> str:
        """Who carries out what is declared now."""
        return f"the controller goes on with {self._resource.name}" if self.is_following else ""

    def left_behind(self) -> tuple[Finding, ...]:
        """Return nothing: the controller goes on."""
        return ()

    def cancel(self) -> None:
        """See no more of it; the controller goes on."""
        self._cancelled = True
        self._cluster.cancel_retries()
        if mirror := self._mirror:
            mirror.wake()

    def execute(self) -> Outcome:
        """Change the resource if need be, and wait until the controller is done with it.

        Raises:
            RunFailed: No controller leads, or the resource is changed in between.
            Refused: Permissions are missing; nothing was written.
            Unreachable: The API server was silent for too long.
        """
        raise_on_errors(self._resource)
        self._require_rights()
        last = self._last_run()
        scopes = (*watched_scopes(self._reading), self._stack, self._leader.scope)
        with Mirror(self._cluster, scopes) as mirror:
            self._mirror = mirror
            self._await_controller(mirror)
            self._declare()
            seen, told = self._follow(mirror)
        record = self._last_run()
        is_new = record is not None and record.number > (last.number if last else 0)
        return Outcome(
            self._result(seen, record if is_new else None),
            seen,
            self._reading.plan,
            record if record and is_new else Record(id=""),
            told=told,
        )

    def _require_rights(self) -> None:
        inventory = self._reading.context.inventory
        if missing := review.missing_finding(
            self._cluster, inventory, of_editor(inventory, *DEFAULT_LEASE), "--operator"
        ):
            raise Refused(missing)

    def _last_run(self) -> Record | None:
        return rollback.read_history(self._cluster, self._reading.context.inventory).last

    def _result(self, seen: ClusterState, record: Record | None) -> RunResult:
        return RunResult(
            changed=int(self._resource.wanted is not None),
            requests=self._cluster.requests - self._before,
            run=record.number if record else 0,
            seconds=time.monotonic() - self._began,
            states=tuple(self._announcer.states.values()),
            evidence=tuple(evidence(seen)),
            timeline=self._announcer.timeline,
        )

    def _await_controller(self, mirror: Mirror) -> None:
        self._require_leader(mirror)
        while not (self._leader.renewal_seen or self._cancelled):
            mirror.wait(_LOOK_SECONDS)
            self._require_leader(mirror)

    def _require_leader(self, mirror: Mirror) -> None:
        self._leader.observe(mirror)
        if self._leader.is_missing() and not mirror.silence:
            raise RunFailed(no_leader_finding(self._resource.name, self._leader, is_written=self.is_following))

    def _declare(self) -> None:
        stack = apply_stack(self._cluster, self._resource, force=self._force, back_to=self._back_to)
        self._generation = int(stack["metadata"]["generation"])
        said = "is changed" if self._resource.wanted else "says so already"
        self._announcer.say(f"{self._resource.name} {said}; {self._leader.holder} carries it out")

    def _follow(self, mirror: Mirror) -> tuple[ClusterState, tuple[Finding, ...]]:
        resident = StackObserver(self._reading, mirror)
        while True:
            now = time.monotonic()
            found, stack = resident.look(now), self._stack_of(mirror)
            if stack is not None:
                told = evaluate_status(stack)
                self._show(found, _failed(found.states, stack) if told.phase is StackPhase.FAILED else {})
                if self._is_superseded(told, found, now):
                    return found.seen, self._told(told, found)
            self._require_leader(mirror)
            mirror.wait(min(resident.next_deadline(now), _LOOK_SECONDS))

    def _stack_of(self, mirror: Mirror) -> Manifest | None:
        """Return the resource; None before the watch has shown what we wrote. Raises RunFailed if it is another one."""
        stack = next(iter(mirror.of(self._stack).values()), None)
        if stack is None or stack["metadata"].get("deletionTimestamp"):
            raise RunFailed(_in_between(self._resource.name, "it was deleted"))
        generation = int(stack["metadata"]["generation"])
        if generation > self._generation:
            raise RunFailed(_in_between(self._resource.name, "it was changed in between"))
        return stack if generation == self._generation else None

    def _show(self, found: Observation, failed: Mapping[Key, NodeState]) -> None:
        states = with_steps({**found.states, **failed}, found.seen)
        self._announcer.show(states)
        self._on_states(states)

    def _is_superseded(self, told: StackEvaluation, found: Observation, now: float) -> bool:
        if self._cancelled or told.phase is StackPhase.FAILED:
            return True
        if told.phase is not StackPhase.READY:
            self._wanting_since = float("inf")
            return False
        self._wanting_since = min(self._wanting_since, now)
        return not found.needs or now - self._wanting_since > _REPAIR_SECONDS

    def _told(self, told: StackEvaluation, found: Observation) -> tuple[Finding, ...]:
        """Return what the states alone do not tell."""
        if self._cancelled:
            return ()
        if told.phase is StackPhase.FAILED:
            is_in_states = told.reason == Reason.FAILED and _has_failures(self._announcer.states)
            return () if is_in_states else (not_reached_finding(self._resource.name, told.told),)
        return (_left_undone(self._resource.name, sorted(found.needs)),) if found.needs else ()


def _failed(states: Mapping[Key, NodeState], stack: Manifest) -> dict[Key, NodeState]:
    """Return the states that the controller calls failed: it has waited for longer than we have."""
    known = failed_components(stack)
    return {
        key: replace(states[key], state=State.FAILED, reason=reason or states[key].reason)
        for key, reason in known.items()
        if key in states and states[key].state is not State.READY
    }


def _has_failures(states: Mapping[Key, NodeState]) -> bool:
    return any(state.state is State.FAILED for state in states.values())


def _in_between(label: str, what: str) -> Finding:
    return Finding(
        code=codes.IN_BETWEEN,
        where=label,
        what=f"what this command has declared is not waited for any more: {what}",
        fix=f"see kubectl get {label} -o yaml --show-managed-fields, then run again",
    )


def _left_undone(label: str, needs: list[str]) -> Finding:
    return Finding(
        code=codes.NOT_REACHED,
        where=label,
        what="the controller calls the stack ready, and this version of gpu-provision would still change it",
        evidence=", ".join(needs),
        fix="bring the controller to the same version: gpu-provision operator install",
    )
