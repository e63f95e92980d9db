"""Stacks in the cluster, and a controller that holds the cluster to them: what users see with kubectl alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from gpu_provision.operator.crd import definition
from gpu_provision.operator.stack import stack_of
from tests.scenarios.test_removal import dump, settled_dump, without_definitions_of_nfd
from tests.scenarios.world import OPERANDS, PROGRAM, World, without

NEW, OLD = "580.178.04", "580.126.20"
Make = Callable[..., World]


class Home:
    """A world with the definition of stacks in its cluster, and controllers, which all say what they do in ``log``."""

    def __init__(self, world: World) -> None:
        self.world, self.log = world, world.folder / "controllers.log"
        self.spec: dict[str, Any] = stack_of(yaml.safe_load(world.inventory.read_text()))["spec"]
        world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}})
        world.submit(definition())
        world.until(lambda: world.api.exists("gpustacks"))

    def controller(self, *options: str) -> Any:
        command = (PROGRAM, "operator", "run", "--port", "0")
        return self.world.start(*command, "--kubeconfig", str(self.world.kubeconfig), *options, log=self.log)

    def declare(self, name: str = "main", **sections: Any) -> None:
        self.spec |= {
            key: {**self.spec.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in sections.items()
        }
        self.submit(name, self.spec)

    def submit(self, name: str, spec: dict[str, Any]) -> None:
        stack = {
            "apiVersion": "gpu-provision.io/v1alpha1",
            "kind": "GPUStack",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.world.submit(stack)

    def status(self, name: str = "main") -> dict[str, Any]:
        """Return the status of a stack; an empty one if it is about what was declared before."""
        stack = self.world.json("gpustack", name)
        status: dict[str, Any] = stack.get("status") or {}
        is_current = status.get("observedGeneration") == stack["metadata"]["generation"]
        return status if is_current else {}

    def condition(self, kind: str, name: str = "main") -> dict[str, str]:
        """Return a condition that is about what is declared now; an empty one if there is none."""
        found = (each for each in self.status(name).get("conditions", ()) if each["type"] == kind)
        return next(found, {"status": "", "reason": "", "message": ""})

    def until(self, kind: str, status: str = "True", *, name: str = "main", reason: str = "") -> dict[str, str]:
        """Wait until a condition holds, for a reason if one is given."""

        def is_so() -> dict[str, str]:
            found = self.condition(kind, name)
            return found if found["status"] == status and found["reason"].startswith(reason) else {}

        found: dict[str, str] = self.world.until(is_so, seconds=150)
        return found


@pytest.fixture
def home(new_world: Make) -> Callable[..., Home]:
    def made(*, controllers: int = 1, **fleet: Any) -> Home:
        found = Home(new_world(**fleet))
        for _ in range(controllers):
            found.controller()
        return found

    return made


def pods(world: World, app: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods(app)}


def test_a_stack_is_brought_up_held_and_taken_away_again(home: Callable[..., Home]) -> None:
    """From a bare cluster and back; in between objects of the stack are deleted and edited."""
    made = home()
    world, before = made.world, settled_dump(made.world)
    made.declare()
    made.until("Ready")
    status = made.status()
    assert status["nodes"]["summary"] == "3/3"
    assert status["nodes"]["gpus"] == 10
    assert {row["state"] for row in status["components"]} == {"ready"}
    assert made.condition("Degraded")["status"] == "False"

    asked = len(world.requests())
    world.api.delete("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter")
    world.until(lambda: world.api.exists("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter"))
    exporter = ("daemonset/nvidia-dcgm-exporter", "-n", OPERANDS)
    _have_an_edit_undone(world)
    world.until(lambda: _is_rolled_out(world.json(*exporter)))
    _have_a_driver_proven_again(world)
    made.until("Ready")

    lists = [each.path for each in world.requests()[asked:] if each.verb == "GET" and "watch=true" not in each.query]
    assert not [path for path in lists if path.endswith(("/pods", "/nodes"))], "live copies tell"

    events = world.json("events", "-n", "default", "--field-selector", "involvedObject.kind=GPUStack")["items"]
    assert {"AllReady", "Converging"} <= {event["reason"] for event in events}
    world.until(lambda: "3/3" in world.api.table("gpustacks"))

    asking = ("operator", "status", "--json", "--kubeconfig", str(world.kubeconfig))
    told = world.until(lambda: (now := world.cli(*asking).document["operator"])["ready"] and now)  # pods come back
    assert [row["nodes"] for row in told["stacks"]] == ["3/3"]
    shown = world.cli("operator", "status", "--kubeconfig", str(world.kubeconfig), check=True)
    assert "main" in shown.out
    assert f"gpu-provision {version('gpu-provision')}" in shown.out
    assert "GP436" not in shown.err, "all of it is of one version"

    world.api.delete("gpustack", "main")
    world.until(lambda: without_definitions_of_nfd(dump(world)) == before)  # tokens of its accounts go a moment later


def _is_rolled_out(daemonset: dict[str, Any]) -> bool:
    """Whether its controller has seen the last change, and replaced all pods; the stack's looks at pods."""
    status = daemonset["status"]
    counts = {status.get(key, 0) for key in ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")}
    return status.get("observedGeneration") == daemonset["metadata"]["generation"] and counts == {3}


def _have_a_driver_proven_again(world: World) -> None:
    """Delete the pod of a driver: vectorAdd runs once more on its node, and on no other one."""
    before = proofs(world)
    name = next(pod["metadata"]["name"] for pod in world.driver_pods() if pod["spec"]["nodeName"] == "t4-1")
    world.api.delete("pod", "-n", OPERANDS, name)
    world.until(lambda: proofs(world)["t4-1"] != before["t4-1"])
    assert {node for node, proof in proofs(world).items() if proof != before[node]} == {"t4-1"}


def proofs(world: World) -> dict[str, str]:
    """Return what is on record of each node's validation with a GPU, which stands on the one without."""
    return dict(world.json("configmap", "main-validations", "-n", OPERANDS)["data"])


@pytest.mark.real  # for the time it takes
def test_another_version_of_the_driver_is_rolled_out(home: Callable[..., Home]) -> None:
    made = home()
    made.declare(driver={"version": OLD})
    made.until("Ready")
    drivers = pods(made.world, "nvidia-driver-daemonset")
    made.declare(driver={"version": NEW})
    made.until("Ready")
    now = pods(made.world, "nvidia-driver-daemonset")
    assert len(now) == 3
    assert not set(now.values()) & set(drivers.values())
    assert made.status()["rollout"] == {"done": 3, "failed": 0, "waiting": 0, "underWay": 0}


@pytest.mark.real
def test_a_rollout_that_fails_goes_back_once_and_for_all(home: Callable[..., Home]) -> None:
    """Until the spec changes. What it went back to is held, also by a controller that begins then."""
    made = home(controllers=0)
    run = made.controller()
    made.declare(driver={"version": OLD, "timeout": 30}, rollout={"on_failure": "rollback"})
    made.until("Ready")
    made.world.fault({"fault": "driver-build-fails"})
    made.declare(driver={"version": NEW})
    made.world.until(lambda: "upgrade-failed" in str(made.world.json("nodes")))
    made.world.fault()
    made.until("Degraded", reason="RolledBack")
    made.world.until(lambda: _versions(made.world) == {OLD})  # the run that goes back begins after that
    made.until("Progressing", "False")
    assert made.condition("Ready")["status"] == "False"
    drivers = pods(made.world, "nvidia-driver-daemonset")
    _have_an_edit_undone(made.world)
    run.kill()
    made.controller()
    _have_an_edit_undone(made.world)
    made.until("Progressing", "False")
    assert made.condition("Degraded")["reason"] == "RolledBack"
    assert pods(made.world, "nvidia-driver-daemonset") == drivers
    made.declare(driver={"version": "580.65.06", "timeout": 300})
    made.until("Ready")
    assert _versions(made.world) == {"580.65.06"}


def _have_an_edit_undone(world: World) -> None:
    exporter = ("daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
    world.api.set_image(*exporter, image="busybox:1")
    world.until(lambda: "busybox:1" not in str(world.json(*exporter)["spec"]))


def _declared(world: World) -> list[Any]:
    """Return the DaemonSets without what their controller keeps."""
    kept = {"status", "resourceVersion", "managedFields"}
    return [without(each, kept) for each in world.json("daemonsets", "-n", OPERANDS)["items"]]


def _versions(world: World) -> set[str]:
    images = (pod["spec"]["containers"][0]["image"] for pod in world.pods("nvidia-driver-daemonset"))
    return {image.rpartition(":")[2].partition("-")[0] for image in images}


@pytest.mark.real
def test_an_impossible_spec_is_reported_and_stops_nothing(home: Callable[..., Home]) -> None:
    """A stack without nodes; a value that the schema takes and that means nothing; two stacks for one node."""
    made = home()
    made.submit("main", {})
    made.until("Degraded", reason="NoGPUNodes")
    assert made.condition("Ready")["status"] == "False"
    made.declare()
    made.until("Ready")
    drivers = pods(made.world, "nvidia-driver-daemonset")
    made.declare(release="1.2.3")
    assert "1.2.3" in made.until("Degraded", reason="InvalidSpec")["message"]
    made.declare(release="26.7.0")
    made.until("Ready")
    assert pods(made.world, "nvidia-driver-daemonset") == drivers

    made.submit("second", {"pools": made.spec["pools"], "nodes": [{"name": "t4-1", "pool": "t4"}]})
    told = made.until("Degraded", name="second", reason="OverlappingStacks")["message"]
    assert "stack main owns" in told
    assert "t4-1" in told
    made.world.api.delete("gpustack", "second")
    assert made.condition("Ready")["status"] == "True"
    assert pods(made.world, "nvidia-driver-daemonset") == drivers


@pytest.mark.real
def test_a_stack_keeps_its_namespace_until_it_is_removed(home: Callable[..., Home]) -> None:
    """Whatever it declares by then; and another stack comes there when it has gone, not before."""
    made = home()
    made.declare()
    made.until("Ready")
    daemonsets = _declared(made.world)
    made.declare(cluster={"namespace": "elsewhere"})
    told = made.until("Degraded", reason="InvalidSpec")["message"]
    assert "GP393 gpustack/main spec.cluster.namespace" in told
    pools = {"other": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"never": "there"}}}
    made.submit("second", {"pools": pools})
    told = made.until("Degraded", name="second", reason="OverlappingStacks")["message"]
    assert f"stack main owns the namespace {OPERANDS}" in told
    assert not made.world.api.exists("namespace", "elsewhere")
    assert _declared(made.world) == daemonsets
    made.world.api.delete("gpustack", "main")
    assert made.world.json("daemonsets", "-n", OPERANDS)["items"] == []
    made.until("Degraded", name="second", reason="NoGPUNodes")


@pytest.mark.real
def test_a_node_that_joins_is_provisioned(home: Callable[..., Home]) -> None:
    """It is not listed; its labels say that it is one of a pool's."""
    made = home()
    nodes = [node for node in made.spec["nodes"] if node["name"] != "t4-2"]
    pools = made.spec["pools"] | {"late": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "late"}}}
    made.declare(nodes=nodes, pools=pools)
    made.until("Ready")
    assert made.status()["nodes"]["total"] == 2
    made.world.api.label("node", "t4-2", labels={"fleet": "late"})
    made.world.until(lambda: made.status().get("nodes", {}).get("summary") == "3/3")
    made.until("Ready")
