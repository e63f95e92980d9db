"""The rollout of the driver within a run: its decisions as objects and patches, and their execution."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, assert_never

from gpu_provision.components import labels, node_labels
from gpu_provision.components.labels import INVENTORY
from gpu_provision.components.node_labels import leaving
from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.client import Cluster
from gpu_provision.kube.informer import Mirror, Scope
from gpu_provision.kube.observe import NODE, POD
from gpu_provision.kube.resource_claims import ResourceClaims
from gpu_provision.model.cluster import Kind, Manifest, NodeFacts, ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import NodeState, State
from gpu_provision.nodes.drain import Evictor
from gpu_provision.planning.applyset import selects
from gpu_provision.planning.departures import pods_kept_by_labels
from gpu_provision.planning.states import Key, Situation, is_observed
from gpu_provision.planning.upgrades import DRIVER, calls_for_rollout, lost_its_rollout
from gpu_provision.reconcile import rollout_states
from gpu_provision.reconcile.actions import (
    EvictPod,
    LabelNode,
    MoveNode,
    RemovePod,
    Step,
)
from gpu_provision.reconcile.reading import Reading
from gpu_provision.reconcile.rollout_states import (
    Sight,
    Turns,
    of_driver,
    of_leaving,
    proofs,
    word,
)
from gpu_provision.reconcile.situation import Groups, Look
from gpu_provision.rollout import states
from gpu_provision.rollout import states as upgrade
from gpu_provision.rollout.actions import Cordon, Evict, Move, Restart, RollBack, TakeOff, Validate
from gpu_provision.rollout.budgets import SHARED, domain_of, evicts, policy_of
from gpu_provision.rollout.observe import Declared, Seen
from gpu_provision.rollout.snapshot import Node, Proof, Snapshot, Stack
from gpu_provision.rollout.state_machine import (
    Decision,
    Phase,
    again,
    decide,
    lengthened,
)

LEFT_OUT = "is left out by --limit"
"""Why a rollout leaves a node alone that is not in the part that the run looks after."""

_UNSCHEDULABLE = {Cordon.SET: True, Cordon.LIFT: None}


def patch_of(move: Move) -> dict[str, Any]:
    """Return a move as one merge patch: state, memory and cordon change together, or not at all."""
    metadata: dict[str, Any] = {
        "resourceVersion": move.revision,
        "labels": {states.STATE: move.to.value or None},
        "annotations": dict(move.annotations),
    }
    if move.cordon is Cordon.KEEP:
        return {"metadata": metadata}
    return {"metadata": metadata, "spec": {"unschedulable": _UNSCHEDULABLE[move.cordon]}}


def declared_of(seen: Reading | Situation) -> dict[str, Declared]:
    """Return the driver of every node that gets one from us."""
    templates = {
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]: item["spec"]["template"]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
    }
    unobserved = unobserved_groups(seen)
    place = {node.name: position for position, node in enumerate(seen.context.inventory.nodes)}
    return {
        target.name: Declared(
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


def without_driver(seen: Situation) -> dict[str, Declared]:
    """Return the nodes that are to have no driver of the stack, and are not at rest.

    These left the inventory, or came back to it half way with a driver of their own. They go by the inventory's own
    policy.
    """
    last, part = len(seen.context.inventory.nodes), seen.context.part
    nodes = {node.name: _stack_on(node, seen) for node in leaving(seen.context)}
    nodes |= dict.fromkeys((target.name for target in seen.context.targets if lost_its_rollout(target)), Stack.STAYS)
    return {
        name: Declared(
            domain=SHARED,
            position=last,
            template=None,
            left_out="" if part.has_node(name) else LEFT_OUT,
            stack=stack,
        )
        for name, stack in nodes.items()
    }


def _stack_on(node: NodeFacts, seen: Situation) -> Stack:
    if taken_back(node, seen):
        return Stack.LABELLED
    return Stack.ENDING if any(pods_kept_by_labels(node, seen)) else Stack.BARE


def taken_back(node: NodeFacts, seen: Situation) -> dict[str, None]:
    """Return the labels that a node that left the inventory loses before the stack's mark."""
    wanted = seen.node_labels.get(node.name, {})
    return {key: None for key, value in wanted.items() if value is None and key in node.labels and key != INVENTORY}


def unobserved_groups(seen: Reading | Situation) -> frozenset[str]:
    """Return the driver groups whose DaemonSet has a template that the DaemonSet controller has not observed."""
    return frozenset(
        item["spec"]["template"]["spec"]["nodeSelector"][labels.DRIVER_GROUP]
        for item in seen.desired.get("driver", ())
        if item["kind"] == "DaemonSet"
        if (live := seen.observed.members.get(ref_of(item))) and not is_observed(live)
    )


