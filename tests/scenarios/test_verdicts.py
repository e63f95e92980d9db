"""No node is ever ready without a vectorAdd that ran since: sequences of edits, kills, reboots and deletions.

Each sequence goes on where the one before it ended. GPU_PROVISION_TEST_SEQUENCES says how many there are.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import load
from gpu_provision.kube.client import connect
from gpu_provision.model.progress import State
from gpu_provision.reconcile.plan import read_and_plan
from gpu_provision.reconcile.status import status
from tests.scenarios.on_sandbox import SandboxWorld, sandbox_world
from tests.scenarios.test_rollouts import Killed, Mortal, applied
from tests.scenarios.witness import OPERANDS, Witness

SEQUENCES = int(os.environ.get("GPU_PROVISION_TEST_SEQUENCES", "3"))
NODES = {"t4-1": "t4", "t4-2": "t4", "h100-1": "h100"}
VERSIONS = {
    "driver": ("580.126.20", "595.91.07"),
    "toolkit": ("v1.19.0", "v1.20.0"),
    "device_plugin": ("v0.19.3", "v0.20.0"),
}
APPS = ("nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset")
OFF = {name: {"enabled": False} for name in ("gfd", "dcgm_exporter")}
ALL_AT_ONCE = {"max_parallel_upgrades": 0, "max_unavailable": "100%"}
_ROUNDS, _MOST_WRITES, _MOST_APPLIES, _ENDLESS = 2, 12, 3, 10_000
_KUBELETS = ("kubernetes.io/", "beta.kubernetes.io/", "node.kubernetes.io/")


class Sequence:
    """Disturbs a cluster as a seed says, and writes down what it did."""

    def __init__(self, world: SandboxWorld, seed: int) -> None:
        self.world, self.fate = world, random.Random(seed)  # noqa: S311 - no secrets here
        self.log: list[str] = []

    def disturb(self) -> None:
        """Let one thing happen, and wait until it has."""
        happens: Callable[[], str] = self.fate.choice(
            [self.move, self.move, self.move, self.edit, self.reboot, self.delete_pod, self.restart, self.reregister]
        )
        self.log.append(f"{happens.__name__} {happens()}")

    def _node(self) -> str:
        return self.fate.choice(sorted(NODES))

    def move(self) -> str:
        """Take a node out of the inventory, put it back, or have it in the pool with a driver of its own."""
        name = self._node()
        declared = self.declared()
        places = {"nowhere", NODES[name], "own"} if NODES[name] == "t4" else {"nowhere", NODES[name]}
        pool = self.fate.choice(sorted(places - {declared.pop(name, "nowhere")}))
        kept = declared if pool == "nowhere" else {**declared, name: pool}
        self.world.settings(nodes=[{"name": node, "pool": place} for node, place in kept.items()])
        return f"{name} to {pool}"

    def declared(self) -> dict[str, str]:
        return {node.name: node.pool for node in load(self.world.inventory).nodes}

    def edit(self) -> str:
        component = self.fate.choice(sorted(VERSIONS))
        before = yaml.safe_load(self.world.inventory.read_text()).get(component, {}).get("version")
        version = next(each for each in VERSIONS[component] if each != before)
        self.world.settings(**{component: {"version": version}})
        return f"{component} {version}"

    def reboot(self) -> str:
        name = self._node()
        self.world.reboot(name)
        return name

    def delete_pod(self) -> str:
        name, app = self._node(), self.fate.choice(APPS)
        for pod in _pods(self.world, app, name):
            self.world.api.delete("pod", "-n", OPERANDS, pod["metadata"]["name"])
        return f"{app} on {name}"

    def restart(self) -> str:
        name, world = self._node(), self.world
        before = _restarts(world, name)
        if before:
            world.fault({"fault": "crash-loop", "node": name, "image": "/driver:"})
            world.until(lambda: _restarts(world, name) != before)
            world.fault()
        return f"{name}: {before}"

    def reregister(self) -> str:
        """Delete a Node and let its kubelet make another one."""
        name = self._node()
        node = self.world.json("node", name)
        self.world.api.delete("node", name)
        labels = {key: value for key, value in node["metadata"]["labels"].items() if key.startswith(_KUBELETS)}
        another = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": node["status"]}
        self.world.api.create([{"apiVersion": "v1", "kind": "Node", **another}], manager="kubelet")
        return name

    def apply(self, writes: int) -> bool:
        """Apply, and be killed after so many writes; return whether it came to its end."""
        try:
            result = applied(self.world, Mortal(connect(str(self.world.kubeconfig)), writes))
        except Killed:
            self.log.append(f"killed after {writes} writes")
            return False
        self.log.append("applied")
        return all(state.state is State.READY for state in result.states)


def _pods(world: SandboxWorld, app: str, node: str) -> list[dict[str, Any]]:
    found = world.pods(app)
    return [pod for pod in found if pod["spec"].get("nodeName") == node]


def _restarts(world: SandboxWorld, node: str) -> list[int]:
    statuses = [pod.get("status", {}).get("containerStatuses", ()) for pod in _pods(world, APPS[0], node)]
    return [each["restartCount"] for found in statuses for each in found if "running" in each["state"]]


def ready(world: SandboxWorld) -> set[str]:
    cluster = connect(str(world.kubeconfig))
    reading = read_and_plan(cluster, load(world.inventory))
    ours = {target.name for target in reading.context.targets}
    return {each.node for each in status(cluster, reading).nodes if each.state is State.READY and each.node in ours}


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Watches a stack that is up."""
    folder = tmp_path_factory.mktemp("verdicts")
    with sandbox_world(folder, timings={"speed": 200}) as world, contextlib.closing(Witness(world)) as made:
        pools = {"own": {"gpu": {"model": "T4", "count": 1}, "os": "ubuntu22.04", "driver": {"version": "580.159.04"}}}
        world.settings(driver={"upgrade_policy": ALL_AT_ONCE}, pools={**_pools(world), **pools}, **OFF)
        made.watch()
        applied(world, connect(str(world.kubeconfig)))
        yield made


