"""The rollout of the driver within a run, and its preview: decisions as objects and patches, and their execution."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, assert_never

from gpu_provision.components import labels, node_labels
from gpu_provision.components.labels import INVENTORY
from gpu_provision.components.node_labels import leaving
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, Refused, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Schedule
from gpu_provision.model.progress import NodeState, State
from gpu_provision.nodes.drain import Evictor
from gpu_provision.planning.applyset import selects
from gpu_provision.planning.rollout_changes import pods_kept_by_labels, with_departures, with_rollout_changes
from gpu_provision.planning.states import ClusterState, Key, is_observed
from gpu_provision.planning.upgrades import DRIVER, has_stale_rollout, needs_rollout
from gpu_provision.reconcile import rollout_states
from gpu_provision.reconcile.actions import EvictPod, PatchNode, RemovePod, Step, TransitionNode
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.rollout_states import driver_state, leaving_state, validation_results
from gpu_provision.reconcile.situation import Memo
from gpu_provision.rollout import predicates, states
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.actions import Cordon, Evict, Restart, RollBack, StateTransition, TakeOff, Validate
from gpu_provision.rollout.budgets import SHARED, domain_of, evicts, policy_of
from gpu_provision.rollout.observe import COMPONENTS_READ, ClusterObjects, DesiredDriver, observe
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import FleetNode, Snapshot, StackPresence
from gpu_provision.rollout.state_machine import Decision, RolloutPhase, coalesce, decide, retry_failed


def with_rollout(
    cluster: Cluster, reading: ClusterPlan, situation: ClusterState, known: Mapping[Key, NodeState]
) -> ClusterPlan:
    """Return a reading whose plan says how drivers are replaced, and how nodes leave.

    That costs a fixed number of requests: nodes, all pods, PodDisruptionBudgets, and ResourceClaims if any pod has one.
    A user who may not read the first three gets the plan without, and a warning.

    Args:
        situation: What the plan was made of.
        known: Where everything stands in it.
    """
    inventory = reading.context.inventory
    try:
        seen = _seen(cluster, inventory)
    except Refused as refusal:
        plan = replace(reading.plan, findings=(*reading.plan.findings, _not_read(refusal)))
        return replace(reading, plan=with_departures(plan, situation, Schedule()))
    seen = replace(seen, proofs=validation_results(known))
    snapshot = observe(desired_drivers(reading) | nodes_without_driver(situation), seen, now=time.time())
    found = plan_waves(snapshot, policy_of(inventory))
    plan = reading.plan
    if not found.is_empty:
        proven = {node.name for node in snapshot.nodes if node.is_under_way and predicates.is_proven(node)}
        outdated = {node.name for node in snapshot.nodes if predicates.why(node)}
        plan = with_rollout_changes(plan, found, situation, proven=proven, outdated=outdated)
    users = {
        node.name: tuple(f"{pod.namespace}/{pod.name}" for pod in predicates.losing_pods(node))
        for node in snapshot.nodes
        if node.is_leaving
    }
    return replace(reading, plan=with_departures(plan, situation, plan.rollout or found, users))


def _seen(cluster: Cluster, inventory: Inventory) -> ClusterObjects:
    with RequestPool(cluster) as pool:
        found = [pool.submit(cluster.list, kind, keep=trim) for kind in (NODE, POD)]
        budgets = cluster.list(budget_kind(cluster)).items if evicts(inventory) else ()
        nodes, pods = (each.result().items for each in found)
    return ClusterObjects(nodes=nodes, pods=pods, budgets=budgets, claims=ResourceClaims(cluster).of(pods))


def _not_read(refusal: Refused) -> Finding:
    return Finding(
        code="GP320",
        what="a run would replace drivers, and how could not be looked at: that needs rights to read",
        evidence=refusal.findings[0].evidence,
        consequence="the plan does not say in which order, nor which pods are evicted",
        fix="gpu-provision rbac --read-only prints the rights that a plan needs",
        severity=Severity.WARNING,
    )


LEFT_OUT = "is left out by --limit"
"""Why a rollout leaves a node alone that is not in the part that the run looks after."""


_UNSCHEDULABLE = {Cordon.SET: True, Cordon.LIFT: None}


def patch_of(move: StateTransition) -> dict[str, Any]:
    """Return a move as one merge patch: state, memory and cordon change together, or not at all."""
    metadata: dict[str, Any] = {
        "resourceVersion": move.revision,
        "labels": {states.STATE: move.to.value or None},
        "annotations": dict(move.annotations),
    }
    if move.cordon is Cordon.KEEP:
        return {"metadata": metadata}
    return {"metadata": metadata, "spec": {"unschedulable": _UNSCHEDULABLE[move.cordon]}}


def desired_drivers(seen: ClusterPlan | ClusterState) -> dict[str, DesiredDriver]:
    """Return the driver of every node that gets one from us."""
    templates = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item["spec"]["template"]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    unobserved = unobserved_groups(seen)
    place = {node.name: position for position, node in enumerate(seen.context.inventory.nodes)}
    return {
        target.name: DesiredDriver(
            domain=domain_of(target.pool),
            position=place.get(target.name, len(place)),
            template=templates[target.driver_group],
            version=target.pool.driver.image.version,
            has_device_plugin="device_plugin" in seen.desired,
            left_out="" if seen.context.part.has_node(target.name) else LEFT_OUT,
            is_template_observed=target.driver_group not in unobserved,
        )
        for target in (*seen.context.targets, *seen.context.others)
        if target.driver_group in templates
    }


def nodes_without_driver(seen: ClusterState) -> dict[str, DesiredDriver]:
    """Return the nodes that are to have no driver of the stack, and are not at rest.

    These left the inventory, or came back to it half way with a driver of their own. They go by the inventory's own
    policy.
    """
    last, part = len(seen.context.inventory.nodes), seen.context.part
    nodes = {node.name: _stack_on(node, seen) for node in leaving(seen.context)}
    nodes |= dict.fromkeys(
        (target.name for target in seen.context.targets if has_stale_rollout(target)), StackPresence.STAYS
    )
    return {
        name: DesiredDriver(
            domain=SHARED,
            position=last,
            template=None,
            left_out="" if part.has_node(name) else LEFT_OUT,
            stack=stack,
        )
        for name, stack in nodes.items()
    }


def _stack_on(node: NodeFacts, seen: ClusterState) -> StackPresence:
    if labels_to_remove(node, seen):
        return StackPresence.LABELLED
    return StackPresence.ENDING if any(pods_kept_by_labels(node, seen)) else StackPresence.BARE


def labels_to_remove(node: NodeFacts, seen: ClusterState) -> dict[str, None]:
    """Return the labels that a node that left the inventory loses before the stack's mark."""
    wanted = seen.node_labels.get(node.name, {})
    return {key: None for key, value in wanted.items() if value is None and key in node.labels and key != INVENTORY}


