"""Reboots of machines that are nodes: what runs there moves first, one at a time; every killed run is finished."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from gpu_provision.hosts.messages import NodeRole
from gpu_provision.inventory import load
from gpu_provision.model.hosts import Drain
from gpu_provision.nodes.maintenance import NodeMaintenance
from tests.answers import Answer
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import ANY_TAINT, World

CORDONED = "gpu-provision.io/cordoned"
NODES = ("t4-1", "t4-2")
_MARK = "example.com/observed"
T = TypeVar("T")


def node(world: World, name: str) -> Any:
    return world.json("node", name)


def is_cordoned(world: World, name: str) -> bool:
    return bool(node(world, name)["spec"].get("unschedulable"))


def is_ours(world: World, name: str) -> bool:
    return CORDONED in (node(world, name)["metadata"].get("annotations") or {})


def web(world: World, replicas: int, *, at_least: int, where: tuple[str, ...] = NODES) -> None:
    """Run a Deployment on some nodes, all of it on the first if there is another; a budget says what has to stay."""
    first, *others = where
    for name in others:
        world.api.cordon(name)
    terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(where)}]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    world.deploy("web", {}, replicas=replicas, affinity={"nodeAffinity": affinity}, **ANY_TAINT)
    world.budget("web", minAvailable=at_least)
    world.until(lambda: len(_running(world, first)) == replicas)
    world.until(lambda: _allowed(world) == replicas - at_least)
    world.until(lambda: _ready_replicas(world.json("deployment", "web")) == replicas)
    for name in others:
        world.api.uncordon(name)


def _allowed(world: World) -> int:
    status = world.json("pdb", "web").get("status") or {}
    return int(status.get("disruptionsAllowed", -1)) if status.get("expectedPods") else -1


def _running(world: World, name: str) -> list[str]:
    pods = world.json("pods", "-l", "app=web", "--field-selector", f"spec.nodeName={name}")["items"]
    return [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]


def _is_ready(found: Any) -> bool:
    conditions = found["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def remove_web(world: World) -> None:
    world.api.delete("deployment,pdb", "web")
    world.until(lambda: not world.json("pods", "-l", "app=web")["items"])


@contextlib.contextmanager
def observed(world: World, kind: str, name: str, seen: Callable[[Any], T]) -> Iterator[list[T]]:
    """Collect what is seen of all objects of a kind, until the block has ended and this one of them is annotated."""
    found: list[T] = []
    with world.api.watch(kind) as watch:
        ended = partial(watch.until, lambda event: _is_marked(event.object) or found.append(seen(event.object)))
        reading = threading.Thread(target=ended, daemon=True)
        reading.start()
        try:
            yield found
        finally:
            world.api.annotate(kind, name, annotations={_MARK: "yes"})
            reading.join(60)
            world.api.annotate(kind, name, annotations={_MARK: None})
    assert not reading.is_alive()


def _is_marked(found: Any) -> bool:
    return _MARK in (found["metadata"].get("annotations") or {})


def _ready_replicas(deployment: Any) -> int:
    return int(deployment["status"].get("readyReplicas", 0))


def _standing(node: Any) -> tuple[str, bool, bool]:
    """Return a node's name, whether it is cordoned, and whether it is ready."""
    return node["metadata"]["name"], bool(node["spec"].get("unschedulable")), _is_ready(node)


def test_a_drain_waits_for_the_budget_before_the_reboot(world: World) -> None:
    """On a real control plane too, with the rights that rbac prints: both pods are on the node, one has to stay up."""
    world.settings(host_prerequisites={"enabled": True, "reboot": "if-required"})
    web(world, 2, at_least=1)
    inventory = load(world.inventory)
    here = replace(inventory.cluster, sandbox="", kubeconfig=str(world.account()))
    guard, said = NodeMaintenance(replace(inventory, cluster=here)), list[str]()
    before = world.boot("t4-1")
    world.api.cordon("t4-2")
    with observed(world, "deployment", "web", _ready_replicas) as ready, ThreadPoolExecutor(1) as pool:
        assert guard.membership("t4-1").role is NodeRole.MEMBER
        leaving = pool.submit(guard.cordon_and_drain, "t4-1", Drain(timeout_seconds=60), said.append)
        world.until(lambda: any("disruption budget web" in line for line in said))
        world.api.uncordon("t4-2")
        pods = leaving.result()
        world.until(lambda: len(_running(world, "t4-2")) == 2)
    assert len(pods) == 2
    assert all(pod.startswith("default/web-") and pod.endswith(" (Deployment web)") for pod in pods)
    assert ready
    assert 0 not in ready, "at no time was there none"
    assert is_cordoned(world, "t4-1")
    assert is_ours(world, "t4-1")
    world.fault({"fault": "node-reboots", "node": "t4-1"})
    world.until(lambda: world.boot("t4-1") != before)
    guard.wait_and_uncordon("t4-1", world.boot("t4-1"), 60, said.append)
    guard.close()
    world.fault()
    assert not is_cordoned(world, "t4-1")
    assert not is_ours(world, "t4-1")
    assert guard.cordoned == frozenset()
    remove_web(world)


@pytest.fixture(scope="module")
def rebooting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxWorld]:
    """A sandbox whose hosts are prepared, and may be rebooted."""
    made = SandboxWorld(tmp_path_factory.mktemp("rebooting"), timings={"speed": 10})
    try:
        made.settings(host_prerequisites={"reboot": "if-required"})
        assert reboot(made).code == 0
        yield made
    finally:
        made.down()


