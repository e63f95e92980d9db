"""A run that is killed at any moment, then run again, ends where an undisturbed run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.world import User, World

_KINDS = (
    "namespaces,nodes,runtimeclasses,customresourcedefinitions,clusterroles,clusterrolebindings,roles,rolebindings,"
    "serviceaccounts,configmaps,services,daemonsets,deployments"
)
_KILLS = 14

# ConfigMaps that are not the run's, and the record, which says when.
_OTHERS = frozenset({"kube-root-ca.crt", "sandbox-faults", "sandbox-validations"})

# What differs from one run to the next by nature.
_PASSING = frozenset(
    {
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "status",
        "clusterIP",
        "clusterIPs",
        "nvidia.com/gfd.timestamp",
    }
)


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The end state of a run that nobody kills."""
    world = World(tmp_path_factory.mktemp("undisturbed"))
    try:
        world.apply("--cluster-only", check=True)
        return end_state(world)
    finally:
        world.down()


def end_state(world: User) -> dict[str, Any]:
    """Every object that matters, without what differs by nature."""
    found = {}
    for item in json.loads(world.kubectl("get", _KINDS, "-A", "-o", "json").out)["items"]:
        metadata = item["metadata"]
        if item["kind"] == "ConfigMap" and metadata["name"] in _OTHERS:
            continue
        found[f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"] = _lasting(item)
    return found


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _PASSING}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def test_a_run_killed_at_many_points_ends_where_an_undisturbed_one_ends(
    new_world: Callable[..., World], undisturbed: dict[str, Any]
) -> None:
    """Each try is killed a few writes further on; what the last one completes equals an undisturbed run."""
    world = new_world()
    world.server_fault(latency={"seconds": 0.1, "agents": "gpu-provision"})  # so that a kill can fall between writes
    killed_at = []
    for step in range(_KILLS):
        before = len(world.writes())
        run = world.start(*world.apply_command, "--cluster-only")
        wanted = before + 1 + step
        world.until(lambda run=run, wanted=wanted: run.poll() is not None or len(world.writes()) >= wanted)
        ended = run.poll()
        run.kill()
        out, _ = run.communicate(timeout=10)
        if ended is not None:
            assert ended == 0, out
            break
        killed_at.append(len(world.writes()))
    assert len(killed_at) >= 5, killed_at  # sixteen objects are on their way at a time
    world.server_fault()
    last = world.apply("--cluster-only")
    assert last.code == 0, last.text
    assert end_state(world) == undisturbed
    writes = len(world.writes())
    assert world.apply("--cluster-only").code == 0
    assert len(world.writes()) == writes, "the run after it changes nothing"


def test_what_a_killed_run_leaves_is_no_obstacle_for_plan_and_status(
    new_world: Callable[..., World], tmp_path: Path
) -> None:
    world = new_world()
    run = world.start(*world.apply_command, "--cluster-only")
    world.until(lambda: len(world.writes()) > 20)
    run.kill()
    run.communicate(timeout=10)
    assert world.cli("plan", "--cluster-only", "-i", str(world.inventory)).code == 0, tmp_path
    assert world.cli("status", "-i", str(world.inventory)).code in {0, 1}
