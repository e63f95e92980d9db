"""Upgrades of the driver on a cluster with real Evictions and budgets; each test goes on where the last one ended."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gpu_provision.inventory import load
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model.findings import Finding, ProvisionError, attached_findings
from gpu_provision.model.progress import Event, RunResult, State
from gpu_provision.output.progress import Activity, timelines_of
from gpu_provision.planning.upgrades import DRIVER_KEPT
from gpu_provision.planning.verdicts import VALIDATIONS
from gpu_provision.reconcile.plan import read_and_plan
from gpu_provision.reconcile.run import Run
from gpu_provision.reconcile.run_thread import RunThread
from gpu_provision.rollout import states
from tests.scenarios.world import ANY_TAINT, OPERANDS, SEES_GPUS, USES_GPU, World

GPU_NODES = ("h100-1", "t4-1", "t4-2")
ALL_AT_ONCE = {"auto_upgrade": True, "max_parallel_upgrades": 0, "max_unavailable": "100%"}
Listen = Callable[[Event], None]


class Killed(ProvisionError):
    """The process ends here, with whatever it had in mind."""


@pytest.fixture(scope="module")
def stack(world: World) -> World:
    world.apply("--cluster-only", check=True)
    return world


def roll_out(world: World, *, listen: Listen = lambda _: None, **driver: Any) -> RunResult:
    if driver:
        world.settings(driver=driver)
    return applied(world, connect(str(world.account())), listen)


def applied(world: World, cluster: KubeClient, listen: Listen = lambda _: None) -> RunResult:
    """Apply in this process; nothing to do is a result, too."""
    reading = read_and_plan(cluster, load(world.inventory))
    if reading.plan.is_empty:
        return RunResult()
    return Run(cluster, reading, listen=listen).execute().result


def nodes(world: World) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in world.json("nodes", "-l", "gpu-provision.io/inventory")["items"]}


def drivers(world: World) -> dict[str, dict[str, Any]]:
    return {pod["spec"]["nodeName"]: pod for pod in world.driver_pods()}


def versions(world: World) -> set[str]:
    images = [pod["spec"]["containers"][0]["image"] for pod in drivers(world).values()]
    assert len(images) == len(nodes(world))
    return {image.rpartition(":")[2].partition("-")[0] for image in images}


def uids(world: World) -> dict[str, str]:
    return {node: pod["metadata"]["uid"] for node, pod in drivers(world).items()}


def assert_over(world: World, version: str, *, cordoned: str = "") -> None:
    """Every node is done, with the driver that is wanted, its own cordon, and no memory of the upgrade."""
    assert versions(world) == {version}
    for name, node in nodes(world).items():
        assert node["metadata"]["labels"][states.STATE] == "upgrade-done"
        assert not set(states.UPGRADE_ANNOTATIONS) & set(node["metadata"].get("annotations", {})), name
        assert bool(node["spec"].get("unschedulable")) == (name == cordoned), name
    assert "everything is as declared" in world.plan().text


def of_drivers(result: RunResult) -> dict[str, tuple[State, str]]:
    """Return where the drivers stand in the end, by node."""
    return {each.node: (each.state, each.reason) for each in result.states if each.component == "driver" and each.node}


def test_nodes_go_one_after_the_other_and_a_foreign_cordon_stays(stack: World) -> None:
    """All the way, on every node; the labels are those of the reference."""
    stack.api.cordon("t4-2")
    told: list[tuple[str, str]] = []

    def listen(event: Event) -> None:
        if event.component == "driver":
            told.append((event.node, "ready" if event.state is State.READY else event.step))

    stack.settings(driver={"version": "580.126.20", "upgrade_policy": {"max_unavailable": "100%"}})
    cluster, pods = Noting(connect(str(stack.account()))), drivers(stack)
    result = applied(stack, cluster, listen)
    assert {state for state, _ in of_drivers(result).values()} == {State.READY}
    assert_over(stack, "580.126.20", cordoned="t4-2")
    stack.api.uncordon("t4-2")
    lanes = timelines_of(result.timeline)
    for node in GPU_NODES:
        found = cluster.writes_of(node, pods[node]["metadata"]["name"])
        is_proven = found.pop(("PATCH", "validation-required"), 0)  # none if it has passed before the next look
        activities = {Activity.RESTART, Activity.VALIDATION} if is_proven else {Activity.RESTART}
        assert {span.activity for span in lanes[node].spans(result.seconds)} >= activities, node
        assert lanes[node].current.activity is Activity.READY, node
        cordon = () if node == "t4-2" else ("unschedulable",)
        assert found == Counter([
            ("PATCH", "upgrade-required"),
            ("PATCH", "pod-restart-required", *cordon),
            ("DELETE", "driver"),
            ("PATCH", "upgrade-done", *cordon),
            ("POST", "device_plugin_validation"),
        ]), node  # fmt: skip
    ends = [node for node, state in told if state == "ready"]
    assert ends == list(GPU_NODES)
    proofs = [place for place, (_, state) in enumerate(told) if state == "validation-required"]
    assert proofs, told


def test_content_without_effect_on_the_driver_restarts_none(stack: World) -> None:
    """Pull policy, resources and probes are for the next pod."""
    before = uids(stack)
    resources = {"requests": {"cpu": "10m"}}
    result = roll_out(stack, image_pull_policy="Always", resources=resources, startup_probe={"period_seconds": 7})
    assert result.changed == 2, "the two DaemonSets"
    assert uids(stack) == before
    assert_over(stack, "580.126.20")


def test_with_upgrades_off_drivers_stay_and_a_finding_says_so(stack: World) -> None:
    """No failure; what a rollout wrote on the nodes is gone, and the run after it has nothing to do."""
    before = uids(stack)
    stack.settings(driver={"version": "580.178.04", "upgrade_policy": {"auto_upgrade": False}})
    run = stack.apply("--cluster-only", "--json")
    assert run.code == 0, run.text
    (warning,) = [each for each in run.document["warnings"] if each["code"] == "GP509"]
    assert all(name in warning["what"] for name in GPU_NODES)
    assert "auto_upgrade is off" in warning["evidence"]
    assert uids(stack) == before
    for node in nodes(stack).values():
        assert states.STATE not in node["metadata"]["labels"]
        assert not set(states.ALL_ANNOTATIONS) & set(node["metadata"].get("annotations", {}))
    writes = len(stack.writes())
    assert stack.apply("--cluster-only").code == 0
    assert len(stack.writes()) == writes


def test_gpu_work_leaves_as_its_budget_allows(stack: World) -> None:
    """A budget that allows nothing is waited for; the moment it changes the pod goes."""
    stack.deploy("train", USES_GPU, nodeName="t4-1")
    stack.budget("train", minAvailable=1)
    stack.until(
        lambda: [pod["status"].get("phase") for pod in stack.json("pods", "-l", "app=train")["items"]] == ["Running"]
    )
    refused: list[str] = []

    def listen(event: Event) -> None:
        if "disruption budget" in event.message and not refused:
            refused.append(f"{event.node}: {event.step}: {event.message}")
            stack.api.patch("deployment", "train", patch={"spec": {"replicas": 0}})

    roll_out(stack, listen=listen, version="580.178.04", upgrade_policy=ALL_AT_ONCE)
    assert "t4-1: pod-deletion-required: pods to go: default/train" in refused[0]
    assert_over(stack, "580.178.04")


def test_an_interrupted_rollout_names_what_it_leaves_cordoned(stack: World) -> None:
    """So does the status after it, with no driver on that node; the next run goes on there."""
    stack.fault({"fault": "crash-loop", "node": "h100-1", "image": "driver", "message": "no PCI bus"})
    stack.settings(driver={"version": "580.142.00", "upgrade_policy": {"max_unavailable": "100%"}})
    cluster, inventory = connect(str(stack.account())), load(stack.inventory)
    steps: set[tuple[str, str]] = set()
    run = RunThread(
        cluster, read_and_plan(cluster, inventory), lambda event: steps.add((event.node, event.step)), 0, make=Run
    )
    run.start()

    def interrupt(_: str) -> None:
        if ("h100-1", "pod-restart-required") in steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run.wait_for("driver", interrupt)
    (left,) = attached_findings(caught.value)
    assert left.what == "h100-1 stays cordoned (pod-restart-required)"
    rows = {row["node"]: (row["driver"], row["cordoned_by"]) for row in stack.status()["nodes"] if row["gpu"]}
    assert rows["h100-1"] == ("", "gpu-provision: pod-restart-required")
    assert rows["t4-1"] == rows["t4-2"] == ("580.178.04", "")
    stack.fault()
    roll_out(stack)
    assert_over(stack, "580.142.00")


@pytest.mark.real  # for the time it takes
def test_an_interrupted_pyinfra_names_what_it_leaves_cordoned(stack: World) -> None:
    """And gives the lock back, before it ends as pyinfra does."""
    stack.fault({"fault": "crash-loop", "node": "h100-1", "image": "driver", "message": "no PCI bus"})
    stack.settings(driver={"version": "580.126.20", "upgrade_policy": {"max_unavailable": "100%"}})
    log = stack.folder / "interrupted.log"
    run = stack.start(*stack.pyinfra_command("-y"), log=log)
    stack.until(lambda: nodes(stack)["h100-1"]["metadata"]["labels"].get(states.STATE) == "pod-restart-required")
    run.send_signal(signal.SIGINT)
    assert run.wait() == 0
    assert "GP517: h100-1 stays cordoned (pod-restart-required)" in log.read_text()
    lease = stack.json("lease", stack.name, "-n", OPERANDS)
    assert not lease["spec"]["holderIdentity"]
    stack.fault()
    roll_out(stack)
    assert_over(stack, "580.126.20")


@pytest.mark.real  # for the time it takes
def test_a_failure_stops_the_rollout_and_the_next_run_retries(stack: World) -> None:
    """The reason stands on the node; the others keep their drivers; what was broken is mended, and it goes on."""
    stack.fault({"fault": "crash-loop", "node": "h100-1", "image": "driver", "message": "no PCI bus"})
    policy = {"max_parallel_upgrades": 1}
    found = of_drivers(roll_out(stack, version="595.91.07", timeout=30, upgrade_policy=policy))
    state, reason = found["h100-1"]
    assert state is State.FAILED
    assert found["t4-1"] == found["t4-2"] == (State.BLOCKED, f"{DRIVER_KEPT}: the rollout stopped: h100-1 failed")
    broken = nodes(stack)["h100-1"]
    assert broken["metadata"]["labels"][states.STATE] == "upgrade-failed"
    assert reason == f"k8s-driver-manager: exit 1: no PCI bus; {broken['metadata']['annotations'][states.REASON]}"
    assert broken["spec"]["unschedulable"]
    assert versions(stack) == {"580.126.20", "595.91.07"}
    stack.fault()
    found = of_drivers(roll_out(stack, timeout=300, upgrade_policy=ALL_AT_ONCE))
    assert {state for state, _ in found.values()} == {State.READY}
    assert_over(stack, "595.91.07")


@pytest.mark.real  # for the time it takes
def test_content_of_a_driver_rolls_exactly_its_nodes(stack: World) -> None:
    """A ConfigMap that one pool names, edited in place; the result of equal content on record is no proof."""
    metadata = {"name": "parameters", "namespace": OPERANDS}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"nvidia.conf": "A=1"}}
    stack.submit(files)
    pools = yaml.safe_load(stack.inventory.read_text())["pools"]
    stack.settings(pools={**pools, "t4": {**pools["t4"], "driver": {"kernel_module_config": "parameters"}}})
    replaced = [event.node for event in emptied(stack)]
    assert set(replaced) == {"t4-1", "t4-2"}, "they get another DaemonSet, and are emptied for it like for any driver"
    before = uids(stack)
    assert {node: proofs(stack)[node] for node in replaced} == {node: before[node] for node in replaced}
    assert "as declared" in stack.plan().text
    stack.submit({**files, "data": {"nvidia.conf": "A=2"}})
    roll_out(stack)
    after = uids(stack)
    assert {node for node in after if after[node] != before[node]} == {"t4-1", "t4-2"}
    assert {node: proofs(stack)[node] for node in ("t4-1", "t4-2")} == {node: after[node] for node in ("t4-1", "t4-2")}
    assert_over(stack, "595.91.07")


def emptied(world: World) -> list[Event]:
    """Apply, and return when a node was about to have its driver restarted."""
    found: list[Event] = []
    roll_out(world, listen=lambda event: found.append(event) if event.step == "pod-restart-required" else None)
    return found


def proofs(world: World) -> dict[str, str]:
    """Return the uid of each node's driver pod, or nothing where vectorAdd has not passed since it started."""
    found = dict[str, str]()
    ran = {pod["spec"]["nodeName"]: _vector_add(pod) for pod in world.pods("nvidia-operator-validator")}
    for node, pod in drivers(world).items():
        since = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        is_proven = ran[node]["exitCode"] == 0 and ran[node]["startedAt"] > since
        found[node] = pod["metadata"]["uid"] if is_proven else ""
    return found


