"""Carries a plan out: applies objects, then follows the cluster until every node has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_provision import components
from gpu_provision.cluster import records
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import AlreadyExists, NotFound, Outdated
from gpu_provision.cluster.facts import node_facts
from gpu_provision.cluster.lock import WriteLock
from gpu_provision.cluster.observe import NODE, POD
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.engine.actions import HarvestPod, LabelNode, RemovePod, StartPod, Step, next_steps
from gpu_provision.engine.reading import Reading
from gpu_provision.engine.settle import SETTLED, Settler
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.findings import ProvisionError, Rejected
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.model.progress import Event, Evidence, NodeState, RunResult, State
from gpu_provision.planning.membership import PART_OF, STACK, applyset_id
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Key, Situation, situation, states

Listen = Callable[[Event], None]
OnStates = Callable[[Mapping[Key, NodeState]], None]

PATIENCE_SECONDS = 60.0
"""For how long a run bears an API server that does not answer: about a restart of a control plane."""

_PARALLEL = 16
_RECORD_SECONDS = 2.0
_COALESCE_SECONDS = 0.1
_SEEN_SECONDS = 5.0  # within which the effect of a step comes back through a watch, also on a busy server
_HEARTBEAT_SECONDS = 30.0
_DEPLOYMENT, _CRD = Kind("apps/v1", "Deployment"), Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")

# Objects of one rank are applied at the same time, after those of lower ranks.
_RANKS: Mapping[str, int] = {"Namespace": 0, "CustomResourceDefinition": 1, "DaemonSet": 3, "Deployment": 3}
_OTHER_RANK = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: the result, and the situation at its end for whoever explains failures."""

    result: RunResult
    seen: Situation


class _KnownNode(NamedTuple):
    """A node as last read; ``relevant`` is what manifests can depend on."""

    version: str
    facts: NodeFacts
    relevant: tuple[object, ...]


# Labels that GPU Feature Discovery keeps current; no manifest depends on them.
_IRRELEVANT = ("nvidia.com/cuda.", "nvidia.com/gfd.", "nvidia.com/gpu.", "nvidia.com/mig.")
_RELEVANT = ("nvidia.com/gpu.deploy.", "nvidia.com/gpu.present")


def _relevant(facts: NodeFacts) -> tuple[object, ...]:
    kept = tuple(
        (key, value)
        for key, value in sorted(facts.labels.items())
        if not key.startswith(_IRRELEVANT) or key.startswith(_RELEVANT)
    )
    return facts.name, facts.uid, facts.boot_id, facts.os, kept


