"""A plan is what the apply does: for random pairs of inventories, on hosts and in the cluster, no more and no less.

``GPU_PROVISION_TEST_PAIRS`` is the number of pairs (3), ``GPU_PROVISION_TEST_SEED`` the first seed (1). A seed is a
chain of up to a dozen inventories on a sandbox of its own: each is planned and applied on what the one before has left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import yaml

from tests.answers import Answer
from tests.promises.faults import faults
from tests.promises.inventories import FLEET, GIVEN, OPERANDS, chain, edits
from tests.promises.writes import Cluster, looked_at
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import World

PAIRS = int(os.environ.get("GPU_PROVISION_TEST_PAIRS", "3"))
FIRST = int(os.environ.get("GPU_PROVISION_TEST_SEED", "1"))
LENGTH = min(12, PAIRS)
SEEDS = range(FIRST, FIRST + -(-PAIRS // LENGTH))
Make = Callable[..., SandboxWorld]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_what_the_apply_does(seed: int, new_sandbox: Make) -> None:
    """Every write in the log of requests is in the plan, and the other way round; a second apply writes nothing."""
    world = new_sandbox(**FLEET)
    give(world)
    last: dict[str, Any] = {}
    for number, (inventory, hosts) in enumerate(chain(seed, LENGTH)):
        scope = () if hosts else ("--cluster-only",)
        declare(world, inventory)
        found = [*applied_as_planned(world, *scope), *second_apply(world, *scope)]
        told = "\n  ".join(["", *edits(last, inventory), "", *found])
        assert not found, f"pair {number} of GPU_PROVISION_TEST_SEED={seed}:{told}"
        last = inventory
    assert run(world, "plan").document["changes"] == []


def give(world: World) -> None:
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERANDS}})
    for name, data in GIVEN.items():
        metadata = {"name": name, "namespace": OPERANDS}
        world.submit({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def declare(world: World, inventory: dict[str, Any]) -> None:
    cluster = {"sandbox": str(world.fleet)}
    world.inventory.write_text(yaml.safe_dump({"name": world.name, "cluster": cluster, **inventory}, sort_keys=False))


def applied_as_planned(world: World, *scope: str) -> Iterator[str]:
    """Plan, apply, and yield what differs between the two."""
    plan = run(world, "plan", *scope)
    before, begin = read_cluster(world), len(world.writes())
    done = run(world, "apply", "--yes", "--timeout", "60", *scope)
    yield from problems(done)
    world.until(lambda: is_rolled(world.json("daemonsets", "-A")["items"], world.json("pods", "-A")["items"]))
    yield from faults(plan.document, done.document, world.writes()[begin:], before, read_cluster(world))


def second_apply(world: World, *scope: str) -> Iterator[str]:
    """Apply once more, and yield what is done."""
    begin = len(world.writes())
    done = run(world, "apply", "--yes", "--timeout", "60", *scope)
    yield from problems(done)
    yield from (f"second apply: {each.verb} {each.path}" for each in world.writes()[begin:])
    yield from (
        f"second apply: {host['host']}: {host['changes']}" for host in done.document["hosts"] if host["changes"]
    )


def problems(done: Answer) -> Iterator[str]:
    """Yield why a command failed; on this fleet everything goes well."""
    if done.code:
        yield from (f"{each['code']} {each['what']}: {each['evidence']}" for each in done.document["errors"])


def run(world: World, command: str, *options: str) -> Answer:
    return world.cli(command, "--json", *options, "-i", str(world.inventory))


def is_rolled(daemonsets: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]]) -> bool:
    """Return whether all pods are current: a run does not wait for nodes that are not its own.

    A DaemonSet's status does not count pods on nodes whose taints its new template does not tolerate.
    """
    by_itself = [each for each in daemonsets if each["spec"]["updateStrategy"]["type"] != "OnDelete"]
    wanted = {each["metadata"]["uid"]: digest_of(each["spec"]["template"]) for each in by_itself}
    owned = ((pod, pod["metadata"].get("ownerReferences", ({},))[0].get("uid")) for pod in pods)
    are_current = (digest_of(pod) == wanted[owner] for pod, owner in owned if owner in wanted)
    return all(map(is_updated, by_itself)) and all(are_current)


def digest_of(made: dict[str, Any]) -> str:
    return str(made["metadata"]["labels"].get("gpu-provision.io/digest", ""))


def is_updated(daemonset: dict[str, Any]) -> bool:
    """Return whether the status of a DaemonSet counts no pod of an earlier template."""
    status = daemonset.get("status") or {}
    is_observed = status.get("observedGeneration") == daemonset["metadata"]["generation"]
    return is_observed and status.get("updatedNumberScheduled", 0) == status.get("desiredNumberScheduled", 0)


def read_cluster(world: World) -> Cluster:
    """Return nodes, the pods of the stack, its record, and where pods were scheduled."""
    pods = world.json("pods", "-A", "-l", "gpu-provision.io/stack")["items"]
    found = world.json("configmaps", "-n", "gpu-operator-resources")["items"]
    record = next((each["data"] for each in found if each["metadata"]["name"] == "sandbox-validations"), {})
    events = world.json("events", "-n", OPERANDS)["items"]
    return looked_at(world.json("nodes")["items"], pods, record, events)
