"""Apply and prune the objects of a run."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gpu_provision.components import extra_objects
from gpu_provision.history.recorder import RunRecorder, reason_of, run_spec
from gpu_provision.history.rollback import RollbackTarget, find_rollback_target
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, node_facts
from gpu_provision.kube.openshift import read_rendered
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, InvalidError, Severity
from gpu_provision.model.history import Ending, Record
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning.prune import FOLLOWS_NODES, deletions
from gpu_provision.planning.states import ClusterState, ComponentNode, Desired
from gpu_provision.planning.upgrades import DRIVER
from gpu_provision.planning.verdicts import postpone_validations
from gpu_provision.reconcile.cluster_state import WATCHED, ClusterStateBuilder, LiveState, follows_machines, run_scopes
from gpu_provision.reconcile.evidence import Crashes, CrashLog, Validations
from gpu_provision.reconcile.plan import ClusterPlan, void_failed_validations
from gpu_provision.reconcile.rollout import RolloutController
from gpu_provision.reconcile.rollout_states import drivers_without_deadline
from gpu_provision.reconcile.states import ProgressReporter, deadline_tracker
from gpu_provision.reconcile.steps import SEEN_SECONDS, Step, StepExecutor, next_actions
from gpu_provision.rollout.state_machine import RolloutPhase
from gpu_provision.rollout.states import unfinished_node_findings

_PARALLEL = 16
_REPAIRS = 3  # times that one run recreates a deleted object
_PER_NODE = frozenset({"Node", "Pod"})


# Objects of one rank are applied at the same time, after those of lower ranks.
# A binding comes after its role: the server checks that the user has the permissions that the role grants.
# Pods come before their DaemonSet, see `pod_changes`.
_RANKS = {"Namespace": 0, "CustomResourceDefinition": 1, "Role": 1, "ClusterRole": 1, "DaemonSet": 3, "Deployment": 3}
_OTHER_RANK, _LAST_RANK = 2, 4


class Applier:
    """Applies and prunes objects, and keeps the results."""

    def __init__(self, cluster: KubeClient, reading: ClusterPlan) -> None:
        """Start from the observed state; write nothing."""
        self._cluster = cluster
        self._applied = _manifests_by_ref(reading.desired)
        self.members: dict[ObjectRef, Manifest] = dict(reading.observed.members)  # as the API server answered last
        self.rejected: dict[ComponentNode, str] = {}  # component -> why the API server rejected one of its objects
        self._repaired: Counter[ObjectRef] = Counter()
        self.written: list[ObjectRef] = []  # appended to by several threads; a count would lose some

    def apply(self, changes: Iterable[Change]) -> None:
        """Create and update objects, and patch pods, rank by rank."""
        ranked: dict[int, list[Change]] = {}
        for change in changes:
            if change.action in {Action.CREATE, Action.UPDATE} and change.ref.kind != "Node":
                is_last = change.component == extra_objects.NAME
                rank = _LAST_RANK if is_last else _RANKS.get(change.ref.kind, _OTHER_RANK)
                ranked.setdefault(rank, []).append(change)
        for rank in sorted(ranked):
            self._write_all(self._apply, ranked[rank])

    def prune(self, changes: Iterable[Change]) -> None:
        """Delete undeclared objects; namespaces last, as they may hold the permission to delete."""
        deleted = [each for each in changes if each.action is Action.DELETE and each.ref.kind not in _PER_NODE]
        for is_last in (False, True):
            self._write_all(self._delete, [change for change in deleted if (change.ref.kind == "Namespace") is is_last])

    def _write_all(self, write: Callable[[Change], None], changes: Collection[Change]) -> None:
        """Write several objects at a time. Raises the first error, in the order of the changes."""
        with RequestPool(self._cluster, _PARALLEL) as pool:
            writing = [pool.submit(write, change) for change in changes]
        for one in writing:
            one.result()

    def apply_changed(self, desired: Desired, live: Collection[ObjectRef]) -> None:
        """Apply manifests that are new or changed since the last call, and recreate objects that are not ``live``.

        An object that is deleted again and again is recreated only a few times.
        """
        wanted = _manifests_by_ref(desired)
        gone = {ref for ref in wanted if ref in self.members and ref not in live}
        lost = {ref for ref in gone if self._repaired[ref] < _REPAIRS}
        self._repaired.update(lost)
        self.apply(
            Change(component=component, action=Action.CREATE, ref=ref, manifest=manifest)
            for ref, (component, manifest) in wanted.items()
            if ref in lost or self._applied.get(ref) != (component, manifest)
        )
        self._applied = wanted

    def are_visible(self, cache: InformerCache) -> bool:
        """Whether the informer cache has the written objects of watched kinds."""
        written = {ref: self.members[ref] for ref in self.written if ref.type in WATCHED and ref in self.members}
        live = {ref: item for kind in WATCHED for ref, item in cache.list(kind).items()} if written else {}
        return all(ref in live and _generation(live[ref]) >= _generation(item) for ref, item in written.items())

    def _apply(self, change: Change) -> None:
        try:
            self.write(change)
        except InvalidError as error:
            self.rejected[change.component, ""] = f"{change.ref}: {error.findings[0].evidence or error}"

    def write(self, change: Change) -> None:
        """Apply one object. Raises InvalidError."""
        ref, manifest = change.ref, change.manifest
        if manifest is None:
            return
        if ref.kind == "Pod":
            with contextlib.suppress(NotFoundError, ConflictError):  # gone: the next plan has its successor
                self._cluster.merge_patch(ref, {"metadata": manifest["metadata"]})
                self.written.append(ref)
            return
        applied = self._cluster.apply(manifest, take_back=bool(change.takes_back_from))
        self.members[ref] = {"apiVersion": ref.api_version, "kind": ref.kind, **applied.object}
        self.written.append(ref)

    def _delete(self, change: Change) -> None:
        uid = self.members.pop(change.ref, {}).get("metadata", {}).get("uid", "")
        with contextlib.suppress(ConflictError):  # created again: the next plan has the new one
            self._cluster.delete(change.ref, uid=uid)
        self.written.append(change.ref)


def _generation(live: Manifest) -> int:
    return int(live["metadata"].get("generation") or 0)


def _manifests_by_ref(desired: Desired) -> dict[ObjectRef, tuple[str, Manifest]]:
    return {
        ref_of(manifest): (component, manifest)
        for component, manifests in desired.items()
        for manifest in manifests
        if manifest["kind"] not in _PER_NODE
    }


Listen = Callable[[Event], None]
OnStates = Callable[[Mapping[ComponentNode, NodeState]], None]


# Factor and maximum of the pause after an iteration: a factor of its processor time, at most so many seconds. An event
# after the pause is evaluated at once. A rollout waits for an iteration in each state of each node.
_PAUSES, _PAUSES_OF_ROLLOUT = (40.0, 0.5), (1.0, 0.25)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the result, and the state of the cluster at its end, which explains failures.

    ``findings``: those of the failed run that this run rolls back, or why a failed rollout is not rolled back.
    """

    result: RunResult
    cluster_state: ClusterState
    plan: Plan
    record: Record
    record_problem: Finding | None = None  # why the record was not written
    rollback_target: RollbackTarget | None = None  # set if the rollout failed and the policy rolls back
    findings: tuple[Finding, ...] = ()
    crash_logs: Mapping[ComponentNode, CrashLog] = field(default_factory=dict)  # of crashed pods


