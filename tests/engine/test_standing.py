"""Judging again only what has changed has the same result as judging everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_provision.components.labels import DIGEST
from gpu_provision.engine.groups import Groups
from gpu_provision.engine.standing import Standing
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.planning.prepare import prepare
from gpu_provision.planning.states import Situation, key_of, situation, states
from tests.components.builders import with_spec
from tests.planning.builders import (
    GPU_NODES,
    Stack,
    outdated,
    restarted,
    terminating,
    validation_pod,
    with_node,
    without_node,
)

PHASES = ["Pending", "Failed", "Succeeded"]
RESTARTED = restarted(Stack().pod("driver", "t4-1"), "2026-11-21T08:00:00Z")["status"]


class Cluster:
    """A stack to which things happen, seen as a run sees it."""

    def __init__(self, seed: int) -> None:
        """Begin with everything as declared."""
        self.stack, self.fate, self.pods = Stack(), random.Random(seed), Groups(key_of)  # noqa: S311 - no secrets here
        self.facts = self.stack.context.facts

    def change(self) -> None:
        """Let one thing happen, or be as it was again."""
        node = self.fate.choice(GPU_NODES)
        pod = self.fate.choice(list(self.stack.pods.values()))
        happenings: list[Callable[[], object]] = [
            lambda: self.stack.put(self.fate.choice([outdated, terminating])(pod)),
            lambda: self.stack.put({**pod, "status": {"phase": "Pending"}}),
            lambda: self.stack.put({**pod, "status": RESTARTED}),
            lambda: self.stack.remove(pod) if len(self.stack.pods) > 9 else None,
            lambda: self.stack.passed.pop(("device_plugin_validation", node), None),
            lambda: self.stack.put(
                validation_pod(self.stack.validations()[0], self.fate.choice(["Failed", "Succeeded"]))
            ),
            lambda: self.see(with_node(self.facts, node, ready=self.fate.random() < 0.5)),
            lambda: self.see(with_node(self.facts, node, gpus_allocatable=self.fate.randrange(9))),
            lambda: self.see(with_node(self.facts, node, labels={"nvidia.com/gpu.deploy.driver": "false"})),
            lambda: self.see(without_node(self.facts, node)),
            lambda: self.see(Stack().context.facts),
            lambda: self.see(self.facts, without=node),
            lambda: self.see(self.facts, component="driver", version=self.fate.choice(["580.126.20", "580.178.04"])),
            lambda: self.see(self.facts, component="gfd", version=self.fate.choice(["v0.19.0", "v0.20.0"])),
            lambda: self.stack.members.pop(self.fate.choice(list(self.stack.members)), None),
        ]
        self.fate.choice(happenings)()

    def see(self, facts: ClusterFacts, component: str = "", version: str = "", without: str = "") -> None:
        """Show other nodes, or want another version, or one node less."""
        left = tuple(node for node in self.stack.inventory.nodes if node.name != without)
        self.facts, chosen = facts, replace(self.stack.inventory, nodes=left)
        if component:
            image = getattr(chosen.specs, component).image
            chosen = with_spec(component, image=replace(image, version=version))
        self.stack.context, self.stack.desired = prepare(chosen, facts)

    def situation(self) -> Situation:
        """Return what a run sees: only the pods that have changed are others."""
        observed = self.stack.observed
        self.pods.update(observed.pods.values())
        return situation(self.stack.context, self.stack.desired, observed, self.pods.members)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_has_changed_is_judged(seed: int) -> None:
    """Pods, nodes, labels, results of validations, objects, and what is wanted."""
    cluster, standing = Cluster(seed), Standing()
    for _ in range(60):
        seen = cluster.situation()
        assert standing.states(seen) == states(seen)
        assert list(standing.states(seen)) == list(states(seen)), "in dependency order"
        cluster.change()


def test_a_node_of_which_nothing_has_changed_is_not_judged_anew() -> None:
    """Its states are the very same."""
    cluster, standing = Cluster(0), Standing()
    before = standing.states(cluster.situation())
    pod = cluster.stack.pod("driver", "t4-1")
    cluster.stack.put({**pod, "metadata": {**pod["metadata"], "labels": {**pod["metadata"]["labels"], DIGEST: "x"}}})
    after = standing.states(cluster.situation())
    assert after["driver", "t4-2"] is before["driver", "t4-2"]
    assert after["driver", "t4-1"] is not before["driver", "t4-1"]
