"""The rollout of the driver within a run, and its preview in a plan: objects -> snapshot, decisions -> steps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from gpu_provision.components import labels, machine_config, mig_manager, node_labels
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Kind, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Schedule
from gpu_provision.model.progress import NodeState, State
from gpu_provision.nodes.drain import Evictor
from gpu_provision.planning.applyset import matches_node
from gpu_provision.planning.rollout_changes import with_departures, with_rollout_changes
from gpu_provision.planning.states import ClusterState, ComponentNode
from gpu_provision.planning.upgrades import DRIVER, needs_rollout
from gpu_provision.reconcile.cluster_state import Memo
from gpu_provision.reconcile.desired_drivers import desired_drivers, labels_to_remove, nodes_without_driver
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.rollout_states import (
    leaving_state,
    pending_validation_states,
    rollout_state,
    validation_results,
)
from gpu_provision.reconcile.states import with_steps
from gpu_provision.reconcile.steps import EvictPod, PatchNode, RemovePod, Step, TransitionNode
from gpu_provision.rollout import predicates
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.budgets import policy_of
from gpu_provision.rollout.observe import COMPONENTS_READ, ClusterObjects, observe
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import (
    Evict,
    FleetNode,
    RemoveLabels,
    Restart,
    RestartMigManager,
    RollBack,
    Snapshot,
    StateTransition,
    Validate,
)
from gpu_provision.rollout.state_machine import Decision, RolloutPhase, coalesce, decide, retry_failed

_Moves = Mapping[str, StateTransition]  # node -> its transition in flight


def with_rollout(
    cluster: KubeClient, reading: ClusterPlan, seen: ClusterState, known: Mapping[ComponentNode, NodeState]
) -> ClusterPlan:
    """Return a plan with the rollout of drivers and the departures of nodes.

    This costs a fixed number of requests: nodes, all pods, PodDisruptionBudgets, and ResourceClaims if any pod has one.
    Without permission to read the first three, the plan has a warning instead.
    """
    inventory, plan = reading.context.inventory, reading.plan
    try:
        with RequestPool(cluster) as pool:
            listing = [pool.submit(cluster.list, kind, keep=trim) for kind in (NODE, POD)]
            budgets = cluster.list(budget_kind(cluster)).items if inventory.may_evict else ()
            nodes, pods = (each.result().items for each in listing)
        claims = ResourceClaims(cluster).list_for_pods(pods)
    except ForbiddenError as refusal:
        warning = Finding(
            code="GP320",
            what="the plan has no preview of the driver rollout: read permissions are missing",
            evidence=refusal.findings[0].evidence,
            consequence="the plan shows neither the order of nodes nor the evicted pods",
            fix="grant the roles that gpu-provision rbac --read-only prints",
            severity=Severity.WARNING,
        )
        plan = replace(plan, findings=(*plan.findings, warning))
        return replace(reading, plan=with_departures(plan, seen, Schedule()))
    proofs = validation_results(known)
    live = ClusterObjects(nodes=nodes, pods=pods, budgets=budgets, claims=claims, validation_results=proofs)
    snapshot = observe(desired_drivers(reading) | nodes_without_driver(seen), live, now=time.time())
    schedule = plan_waves(snapshot, policy_of(inventory))
    if not schedule.is_empty:
        proven = {node.name for node in snapshot.nodes if node.is_under_way and predicates.is_validated(node)}
        outdated = {node.name for node in snapshot.nodes if predicates.upgrade_reason(node)}
        plan = with_rollout_changes(plan, schedule, seen, proven=proven, outdated=outdated)
    users = {
        node.name: tuple(f"{pod.namespace}/{pod.name}" for pod in predicates.losing_pods(node))
        for node in snapshot.nodes
        if node.is_leaving
    }
    return replace(reading, plan=with_departures(plan, seen, plan.rollout or schedule, users))


def budget_kind(cluster: KubeClient) -> Kind:
    """Return the kind of PodDisruptionBudgets: of policy/v1, before Kubernetes 1.22 of policy/v1beta1."""
    return Kind(cluster.eviction_version(), "PodDisruptionBudget")


class RolloutController:
    """The rollout of one run; another process can resume it at any moment."""

    def __init__(self, cluster: KubeClient, inventory: Inventory) -> None:
        """Prepare; send no request."""
        self._cluster, self._policy, self._evicts = cluster, policy_of(inventory), inventory.may_evict
        self._others = Scope(POD, f"{labels.STACK}!={inventory.name}")
        self._budgets: Scope | None = None
        self._evictor, self._claims = Evictor(cluster), ResourceClaims(cluster)
        self._budgets_seen = ""
        self._read = Memo[str, FleetNode]()
        self._snapshot: Snapshot | None = None
        self.nodes: dict[str, FleetNode] = {}  # the fleet in the last iteration
        self.decision = Decision(phase=RolloutPhase.DONE)  # for these nodes
        self.previous = ""  # digest of the content to roll back to; empty for none

    def is_needed(self, raw: Mapping[ComponentNode, NodeState]) -> bool:
        """Whether a node needs a rollout, or has needed one in this run."""
        return self._snapshot is not None or needs_rollout(raw)

    def update(
        self, seen: ClusterState, cache: InformerCache, raw: Mapping[ComponentNode, NodeState], writing: _Moves
    ) -> dict[ComponentNode, NodeState]:
        """Decide, and return the states with those of the drivers in the rollout."""
        is_first = self._snapshot is None
        if is_first:
            cache.watch(self._others)
        if is_first and self._evicts:  # only evictions need budgets, and the permission to watch them
            self._budgets = Scope(budget_kind(self._cluster))
            self._evictor.version = self._budgets.kind.api_version
            cache.watch(self._budgets)
        self._snapshot = snapshot = self._observe(seen, cache, raw)
        self.nodes = {node.name: node for node in snapshot.nodes}
        if is_first and (retries := retry_failed(snapshot)):  # each new run retries failed nodes
            self.decision = Decision(phase=RolloutPhase.ROLLING, actions=retries)
        else:
            decided = decide(snapshot, self._policy, writing)
            self.decision = replace(decided, actions=tuple(coalesce(decided.actions, snapshot, self._policy)))
        states = {
            key: rollout_state(node, self.decision, raw[key])
            for node in self.nodes.values()
            for key in ((DRIVER, node.name), (mig_manager.NAME, node.name))
            if key in raw
        }
        return {**raw, **states}

    def stop(self) -> None:
        """Leave all nodes as they are."""
        self._snapshot, self.nodes = None, {}

    def _observe(self, seen: ClusterState, cache: InformerCache, raw: Mapping[ComponentNode, NodeState]) -> Snapshot:
        budgets = tuple(cache.list(self._budgets).values()) if self._budgets else ()
        versions = sorted(item["metadata"]["resourceVersion"] for item in budgets)
        self._budgets_seen = hashlib.sha256(" ".join(versions).encode()).hexdigest()
        others = cache.list(self._others).values()
        own = (pod for (component, _), pods in seen.pods.items() if component in COMPONENTS_READ for pod in pods)
        live = ClusterObjects(
            nodes=cache.list(NODE).values(),
            pods=(*own, *others),
            budgets=budgets,
            claims=self._claims.list_for_pods(others),
            refusals=self._evictor.refusals,
            validation_results=validation_results(raw),
        )
        configs = (state for (name, _), state in raw.items() if name == machine_config.NAME)
        rebooting = {state.node for state in configs if state.state is not State.READY}
        declared = desired_drivers(seen, rebooting=rebooting) | nodes_without_driver(seen)
        return observe(declared, live, now=time.time(), previous=self.previous, each=self._read.get_all)

    @property
    def should_roll_back(self) -> bool:
        """Whether the policy rolls the fleet back to its previous content."""
        return any(isinstance(action, RollBack) for action in self.decision.actions)

    def with_rollout_states(
        self, settled: Mapping[ComponentNode, NodeState], seen: ClusterState
    ) -> dict[ComponentNode, NodeState]:
        """Return settled states with those of leaving or still cordoned nodes, and the rollout step of each driver.

        A leaving node that the API server has rejected a write of stays as it is.
        """
        by_key = dict(settled)
        for node in filter(lambda each: each.is_leaving, self.nodes.values()):
            if (state := by_key.get(_key(node))) and state.state is State.LEAVING:
                policy = self._policy.domains[node.domain].policy
                by_key[_key(node)] = leaving_state(node, self.decision, state, policy)
        by_key |= pending_validation_states(self.nodes.values(), self.decision, by_key)
        ahead = {name: node.labels.get(upgrade.STATE, "") for name, node in self.nodes.items()}
        return with_steps(by_key, seen, ahead)

    def steps(self, seen: ClusterState, rejected: Collection[ComponentNode]) -> Iterator[Step]:
        """Yield the next steps; none on a node that the API server has rejected a write of."""
        for action in self.decision.actions if self._snapshot else ():
            if isinstance(action, RollBack) or (key := _key(self.nodes[action.node])) in rejected:
                continue
            match action:
                case StateTransition():
                    yield TransitionNode(key, _node_ref(action.node), action)
                case Evict():
                    yield EvictPod(key, ObjectRef(*POD, action.namespace, action.name), action, self._budgets_seen)
                case Restart():
                    yield from _restart_steps(key, action, seen)
                case RestartMigManager():
                    manager = mig_manager.NAME, action.node
                    pods = (each for each in seen.pods.get(manager, ()) if each["metadata"]["uid"] == action.uid)
                    yield from (RemovePod(manager, ref_of(pod), action.uid) for pod in pods)
                case RemoveLabels():
                    yield from _remove_labels(key, action, seen)
                case Validate():
                    pass  # the run validates new content in any case
                case _:
                    assert_never(action)

    def seconds_until_deadline(self) -> float:
        """Return the seconds until the next iteration without an event."""
        return max(0.05, self.decision.until - time.time())

    def evict(self, step: EvictPod) -> None:
        """Request an eviction; a refused one is repeated later. Raises NotFoundError, ConflictError."""
        self._evictor.evict(step.ref, step.evict.uid)


def _key(node: FleetNode) -> ComponentNode:
    if node.is_leaving:
        return node_labels.NAME, node.name
    return (mig_manager.NAME if node.has_host_driver and node.desired.mig else DRIVER), node.name


def _node_ref(name: str) -> ObjectRef:
    return ObjectRef(*NODE, "", name)


def _remove_labels(key: ComponentNode, action: RemoveLabels, seen: ClusterState) -> Iterator[PatchNode]:
    facts = next((node for node in node_labels.leaving_nodes(seen.context) if node.name == action.node), None)
    if facts and (changes := labels_to_remove(facts, seen)):
        yield PatchNode(key, _node_ref(facts.name), facts.uid, tuple(sorted(changes.items())))


def _restart_steps(key: ComponentNode, action: Restart, seen: ClusterState) -> Iterator[PatchNode | RemovePod]:
    """Delete the driver pod, or move the node to another DaemonSet, which deletes the pod as well."""
    group = seen.node_labels.get(action.node, {}).get(labels.DRIVER_GROUP)
    facts = next((target.facts for target in seen.context.targets if target.name == action.node), None)
    if facts and group and facts.labels.get(labels.DRIVER_GROUP) != group:
        yield PatchNode(key, _node_ref(action.node), facts.uid, ((labels.DRIVER_GROUP, group),))
        return
    for pod in seen.pods.get(key, ()):
        owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
        live = (each for ref, each in seen.observed.members.items() if ref.kind == "DaemonSet")
        owned = (each for each in live if facts and each["metadata"].get("uid") in owners)
        # The DaemonSet controller deletes a pod on a node that its DaemonSet does not select.
        if pod["metadata"]["uid"] == action.uid and all(facts and matches_node(each, facts.labels) for each in owned):
            yield RemovePod(key, ref_of(pod), action.uid)
