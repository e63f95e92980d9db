"""The chart on a real control plane: installed, upgraded, rolled back, removed, and beside the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.answers import Answer
from tests.real import binaries, clients
from tests.scenarios.test_operator_installation import IMAGE, is_ready, operator
from tests.scenarios.world import OPERANDS, OPERATOR, PROGRAM, World
from tools.chart import CHART

pytestmark = pytest.mark.real

Make = Callable[..., World]
CRD = "gpustacks.gpu-provision.io"
HOME = ("--namespace", "gpu-operator")
_COLUMN, _OTHER = "Release of the stack.", "Release of the stack, as of another version."


def helm(world: World, command: str, *words: str, check: bool = True) -> Answer:
    path = clients.path(binaries.cache(), "helm")
    if not path.is_file():
        pytest.skip("no helm: python -m tests.real.binaries downloads it")
    environment = (f"HELM_CACHE_HOME={world.folder}", f"HELM_CONFIG_HOME={world.folder}")
    words = (command, "gpu-provision", *words, *HOME, "--kubeconfig", str(world.kubeconfig))
    return world.run("env", *environment, str(path), *words, check=check)


def install(world: World, *options: str, chart: Path = CHART, check: bool = True) -> Answer:
    image = f"--set=image.repository={IMAGE.rpartition(':')[0]}"
    return helm(world, "upgrade", str(chart), "--install", "--create-namespace", image, *options, check=check)


def other_version(world: World) -> Path:
    """Return a chart of another version, whose CRD differs."""
    made = world.folder / "chart"
    shutil.copytree(CHART, made)
    for name, old, new in (
        ("Chart.yaml", version("gpu-provision"), "9.0.0"),
        ("templates/definition.yaml", _COLUMN, _OTHER),
    ):
        file = made / name
        file.write_text(file.read_text().replace(old, new))
    return made


def crd(world: World) -> Any:
    return world.json("crd", CRD)


def release_column(world: World) -> str:
    [column] = [
        each for each in crd(world)["spec"]["versions"][0]["additionalPrinterColumns"] if each["name"] == "Release"
    ]
    return str(column["description"])


def test_an_upgrade_takes_the_definition_along(new_world: Make) -> None:
    """And a rollback takes it back; stacks stay through both, and through a removal and another installation."""
    world = new_world()
    install(world)
    world.submit(world.cli("operator", "stack", "-i", str(world.inventory)).out)
    uid = world.json("gpustack", world.name)["metadata"]["uid"]
    assert release_column(world) == _COLUMN
    install(world, chart=other_version(world))
    assert release_column(world) == _OTHER
    deployment = world.json("deployment", "-n", "gpu-operator", "gpu-provision-operator")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":9.0.0")
    helm(world, "rollback", "1")
    assert release_column(world) == _COLUMN
    told = helm(world, "uninstall").out
    assert CRD in told.partition("kept due to the resource policy")[2]
    assert not world.api.exists("deployment", "-n", "gpu-operator", "gpu-provision-operator")
    assert world.api.exists("namespace", OPERANDS)
    assert world.json("gpustack", world.name)["metadata"]["uid"] == uid
    install(world)
    assert world.json("gpustack", world.name)["metadata"]["uid"] == uid


def test_a_controller_works_with_the_chart_alone(new_world: Make) -> None:
    """Its roles suffice for a stack from the beginning to the end."""
    world = new_world()
    install(world)
    log, access = world.folder / "controller.log", world.kubeconfig_of(OPERATOR)
    run = world.start(PROGRAM, "operator", "run", "--port", "0", "--kubeconfig", str(access), log=log)
    world.submit(world.cli("operator", "stack", "-i", str(world.inventory)).out)
    world.until(lambda: is_ready(world, world.name), seconds=300)
    world.api.delete("gpustack", world.name)
    world.until(lambda: not world.api.exists("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter"))
    world.until(lambda: not world.api.exists("gpustack", world.name))
    run.terminate()
    run.wait(timeout=120)
    told = log.read_text()
    assert "GP310" not in told, told


def test_namespaces_of_others_are_left_to_them(new_world: Make) -> None:
    """Such as those of a stack that the command line installed: helm takes nothing from others."""
    world = new_world()
    world.submit({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERANDS}})
    install(world)
    install(world)
    found = world.json("namespace", OPERANDS)["metadata"]
    assert "meta.helm.sh/release-name" not in found.get("annotations", {})
    helm(world, "uninstall")
    assert world.api.exists("namespace", OPERANDS)


def test_an_installation_moves_to_helm_and_back(new_world: Make) -> None:
    """Helm takes over only if it is asked to; the command line finds nothing to change afterwards."""
    world = new_world()
    operator(world, "install")
    refused = install(world, check=False)
    assert (refused.code, "invalid ownership metadata" in refused.err) == (1, True)
    install(world, "--take-ownership", "--set=image.repository=")
    assert "Nothing to change" in operator(world, "install").out
    helm(world, "uninstall")
    assert "created or changed" in operator(world, "install").out
    operator(world, "uninstall")
    assert not world.api.exists("crd", CRD)
