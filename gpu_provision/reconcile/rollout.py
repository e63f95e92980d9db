"""The rollout of the driver within a run, and its preview in a plan: objects -> snapshot, decisions -> steps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from gpu_provision.components import labels, mig_manager, node_labels
from gpu_provision.components.gpu_resources import declared_devices, has_geometry_by_plain_name
from gpu_provision.kube.client import KubeClient
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.kube.observe import NODE, POD, ResourceClaims
from gpu_provision.kube.transport import RequestPool
from gpu_provision.kube.trim import trim
from gpu_provision.model.cluster import Kind, NodeFacts, ObjectRef, Target, ref_of
from gpu_provision.model.findings import Finding, ForbiddenError, Severity
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Schedule
from gpu_provision.model.progress import NodeState, State
from gpu_provision.model.rollout_policy import UpgradePolicy
from gpu_provision.nodes.drain import Evictor
from gpu_provision.planning.applyset import matches_node
from gpu_provision.planning.rollout_changes import pods_kept_by_labels, with_departures, with_rollout_changes
from gpu_provision.planning.states import LABELS_PENDING, ClusterState, ComponentNode, is_observed
from gpu_provision.planning.upgrades import (
    DRIVER,
    DRIVER_KEPT,
    STACK_KEPT,
    UPGRADE_UNFINISHED,
    has_stale_rollout,
    is_kept,
    needs_rollout,
)
from gpu_provision.planning.verdicts import FAILED_WITH
from gpu_provision.reconcile.observer import Memo
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.states import with_steps
from gpu_provision.reconcile.steps import EvictPod, PatchNode, RemovePod, Step, TransitionNode
from gpu_provision.rollout import predicates
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.budgets import SHARED, domain_of, policy_of
from gpu_provision.rollout.observe import COMPONENTS_READ, ClusterObjects, DesiredDriver, observe
from gpu_provision.rollout.preview import plan_waves
from gpu_provision.rollout.snapshot import (
    Evict,
    FleetNode,
    RemoveLabels,
    Restart,
    RestartMigManager,
    RollBack,
    Snapshot,
    StackPresence,
    StateTransition,
    Validate,
    ValidationResult,
)
from gpu_provision.rollout.state_machine import Decision, RolloutPhase, coalesce, decide, retry_failed
from gpu_provision.rollout.states import LATE, UpgradeState

_Moves = Mapping[str, StateTransition]  # node -> its transition in flight
LEFT_OUT = "is excluded by --limit"
"""Why a rollout excludes a node that is not in the run's selection."""


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


def desired_drivers(seen: ClusterPlan | ClusterState) -> dict[str, DesiredDriver]:
    """Return the desired driver of every node that gets one from the stack."""
    daemonsets = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    managers = (each for each in seen.desired.get(mig_manager.NAME, ()) if each["kind"] == "DaemonSet")
    mig_template = next((each["spec"]["template"] for each in managers), None)
    live = {group: seen.observed.members.get(ref_of(item)) for group, item in daemonsets.items()}
    unobserved = {group for group, item in live.items() if item and not is_observed(item)}
    inventory = seen.context.inventory
    place = {node.name: position for position, node in enumerate(inventory.nodes)}
    geometries, every = _requested_geometries(seen), (*seen.context.targets, *seen.context.others)
    kinds = {_gpu_kind(target): target.pool for target in every if target.pool.mig}
    devices = {kind: declared_devices(pool, kind[1], inventory) for kind, pool in kinds.items()}
    return {
        target.name: DesiredDriver(
            domain=domain_of(target.pool),
            position=place.get(target.name, len(place)),
            template=daemonsets[target.driver_group]["spec"]["template"] if target.driver_group in daemonsets else None,
            version=target.pool.driver.image.version,
            mig=_requested_geometry(target, geometries, inventory),
            mig_manager=mig_template if mig_manager.wants_geometry(target) else None,
            devices=devices.get(_gpu_kind(target)),
            has_device_plugin="device_plugin" in seen.desired,
            left_out="" if seen.context.selection.has_node(target.name) else LEFT_OUT,
            is_template_observed=target.driver_group not in unobserved,
        )
        for target in every
        if target.driver_group in daemonsets
        or (target.driver.on_host and _requested_geometry(target, geometries, inventory))
    }


def _gpu_kind(target: Target) -> tuple[str, str]:
    """Return pool and product, by which the devices of a node are known."""
    return target.pool.name, target.labels.get(labels.GPU_PRODUCT, "")


