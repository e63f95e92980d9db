"""The command line and the operator on one cluster: a stack goes from one to the other, and nothing restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.answers import Answer
from tests.scenarios.test_operator import OPERANDS, Home
from tests.scenarios.world import World

Make = Callable[..., World]


class Both(Home):
    """A home whose stack is declared by the inventory file, for the command line and for the operator."""

    running: list[Any]  # the controllers

    @property
    def name(self) -> str:
        return self.world.name

    def stack(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.json("gpustack", self.name)
        return found

    def hand_over(self, manager: str = "gpu-provision") -> None:
        printed = self.world.cli("operator", "stack", "-i", str(self.world.inventory), check=True).out
        self.world.submit(printed, manager)
        self.world.give_rights("--operator")
        self.until("Ready", name=self.name)

    def release(self) -> Answer:
        return self.world.cli(
            "operator", "release", self.name, "--yes", "--kubeconfig", str(self.world.kubeconfig), check=True
        )

    def objects(self) -> dict[str, str]:
        """The versions of the stack's objects, and the uids of its pods; labels of nodes are the pods' affair."""
        kinds = "daemonsets,deployments,configmaps,services,serviceaccounts,roles,rolebindings"
        found = self.world.json(kinds, "-n", OPERANDS, "-l", "applyset.kubernetes.io/part-of")["items"]
        metadata = [(each["kind"], each["metadata"]) for each in found if "generation" in each["metadata"]]
        versions = {f"{kind} {each['name']}": str(each["generation"]) for kind, each in metadata}
        return versions | self.pods()

    def pods(self, app: str = "") -> dict[str, str]:
        found = self.world.json("pods", "-n", OPERANDS, *(("-l", f"app={app}") if app else ()))["items"]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    def writes(self) -> list[str]:
        """What the tool has written, but for what a controller writes in steady state."""
        seen = (f"{each.verb} {each.path}" for each in self.world.writes())
        steady = ("/events", "/leases", "/status", "selfsubject")
        return [each for each in seen if not any(part in each for part in steady)]


@pytest.fixture
def both(new_world: Make) -> Callable[..., Both]:
    """Makes a cluster that was provisioned by the command line, and a controller without a stack."""

    def made(*, controllers: int = 1, **settings: Any) -> Both:
        world = new_world()
        world.settings(**settings)
        world.apply("--cluster-only", check=True)
        found = Both(world)
        found.running = [found.controller() for _ in range(controllers)]
        return found

    return made


@pytest.mark.real  # for the time it takes
def test_a_hand_over_to_the_operator_and_back_restarts_nothing(both: Callable[..., Both]) -> None:
    """In between plan says who carries it out, and an unchanged apply writes nothing."""
    made = both()
    world, before = made.world, made.objects()
    runs = world.cli("history", "--json", "-i", str(world.inventory)).out
    made.hand_over()
    assert made.objects() == before

    written = made.writes()
    planned = world.plan("--json", "--detailed-exitcode").document
    assert planned["resource"] == {"name": f"gpustack/{made.name}", "fields": []}
    assert f"gpustack/{made.name} is already up to date" in world.plan().out
    assert world.apply("--cluster-only", check=True).text.count("Everything is as declared. No changes") == 1
    assert made.writes() == written

    assert "is released" in made.release().out
    assert not world.api.exists("gpustack", made.name)
    assert world.plan("--detailed-exitcode").code == 0
    assert made.objects() == before
    assert world.cli("history", "--json", "-i", str(world.inventory)).document["runs"] == json.loads(runs)["runs"]


OTHER = "v0.19.3"
"""Version of the device plugin; the sandbox's inventory has a newer one."""