def _vector_add(pod: dict[str, Any]) -> dict[str, Any]:
    (ran,) = (each for each in pod["status"]["initContainerStatuses"] if each["name"] == "cuda-validation")
    return dict(ran["state"]["terminated"])


class Noting(KubeClient):
    """A connection that remembers the writes that the server took, but for those to lock, history and record."""

    def __init__(self, cluster: KubeClient) -> None:
        super().__init__(cluster._client, name=cluster.name, server=cluster.server)
        self._taken: list[tuple[str, str, Any]] = []

    def _send_once(self, verb: str, path: str, place: Any, **options: Any) -> Any:
        answer = super()._send_once(verb, path, place, **options)
        if verb != "GET" and ("dryRun", "All") not in options.get("query", ()):
            self._taken.append((verb, path, options.get("body")))
        return answer

    def writes_of(self, node: str, driver_pod: str) -> Counter[tuple[str, ...]]:
        """Return what was written for one node: the verb, and the component of a pod or what is new on the node."""
        pods = [*((app, app.replace("_", "-") + f"-{node}-") for app in VALIDATIONS), ("driver", driver_pod)]
        found: list[tuple[str, ...]] = []
        for verb, path, body in self._taken:
            about = f"{path}/{body['metadata']['name']}" if verb == "POST" and "metadata" in body else path
            if path.endswith(f"/nodes/{node}"):
                labels, spec = body["metadata"].get("labels", {}), body.get("spec", {})
                found.append((verb, *(labels.get(key) or key for key in sorted(labels)), *sorted(spec)))
            found += [(verb, component) for component, name in pods if "/pods/" in about and name in about]
        return Counter(found)