def budgets_of(cluster: Cluster) -> Kind:
    """Return the kind of PodDisruptionBudgets as the server has them: those of policy/v1, before 1.22 of v1beta1."""
    return Kind(cluster.eviction_version(), "PodDisruptionBudget")


class Rollout:
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
        self._ours, self._theirs = Groups(node_of), Groups(node_of)
        self._machines = Groups(_name)
        self._sight, self._turns = Sight(self._machines, (self._ours, self._theirs)), Turns()
        self._proofs: dict[str, Proof] = {}
        self._nodes: dict[str, Node] = {}
        self._untimed = frozenset[Key]()
        self._own: tuple[object, frozenset[str], dict[str, Declared]] = (None, frozenset(), {})
        self._without: dict[str, Declared] = {}
        self._declared: dict[str, Declared] = {}
        self.previous = ""
        self.snapshot: Snapshot | None = None
        self.decision = Decision(phase=Phase.DONE)

    def is_needed(self, raw: Mapping[Key, NodeState]) -> bool:
        """Whether there is something to roll out, or has been in this run."""
        return self.snapshot is not None or calls_for_rollout(raw)

    def look(
        self,
        look: Look,
        mirror: Mirror,
        raw: Mapping[Key, NodeState],
        names: Collection[str] | None,
        *,
        writing: Mapping[str, Move],
    ) -> frozenset[str]:
        """Decide, and return the nodes that have changed or wait for something else than before.

        Args:
            look: The run's.
            raw: States of nodes that have changed, or all.
            names: Those nodes; None for all.
            writing: Node -> the move that is being written to it.
        """
        kept = {} if names is None else {name: proof for name, proof in self._proofs.items() if name not in names}
        self._proofs = kept | proofs(raw)
        is_first = self.snapshot is None
        if is_first:
            mirror.follow(self._others)
            self._follow_budgets(mirror)
        snapshot = self._observed(look.seen, look.seen if names is None else look.part, mirror)
        chances = again(snapshot) if is_first else ()  # a new run is another chance for whatever failed
        before, self.decision = self.decision, self._decided(snapshot, chances, writing)
        nodes, self._nodes = self._nodes, {node.name: node for node in snapshot.nodes}
        self.snapshot, changed = snapshot, rollout_states.replaced(nodes, self._nodes)
        keys, waiting = ((DRIVER, name) for name in changed), filter(None, map(self._nodes.get, changed))
        self._untimed = self._untimed.difference(keys) | rollout_states.untimed(waiting)
        return rollout_states.differing(changed, self._nodes, before, self.decision)

    def stop(self) -> None:
        """Leave all nodes as they are."""
        self.snapshot, self._nodes, self._untimed = None, {}, frozenset()

    def _decided(self, snapshot: Snapshot, chances: tuple[Move, ...], writing: Mapping[str, Move]) -> Decision:
        if chances:
            return Decision(phase=Phase.ROLLING, actions=chances)
        decided = decide(snapshot, self._policy, writing, self._turns)
        return replace(decided, actions=tuple(lengthened(decided.actions, snapshot, self._policy)))

    def _follow_budgets(self, mirror: Mirror) -> None:
        """Only who may evict needs them, and has the right to watch them."""
        if self._evicts:
            self._budgets = Scope(budgets_of(self._cluster))
            self._evictor.version = self._budgets.kind.api_version
            mirror.follow(self._budgets)

    def _observed(self, seen: Situation, part: Situation, mirror: Mirror) -> Snapshot:
        moved = self._machines.take(mirror.since(NODE, self._machines.upto))
        moved |= self._ours.take(mirror.since(POD, self._ours.upto))
        moved |= self._theirs.take(mirror.since(self._others, self._theirs.upto))
        budgets = mirror.of(self._budgets).values() if self._budgets else ()
        versions = sorted(item["metadata"]["resourceVersion"] for item in budgets)
        self._budgets_seen = hashlib.sha256(" ".join(versions).encode()).hexdigest()
        live = Seen(
            nodes=self._machines.objects.values(),
            pods=chain(self._ours.objects.values(), self._theirs.objects.values()),
            budgets=budgets,
            claims=self._claims.of(self._theirs.objects.values()),
            refusals=self._evictor.refusals,
            proofs=self._proofs,
        )
        return self._sight.observe(self._wanted(seen, part), live, moved, now=time.time(), previous=self.previous)

    def _wanted(self, seen: Situation, part: Situation) -> Mapping[str, Declared]:
        """Return the driver that every node is to have, which changes with manifests and observed generations.

        A node that left the inventory is to have none.

        Args:
            part: Of the nodes that have changed.
        """
        (desired, known, own), unobserved = self._own, unobserved_groups(seen)
        if not own or desired is not seen.desired.get(DRIVER) or known != unobserved:
            own = declared_of(seen)
        without = without_driver(seen) if self._without or without_driver(part) else {}
        if own is not self._own[2] or without != self._without:
            self._declared = own | without
        self._own, self._without = (seen.desired.get(DRIVER), unobserved, own), without
        return self._declared

    @property
    def goes_back(self) -> bool:
        """Whether the fleet is to go back to what it had before."""
        return any(isinstance(action, RollBack) for action in self.decision.actions)

    def of_drivers(self, raw: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """Return the states of those drivers that the rollout looks after; see `rollout_states.of_driver`."""
        drivers = ((key, state) for key, state in raw.items() if key[0] == DRIVER and key[1] in self._nodes)
        return {key: of_driver(self._nodes[key[1]], word(self.decision, key[1]), state) for key, state in drivers}

    def of_leaving(self, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """Return the states of nodes that leave, but for those of which the API server has refused something."""
        leaving = ((state, self._nodes.get(key[1])) for key, state in settled.items() if state.state is State.LEAVING)
        return {
            _key(node): of_leaving(
                node, word(self.decision, node.name), state, self._policy.domains[node.domain].policy
            )
            for state, node in leaving
            if node is not None and node.is_leaving
        }

    def until_proven(self, settled: Mapping[Key, NodeState]) -> dict[Key, NodeState]:
        """See `rollout_states.until_proven`."""
        return rollout_states.until_proven(self.snapshot, self.decision, settled) if self.snapshot else {}

    def steps_of_nodes(self, settled: Mapping[Key, NodeState]) -> dict[str, str]:
        """Return how far nodes with a driver are, as their label says or is about to."""
        names = (name for component, name in settled if component == DRIVER and name in self._nodes)
        return {name: self._nodes[name].labels.get(upgrade.STATE, "") for name in names}

    def untimed(self) -> frozenset[Key]:
        """See `rollout_states.untimed`."""
        return self._untimed

    def steps(self, seen: Situation, rejected: Collection[Key]) -> Iterator[Step]:
        """Yield what is to be done now; nothing on a node of which the API server has refused something for good."""
        for action in self.decision.actions if self.snapshot else ():
            if isinstance(action, RollBack) or (key := _key(self._nodes[action.node])) in rejected:
                continue
            match action:
                case Move():
                    yield MoveNode(key, ObjectRef("v1", "Node", "", action.node), action)
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

    def move(self, step: MoveNode) -> Manifest:
        """Write state, memory and cordon of a node, and return it. Raises ConflictError if it was changed."""
        return self._cluster.merge(step.ref, patch_of(step.move))

    def evict(self, step: EvictPod) -> None:
        """Ask for an eviction; the node waits for a refusal to end. Raises NotFoundError, ConflictError: it is gone."""
        self._evictor.ask(step.ref, step.evict.uid)


def _name(node: Manifest) -> str:
    return str(node["metadata"]["name"])


def _key(node: Node) -> Key:
    """Return what a node's rollout is about: its driver, or the labels that it loses."""
    return (node_labels.NAME if node.is_leaving else DRIVER), node.name


def _take_off(key: Key, action: TakeOff, seen: Situation) -> Iterator[LabelNode]:
    facts = next((node for node in node_labels.leaving(seen.context) if node.name == action.node), None)
    if facts and (changes := taken_back(facts, seen)):
        yield LabelNode(key, ObjectRef("v1", "Node", "", facts.name), facts.uid, tuple(sorted(changes.items())))


def _restart(key: Key, action: Restart, seen: Situation) -> Iterator[LabelNode | RemovePod]:
    """Delete the driver pod, or have the node go over to another DaemonSet, which does that as well."""
    group = seen.node_labels.get(action.node, {}).get(labels.DRIVER_GROUP)
    facts = next((target.facts for target in seen.context.targets if target.name == action.node), None)
    if facts and group and facts.labels.get(labels.DRIVER_GROUP) != group:
        yield LabelNode(key, ObjectRef("v1", "Node", "", action.node), facts.uid, ((labels.DRIVER_GROUP, group),))
        return
    pods = (pod for pod in seen.pods.get(key, ()) if pod["metadata"]["uid"] == action.uid)
    yield from (RemovePod(key, ref_of(pod), action.uid) for pod in pods if not (facts and _ends(pod, facts, seen)))


def _ends(pod: Manifest, node: NodeFacts, seen: Situation) -> bool:
    """Whether a controller ends a pod, since its DaemonSet does not select the node any more."""
    owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
    live = (each for ref, each in seen.observed.members.items() if ref.kind == "DaemonSet")
    return any(each["metadata"].get("uid") in owners and not selects(each, node.labels) for each in live)
