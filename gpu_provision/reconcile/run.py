"""Apply and prune the objects of a run."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_provision.history.recorder import RunRecorder, reason_of, run_spec
from gpu_provision.history.rollback import RollbackTarget, find_rollback_target
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.errors import ConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.lock import WriteLock
from gpu_provision.kube.observe import NODE, node_facts
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, InvalidError, Severity
from gpu_provision.model.history import Ending, Record
from gpu_provision.model.plan import Action, Change, Plan
from gpu_provision.model.progress import Event, NodeState, RunResult, State
from gpu_provision.planning.prune import FOLLOWS_NODES, deletions
from gpu_provision.planning.states import ClusterState, Desired, Key
from gpu_provision.planning.upgrades import DRIVER
from gpu_provision.planning.validation import postpone_validations
from gpu_provision.reconcile.evidence import Crashes, CrashLog, Validations
from gpu_provision.reconcile.observer import WATCHED, LiveState, SituationBuilder, run_scopes
from gpu_provision.reconcile.plan import ClusterPlan, without_failures
from gpu_provision.reconcile.rollout import RolloutController, drivers_without_deadline
from gpu_provision.reconcile.states import ProgressReporter, deadline_tracker
from gpu_provision.reconcile.steps import SEEN_SECONDS, Step, StepExecutor, next_actions
from gpu_provision.rollout.state_machine import RolloutPhase
from gpu_provision.rollout.states import unfinished_node_findings

_PARALLEL = 16
_REPAIRS = 3  # times that one run creates an object again that is deleted meanwhile
_PER_NODE = frozenset({"Node", "Pod"})


# Objects of one rank are applied at the same time, after those of lower ranks.
# A binding comes after its role: to whom the server does not trust blindly, it compares what the role grants.
# Pods come before their DaemonSet, see `pod_changes`.
_RANKS = {"Namespace": 0, "CustomResourceDefinition": 1, "Role": 1, "ClusterRole": 1, "DaemonSet": 3, "Deployment": 3}
_OTHER_RANK = 2


class Applier:
    """Applies and prunes, and remembers the outcome."""

    def __init__(self, cluster: KubeClient, reading: ClusterPlan) -> None:
        """Start from what was read; nothing is written."""
        self._cluster = cluster
        self._applied = _manifests_by_ref(reading.desired)
        self.members: dict[ObjectRef, Manifest] = dict(reading.observed.members)  # as the API server answered last
        self.rejected: dict[Key, str] = {}  # why it refused an object of a component
        self._repaired: Counter[ObjectRef] = Counter()
        self.written: list[ObjectRef] = []  # appended to by several threads; a count would lose some

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply every object to be created or updated, and patch pods, rank by rank."""
        ranked: dict[int, list[Change]] = {}
        for change in changes:
            if change.action in {Action.CREATE, Action.UPDATE} and change.ref.kind != "Node":
                ranked.setdefault(_RANKS.get(change.ref.kind, _OTHER_RANK), []).append(change)
        for rank in sorted(ranked):
            self._each(self._apply, ranked[rank])

    def prune(self, changes: Iterable[Change]) -> None:
        """Delete every object that is no longer wanted; what is in a namespace goes before the namespace.

        The rights to delete there can go with the namespace.
        """
        doomed = [each for each in changes if each.action is Action.DELETE and each.ref.kind not in _PER_NODE]
        for is_last in (False, True):
            self._each(self._delete, [change for change in doomed if (change.ref.kind == "Namespace") is is_last])

    def _each(self, write: Callable[[Change], None], changes: Collection[Change]) -> None:
        """Write several objects at a time. Raises the first error, in the order of the changes."""
        with RequestPool(self._cluster, _PARALLEL) as pool:
            writing = [pool.submit(write, change) for change in changes]
        for one in writing:
            one.result()

    def follow(self, desired: Desired, live: Collection[ObjectRef]) -> None:
        """Apply what became wanted or changed since facts about nodes came in, and what is not ``live`` any more.

        What is deleted again and again stays away in the end.
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

    def are_shown(self, mirror: InformerCache) -> bool:
        """Whether live copies show what was written of the kinds that a run follows."""
        written = {ref: self.members[ref] for ref in self.written if ref.type in WATCHED and ref in self.members}
        live = {ref: item for kind in WATCHED for ref, item in mirror.of(kind).items()} if written else {}
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
            with contextlib.suppress(NotFoundError, ConflictError):  # gone: the next plan looks at the one in its place
                self._cluster.merge(ref, {"metadata": manifest["metadata"]})
                self.written.append(ref)
            return
        applied = self._cluster.apply(manifest, take_back=bool(change.takes_back_from))
        self.members[ref] = {"apiVersion": ref.api_version, "kind": ref.kind, **applied.object}
        self.written.append(ref)

    def _delete(self, change: Change) -> None:
        uid = self.members.pop(change.ref, {}).get("metadata", {}).get("uid", "")
        with contextlib.suppress(ConflictError):  # it was created again: the next plan looks at that one
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
OnStates = Callable[[Mapping[Key, NodeState]], None]


# Many events, one look: after a look there is a pause of so many times its processor time, and of no more than so many
# seconds. An event after the pause is evaluated at once. In an install a node waits for a look a few times; in a
# rollout it does for each of its states, and the next node waits as well.
_PAUSES, _PAUSES_OF_ROLLOUT = (40.0, 0.5), (2.0, 0.25)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the result, and the state of the cluster at its end, by which failures are explained.

    ``told`` are findings of a run before this one, whose rollback this is; or why a failed rollout is not rolled back.
    """

    result: RunResult
    seen: ClusterState
    plan: Plan  # what was to be changed
    record: Record  # as it is on record
    unrecorded: Finding | None = None  # why it is not; None if it is
    back: RollbackTarget | None = None  # where the cluster is to go, since the rollout failed and the policy says so
    told: tuple[Finding, ...] = ()
    said: Mapping[Key, CrashLog] = field(default_factory=dict)  # by pods that crashed, as told while the run waited