class Run:
    """One run over one cluster. Make it, `execute` it once."""

    def __init__(
        self, cluster: Cluster, reading: Reading, *, listen: Listen, on_states: OnStates = lambda _: None
    ) -> None:
        """Prepare; nothing is written. Both callbacks are called from the executing thread only."""
        inventory = reading.context.inventory
        self._cluster, self._inventory, self._listen, self._on_states = cluster, inventory, listen, on_states
        self._reading = reading
        self._settler = settler_of(reading)
        self._members = dict(reading.observed.members)
        self._passed = dict(reading.observed.passed)
        self._recorded = dict(self._passed)
        self._evidence: dict[Key, Evidence] = {}
        self._states: dict[Key, NodeState] = {}
        self._facts: dict[str, _KnownNode] = {}
        self._prepared: tuple[object, Reading] | None = None
        self._stale: frozenset[str] = frozenset()
        self._running: dict[object, Future[None]] = {}
        self._changed, self._record_due = 0, 0.0
        self._mirror: Mirror | None = None
        self._cancelled = False
        self._harvested: set[str] = set()
        self._not_before: dict[Step, float] = {}

    def cancel(self) -> None:
        """End the run after the current step, with the lock given back; may be called from any thread."""
        self._cancelled = True
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self._mirror is not None:
            self._mirror.wake()

    def execute(self) -> Outcome:
        """Carry the plan out.

        Returns:
            The outcome, in which components may have failed on some nodes.

        Raises:
            Locked: Another run writes.
            Unreachable: The API server was silent for longer than `PATIENCE_SECONDS`.
        """
        began, before = time.monotonic(), self._cluster.requests
        self._make_room_for_the_lock()
        with WriteLock(self._cluster, self._inventory, on_wait=self._say) as lock:
            self._cluster.patience = PATIENCE_SECONDS
            self._apply_objects()
            with Mirror(self._cluster, self._scopes(), patience=PATIENCE_SECONDS) as mirror:
                self._mirror = mirror
                seen = self._follow(mirror, lock)
            self._record(force=True)
        result = RunResult(
            changed=self._changed,
            requests=self._cluster.requests - before,
            seconds=time.monotonic() - began,
            states=tuple(self._states.values()),
            evidence=tuple(self._evidence[key] for key in sorted(self._evidence)),
        )
        return Outcome(result, seen)

    def _say(self, message: str) -> None:
        self._listen(Event(component="", node="", state=State.PROGRESSING, message=message))

    def _make_room_for_the_lock(self) -> None:
        """The lock lives in the operands' namespace, so that comes first; applying it twice does no harm."""
        namespace = self._inventory.cluster.namespace
        for change in self._reading.plan.changes:
            if change.ref.kind == "Namespace" and change.ref.name == namespace and change.action is Action.CREATE:
                self._apply(change)

    # Applying

    def _apply_objects(self) -> None:
        changes = [change for change in self._reading.plan.changes if change.ref.kind not in {"Node", "Pod"}]
        ranked: dict[int, list[Change]] = {}
        for change in changes:
            if change.action in {Action.CREATE, Action.UPDATE} and change.ref not in self._applied_already():
                ranked.setdefault(_RANKS.get(change.ref.kind, _OTHER_RANK), []).append(change)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for rank in sorted(ranked):
                list(pool.map(self._apply, ranked[rank]))
            list(pool.map(self._prune, (change for change in changes if change.action is Action.DELETE)))

    def _applied_already(self) -> frozenset[ObjectRef]:
        return frozenset(self._members.keys() - self._reading.observed.members.keys())

    def _apply(self, change: Change) -> None:
        if change.manifest is None:
            return
        try:
            applied = self._cluster.apply(change.manifest, take_back=bool(change.takes_back_from))
        except Rejected as error:
            self._settler.rejected[change.component, ""] = f"{change.ref}: {error.findings[0].evidence or error}"
            return
        ref = change.ref
        self._members[ref] = {"apiVersion": ref.api_version, "kind": ref.kind, **applied.object}
        self._changed += 1

    def _prune(self, change: Change) -> None:
        uid = self._members.pop(change.ref, {}).get("metadata", {}).get("uid", "")
        self._cluster.delete(change.ref, uid=uid)
        self._changed += 1

    # Following

    def _scopes(self) -> tuple[Scope, ...]:
        members = f"{PART_OF}={applyset_id(self._inventory.name, self._inventory.cluster.namespace)}"
        pods = f"{STACK}={self._inventory.name}"
        return Scope(NODE), Scope(POD, pods), Scope(_DEPLOYMENT, members), Scope(_CRD, members)

    def _follow(self, mirror: Mirror, lock: WriteLock) -> Situation:
        seen = self._look(mirror)
        self._stale = self._left_overs(seen)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            while True:
                self._collect()
                if lock.lost is not None:
                    raise lock.lost
                if self._cancelled:
                    return seen
                now = time.monotonic()
                settled = self._settler.settle(states(seen), now)
                self._announce(settled)
                steps = list(next_steps(seen, settled, stale=self._stale, harvested=self._harvested))
                for step in steps:
                    self._start(pool, step, now)
                self._record(pool=pool)
                if not steps and not self._running and all(state.state in SETTLED for state in settled.values()):
                    return seen
                mirror.wait(min(self._settler.next_deadline(now), _SEEN_SECONDS if steps else _HEARTBEAT_SECONDS))
                time.sleep(min(_COALESCE_SECONDS, time.monotonic() - now))  # many events, one look
                seen = self._look(mirror)

    def _left_overs(self, seen: Situation) -> frozenset[str]:
        """Validation pods that an earlier run left: failed ones, and those of other content or to be repeated."""
        wanted = {ref_of(item) for items in seen.desired.values() for item in items if item["kind"] == "Pod"}
        return frozenset(
            pod["metadata"]["uid"]
            for ref, pod in seen.observed.pods.items()
            if ref in wanted
            if self._reading.revalidate or pod.get("status", {}).get("phase") == "Failed"
        )

    def _look(self, mirror: Mirror) -> Situation:
        nodes = tuple(self._node(node) for node in mirror.of(NODE).values())
        facts = replace(self._reading.context.facts, nodes=tuple(sorted(nodes, key=lambda node: node.name)))
        observed = replace(
            self._reading.observed,
            facts=facts,
            members=self._members | mirror.of(_DEPLOYMENT) | mirror.of(_CRD),
            pods=mirror.of(POD),
            passed=dict(self._passed),
        )
        relevant = tuple(self._facts[node.name].relevant for node in facts.nodes)
        if self._prepared is None or self._prepared[0] != relevant:
            context, desired = prepare(self._inventory, facts)
            self._prepared = (relevant, replace(self._reading, context=context, desired=desired))
        prepared = self._prepared[1]
        context = replace(
            prepared.context,
            facts=facts,
            targets=_with_facts(prepared.context.targets, {node.name: node for node in facts.nodes}),
        )
        return situation(context, prepared.desired, observed)

    def _node(self, node: Manifest) -> NodeFacts:
        name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
        known = self._facts.get(name)
        if known is None or known.version != version:
            facts = node_facts(node)
            known = self._facts[name] = _KnownNode(version, facts, _relevant(facts))
        return known.facts

    def _announce(self, settled: Mapping[Key, NodeState]) -> None:
        on_nodes = {component for component, node in settled if node}
        for key, state in settled.items():
            before = self._states.get(key)
            if not state.node and state.component in on_nodes and state.state is State.READY:
                continue  # its nodes tell
            if before is None or (before.state, before.reason) != (state.state, state.reason):
                self._listen(Event(component=state.component, node=state.node, state=state.state, message=state.reason))
        self._states = dict(settled)
        self._on_states(self._states)

    # Acting

    def _start(self, pool: ThreadPoolExecutor, step: Step, now: float) -> None:
        """Start a step, unless it runs or its effect may just not have been seen yet."""
        if step in self._running or now < self._not_before.get(step, 0.0):
            return
        self._not_before[step] = now + _SEEN_SECONDS
        future = pool.submit(self._perform, step)
        self._running[step] = future
        future.add_done_callback(self._wake)

    def _collect(self) -> None:
        for step, future in list(self._running.items()):
            if future.done():
                del self._running[step]
                future.result()

    def _perform(self, step: Step) -> None:
        try:
            self._do(step)
        except (AlreadyExists, NotFound, Outdated):
            return  # somebody was faster, or the object is gone: the next look tells
        except Rejected as error:
            self._settler.rejected[step.key] = f"{step.ref}: {error.findings[0].evidence or error}"

    def _do(self, step: Step) -> None:
        match step:
            case LabelNode():
                self._cluster.label(step.ref, step.uid, dict(step.labels))
                self._changed += 1
            case StartPod():
                self._cluster.create(self._validation_pod(step.ref))
                self._changed += 1
            case RemovePod():
                self._cluster.delete(step.ref, uid=step.uid)
                self._changed += 1
            case HarvestPod():
                self._harvest(step)

    def _validation_pod(self, ref: ObjectRef) -> Manifest:
        prepared = self._prepared[1] if self._prepared else self._reading
        return next(item for items in prepared.desired.values() for item in items if ref_of(item) == ref)

    def _harvest(self, step: HarvestPod) -> None:
        component, node = step.key
        lines = self._log(step)
        self._harvested.add(step.uid)
        self._evidence[step.key] = Evidence(
            component=component, node=node, pod=step.ref.name, passed=step.passed, lines=lines
        )
        if step.passed:
            self._passed[step.key] = step.digest
        else:
            said = next((line for line in reversed(lines) if line.strip()), "no output")
            self._settler.rejected[step.key] = f"the validation failed: {said}"

    def _log(self, step: HarvestPod) -> tuple[str, ...]:
        try:
            return self._cluster.log(step.ref, step.container)
        except ProvisionError as error:
            return (f"(its log cannot be read: {error.findings[0].evidence or error.findings[0].what})",)

    def _record(self, *, pool: ThreadPoolExecutor | None = None, force: bool = False) -> None:
        """Write validations down every other second at most, and at the end."""
        now, passed = time.monotonic(), dict(self._passed)
        if passed == self._recorded or not (force or now > self._record_due):
            return
        if pool is None:
            records.write(self._cluster, self._inventory, self._of_targets(passed))
        elif "record" not in self._running:
            future = pool.submit(records.write, self._cluster, self._inventory, self._of_targets(passed))
            future.add_done_callback(self._wake)
            self._running["record"] = future
        else:
            return
        self._recorded, self._record_due = passed, now + _RECORD_SECONDS

    def _of_targets(self, passed: Mapping[Key, str]) -> dict[Key, str]:
        names = {target.name for target in self._reading.context.targets}
        return {key: digest for key, digest in passed.items() if key[1] in names}


def _with_facts(targets: tuple[Target, ...], facts: Mapping[str, NodeFacts]) -> tuple[Target, ...]:
    return tuple(replace(target, facts=facts.get(target.name)) for target in targets)


def settler_of(reading: Reading) -> Settler:
    """Return a settler with the requirements and deadlines of a reading's components."""
    inventory, active = reading.context.inventory, reading.desired.keys()
    catalogue = {component.name: component for component in components.COMPONENTS}
    return Settler(
        requires=components.requirements(inventory),
        timeouts={name: timeout_of(catalogue[name], inventory) for name in active},
        one_by_one=frozenset({"driver"}),
    )


def timeout_of(component: components.Component, inventory: Inventory) -> int:
    """Return the seconds that a component may take on a node."""
    spec = component.spec(inventory)
    return int(getattr(spec, "timeout", _DEFAULT_TIMEOUT))


_DEFAULT_TIMEOUT = 300
