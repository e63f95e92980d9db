"""Judging again only what has changed has the same result as judging everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpu_provision.diagnostics.pods import node_of
from gpu_provision.kube.observe import node_facts
from gpu_provision.model.cluster import Manifest, NodeFacts
from gpu_provision.model.progress import NodeState
from gpu_provision.model.specs import StartupTaintSpec
from gpu_provision.planning.plan import plan_of
from gpu_provision.planning.pod_metadata import pod_changes
from gpu_provision.planning.prepare import prepare_of_nodes
from gpu_provision.planning.states import Desired, Key, Situation, states
from gpu_provision.reconcile import manifests as manifests_module
from gpu_provision.reconcile import situation as view_module
from gpu_provision.reconcile import states as standing_module
from gpu_provision.reconcile.actions import next_steps
from gpu_provision.reconcile.states import Settler, Standing
from tests.planning.builders import terminating
from tests.reconcile.live_fleet import Fleet

REQUIRES = {
    "prerequisites": (),
    "nfd": ("prerequisites",),
    "node_labels": ("nfd",),
    "driver": ("node_labels",),
    "toolkit": ("driver",),
}
TAINTED = {"startup_taint": StartupTaintSpec(enabled=True)}


def settler(seen: Situation) -> Settler:
    """Return one with the deadlines of a run."""
    return Settler(requires={name: REQUIRES.get(name, ("toolkit",)) for name in seen.desired}, timeouts={})


@pytest.mark.parametrize(("seed", "specs"), [(0, {}), (1, {}), (2, TAINTED), (3, TAINTED)])
def test_whatever_has_changed_is_judged(seed: int, specs: dict[str, Any]) -> None:
    """Pods, nodes, labels, results of validations, objects, and what is wanted; also the next steps, and the plan."""
    fleet, standing, stepping = Fleet(seed, more=1, **specs), Standing(), frozenset[str]()
    clock, thorough = settler(fleet.situation), settler(fleet.situation)
    for now in range(0, 180, 2):
        look, whole = fleet.view.look(fleet.mirror, fleet.others, fleet.stack.passed), fleet.situation
        assert look.seen == whole
        raw, names = standing.take(look)
        assert standing.all == states(whole)
        assert list(standing.all) == list(states(whole)), "in dependency order"
        if names is None:
            clock.settle(standing.all, now)
        else:
            _, names = clock.settle_some(raw, names, now)
        assert clock.states == thorough.settle(states(whole), now)
        where = look.seen if names is None else fleet.view.part(names | stepping)
        steps = set(next_steps(where, clock.states))
        assert steps == set(next_steps(whole, clock.states))
        stepping = frozenset(step.key[1] for step in steps)
        relabelled = {node_of(whole.observed.pods[change.ref]) for change in pod_changes(whole)}
        todo = sorted(stepping | relabelled | standing.unfinished)
        part = plan_of(look.seen, standing.of(todo, look.seen), part=fleet.view.part(todo))
        assert part == plan_of(whole, states(whole))
        for _ in range(fleet.fate.randrange(4)):
            fleet.change()


class Work:
    """Counts what looks work out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        self.states = self.manifests = self.nodes = 0

        def judge(part: Situation, known: Mapping[str, Mapping[str, NodeState]]) -> dict[Key, NodeState]:
            found = states(part, known)
            self.states += len(found) - sum(map(len, known.values()))
            return found

        def make(*arguments: Any) -> Desired:
            made = prepare_of_nodes(*arguments)
            self.manifests += sum(map(len, made.values()))
            return made

        def read(node: Manifest) -> NodeFacts:
            self.nodes += 1
            return node_facts(node)

        def make_all(*_: object) -> Any:
            raise AssertionError

        monkeypatch.setattr(standing_module, "states", judge)
        monkeypatch.setattr(view_module, "node_facts", read)
        monkeypatch.setattr(manifests_module, "prepare_of_nodes", make)
        monkeypatch.setattr(manifests_module, "prepare", make_all)


def test_a_look_costs_what_has_changed_at_any_size() -> None:
    """Nodes read, manifests made, states judged and settled after one event of a node and one of a pod."""

    def counts(more: int) -> tuple[int, ...]:
        fleet, standing = Fleet(more=more), Standing()
        clock = settler(fleet.situation)
        standing.take(fleet.view.look(fleet.mirror, fleet.others, fleet.stack.passed))
        clock.settle(standing.all, 0)
        with pytest.MonkeyPatch.context() as patching:
            work = Work(patching)
            fleet.relabel("t4-1", {"zone": "b"})
            fleet.show(terminating(fleet.stack.pod("driver", "t4-2")))
            look = fleet.view.look(fleet.mirror, fleet.others, fleet.stack.passed)
            settled, names = clock.settle_some(*standing.take(look), 1)  # type: ignore[arg-type]
            assert look.names == names == frozenset({"t4-1", "t4-2"})
            return work.nodes, work.manifests, work.states, len(settled)

    small, large = counts(more=2), counts(more=100)
    assert small == large
    assert small[0] == 1