def _requested_geometries(seen: ClusterPlan | ClusterState) -> dict[str, str]:
    """Return the MIG configuration that the nodes of each pool request; none if the run leaves out the manager."""
    is_on = mig_manager.NAME in seen.desired
    return mig_manager.requested_configurations(seen.context.inventory) if is_on else {}


def _requested_geometry(target: Target, geometries: Mapping[str, str], inventory: Inventory) -> str:
    """Return the MIG configuration that a node requests, of those of all pools; empty without one."""
    config = geometries.get(target.pool.name, "") if mig_manager.wants_geometry(target) else ""
    return target.labels[labels.MIG_CONFIG] if config and has_geometry_by_plain_name(target, inventory) else config


def nodes_without_driver(seen: ClusterState) -> dict[str, DesiredDriver]:
    """Return the nodes that lose the driver of the stack: they left the inventory, or have a host driver now.

    The inventory's own policy applies to them.
    """
    geometries, stale = _requested_geometries(seen), filter(has_stale_rollout, seen.context.targets)
    nodes = {
        target.name: StackPresence.STAYS
        for target in stale
        if not _requested_geometry(target, geometries, seen.context.inventory)
    }
    leaving = node_labels.leaving_nodes(seen.context)
    for node in leaving:
        presence = StackPresence.ENDING if any(pods_kept_by_labels(node, seen)) else StackPresence.BARE
        nodes[node.name] = StackPresence.LABELLED if _labels_to_remove(node, seen) else presence
    last, part = len(seen.context.inventory.nodes), seen.context.selection
    left_out = {name: "" if part.has_node(name) else LEFT_OUT for name in nodes}
    why = dict.fromkeys(nodes, "") | node_labels.departure_reasons(leaving, seen.context)
    return {
        name: DesiredDriver(
            domain=SHARED, position=last, template=None, left_out=left_out[name], stack=stack, leaves_because=why[name]
        )
        for name, stack in nodes.items()
    }


def _labels_to_remove(node: NodeFacts, seen: ClusterState) -> dict[str, None]:
    """Return the labels that a leaving node loses before the label of its inventory."""
    wanted = seen.node_labels.get(node.name, {})
    gone = (key for key, value in wanted.items() if value is None and key != labels.INVENTORY)
    return {key: None for key in gone if key in node.labels}


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
        declared = desired_drivers(seen) | nodes_without_driver(seen)
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
    if facts and (changes := _labels_to_remove(facts, seen)):
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


def rollout_state(node: FleetNode, decision: Decision, raw: NodeState) -> NodeState:
    """Return the state of a driver or a MIG manager in the rollout of its node.

    What the rollout does for the MIG devices of a node with a current driver concerns its MIG manager alone.
    """
    changes_mig = bool(node.desired.mig) and not predicates.driver_reason(node) and predicates.is_driver_ready(node)
    changes_mig = changes_mig and (
        bool(predicates.geometry_reason(node)) or node.labels.get(labels.MIG_STATE) != labels.MIG_SUCCESS
    )
    if raw.component != DRIVER:
        return _state_in_rollout(node, decision, raw, is_up=raw.state is State.READY) if changes_mig else raw
    raw = replace(raw, step=node.labels.get(upgrade.STATE, ""))
    if changes_mig:
        is_unfinished = raw.reason.startswith(UPGRADE_UNFINISHED)
        return replace(raw, state=State.READY, reason="") if is_unfinished else raw
    driver = node.driver
    is_up = driver is not None and driver.is_ready and predicates.is_current(node)
    return _state_in_rollout(node, decision, raw, is_up=is_up)


def _state_in_rollout(node: FleetNode, decision: Decision, raw: NodeState, *, is_up: bool) -> NodeState:  # noqa: PLR0911 - one case after the other
    """Return the state of a driver or a MIG manager that the rollout of its node replaces or changes.

    A driver before its validation is ready here, as the validation requires that; see `pending_validation_states`.
    """
    if node.state is UpgradeState.FAILED and node.name in decision.failures:
        return replace(raw, state=State.FAILED, reason=decision.failures[node.name])
    if node.state is UpgradeState.FAILED:
        return replace(raw, state=State.PROGRESSING, reason="its upgrade failed, and is retried")
    if node.state is UpgradeState.UPGRADE_REQUIRED:
        is_between = not node.has_host_driver and (node.driver is None or node.driver.is_terminating)
        if is_kept(raw) or (is_between and decision.phase is not RolloutPhase.ROLLING):
            return raw
        return _waiting_state(raw, node, decision, DRIVER_KEPT, "is about to start")
    if node.state in upgrade.UPGRADING:
        is_usable = node.state in LATE and is_up
        return replace(raw, state=State.READY, reason="") if is_usable else _progressing_state(raw, node, decision)
    if node.state in (UpgradeState.UNKNOWN, UpgradeState.DONE):
        is_over = is_up and raw.reason.startswith(UPGRADE_UNFINISHED)  # the watch may lag behind the last write
        return replace(raw, state=State.READY, reason="") if is_over else raw
    if raw.state is State.READY:
        return raw
    return replace(raw, state=State.BLOCKED, reason=f"{DRIVER_KEPT}: {decision.wait_reasons.get(node.name, '')}")