def ask_for_reboot(world: SandboxWorld, *names: str) -> None:
    """Have the systems of some hosts ask for one, as an upgrade does."""
    for name in names:
        (world.kubeconfig.parent / "hosts" / name / "run/reboot-required").touch()


def reboot(world: SandboxWorld) -> Answer:
    return world.apply("--hosts-only", "--limit", ",".join(NODES))


@pytest.mark.real  # for the time it takes
def test_two_nodes_reboot_one_after_the_other(rebooting: SandboxWorld) -> None:
    """Never are both away, and never is the Deployment; the second run changes nothing."""
    world = rebooting
    web(world, 2, at_least=1)
    ask_for_reboot(world, *NODES)
    before = {name: world.boot(name) for name in NODES}
    with (
        observed(world, "node", NODES[0], _standing) as nodes,
        observed(world, "deployment", "web", _ready_replicas) as ready,
    ):
        done = reboot(world)
    assert done.code == 0, done.text
    assert done.out.count("rebooted: the system itself asks for one") >= 1, done.text
    away: set[str] = set()
    for name, cordoned, is_ready in nodes:
        away = away - {name} if is_ready and not cordoned else away | {name}
        assert len(away) <= 1, nodes
    assert all((name, True, False) in nodes for name in NODES), nodes
    assert ready
    assert 0 not in ready
    assert not any(is_cordoned(world, name) or is_ours(world, name) for name in NODES)
    assert all(world.boot(name) != before[name] for name in NODES)
    after = {name: world.boot(name) for name in NODES}
    writes = len(world.writes())
    assert reboot(world).code == 0
    assert {name: world.boot(name) for name in NODES} == after
    assert len(world.writes()) == writes
    remove_web(world)


@pytest.mark.real  # for the time it takes
def test_a_budget_of_zero_ends_the_run_before_a_reboot(rebooting: SandboxWorld) -> None:
    """The finding names it, the node is given back, and the next one says why it is left alone."""
    world = rebooting
    web(world, 1, at_least=1, where=("t4-1",))
    ask_for_reboot(world, *NODES)
    before = {name: world.boot(name) for name in NODES}
    world.settings(host_prerequisites={"drain": {"timeout_seconds": 1}})
    plan = world.cli("plan", "--hosts-only", "--limit", "t4-1,t4-2", "-i", str(world.inventory))
    assert "evicted: default/web-" in plan.out, plan.text
    done = reboot(world)
    world.settings(host_prerequisites={"drain": {"timeout_seconds": 60}})
    assert done.code == 1, done.text
    assert "GP696 t4-1: 1 pod did not leave the node" in done.err
    assert "The disruption budget web needs 1 healthy pods and has 1 currently" in done.err
    assert "GP698 t4-2: reboot required but skipped: the reboot of t4-1 failed" in done.err
    assert {name: world.boot(name) for name in NODES} == before
    assert not any(is_cordoned(world, name) for name in NODES)


@pytest.mark.real  # for the time it takes
def test_a_run_killed_while_draining_is_finished_by_the_next(rebooting: SandboxWorld) -> None:
    """The node is cordoned, and says that it was us; the budget is gone by then. Goes on where the last test ended."""
    world = rebooting
    before = world.boot("t4-1")
    run = world.start(*world.apply_command, "--hosts-only", "--limit", ",".join(NODES))
    world.until(lambda: is_ours(world, "t4-1"))
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=300)
    assert is_cordoned(world, "t4-1")
    assert world.boot("t4-1") == before
    remove_web(world)
    done = reboot(world)
    assert done.code == 0, done.text
    assert world.boot("t4-1") != before
    assert not any(is_cordoned(world, name) for name in NODES)


@pytest.mark.real  # for the time it takes
def test_a_run_interrupted_during_a_boot_is_finished_by_the_next(rebooting: SandboxWorld) -> None:
    """It says which node is cordoned still; the next waits for that and uncordons it, and reboots nothing again."""
    world = rebooting
    ask_for_reboot(world, "t4-1")
    before = world.boot("t4-1")
    world.fault({"fault": "node-not-ready", "node": "t4-1"})
    run = world.start(*world.apply_command, "--hosts-only", "--limit", ",".join(NODES))
    world.until(lambda: world.boot("t4-1") != before)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 130, out
    assert "still cordoned: t4-1" in out
    assert is_ours(world, "t4-1")
    after = world.boot("t4-1")
    world.fault()
    done = reboot(world)
    assert done.code == 0, done.text
    assert "uncordoned: an earlier run had cordoned the node for a reboot" in done.out
    assert world.boot("t4-1") == after
    assert not is_cordoned(world, "t4-1")
    assert not is_ours(world, "t4-1")


@pytest.mark.real  # for the time it takes
def test_reboots_have_the_lock_and_leave_it_to_the_cluster_phase(rebooting: SandboxWorld) -> None:
    """Once there is a stack to lock: the command and stock pyinfra take it for the hosts, and then for the cluster."""
    world = rebooting
    world.apply(check=True)
    for version, name, command in (("v1.19.0", "t4-1", world.apply), ("v1.20.0", "t4-2", partial(world.pyinfra, "-y"))):
        world.settings(toolkit={"version": version})
        ask_for_reboot(world, name)
        before, writes = world.boot(name), len(world.writes())
        done = command()
        assert done.code == 0, done.text
        assert world.boot(name) != before
        paths = [each.path.partition("?")[0].rpartition("/")[2] for each in world.writes()[writes:]]
        touched = [each for each in paths if each in {world.name, name}]  # the lock goes by the name of the stack
        assert touched[0] == world.name, "before anything is cordoned"
        assert touched.count(world.name) >= 4, "taken and given back, for each phase"
