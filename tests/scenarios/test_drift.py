"""What is not as it was applied, who changed it, and what is merely not applied; each test goes on from the last."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.world import OPERANDS, World

EXPORTER = "nvidia-dcgm-exporter"


@pytest.fixture(scope="module")
def stack(world: World) -> World:
    world.apply("--cluster-only", check=True)
    return world


def drift(world: World) -> tuple[int, dict[str, Any]]:
    """Ask for the drift; return the exit code and the document. Nothing is ever written."""
    before = len(world.writes())
    words = "drift", "--detailed-exitcode", "--json", "--cluster-only", "-i", str(world.inventory)
    answer = world.cli(*words)
    assert len(world.writes()) == before
    return answer.code, answer.document


def by_object(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{each['object']['kind']}/{each['object']['name']}": each for each in document["differences"]}


def test_without_drift_there_is_one_line(stack: World) -> None:
    before = len(stack.requests())
    answer = stack.cli("drift", "--detailed-exitcode", "--cluster-only", "-i", str(stack.inventory))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"No drift: everything is as inventory {stack.name} declares.\n"
    assert len(stack.requests()) - before < 30


def test_the_manager_of_each_change_is_named(stack: World) -> None:
    """With the time of the API server's books; a pending field beside it is reported apart."""
    stack.api.set_image("daemonset", EXPORTER, "-n", OPERANDS, image="example.com/other:1")
    stack.api.label("node", "t4-1", labels={"gpu-provision.io/driver": "other"}, manager="robot")
    stack.api.delete("service", EXPORTER, "-n", OPERANDS)
    driver = next(pod["metadata"]["name"] for pod in stack.driver_pods() if pod["spec"]["nodeName"] == "h100-1")
    stack.api.label("pod", driver, "-n", OPERANDS, labels={"nvidia.com/precompiled": "true"})
    code, found = drift(stack)
    assert code == 2
    changed = by_object(found)
    exporter = changed[f"DaemonSet/{EXPORTER}"]
    (image,) = exporter["fields"]
    assert (exporter["origin"], image["found"]) == ("drift", "example.com/other:1")
    assert image["writer"]["manager"].startswith("kubectl")
    assert image["writer"]["time"].startswith("20")
    node = changed["Node/t4-1"]
    assert (node["origin"], node["fields"][0]["writer"]["manager"]) == ("drift", "robot")
    assert changed[f"Service/{EXPORTER}"]["origin"] == "drift", "the record of the last run says that it was there"
    assert changed[f"Pod/{driver}"]["origin"] == "drift"
    assert found["applied"].startswith("run 1, 20")
    text = stack.cli("drift", "--cluster-only", "-i", str(stack.inventory)).out
    assert "example.com/other:1 instead of " in text
    assert f"Service {OPERANDS}/{EXPORTER} is not there" in text
    stack.apply("--cluster-only", check=True)
    code, found = drift(stack)
    assert code == 0, found


@pytest.mark.real
def test_what_is_declared_and_not_applied_is_no_drift(stack: World) -> None:
    """Nor is the validation that comes with it. Beside it, drift is still seen."""
    stack.edit(lambda text: text.replace("version: v0.20.0", "version: v0.19.3"))
    code, found = drift(stack)
    assert (code, {each["origin"] for each in found["differences"]}) == (0, {"pending"}), found
    stack.api.annotate("daemonset", EXPORTER, "-n", OPERANDS, annotations={"note": "seen"})
    stack.api.label("daemonset", EXPORTER, "-n", OPERANDS, labels={"app.kubernetes.io/managed-by": "me"})
    code, found = drift(stack)
    assert code == 2
    assert found["summary"]["drift"] == 1, "an annotation of a user is no drift"
    assert by_object(found)[f"DaemonSet/{EXPORTER}"]["origin"] == "drift"
    stack.apply("--cluster-only", check=True)
    code, found = drift(stack)
    assert code == 0, found


@pytest.mark.real
def test_not_ready_is_distinct_from_drift(stack: World) -> None:
    stack.fault({"fault": "crash-loop", "node": "t4-1", "image": "dcgm-exporter", "message": "no PCI bus"})
    stack.api.delete("pod", "-n", OPERANDS, "-l", f"app={EXPORTER}", "--field-selector", "spec.nodeName=t4-1")
    code, found = stack.until(lambda: (answer := drift(stack))[0] == 2 and answer)
    assert (code, {each["origin"] for each in found["differences"]}) == (2, {"not-ready"}), found
    stack.fault()
    stack.apply("--cluster-only", check=True)