@pytest.mark.real
def test_the_command_line_changes_and_removes_an_operator_stack(both: Callable[..., Both]) -> None:
    """With the same ends as without an operator; what its resource cannot say is refused before anything is written."""
    made = both()
    world, drivers = made.world, made.pods("nvidia-driver-daemonset")
    made.hand_over()
    earlier = made.stack()["spec"]["device_plugin"]["version"]
    world.settings(device_plugin={"version": OTHER})
    planned = world.plan("--json", "--detailed-exitcode")
    assert planned.code == 2
    assert [each["path"] for each in planned.document["resource"]["fields"]] == ["spec.device_plugin.version"]
    for words in (("--timeout", "77"), ("--target", "device_plugin"), ("--limit", "t4-1")):
        refused = world.apply("--cluster-only", "--json", *words).document
        assert [each["code"] for each in refused["errors"]] == ["GP432"], words
    adopted = world.cli("adopt", "--yes", "--json", "-i", str(world.inventory)).document
    assert "GP433" in [each["code"] for each in adopted["errors"]]
    assert made.stack()["spec"]["device_plugin"]["version"] == earlier

    run = world.apply("--cluster-only", "--json", check=True)
    assert {each["state"] for each in run.document["states"]} == {"ready"}
    assert run.document["run"] > 1
    assert made.stack()["spec"]["device_plugin"]["version"] == OTHER
    assert "carries it out" in run.err
    world.cli("rollback", "--yes", "--cluster-only", "-i", str(world.inventory), check=True)
    last = world.cli("history", "--json", "-i", str(world.inventory)).document["runs"][-1]
    assert (last["back_to"], last["source"]) == (1, "resource")
    assert made.stack()["spec"]["device_plugin"]["version"] == earlier
    assert made.pods("nvidia-driver-daemonset") == drivers

    world.give_rights("--destroy")
    world.api.label("gpustack", made.name, labels={"kustomize.toolkit.fluxcd.io/name": "fleet"})
    shown = world.cli("destroy", "--dry-run", "--cluster-only", "-i", str(world.inventory))
    assert f"GPUStack {made.name}" in shown.out
    assert "Flux's Kustomization fleet declares it, too" in shown.err
    removed = world.cli("destroy", "--yes", "--cluster-only", "-i", str(world.inventory), check=True)
    assert "Nothing of the stack is left" in removed.text
    assert world.json("gpustacks")["items"] == []


@pytest.mark.real
def test_a_failure_reads_the_same_with_and_without_an_operator(both: Callable[..., Both]) -> None:
    """With the node, the cause and the exit code; what is mended is mended without another word.

    The controller has its lease in a namespace of its own; the stack tells where.
    """
    made = both(controllers=0)
    world = made.world
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    made.controller("--namespace", "elsewhere")
    made.hand_over()
    told = world.cli("operator", "status", "--kubeconfig", str(world.kubeconfig), check=True)
    assert "Leader: " in told.out
    world.fault({"fault": "crash-loop", "node": "t4-1", "image": "k8s-device-plugin", "message": "no PCI bus"})
    world.settings(device_plugin={"version": OTHER, "timeout": 30})
    failed = world.apply("--cluster-only", "--json")
    assert failed.code == 1
    told = [json.dumps(each) for each in failed.document["errors"]]
    assert any("no PCI bus" in each and "t4-1" in each for each in told), told
    world.fault()
    made.until("Ready", name=made.name)
    assert "No changes" in world.apply("--cluster-only", check=True).text


@pytest.mark.real
def test_foreign_objects_stay_and_no_own_object_remains(both: Callable[..., Both]) -> None:
    """Whose fields they are is named; without a controller nothing is written, and the stack can be let go."""
    made = both()
    world, before = made.world, made.objects()
    made.hand_over("kubectl")
    world.settings(rollout={"stop_after_failures": 2})
    patch = {"spec": {"rollout": {"stop_after_failures": 3}, "history": {"keep": 5}}}
    world.api.patch("gpustack", made.name, patch=patch)
    refused = world.apply("--cluster-only", "--json")
    (error,) = refused.document["errors"]
    assert (refused.code, error["code"]) == (1, "GP304")
    assert "stop_after_failures" in error["what"]
    assert "kubectl-patch" in error["fix"]
    assert "--take-over" in error["fix"]
    world.apply("--cluster-only", "--take-over", check=True)
    spec = made.stack()["spec"]
    assert (spec["rollout"]["stop_after_failures"], spec.get("history", {}).get("keep", 10)) == (2, 10)
    world.settings(rollout={"stop_after_failures": 1})
    world.api.patch("gpustack", made.name, patch=patch)
    taken = world.pyinfra("-y", "--data", "gpu_take_over=true", check=True)
    assert f"gpustack/{made.name} is to change" in taken.text
    assert made.stack()["spec"]["rollout"]["stop_after_failures"] == 1

    made.running[0].send_signal(signal.SIGKILL)
    world.settings(rollout={"stop_after_failures": 4})
    run = world.apply("--cluster-only", "--json")
    (error,) = run.document["errors"]
    assert (run.code, error["code"]) == (1, "GP430")
    assert "operator release" in error["fix"]
    assert made.stack()["spec"]["rollout"]["stop_after_failures"] == 1
    made.release()
    assert made.objects() == before
    assert "No changes" in world.apply("--cluster-only", check=True).text
