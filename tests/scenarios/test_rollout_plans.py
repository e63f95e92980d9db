"""What a plan says of a rollout, on clusters with real Evictions and budgets; tests go on where the last ended."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.inventory import load
from gpu_provision.kube.client import connect
from gpu_provision.model.progress import RunResult, State
from gpu_provision.output import plan
from gpu_provision.reconcile.plan import ClusterPlan, read_and_plan
from gpu_provision.reconcile.run import Run
from tests.scenarios.world import ANY_TAINT, OPERANDS, SEES_GPUS, World

GPU_NODES = ("h100-1", "t4-1", "t4-2")
ONE_BY_ONE = {"max_parallel_upgrades": 1, "max_unavailable": "100%"}


@pytest.fixture(scope="module")
def stack(world: World) -> World:
    """A stack that is up, with GPU work: a training with a budget, a pod without a controller, a cordon.

    They use GPUs without a request: what is claimed here is not that GPUs are busy.
    """
    world.edit(lambda text: text.replace("device_plugin:\n  version: v0.20.0\n", ""))  # the release alone says it
    world.apply("--cluster-only", check=True)
    world.deploy("train", SEES_GPUS, nodeSelector={"kubernetes.io/hostname": "t4-1"}, **ANY_TAINT)
    world.run_pod("bare", SEES_GPUS, nodeName="t4-2")
    world.budget("train", minAvailable=1)
    world.api.cordon("h100-1")
    world.until(lambda: [pod["status"].get("phase") for pod in world.json("pods")["items"]] == ["Running"] * 2)
    world.until(lambda: world.json("poddisruptionbudget", "train").get("status", {}).get("currentHealthy") == 1)
    return world


def planned(world: World) -> Any:
    before = len(world.writes())
    found = plan.document(reading_of(world).plan)
    assert world.writes()[before:] == []
    return found


def reading_of(world: World) -> ClusterPlan:
    """Read the cluster in this process, as the tool's user."""
    return read_and_plan(connect(str(world.account())), load(world.inventory))


def applied(world: World) -> RunResult:
    return Run(connect(str(world.account())), reading_of(world), listen=lambda _: None).execute().result


def order(found: Any) -> list[list[str]]:
    return [[node["node"] for node in wave["nodes"]] for wave in found["waves"]]


def test_without_a_driver_change_there_is_no_rollout(stack: World) -> None:
    """All pods of a cluster and its budgets are read only for a rollout of drivers."""
    before = len(stack.requests())
    assert planned(stack)["rollout"] is None
    assert not [request for request in stack.requests()[before:] if "poddisruptionbudgets" in request.path]


def test_the_plan_names_waves_evictions_budgets_and_cordons(stack: World) -> None:
    """Before anything is written."""
    stack.settings(release="25.10.1", driver={"upgrade_policy": ONE_BY_ONE})
    found = planned(stack)["rollout"]
    assert order(found) == [["h100-1"], ["t4-1"]]
    first, second = (wave["nodes"][0] for wave in found["waves"])
    assert first["cordoned_by"].startswith("kubectl")
    assert first["evicts"] == []
    (pod,) = second["evicts"]
    assert (pod["namespace"], pod["owner"].partition("-")[0]) == ("default", "ReplicaSet train")
    assert (pod["use"], pod["certain"], pod["blocked_by"]) == ("sets NVIDIA_VISIBLE_DEVICES", True, ["train"])
    (left_out,) = found["skipped"]
    assert left_out["node"] == "t4-2"
    assert "default/bare has no controller" in left_out["reason"]


def test_plan_and_pyinfra_dry_run_print_the_same(stack: World) -> None:
    """Users want to know before whom it evicts."""
    for text in (stack.plan().out, stack.pyinfra("--dry", check=True).text):
        assert "rollout of the driver: 2 nodes in 2 waves" in text
        assert "wave 1: h100-1" in text
        assert "PodDisruptionBudget train allows no disruption right now" in text
        assert "skipped: t4-2: default/bare has no controller" in text


def test_what_the_plan_says_is_what_the_apply_does(stack: World) -> None:
    """A whole release change: nodes in the planned order, the planned evictions and no other, and the node left out."""
    stack.api.delete("poddisruptionbudget", "train")
    stack.settings(release="25.10.1", rollout={"canary": {"nodes": 1}})
    found = planned(stack)["rollout"]
    going = [pod for wave in found["waves"] for node in wave["nodes"] for pod in node["evicts"]]
    evicted = [f"{pod['namespace']}/{pod['name']}" for pod in going]
    assert len(evicted) == 1
    done = Recorded(stack)
    blocked = [each for each in applied(stack).states if (each.component, each.state) == ("driver", State.BLOCKED)]
    assert [each.node for each in blocked] == [each["node"] for each in found["skipped"]] == ["t4-2"]
    assert "default/bare has no controller" in blocked[0].reason
    assert done.evictions() == evicted
    assert [[node] for node in done.drivers()] == order(found) == [["h100-1"], ["t4-1"]]
    assert stack.json("node", "h100-1")["spec"]["unschedulable"]


def test_a_downgrade_of_the_release_goes_as_planned(stack: World) -> None:
    """Each driver proves itself before the next one is touched, whatever else changes at the same time."""
    stack.api.delete("pod", "bare", gracePeriodSeconds=0)
    stack.api.delete("deployment", "train")
    stack.until(lambda: not stack.json("pods")["items"])  # the collector takes them, not kubectl
    stack.settings(release="26.7.0")
    document = planned(stack)
    restarted = {change["component"]: change["nodes"] for change in document["changes"] if change["action"] == "update"}
    assert all(sorted(restarted[name]) == list(GPU_NODES) for name in ("toolkit", "validator", "device_plugin", "gfd"))
    done = Recorded(stack)
    states = applied(stack).states
    assert {state.state for state in states} == {State.READY}, states
    assert [[node] for node in done.drivers()] == order(document["rollout"])
    assert done.proofs_between_drivers() == len(done.drivers()) - 1
    assert done.evictions() == []
    assert planned(stack)["changes"] == []


class Recorded:
    """What a run asked the API server to do, by the server's own log; begins now."""

    def __init__(self, world: World) -> None:
        self._world, self._before = world, len(world.writes())
        self._nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in world.driver_pods()}

    def _paths(self, verb: str) -> list[list[str]]:
        writes = self._world.writes()[self._before :]
        return [request.path.split("/") for request in writes if request.verb == verb and request.code < 400]

    def evictions(self) -> list[str]:
        return [f"{path[-4]}/{path[-2]}" for path in self._paths("POST") if path[-1] == "eviction"]

    def drivers(self) -> list[str]:
        """Return the nodes whose driver pods were deleted, in that order."""
        return [self._nodes[path[-1]] for path in self._paths("DELETE") if path[-1] in self._nodes]

    def proofs_between_drivers(self) -> int:
        """Return how many driver pods were deleted after a validation pod had been started since the one before."""
        found, proven, first = 0, False, True
        for request in self._world.writes()[self._before :]:
            name = request.path.rpartition("/")[2]
            proven = proven or (request.verb == "POST" and request.path.endswith(f"/namespaces/{OPERANDS}/pods"))
            if request.verb == "DELETE" and name in self._nodes:
                found += proven and not first
                proven, first = False, False
        return found
