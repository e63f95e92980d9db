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
from gpu_provision.reconcile import cluster_state
from tests import data_file
from tests.crowd import Crowd
from tests.request_counts import count_requests

OLD, NEW = "580.126.20", "580.178.04"
SMALL, LARGE = 5, 200

Budget = Mapping[str, float]
BUDGETS: Mapping[str, Budget] = data_file.document(Path(__file__).with_suffix(".yaml").read_text())
OF_A_NODE = frozenset({"create pods", "delete pods", "get pods/log", "patch nodes"})


@dataclass(frozen=True)
class Cost:
    requests: Counter[str]
    objects: int  # sent by the API server, each of which is decoded
    states: int  # computations of the states of one node

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
        for size in (SMALL, LARGE):
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
                requests = count_requests(crowd.requests()[before[0] :])
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

    for module in (planned_states, cluster_state):
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


@pytest.mark.parametrize(
    ("run", "size"),
    [("install", SMALL), ("install", LARGE), ("nothing", SMALL), ("nothing", LARGE), ("rollout", SMALL)],
)
def test_a_run_stays_within_its_requests(runs: Runs, run: str, size: int) -> None:
    """The budget of a node is the same at each size; the rollout is of five nodes, two at a time."""
    assert runs[run, size].beyond(BUDGETS[run], size) == {}


def test_the_work_for_a_node_does_not_grow_with_the_fleet(runs: Runs) -> None:
    """Each event is decoded once; a node's states are computed when it has changed, and several changes may share one.

    In a large fleet the share of a node in what all have in common is smaller.
    """
    small, large = runs["install", SMALL], runs["install", LARGE]
    assert large.objects / LARGE <= small.objects / SMALL
    assert 0 < large.states / LARGE <= small.states / SMALL * 2 + 5