def leaving_state(node: FleetNode, decision: Decision, raw: NodeState, policy: UpgradePolicy) -> NodeState:
    """Return the state of a leaving node; its labels are written once no pod would lose a GPU."""
    begun = replace(raw, step=node.labels.get(upgrade.STATE, ""))
    if node.state is UpgradeState.FAILED and node.name in decision.failures:
        return replace(begun, state=State.FAILED, reason=f"{STACK_KEPT}: {decision.failures[node.name]}")
    if node.state in upgrade.UPGRADING or node.state is UpgradeState.FAILED:
        return _progressing_state(begun, node, decision)
    if predicates.is_free(node) and not predicates.has_rollout_metadata(node):
        return replace(raw, state=State.PROGRESSING, reason=LABELS_PENDING)
    if not policy.auto_upgrade or node.labels.get(upgrade.SKIP) == "true":
        return replace(raw, state=State.READY, reason=f"{STACK_KEPT}: {decision.wait_reasons.get(node.name, '')}")
    return _waiting_state(raw, node, decision, STACK_KEPT, "is about to leave")


def _waiting_state(raw: NodeState, node: FleetNode, decision: Decision, stays: str, begins: str) -> NodeState:
    """Return the state of a node that has not started: progressing if it starts in this run."""
    wait = decision.wait_reasons.get(node.name, "")
    match decision.phase:
        case RolloutPhase.CLOSED:
            return replace(raw, state=State.READY, reason=f"{stays}: {wait}")
        case RolloutPhase.PAUSED | RolloutPhase.HELD:
            return replace(raw, state=State.BLOCKED, reason=f"{stays}: {wait}")
        case RolloutPhase.ROLLING | RolloutPhase.SOAKING | RolloutPhase.FAILED | RolloutPhase.DONE:
            return replace(raw, state=State.PROGRESSING, reason=f"waits: {wait}" if wait else begins)
        case _:
            assert_never(decision.phase)


def _progressing_state(state: NodeState, node: FleetNode, decision: Decision) -> NodeState:
    reason = decision.wait_reasons.get(node.name) or f"is in {node.state.value}"
    return replace(state, state=State.PROGRESSING, reason=reason)


def validation_results(raw: Mapping[ComponentNode, NodeState]) -> dict[str, ValidationResult]:
    """Return the validation result of the current driver of each node; nodes without one are absent."""
    results = dict[str, ValidationResult]()
    for node, state in ((key[1], state) for key, state in raw.items() if key[0] == "driver_validation" and key[1]):
        if state.state is State.FAILED:
            results[node] = ValidationResult(passed=False, reason=state.reason.removeprefix(FAILED_WITH))
        elif state.state is State.READY and not state.reason:
            results[node] = ValidationResult(passed=True)
    return results


def pending_validation_states(
    nodes: Iterable[FleetNode], decision: Decision, settled: Mapping[ComponentNode, NodeState]
) -> dict[ComponentNode, NodeState]:
    """Return the states of ready drivers whose nodes are still to be validated or uncordoned."""
    late = ((node, settled.get((DRIVER, node.name))) for node in nodes if node.state in LATE)
    ready = ((node, state) for node, state in late if state is not None and state.state is State.READY)
    return {(DRIVER, node.name): _progressing_state(state, node, decision) for node, state in ready}


def drivers_without_deadline(nodes: Iterable[FleetNode]) -> frozenset[ComponentNode]:
    """Return the drivers whose timeouts the rollout applies, or that wait for a slot."""
    rolling = upgrade.UPGRADING | {UpgradeState.UPGRADE_REQUIRED}
    under_way = (node for node in nodes if node.state in rolling or predicates.upgrade_reason(node))
    return frozenset((name, node.name) for node in under_way for name in (DRIVER, mig_manager.NAME))
