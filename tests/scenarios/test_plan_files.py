"""A plan is made, looked at, and carried out later: exactly it, or nothing; each test goes on from the last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_provision.cli.plan_file import schema
from tests.answers import Answer
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.world import OPERANDS, USES_GPU, World

# The plain tests have what is pure, and the command line.
pytestmark = pytest.mark.real

EXPORTER = "nvidia-dcgm-exporter"


def saved(world: World, *flags: str) -> Path:
    path = world.folder / "plan.json"
    answer = world.cli("plan", "--out", str(path), *flags, "-i", str(world.inventory), check=True)
    assert f"Next: gpu-provision apply {path}" in answer.out or "as declared" in answer.out
    return path


def carried_out(world: World, path: Path, *flags: str) -> Answer:
    return world.cli("apply", str(path), *flags)


def refused(world: World, path: Path, code: str, *flags: str) -> dict[str, Any]:
    """Apply a plan file and return the one error; nothing was written."""
    before = len(world.writes())
    answer = carried_out(world, path, "--json", *flags)
    (error,) = answer.document["errors"]
    assert (answer.code, error["code"]) == (1, code), answer.text
    assert len(world.writes()) == before
    found: dict[str, Any] = error
    return found


def test_a_plan_that_has_hosts_is_done_on_hosts_and_cluster(sandbox: SandboxWorld) -> None:
    path = saved(sandbox)
    assert any(host["changes"] for host in json.loads(path.read_text())["hosts"])
    assert carried_out(sandbox, path).code == 0
    assert sandbox.cli("plan", "--detailed-exitcode", "-i", str(sandbox.inventory)).code == 0


def test_what_was_planned_is_done(world: World) -> None:
    """The first time for a whole stack, without a question on a real cluster, either; then there is nothing to do."""
    path = saved(world)
    document = json.loads(path.read_text())
    jsonschema.validate(document, dict(schema()))
    assert path.stat().st_mode & 0o077 == 0
    answer = carried_out(world, path)
    assert answer.code == 0, answer.text
    assert "as declared" in world.plan().out
    quiet = saved(world, "--cluster-only")
    before = len(world.writes())
    assert carried_out(world, quiet).code == 0
    assert len(world.writes()) == before


def test_what_has_moved_in_the_cluster_is_named(world: World) -> None:
    """An object that was not in the plan, and a field that was; what changes by itself does not count."""
    world.settings(device_plugin={"version": "v0.19.3"})
    path = saved(world, "--cluster-only")
    world.api.delete("pod", "-n", OPERANDS, "-l", f"app={EXPORTER}", "--field-selector", "spec.nodeName=t4-1")
    world.api.label("daemonset", EXPORTER, "-n", OPERANDS, labels={"app.kubernetes.io/managed-by": "me"})
    plugin = "nvidia-device-plugin-daemonset"
    container = world.json("daemonset", plugin, "-n", OPERANDS)["spec"]["template"]["spec"]["containers"][0]["name"]
    world.api.set_image("daemonset", plugin, "-n", OPERANDS, image="example.com/other:1")
    evidence = refused(world, path, "GP356")["evidence"]
    assert f"DaemonSet {OPERANDS}/{EXPORTER} would be updated, which was not planned" in evidence
    assert (
        f"DaemonSet {OPERANDS}/{plugin}: spec.template.spec.containers[{container}].image example.com/other:1 ->"
        in (evidence)
    )
    assert "pod" not in evidence.lower()
    assert carried_out(world, saved(world, "--cluster-only")).code == 0


def test_who_leaves_for_a_driver_is_part_of_the_promise(world: World) -> None:
    """Waves of nodes and whose pods are evicted: a training that began since was not agreed to."""
    world.settings(driver={"version": "580.126.20"})
    path = saved(world, "--cluster-only")
    world.deploy("train", USES_GPU, nodeName="t4-1")
    world.until(lambda: world.json("pods", "-l", "app=train")["items"])
    evidence = refused(world, path, "GP356")["evidence"]
    assert "node t4-1: wave " in evidence
    assert "evicts default/ReplicaSet train-" in evidence
    world.api.delete("deployment", "train")
    world.until(lambda: not world.json("pods", "-l", "app=train")["items"])
    assert carried_out(world, path).code == 0
    assert "as declared" in world.plan().out