def unobserved_groups(seen: ClusterPlan | ClusterState) -> frozenset[str]:
    """Return the driver groups whose DaemonSet has a template that the DaemonSet controller has not observed."""
    return frozenset(
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
        if (live := seen.observed.members.get(ref_of(item))) and not is_observed(live)
    )


def budget_kind(cluster: Cluster) -> Kind:
    """Return the kind of PodDisruptionBudgets as the server has them: those of policy/v1, before 1.22 of v1beta1."""
    return Kind(cluster.eviction_version(), "PodDisruptionBudget")


class RolloutController:
    """The rollout of one run; another process may take over at any moment.

    It costs nothing until there is something to roll out.

    Attributes:
        snapshot: The fleet as last looked at; None until there is something to roll out.
        decision: What follows from it.
        previous: Names what the fleet can go back to; empty for nothing.
    """

    def __init__(self, cluster: Cluster, inventory: Inventory) -> None:
        """Prepare; nothing is asked."""
        self._cluster, self._policy, self._evicts = cluster, policy_of(inventory), evicts(inventory)
        self._others = Scope(POD, f"{labels.STACK}!={inventory.name}")
        self._budgets: Scope | None = None
        self._evictor = Evictor(cluster)
        self._claims = ResourceClaims(cluster)
        self._budgets_seen = ""
        self._read = Memo[str, FleetNode]()
        self._nodes: dict[str, FleetNode] = {}
        self.previous = ""
        self.snapshot: Snapshot | None = None
        self.decision = Decision(phase=RolloutPhase.DONE)

    def is_needed(self, raw: Mapping[Key, NodeState]) -> bool:
        """Whether there is something to roll out, or has been in this run."""
        return self.snapshot is not None or needs_rollout(raw)

    def look(
        self,
        seen: ClusterState,
        mirror: Mirror,
        raw: Mapping[Key, NodeState],
        *,
        writing: Mapping[str, StateTransition],
    ) -> None:
        """Decide.

        Args:
            raw: Where everything stands in the situation.
            writing: Node -> the move that is being written to it.
        """
        is_first = self.snapshot is None
        if is_first:
            mirror.follow(self._others)
            self._follow_budgets(mirror)
        self.snapshot = self._observed(seen, mirror, raw)
        self._nodes = {node.name: node for node in self.snapshot.nodes}
        chances = retry_failed(self.snapshot) if is_first else ()  # a new run is another chance for whatever failed
        self.decision = self._decided(self.snapshot, chances, writing)

    def stop(self) -> None:
        """Leave all nodes as they are."""
        self.snapshot, self._nodes = None, {}

    def _decided(
        self, snapshot: Snapshot, chances: tuple[StateTransition, ...], writing: Mapping[str, StateTransition]
    ) -> Decision:
        if chances:
            return Decision(phase=RolloutPhase.ROLLING, actions=chances)
        decided = decide(snapshot, self._policy, writing)
        return replace(decided, actions=tuple(coalesce(decided.actions, snapshot, self._policy)))

    def _follow_budgets(self, mirror: Mirror) -> None:
        """Only who may evict needs them, and has the right to watch them."""
        if self._evicts:
            self._budgets = Scope(budget_kind(self._cluster))
            self._evictor.version = self._budgets.kind.api_version
            mirror.follow(self._budgets)

    def _observed(self, seen: ClusterState, mirror: Mirror, raw: Mapping[Key, NodeState]) -> Snapshot:
        budgets = tuple(mirror.of(self._budgets).values()) if self._budgets else ()
        versions = sorted(item["metadata"]["resourceVersion"] for item in budgets)
        self._budgets_seen = hashlib.sha256(" ".join(versions).encode()).hexdigest()
        others = mirror.of(self._others).values()
        own = (pod for (component, _), pods in seen.pods.items() if component in COMPONENTS_READ for pod in pods)
        live = ClusterObjects(
            nodes=mirror.of(NODE).values(),
            pods=(*own, *others),
            budgets=budgets,
            claims=self._claims.of(others),
            refusals=self._evictor.refusals,
            proofs=validation_results(raw),
        )
        declared = desired_drivers(seen) | nodes_without_driver(seen)
        return observe(declared, live, now=time.time(), previous=self.previous, each=self._read.of)

    @property
    def should_roll_back(self) -> bool:
        """Whether the fleet is to go back to what it had before."""
        return any(isinstance(action, RollBack) for action in self.decision.actions)

    def driver_states(self, raw: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """Return the states of those drivers that the rollout looks after; see `rollout_states.driver_state`."""
        keys = ((DRIVER, node) for node in self._nodes)
        return {key: driver_state(self._nodes[key[1]], self.decision, raw[key]) for key in keys if key in raw}

    def leaving_states(self, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """Return the states of nodes that leave, but for those of which the API server has refused something."""
        leaving = ((node, settled.get(_key(node))) for node in self._nodes.values() if node.is_leaving)
        return {
            _key(node): leaving_state(node, self.decision, state, self._policy.domains[node.domain].policy)
            for node, state in leaving
            if state is not None and state.state is State.LEAVING
        }

    def pending_validation_states(self, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """See `rollout_states.pending_validation_states`."""
        return rollout_states.pending_validation_states(self.snapshot, self.decision, settled) if self.snapshot else {}

    def steps_of_nodes(self) -> dict[str, str]:
        """Return how far nodes are, as their label says or is about to."""
        return {name: node.labels.get(upgrade.STATE, "") for name, node in self._nodes.items()}

    def without_deadline(self) -> frozenset[Key]:
        """See `rollout_states.drivers_without_deadline`."""
        return rollout_states.drivers_without_deadline(self._nodes.values())

    def steps(self, seen: ClusterState, rejected: Collection[Key]) -> Iterator[Step]:
        """Yield the steps to take now; none on a node of which the API server has refused something for good."""
        for action in self.decision.actions if self.snapshot else ():
            if isinstance(action, RollBack) or (key := _key(self._nodes[action.node])) in rejected:
                continue
            match action:
                case StateTransition():
                    yield TransitionNode(key, ObjectRef("v1", "Node", "", action.node), action)
                case Evict():
                    pod = ObjectRef("v1", "Pod", action.namespace, action.name)
                    yield EvictPod(key, pod, action, self._budgets_seen)
                case Restart():
                    yield from _restart(key, action, seen)
                case TakeOff():
                    yield from _take_off(key, action, seen)
                case Validate():
                    pass  # the run validates what is new in any case
                case _:
                    assert_never(action)

    def seconds(self) -> float:
        """Return in how many seconds to look again although nothing has happened."""
        return max(0.05, self.decision.until - time.time())

    def move(self, step: TransitionNode) -> Manifest:
        """Write state, memory and cordon of a node, and return it. Raises ConflictError if it has changed."""
        return self._cluster.merge(step.ref, patch_of(step.move))

    def evict(self, step: EvictPod) -> None:
        """Ask for an eviction; the node then waits for a refused one. Raises NotFoundError, ConflictError."""
        self._evictor.ask(step.ref, step.evict.uid)


def _key(node: FleetNode) -> Key:
    """Return what a node's rollout is about: its driver, or the labels that it loses."""
    return (node_labels.NAME if node.is_leaving else DRIVER), node.name


def _take_off(key: Key, action: TakeOff, seen: ClusterState) -> Iterator[PatchNode]:
    facts = next((node for node in node_labels.leaving(seen.context) if node.name == action.node), None)
    if facts and (changes := labels_to_remove(facts, seen)):
        yield PatchNode(key, ObjectRef("v1", "Node", "", facts.name), facts.uid, tuple(sorted(changes.items())))


def _restart(key: Key, action: Restart, seen: ClusterState) -> Iterator[PatchNode | RemovePod]:
    """Delete the driver pod, or have the node go over to another DaemonSet, which does that as well."""
    group = seen.node_labels.get(action.node, {}).get(labels.DRIVER_GROUP)
    facts = next((target.facts for target in seen.context.targets if target.name == action.node), None)
    if facts and group and facts.labels.get(labels.DRIVER_GROUP) != group:
        yield PatchNode(key, ObjectRef("v1", "Node", "", action.node), facts.uid, ((labels.DRIVER_GROUP, group),))
        return
    pods = (pod for pod in seen.pods.get(key, ()) if pod["metadata"]["uid"] == action.uid)
    yield from (RemovePod(key, ref_of(pod), action.uid) for pod in pods if not (facts and _ends(pod, facts, seen)))


def _ends(pod: Manifest, node: NodeFacts, seen: ClusterState) -> bool:
    """Whether a controller ends a pod, since its DaemonSet does not select the node any more."""
    owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
    live = (each for ref, each in seen.observed.members.items() if ref.kind == "DaemonSet")
    return any(each["metadata"].get("uid") in owners and not selects(each, node.labels) for each in live)
