"""What runs cost: requests by verb and kind within a budget, and nothing of a node that grows with the fleet.

Counts, never times: ``make bench`` measures those. The nodes are those of tests/crowd.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpu_provision
from gpu_provision.planning import states as planned_states
from gpu_provision.reconcile import observer
from tests.crowd import Crowd
from tests.request_counts import by_verb_and_kind

OLD, NEW = "580.126.20", "580.178.04"
SMALL, MEDIUM, LARGE = 5, 50, 200

# Requests of a run by verb, and those of a node by verb and kind. Lower a number when the tool needs less. Renewals of
# the lock's lease go by time and are left out; a busy machine may repeat a few requests of a node.
Budget = Mapping[str, float]
INSTALL: Budget = {  # goal: 70 in all, and 1.1 a node
    "create": 2,
    "deletecollection": 1,
    "get": 2,
    "list": 6,
    "patch": 54,
    "watch": 5,
    "create pods": 1.1,
    "patch nodes": 1.1,
}
NOTHING: Budget = {"get": 5, "list": 14}  # goal: as many at every size, but for pages
ROLLOUT: Budget = {  # goal: 6 writes a node
    "create": 3,
    "deletecollection": 1,
    "get": 8,
    "list": 19,
    "patch": 4,
    "try": 1,
    "watch": 7,
    "create pods": 1,
    "delete pods": 1,
    "patch nodes": 4,
}
OF_A_NODE = frozenset({"create pods", "delete pods", "get pods/log", "patch nodes"})


@dataclass(frozen=True)
class Cost:
    """Counts of one run.

    Attributes:
        requests: By verb and kind.
        objects: Sent by the API server, each of which is decoded.
        states: How often the states of one node were computed.
    """

    requests: Counter[str]
    objects: int
    states: int

    def beyond(self, budget: Budget, nodes: int) -> dict[str, float]:
        spent: Counter[str] = Counter()
        for name, number in self.requests.items():
            if name == "update leases":
                continue
            spent[name if name in OF_A_NODE else name.partition(" ")[0]] += number
        each = {name: number / nodes if name in OF_A_NODE else number for name, number in spent.items()}
        return {name: number for name, number in each.items() if number > budget.get(name, 0)}


Runs = Mapping[tuple[str, int], Cost]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Costs by run and number of nodes: an install at each size, the other runs at the small one."""
    with pytest.MonkeyPatch.context() as patch:
        states = _counted(patch)
        found = {}
        for size in (SMALL, MEDIUM, LARGE):
            folder = tmp_path_factory.mktemp("crowd")
            patch.setenv("XDG_STATE_HOME", str(folder))
            found |= {(name, size): cost for name, cost in _costs(folder, size, states)}
        yield found


def _costs(folder: Path, size: int, states: list[None]) -> Iterator[tuple[str, Cost]]:
    crowd = Crowd(folder)
    try:
        crowd.join(*(f"gpu-{number:04}" for number in range(1, size + 1)))
        for name, version in (("install", OLD), ("nothing", OLD), ("rollout", NEW)):
            if name != "rollout" or size == SMALL:
                before = len(crowd.requests()), crowd.served, len(states)
                gpu_provision.apply(gpu_provision.load(_inventory(crowd, version)), cluster_only=True)
                requests = by_verb_and_kind(crowd.requests()[before[0] :])
                yield name, Cost(requests, crowd.served - before[1], len(states) - before[2])
    finally:
        crowd.close()


def _counted(patch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each computation of a node's states."""
    calls: list[None] = []
    compute: Callable[..., Any] = planned_states.evaluate_node

    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return compute(*arguments)

    for module in (planned_states, observer):
        patch.setattr(module, "evaluate_node", counted)
    return calls


def _inventory(crowd: Crowd, version: str) -> Path:
    document = {
        "name": "crowd",
        "cluster": {"kubeconfig": str(crowd.kubeconfig)},
        "driver": {"version": version, "upgrade_policy": {"max_parallel_upgrades": 2, "max_unavailable": "100%"}},
        "pools": {"t4": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "gpu"}}},
    }
    file = crowd.folder / "crowd.yaml"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize("size", [SMALL, MEDIUM, LARGE])
def test_an_install_stays_within_its_requests(runs: Runs, size: int) -> None:
    """The budget of a node is the same at each size."""
    assert runs["install", size].beyond(INSTALL, size) == {}


@pytest.mark.parametrize("size", [SMALL, MEDIUM, LARGE])
def test_nothing_to_do_costs_as_many_requests_at_each_size(runs: Runs, size: int) -> None:
    """The pods of 200 nodes take a second page."""
    pages = 1 if size == LARGE else 0
    assert runs["nothing", size].beyond(NOTHING, size) in ({}, {"list": NOTHING["list"] + pages})


def test_a_rollout_stays_within_its_requests(runs: Runs) -> None:
    """Five nodes, two at a time."""
    assert runs["rollout", SMALL].beyond(ROLLOUT, SMALL) == {}


def _of_one_more(runs: Runs, count: Callable[[Cost], int]) -> tuple[float, float]:
    small, medium, large = (count(runs["install", size]) for size in (SMALL, MEDIUM, LARGE))
    return (medium - small) / (MEDIUM - SMALL), (large - medium) / (LARGE - MEDIUM)


def test_requests_of_a_node_do_not_grow_with_the_fleet(runs: Runs) -> None:
    """One more node costs a large fleet what it costs a small one."""
    small, large = _of_one_more(runs, lambda cost: cost.requests.total())
    assert large <= small * 1.1 + 0.1


def test_objects_of_a_node_do_not_grow_with_the_fleet(runs: Runs) -> None:
    """Each event is decoded once, whatever the number of nodes."""
    small, large = _of_one_more(runs, lambda cost: cost.objects)
    assert large <= small * 1.1 + 0.1


def test_states_of_a_node_do_not_grow_with_the_fleet(runs: Runs) -> None:
    """A node's states are computed when the node has changed; several changes may share one computation."""
    small, large = (runs["install", size].states / size for size in (SMALL, LARGE))
    assert 0 < large <= small * 2 + 5