class Run:
    """One run over one cluster. Make it, `execute` it once."""

    going_on = ""  # without this process: nothing, as it takes the steps itself

    def __init__(  # noqa: PLR0913 - what a run is given
        self,
        cluster: KubeClient,
        reading: ClusterPlan,
        *,
        listen: Listen,
        on_states: OnStates = lambda _: None,
        back_to: int = 0,
        live: LiveState | None = None,
    ) -> None:
        """Prepare; nothing is written. Both callbacks are called from the executing thread only.

        ``back_to``: number of the run whose versions this one brings back; 0 if it is no rollback. ``live``: copies of
        a caller that follows `run_scopes` already; without them the run follows these itself.
        """
        inventory = reading.context.inventory
        self._cluster, self._reading, self._on_states = cluster, reading, on_states
        self._began, self._before = time.monotonic(), cluster.requests
        self._announcer = ProgressReporter(listen, self._began, known=live.ready if live else {})
        self._settler, self._live = deadline_tracker(reading), live
        self._situations = live.situations if live else SituationBuilder(without_failures(reading))
        self._objects = Applier(cluster, reading)
        self._validations = Validations(cluster, reading)
        self._rollout = RolloutController(cluster, inventory)
        self._crashes = Crashes(cluster)
        rejected = self._settler.rejected
        self._steps = StepExecutor(
            cluster, self._rollout, self._crashes, rejected=rejected, on_end=self._wake, on_written=self._note
        )
        spec = run_spec(inventory, reading.plan, reading.desired, reading.observed.members, back_to=back_to)
        self._book = RunRecorder(cluster, spec, say=self._announcer.say, progress=self._reached)
        self._mirror: InformerCache | None = None
        self._cancelled, self._removed = False, 0
        self._rolls_out = False

    @property
    def is_following(self) -> bool:
        """Whether the objects of the plan are applied, and what becomes of them is followed."""
        return self._mirror is not None

    def left_behind(self) -> tuple[Finding, ...]:
        """Return warnings about nodes that stay cordoned or halfway, as last seen or written; sends no request."""
        nodes = self._mirror.of(NODE).values() if self._mirror else ()
        return unfinished_node_findings(map(node_facts, nodes), self._reading.context.inventory.name)

    def cancel(self) -> None:
        """End the run after the current step, with the lock given back; may be called from any thread."""
        self._cancelled = True
        self._cluster.cancel_retries()
        self._wake()

    def _note(self, written: Manifest) -> None:
        if self._mirror is not None:
            self._mirror.note(written)

    def _wake(self) -> None:
        if self._mirror is not None:
            self._mirror.wake()

    def execute(self) -> Outcome:
        """Carry the plan out; in the outcome components may have failed on some nodes.

        Raises:
            LockedError: Another run writes, or has written since the plan was made, or has taken the lock away.
            UnreachableError: The API server did not answer for as long as requests are repeated.
        """
        self._began, self._before = time.monotonic(), self._cluster.requests
        inventory, changes = self._reading.context.inventory, self._reading.plan.changes
        home = Action.CREATE, "Namespace", inventory.cluster.namespace  # that the lock lives in
        for change in (each for each in changes if (each.action, each.ref.kind, each.ref.name) == home):
            self._objects.write(change)
        planned_at = self._reading.observed.lock_version
        with (
            WriteLock(self._cluster, inventory, on_wait=self._announcer.say, planned_at=planned_at) as lock,
            self._book,
        ):
            back, barred = find_rollback_target(
                self._reading.context, self._reading.desired, self._book.earlier, self._book.record
            )
            self._rollout.previous = back.name if back else ""
            self._objects.apply(each for each in changes if (each.action, each.ref.kind, each.ref.name) != home)
            self._objects.prune(change for change in changes if change.certain)
            self._validations.forget_repeated()
            scopes, listed = run_scopes(inventory), self._reading.listed
            with (
                self._live.mirror
                if self._live
                else InformerCache(self._cluster, scopes, keep=trim, listed=listed) as mirror
            ):
                self._mirror = mirror
                give_up = time.monotonic() + SEEN_SECONDS  # until copies show what was written it would look deleted
                while not self._objects.are_shown(mirror) and time.monotonic() < give_up and not self._cancelled:
                    mirror.wait(SEEN_SECONDS)
                seen = self._follow(mirror, lock)
            self._objects.prune(change for change in deletions(seen) if change.component in FOLLOWS_NODES)
            self._validations.record()
            self._removed += self._validations.remove_succeeded(seen)
            back = back if self._rollout.should_roll_back else None
            reason = reason_of(self._announcer.states.values()), f"goes back to {back.name}" if back else ""
            self._book.end(self._ending(), changed=self._changed, reason="; ".join(filter(None, reason)))
        return Outcome(
            result=self._reached(),
            seen=seen,
            plan=self._reading.plan,
            record=self._book.record,
            unrecorded=self._book.problem,
            back=back,
            told=barred if self._rollout.decision.phase in {RolloutPhase.PAUSED, RolloutPhase.FAILED} else (),
            said=self._crashes.said_of(self._announcer.states, seen),
        )

    @property
    def _changed(self) -> int:
        return len(self._objects.written) + len(self._steps.written) + self._removed

    def _ending(self) -> Ending:
        if self._cancelled:
            return Ending.INTERRUPTED
        planned = any(item.severity is Severity.ERROR for item in self._reading.plan.findings)
        ready = all(state.state is State.READY for state in self._announcer.states.values())
        return Ending.SUCCEEDED if ready and not planned else Ending.FAILED

    def _reached(self) -> RunResult:
        evidence = dict(self._validations.evidence)
        return RunResult(
            changed=self._changed,
            requests=self._cluster.requests - self._before,
            run=self._book.record.number,
            seconds=time.monotonic() - self._began,
            states=tuple(self._announcer.states.values()),
            evidence=tuple(evidence[key] for key in sorted(evidence)),
            timeline=self._announcer.timeline,
        )

    def _follow(self, mirror: InformerCache, lock: WriteLock) -> ClusterState:
        with self._steps:
            while True:
                self._steps.collect()
                if lock.lost is not None:
                    raise lock.lost
                now, busy = time.monotonic(), time.thread_time()
                seen, steps = self._look(mirror, now)
                if self._rollout.should_roll_back:
                    return seen
                for step in steps:
                    self._steps.start(step, now)
                is_over = not (steps or self._steps.is_busy) and self._announcer.is_settled
                if self._cancelled or is_over:
                    return seen
                self._book.save_local(now)
                looked, spent = time.monotonic(), time.thread_time() - busy
                wait = min(self._settler.next_deadline(now), self._rollout.seconds())
                mirror.wait(min(wait, SEEN_SECONDS) if steps or mirror.silence else wait)
                pauses, most = _PAUSES_OF_ROLLOUT if self._rolls_out else _PAUSES
                self._steps.rest(looked + min(pauses * spent, most) - time.monotonic())

    def _look(self, mirror: InformerCache, now: float) -> tuple[ClusterState, list[Step]]:
        seen = self._situations.build(mirror, self._objects.members, self._validations.passed)
        self._objects.follow(seen.desired, seen.observed.members)
        self._settler.rejected |= self._objects.rejected
        self._validations.take(seen)
        raw, rollout = self._with_rollout(seen, mirror, self._situations.states(seen)), self._rollout
        logs = list(self._crashes.unread(raw, seen))
        untimed = drivers_without_deadline(rollout.nodes.values())
        settled = self._settler.settle(self._crashes.told(raw, seen), now, untimed=untimed)
        self._announcer.show(rollout.shown(settled, seen))
        self._on_states(self._announcer.states)
        return seen, [*rollout.steps(seen, self._settler.rejected), *next_actions(seen, self._announcer.states), *logs]

    def _with_rollout(
        self, seen: ClusterState, mirror: InformerCache, raw: dict[Key, NodeState]
    ) -> Mapping[Key, NodeState]:
        is_rejected = (DRIVER, "") in self._settler.rejected  # the API server has refused the driver's DaemonSet
        before, self._rolls_out = self._rolls_out, self._rollout.is_needed(raw) and not is_rejected
        if self._rolls_out:
            return postpone_validations(self._rollout.look(seen, mirror, raw, self._steps.moving))
        if before:
            self._rollout.stop()
        return raw
