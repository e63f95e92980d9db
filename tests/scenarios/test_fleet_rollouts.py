"""Upgrades of the driver on a fleet: a hundred nodes on the sandbox, twelve on a real control plane.

Each test goes on where the last one ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest

from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.trim import keep_all
from gpu_provision.model.cluster import Kind
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.progress import State
from gpu_provision.planning.upgrades import DRIVER_KEPT
from gpu_provision.rollout import states
from tests.rollout.rules import ACTIVE
from tests.scenarios.conftest import Open
from tests.scenarios.test_rollouts import assert_over, nodes, of_drivers, roll_out, serve, uids
from tests.scenarios.world import USES_GPU, World

pytestmark = pytest.mark.real

PARALLEL, MOST_AWAY = 10, "25%"
FOREIGN, HELD, BROKEN, SKIPPED = "gpu-002", "gpu-003", "gpu-005", "gpu-007"
REPLICAS = 8


@pytest.fixture(scope="module")
def fleet(opening: Open, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A fleet with a driver, work that uses GPUs, and a budget for it."""
    count = {"sandbox": 100, "real": 12}[server]
    control = {"name": "control-1", "roles": ["control-plane"]}
    gpus = {"name": "gpu-{:03}", "count": count, "gpu": {"model": "Tesla T4", "count": 1}}
    with opening(tmp_path_factory.mktemp("fleet"), nodes=[control, gpus]) as made:
        made.settings(nodes=[{"name": f"gpu-{number:03}", "pool": "t4"} for number in range(1, count + 1)])
        made.apply("--cluster-only", check=True)
        serve(made, replicas=REPLICAS)
        yield made


class Onlooker:
    """Follows the nodes of a cluster, and remembers how many were away at a time."""

    def __init__(self, cluster: KubeClient) -> None:
        listing = cluster.list(Kind("v1", "Node"))
        self._cluster, self._version, self._over = cluster, listing.resource_version, threading.Event()
        self._nodes: dict[str, Mapping[str, Any]] = {node["metadata"]["name"]: node for node in listing.items}
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.most_at_work = self.most_away = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _follow(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(ProvisionError):
                for event in self._cluster.watch(Kind("v1", "Node"), self._version):
                    self._version = event.version
                    if event.type != "BOOKMARK":
                        node = keep_all(Kind("v1", "Node"), event.object)
                        self._nodes[node["metadata"]["name"]] = node
                        self._count()

    def _count(self) -> None:
        at_work = sum(_state(node) in ACTIVE for node in self._nodes.values())
        away = sum(bool(node["spec"].get("unschedulable")) for node in self._nodes.values())
        self.most_at_work, self.most_away = max(self.most_at_work, at_work), max(self.most_away, away)


def _state(node: Mapping[str, Any]) -> states.UpgradeState:
    return states.parse_state((node["metadata"].get("labels") or {}).get(states.STATE, ""))


def test_blockers_are_named_and_all_other_nodes_upgrade(fleet: World) -> None:
    """A cordon of another owner, a pod that cannot be evicted, a driver that does not start, a node that is left out.

    Never more nodes are at work, or away, than the policy says; GPU work stays within its budget.
    """
    fleet.api.cordon(FOREIGN)
    fleet.api.label("node", SKIPPED, labels={states.SKIP: "true"})
    fleet.run_pod("notebook", USES_GPU, nodeName=HELD)
    fleet.fault({"fault": "crash-loop", "node": BROKEN, "image": "driver", "message": "no PCI bus"})
    fleet.settings(rollout={"stop_after_failures": 99})
    policy = {"max_parallel_upgrades": PARALLEL, "max_unavailable": MOST_AWAY}
    before = uids(fleet)
    with Onlooker(connect(str(fleet.kubeconfig))) as seen:
        found = of_drivers(roll_out(fleet, version="580.126.20", timeout=40, upgrade_policy=policy))
    count = len(found)
    most = -(-count * 25 // 100)
    assert 0 < seen.most_at_work <= min(PARALLEL, most)
    assert seen.most_away <= most
    odd = {name: told for name, told in found.items() if told != (State.READY, "")}
    assert odd.keys() == {HELD, BROKEN, SKIPPED}
    assert odd[BROKEN][0] is State.FAILED
    assert odd[HELD][0] is State.BLOCKED
    assert "default/notebook" in odd[HELD][1]
    assert DRIVER_KEPT in odd[SKIPPED][1]
    replaced = {name for name, uid in uids(fleet).items() if uid != before[name]}
    assert replaced == found.keys() - {HELD, SKIPPED}
    cordoned = {name for name, node in nodes(fleet).items() if node["spec"].get("unschedulable")}
    assert cordoned == {FOREIGN, BROKEN}


def test_the_next_run_finishes_once_blockers_are_gone(fleet: World) -> None:
    """Just those nodes whose driver is not as wanted are touched."""
    fleet.fault()
    fleet.api.delete("pod", "notebook", wait=False, gracePeriodSeconds=0)
    fleet.api.label("node", SKIPPED, labels={states.SKIP: None})
    before = uids(fleet)
    roll_out(fleet, timeout=300)
    assert_over(fleet, "580.126.20", cordoned=FOREIGN)
    replaced = {name for name, uid in uids(fleet).items() if uid != before[name]}
    assert {HELD, SKIPPED} <= replaced <= {HELD, SKIPPED, BROKEN}