class Mortal(KubeClient):
    """A connection whose process is killed after some writes: nothing that comes after them is sent."""

    def __init__(self, living: KubeClient, writes: int) -> None:
        """Live for so many writes besides those that every run begins with: to the lock and to the history.

        The lock can be written to afterwards, too, since the process lives on in truth.
        """
        super().__init__(living._client, name=living.name, server=living.server)
        self._left = writes

    def _send_once(self, verb: str, path: str, place: Any, **options: Any) -> Any:
        if self._left <= 0 and "/leases" not in path:
            raise Killed(Finding(code="GP500", what="killed"))
        is_free = "/leases" in path or path.endswith("-history") or ("dryRun", "All") in options.get("query", ())
        if verb != "GET" and not is_free:
            self._left -= 1
        return super()._send_once(verb, path, place, **options)


@pytest.mark.real  # for the time it takes
@pytest.mark.parametrize(("writes", "more"), [(15, 2), (1, 7)])
def test_runs_killed_at_writes_reach_the_same_state(stack: World, writes: int, more: int) -> None:
    """Each comes a few writes further; every driver is replaced once, and proven by a validation of its own.

    GPU work with a budget is on the way, and none of it is ever one pod short of what its budget says.
    """
    serve(stack, replicas=4)
    for name in (f"spare-{number:02}" for number in range(1, more + 1)):
        if name not in nodes(stack):
            stack.declare({"name": name, "pool": "t4"})
    roll_out(stack)
    version, killed, replaced = f"580.65.0{writes}", 0, set(uids(stack).values())
    policy = {"max_parallel_upgrades": 3, "max_unavailable": "100%"}
    stack.settings(driver={"version": version, "upgrade_policy": policy})
    result = None
    while result is None:
        assert killed < 500
        try:
            result = applied(stack, Mortal(connect(str(stack.account())), writes))
        except Killed:
            killed += 1
        replaced |= set(uids(stack).values())
        budget = stack.json("poddisruptionbudget", "serve")["status"]
        assert budget["currentHealthy"] >= budget["desiredHealthy"]
    assert killed > 40 / writes
    assert {state for state, _ in of_drivers(result).values()} == {State.READY}
    assert_over(stack, version)
    assert proofs(stack) == uids(stack)
    assert len(replaced) == 2 * len(nodes(stack))
    stack.api.delete("deployment,poddisruptionbudget", "serve")
    stack.until(lambda: not stack.json("pods", "-l", "app=serve")["items"])


def serve(world: World, *, replicas: int) -> None:
    """Run pods that use GPUs without a request, on any GPU node, all but one of which have to be there always."""
    anywhere = {"nodeSelector": {"nvidia.com/gpu.present": "true"}, **ANY_TAINT, "terminationGracePeriodSeconds": 0}
    world.deploy("serve", SEES_GPUS, replicas=replicas, **anywhere)
    world.budget("serve", minAvailable=replicas - 1)
    world.until(lambda: world.json("poddisruptionbudget", "serve").get("status", {}).get("currentHealthy") == replicas)
