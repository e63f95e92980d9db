"""Runs that are killed, interrupted or not alone: the one that comes after them ends where an undisturbed run ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.conftest import Open
from tests.scenarios.world import OPERANDS, World, without

Make = Callable[..., World]

_KINDS = (
    "namespaces,nodes,runtimeclasses,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,"
    "serviceaccounts,configmaps,services,daemonsets,deployments"
)
_KILLS = 14

# The record, which says when.
_OTHERS = frozenset({"sandbox-validations", "real-validations"})

# What differs from one run to the next by nature; servers before 1.24 name a token in every service account.
_PASSING = frozenset(
    {
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "status",
        "secrets",
        "clusterIP",
        "clusterIPs",
        "nvidia.com/gfd.timestamp",
    }
)


@pytest.fixture
def undisturbed(opening: Open, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with opening(tmp_path_factory.mktemp("undisturbed")) as world:
        world.apply("--cluster-only", check=True)
        return end_state(world)


def end_state(world: World) -> dict[str, Any]:
    """Return what the tool made, and the labels of nodes, without what differs by nature."""
    found = {}
    for item in world.json(_KINDS, "-A")["items"]:
        metadata = item["metadata"]
        if item["kind"] == "Node":
            found[f"Node {metadata['name']}"] = without(metadata["labels"], _PASSING)
        elif "gpu-provision.io/component" in metadata.get("labels", {}) and metadata["name"] not in _OTHERS:
            found[f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"] = without(item, _PASSING)
    return found


@pytest.mark.real  # for the time it takes
def test_runs_killed_at_many_points_reach_the_same_state(new_world: Make, undisturbed: dict[str, Any]) -> None:
    """Each try is killed a few writes further on; what the last one completes equals an undisturbed run."""
    world = new_world(timings={"speed": 4})
    world.slow_down()
    killed_at = []
    for step in range(_KILLS):
        before = len(world.writes())
        run = world.start(*world.apply_command, "--cluster-only")
        world.until(lambda run=run, most=before + 1 + step: run.poll() is not None or len(world.writes()) >= most)
        ended = run.poll()
        run.kill()
        out, _ = run.communicate(timeout=300)
        if ended is not None:
            assert ended == 0, out
            break
        killed_at.append(len(world.writes()))
    assert len(killed_at) >= 5, killed_at  # sixteen objects are on their way at a time
    world.speed_up()
    last = world.apply("--cluster-only")
    assert last.code == 0, last.text
    assert end_state(world) == undisturbed
    writes = len(world.writes())
    assert world.apply("--cluster-only").code == 0
    assert len(world.writes()) == writes, "the run after it changes nothing"


def test_plan_and_status_work_after_a_killed_run(new_world: Make) -> None:
    world = new_world()
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > 20)
    run.kill()
    run.communicate(timeout=300)
    plan = world.plan()
    assert plan.code == 0, plan.text
    assert world.status()["nodes"]


def test_an_interrupted_run_gives_the_lock_back(new_world: Make) -> None:
    world = new_world(timings={"speed": 1})
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: any("/leases" in request.path and request.code < 300 for request in world.writes()))
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 130, out
    assert "Traceback" not in out
    lease = world.json("lease", world.name, "-n", OPERANDS)
    assert not lease["spec"].get("holderIdentity"), out
