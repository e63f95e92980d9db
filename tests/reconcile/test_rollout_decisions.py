"""Asking again only nodes that do not just wait has the same answers as asking all nodes; so has telling again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given

from gpu_provision.model.progress import NodeState, State
from gpu_provision.planning import upgrades
from gpu_provision.reconcile.rollout_states import (
    Turns,
    differing,
    of_driver,
    replaced,
    word,
)
from gpu_provision.rollout.snapshot import Domain, DriverPod, Node, Policy, Snapshot, Wanted
from gpu_provision.rollout.state_machine import Decision, Phase, decide
from gpu_provision.rollout.states import SINCE, STATE, TARGET, UpgradeState
from tests.rollout.fleets import Mishap, befall, machines, mishaps, policies
from tests.rollout.test_properties import CASES
from tests.rollout.world import Machine, World

OUTDATED = NodeState(component="driver", node="", state=State.PROGRESSING, reason=upgrades.OUTDATED)


class Remembering:
    """Decides whatever a world decides once more, with turns that are remembered."""

    def __init__(self, world: World) -> None:
        """Look at every decision."""
        self.world, self.turns, self.nodes = world, Turns(), dict[str, Node]()
        self.decision, self.told = Decision(phase=Phase.DONE), dict[str, NodeState]()
        world.observers.append(self.judge)

    def judge(self, seen: Snapshot, decision: Decision) -> None:
        """Show nodes that have not changed as the very same, as a run does."""
        nodes, before = self.nodes, self.decision
        self.nodes, self.decision = {node.name: self._same(node) for node in seen.nodes}, decision
        again = replace(seen, nodes=tuple(self.nodes.values()))
        assert decide(again, self.world.policy, self.world.writing, self.turns) == decision
        whole = {node.name: of_driver(node, word(decision, node.name), OUTDATED) for node in again.nodes}
        changed = differing(replaced(nodes, self.nodes), self.nodes, before, decision)
        self.told = {name: whole[name] if name in changed else self.told[name] for name in whole}
        assert self.told == whole

    def _same(self, node: Node) -> Node:
        before = self.nodes.get(node.name)
        return before if before is not None and before == node else node


@CASES
@given(machines(), policies, mishaps)
def test_turns_that_are_remembered_are_as_if_taken_anew(
    fleet: list[Machine], policy: Policy, befalls: list[Mishap]
) -> None:
    """Deadlines pass, canaries soak, and nodes change under us."""
    world = World(fleet, policy)
    Remembering(world)
    for step in range(26):
        for mishap in (mishap for mishap in befalls if mishap.step == step):
            befall(world, mishap)
        world.step(slow={step % 3})
    world.run()


def node(state: UpgradeState, **fields: Any) -> Node:
    """Return a node in a state, with a driver that is not ready."""
    labels, notes = {STATE: state.value}, {SINCE: "0", TARGET: "new"}
    driver = DriverPod(uid="driver-1", digest="new", is_ready=False)
    wanted = Wanted("new")
    return Node(name="t4-1", domain="d", wanted=wanted, labels=labels, annotations=notes, driver=driver, **fields)


def test_who_only_waits_is_not_asked_again() -> None:
    """The very same turn comes back, until the node is another value."""
    turns, domain, starting = Turns(), Domain(), node(UpgradeState.POD_RESTART_REQUIRED, is_cordoned=True)
    waits = turns(starting, domain, 1.0)
    assert turns(starting, domain, 2.0) is waits
    assert turns(replace(starting), domain, 3.0) is not waits


def test_a_deadline_is_not_slept_through() -> None:
    """A driver that does not become ready fails its node in time."""
    turns, domain = Turns(), Domain(restart_seconds=60)
    starting = node(UpgradeState.POD_RESTART_REQUIRED, is_cordoned=True)
    assert not turns(starting, domain, 1.0).actions
    assert turns(starting, domain, 61.0).actions


def test_a_canary_that_begins_to_soak_is_asked() -> None:
    """Nothing but its duty has changed."""
    turns, domain, done = Turns(), Domain(), node(UpgradeState.DONE)
    assert not turns(done, domain, 1.0).actions
    assert turns(done, domain, 2.0, is_soaking=True).actions