class Run:
    """One run on one cluster; `execute` it once."""

    continuation = ""  # nothing continues without this process

    def __init__(  # noqa: PLR0913 - what a run is given
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        *,
        listen: Listen,
        on_states: OnStates = lambda _: None,
        rollback_to: int = 0,
        live: LiveState | None = None,
    ) -> None:
        """Prepare; write nothing. The executing thread calls both callbacks.

        ``rollback_to``: number of the run to roll back to; 0 if this is no rollback. ``live``: the informer cache of a
        caller that watches `run_scopes` already.
        """
        inventory = reading.context.inventory
        self._cluster, self._reading, self._on_states = cluster, reading, on_states
        self._began, self._before = time.monotonic(), cluster.requests
        self._progress = ProgressReporter(listen, self._began, known=live.ready if live else {})
        self._deadlines, self._live = deadline_tracker(reading), live
        self._builder = live.builder if live else ClusterStateBuilder(void_failed_validations(reading))
        self._builder.read_rendered = partial(read_rendered, cluster)
        self._objects = Applier(cluster, reading)
        self._validations = Validations(cluster, reading)
        self._rollout = RolloutController(cluster, inventory)
        self._crashes = Crashes(cluster)
        rejected = self._deadlines.rejected
        self._steps = StepExecutor(
            cluster, self._rollout, self._crashes, rejected=rejected, on_end=self._wake, on_written=self._note_written
        )
        spec = run_spec(inventory, reading.plan, reading.desired, reading.observed.members, rollback_to=rollback_to)
        self._recorder = RunRecorder(cluster, spec, say=self._progress.report_message, progress=self._result)
        self._cache: InformerCache | None = None
        self._cancelled, self._removed = False, 0
        self._rolls_out = False

    @property
    def is_following(self) -> bool:
        """Whether the objects of the plan are applied, and the run watches them."""
        return self._cache is not None

    def unfinished_nodes(self) -> tuple[Finding, ...]:
        """Return warnings about nodes that stay cordoned or in the middle of a rollout; sends no request."""
        nodes = self._cache.list(NODE).values() if self._cache else ()
        return unfinished_node_findings(map(node_facts, nodes), self._reading.context.inventory.name)

    def cancel(self) -> None:
        """End the run after the current step and release the lock; may be called from any thread."""
        self._cancelled = True
        self._cluster.cancel_retries()
        self._wake()

    def _note_written(self, written: Manifest) -> None:
        if self._cache is not None:
            self._cache.record_write(written)

    def _wake(self) -> None:
        if self._cache is not None:
            self._cache.notify()

    def execute(self) -> Outcome:
        """Execute the plan; in the outcome components may have failed on some nodes.

        Raises:
            LockedError: Another run writes, or has written since the plan was made, or has broken the lock.
            UnreachableError: The API server did not answer within the time of all retries.
        """
        self._began, self._before = time.monotonic(), self._cluster.requests
        inventory, changes = self._reading.context.inventory, self._reading.plan.changes
        home = Action.CREATE, "Namespace", inventory.cluster.namespace  # the namespace of the lock
        for change in (each for each in changes if (each.action, each.ref.kind, each.ref.name) == home):
            self._objects.write(change)
        planned_at = self._reading.observed.lock_version
        with (
            WriteLock(self._cluster, inventory, on_wait=self._progress.report_message, planned_at=planned_at) as lock,
            self._recorder,
        ):
            back, barred = find_rollback_target(
                self._reading.context, self._reading.desired, self._recorder.earlier, self._recorder.record
            )
            self._rollout.previous = back.name if back else ""
            self._objects.apply(each for each in changes if (each.action, each.ref.kind, each.ref.name) != home)
            self._objects.prune(change for change in changes if change.certain)
            self._validations.forget_repeated()
            machines = follows_machines(self._reading.context.facts.openshift, self._reading.desired)
            scopes, listed = run_scopes(inventory, machines=machines), self._reading.listed
            with (
                self._live.cache
                if self._live
                else InformerCache(self._cluster, scopes, keep=trim, listed=listed) as cache
            ):
                self._cache = cache
                give_up = time.monotonic() + SEEN_SECONDS  # objects that the cache lacks would look deleted
                while not self._objects.are_visible(cache) and time.monotonic() < give_up and not self._cancelled:
                    cache.wait(SEEN_SECONDS)
                seen = self._watch_until_done(cache, lock)
            self._objects.prune(change for change in deletions(seen) if change.component in FOLLOWS_NODES)
            self._validations.record()
            self._removed += self._validations.remove_succeeded(seen)
            back = back if self._rollout.should_roll_back else None
            reason = reason_of(self._progress.states.values()), f"goes back to {back.name}" if back else ""
            self._recorder.end(self._ending(), changed=self._change_count, reason="; ".join(filter(None, reason)))
        return Outcome(
            result=self._result(),
            cluster_state=seen,
            plan=self._reading.plan,
            record=self._recorder.record,
            record_problem=self._recorder.problem,
            rollback_target=back,
            findings=barred if self._rollout.decision.phase in {RolloutPhase.PAUSED, RolloutPhase.FAILED} else (),
            crash_logs=self._crashes.find_crash_logs(self._progress.states, seen),
        )

    @property
    def _change_count(self) -> int:
        return len(self._objects.written) + len(self._steps.written) + self._removed

    def _ending(self) -> Ending:
        if self._cancelled:
            return Ending.INTERRUPTED
        planned = any(item.severity is Severity.ERROR for item in self._reading.plan.findings)
        ready = all(state.state is State.READY for state in self._progress.states.values())
        return Ending.SUCCEEDED if ready and not planned else Ending.FAILED

    def _result(self) -> RunResult:
        evidence = dict(self._validations.evidence)
        return RunResult(
            changed=self._change_count,
            requests=self._cluster.requests - self._before,
            run=self._recorder.record.number,
            seconds=time.monotonic() - self._began,
            states=tuple(self._progress.states.values()),
            evidence=tuple(evidence[key] for key in sorted(evidence)),
            timeline=self._progress.timeline,
        )

    def _watch_until_done(self, cache: InformerCache, lock: WriteLock) -> ClusterState:
        with self._steps:
            while True:
                self._steps.collect()
                if lock.lost is not None:
                    raise lock.lost
                now, busy = time.monotonic(), time.thread_time()
                seen, steps = self._evaluate(cache, now)
                if self._rollout.should_roll_back:
                    return seen
                for step in steps:
                    self._steps.start(step, now)
                is_over = not (steps or self._steps.is_busy) and self._progress.is_settled
                if self._cancelled or is_over:
                    return seen
                self._recorder.save_local(now)
                looked, spent = time.monotonic(), time.thread_time() - busy
                wait = min(self._deadlines.next_deadline(now), self._rollout.seconds_until_deadline())
                cache.wait(min(wait, SEEN_SECONDS) if steps or cache.silence else wait)
                pauses, most = _PAUSES_OF_ROLLOUT if self._rolls_out else _PAUSES
                self._steps.pause(looked + min(pauses * spent, most) - time.monotonic())

    def _evaluate(self, cache: InformerCache, now: float) -> tuple[ClusterState, list[Step]]:
        seen = self._builder.build(cache, self._objects.members, self._validations.passed)
        self._objects.apply_changed(seen.desired, seen.observed.members)
        self._deadlines.rejected |= self._objects.rejected
        self._validations.collect(seen)
        raw, rollout = self._with_rollout(seen, cache, self._builder.states(seen)), self._rollout
        logs = list(self._crashes.start_reading(raw, seen))
        without_deadline = drivers_without_deadline(rollout.nodes.values())
        settled = self._deadlines.settle(
            self._crashes.add_crash_reasons(raw, seen), now, without_deadline=without_deadline
        )
        self._progress.report_states(rollout.with_rollout_states(settled, seen))
        self._on_states(self._progress.states)
        return seen, [*rollout.steps(seen, self._deadlines.rejected), *next_actions(seen, self._progress.states), *logs]

    def _with_rollout(
        self, seen: ClusterState, cache: InformerCache, raw: dict[ComponentNode, NodeState]
    ) -> Mapping[ComponentNode, NodeState]:
        is_rejected = (DRIVER, "") in self._deadlines.rejected  # the API server has rejected the driver's DaemonSet
        before, self._rolls_out = self._rolls_out, self._rollout.is_needed(raw) and not is_rejected
        if self._rolls_out:
            return postpone_validations(self._rollout.update(seen, cache, raw, self._steps.in_flight_moves))
        if before:
            self._rollout.stop()
        return raw