def _pools(world: SandboxWorld) -> dict[str, Any]:
    return dict(yaml.safe_load(world.inventory.read_text())["pools"])


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_no_node_is_ready_without_a_vector_add_since(witness: Witness, seed: int) -> None:
    """Neither before an apply, nor after one, nor after one that was killed; and in the end all are ready."""
    sequence = Sequence(witness.world, seed)
    for _ in range(_ROUNDS):
        for _ in range(sequence.fate.randint(1, 2)):
            sequence.disturb()
        assert_proven(witness, sequence)
        if sequence.fate.random() < 0.5:
            sequence.apply(sequence.fate.randint(1, _MOST_WRITES))
            assert_proven(witness, sequence)
        assert any(sequence.apply(_ENDLESS) for _ in range(_MOST_APPLIES)), sequence.log
        found = assert_proven(witness, sequence)
        missing = sequence.declared().keys() & NODES.keys() - found
        assert not missing, (missing, sequence.log)


def assert_proven(witness: Witness, sequence: Sequence) -> set[str]:
    """Ask for the status, and return the nodes that it shows as ready.

    A pod that a killed run has created may pass while the status is read: a node that lacks a proof before and after
    lacks it then.
    """
    before = unproven(witness)
    found = ready(witness.world)
    after = unproven(witness) if any(before[node] for node in found) else before
    lies = {node: after[node] for node in found if before[node] and after[node]}
    assert not lies, (lies, sequence.log)
    return found


def unproven(witness: Witness) -> dict[str, list[str]]:
    """Return what each node lacks a proof of, now."""
    witness.catch_up()
    return {node: list(witness.unproven(node)) for node in NODES}
