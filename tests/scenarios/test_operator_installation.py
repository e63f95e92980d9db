"""The operator comes into a cluster and leaves it, and in between a controller has the rights that were rendered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.operator.crd import supports_cel_rules
from tests.contract.client import JSON_PATCH
from tests.scenarios.test_removal import dump, settled_dump, without_definitions_of_nfd
from tests.scenarios.world import OPERANDS, OPERATOR, PROGRAM, Answer, World

IMAGE = "registry.example.com/gpu-provision:0.1.0"
Make = Callable[..., World]


def operator(world: World, command: str, *arguments: str, check: bool = True) -> Answer:
    words = ("operator", command, "--yes", "--kubeconfig", str(world.kubeconfig), *arguments)
    return world.cli(*words, check=check)


def rendered(world: World, *options: str) -> Path:
    folder = world.folder / "operator"
    world.cli("operator", "render", "--kubernetes", world.api.version, "-o", str(folder), *options, check=True)
    return folder


def is_ready(world: World, name: str) -> bool:
    conditions = (world.json("gpustack", name).get("status") or {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def test_the_operator_is_installed_once_and_leaves_nothing(new_world: Make) -> None:
    """A second installation changes nothing, a second removal finds nothing."""
    world = new_world()
    before = settled_dump(world)
    assert "customresourcedefinition" in operator(world, "install").out.lower()
    assert "Nothing to change" in operator(world, "install").out
    assert world.api.exists("gpus")
    has_rules = "x-kubernetes-validations" in str(world.json("crd", "gpustacks.gpu-provision.io"))
    assert has_rules is supports_cel_rules(world.api.version), "rules are for servers that take them"
    operator(world, "uninstall")
    world.until(lambda: dump(world) == before)
    assert "There is no operator" in operator(world, "uninstall").out


def test_what_others_have_in_its_namespace_stays(new_world: Make) -> None:
    """With what it is in, and a message says so."""
    world = new_world()
    operator(world, "install")
    notes = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", "namespace": "gpu-operator"}}
    world.submit({**notes, "data": {"a": "b"}})
    told = operator(world, "uninstall")
    assert "GP392 Namespace gpu-operator" in told.err
    assert "ConfigMap gpu-operator/notes" in told.err
    assert world.json("configmap", "-n", "gpu-operator", "notes")["data"] == {"a": "b"}
    assert not world.api.exists("crd", "gpustacks.gpu-provision.io")


@pytest.mark.real  # for the time it takes
def test_a_controller_needs_only_the_installed_rights(new_world: Make) -> None:
    """As installed for stacks of any name; and the operator is not removed while there is a stack."""
    world = new_world()
    before = settled_dump(world)
    operator(world, "install")
    access = world.kubeconfig_of(OPERATOR)
    log = world.folder / "controller.log"
    run = world.start(PROGRAM, "operator", "run", "--port", "0", "--kubeconfig", str(access), log=log)
    world.submit(world.cli("operator", "stack", "-i", str(world.inventory)).out)
    world.until(lambda: is_ready(world, world.name), seconds=300)

    world.api.delete("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter")
    exporter = ("daemonset", "-n", OPERANDS, "nvidia-dcgm-exporter")
    world.until(lambda: world.api.exists(*exporter))

    refused = operator(world, "uninstall", check=False)
    assert (refused.code, "GP390" in refused.err) == (1, True)
    assert world.json("gpustack", world.name)["metadata"].get("deletionTimestamp") is None
    operator(world, "uninstall", "--with-stacks")
    run.terminate()
    run.wait(timeout=120)
    told = log.read_text()
    assert "GP310" not in told, told
    world.until(lambda: without_definitions_of_nfd(dump(world)) == without_definitions_of_nfd(before))


@pytest.mark.real  # for kubectl
def test_the_rendered_folder_is_taken_by_kubectl(new_world: Make) -> None:
    """As GitOps would; a second time nothing changes."""
    world = new_world()
    folder = rendered(world, "--image", IMAGE)
    world.kubectl("apply", "-k", str(folder))
    again = world.kubectl("apply", "-k", str(folder)).out.splitlines()
    changed = [line for line in again if not line.endswith("unchanged")]
    assert again
    assert [line for line in changed if "poddisruptionbudget" not in line] == []  # kubectl always replaces its selector
    assert world.json("networkpolicy", "-n", "gpu-operator", "gpu-provision-operator")["spec"]["policyTypes"] == [
        "Ingress"
    ]
    pod = world.json("deployment", "-n", "gpu-operator", "gpu-provision-operator")["spec"]["template"]["spec"]
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    world.kubectl("wait", "--for=condition=Established", "crd/gpustacks.gpu-provision.io")
    assert operator(world, "uninstall").code == 0
    for kind in ("deployment", "networkpolicy"):
        assert not world.api.exists(kind, "-n", "gpu-operator", "gpu-provision-operator")


@pytest.mark.real
def test_kubectl_and_install_take_turns(new_world: Make) -> None:
    """What both say alike is shared; where they differ, it is kubectl alone that overrules unasked."""
    world = new_world()
    folder = rendered(world)
    world.kubectl("apply", "-k", str(folder))
    operator(world, "install")
    assert "Nothing to change" in operator(world, "install").out

    rights = folder / "rights.yaml"
    as_rendered = rights.read_text()
    rights.write_text(yaml.safe_dump_all(map(_without_a_rule, yaml.safe_load_all(as_rendered))))
    world.kubectl("apply", "-k", str(folder))
    refused = operator(world, "install", check=False)
    assert refused.code == 1
    assert "GP396 ClusterRole gpu-provision-operator" in refused.err
    assert "kubectl-client-side-apply" in refused.err
    assert "ClusterRole" in operator(world, "install", "--take-over").out
    assert "Nothing to change" in operator(world, "install").out
    rights.write_text(as_rendered)
    world.kubectl("apply", "-k", str(folder))
    assert "Nothing to change" in operator(world, "install").out


def _without_a_rule(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "rules": item["rules"][1:]} if item["kind"] == "ClusterRole" else item


@pytest.mark.real
def test_a_newer_definition_takes_no_key_from_a_stack_unasked(new_world: Make) -> None:
    """The API server would drop it in silence. Where it is there all the same, the status says so."""
    world = new_world()
    operator(world, "install")
    older = world.json("crd", "gpustacks.gpu-provision.io")
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["legacy"] = {"type": "string"}
    metadata = {"name": older["metadata"]["name"], "labels": older["metadata"]["labels"]}
    older = {"apiVersion": older["apiVersion"], "kind": older["kind"], "metadata": metadata, "spec": older["spec"]}
    world.submit(older, manager="gpu-provision-operator")
    stack = {"apiVersion": "gpu-provision.io/v1alpha1", "kind": "GPUStack", "metadata": {"name": "old"}}
    world.until(lambda: _is_stored(world, stack, legacy="x"))

    refused = operator(world, "install", check=False)
    assert refused.code == 1
    assert "GP395 gpustack/old spec.legacy" in refused.err
    run = world.start(PROGRAM, "operator", "run", "--port", "0", "--kubeconfig", str(world.kubeconfig))
    world.until(lambda: "GP120 gpustack/old spec.legacy" in str(world.json("gpustack", "old")))
    run.terminate()
    run.communicate(timeout=120)

    world.api.patch("gpustack", "old", patch=[{"op": "remove", "path": "/spec/legacy"}], content_type=JSON_PATCH)
    assert "CustomResourceDefinition" in operator(world, "install").out
    schema = world.json("crd", "gpustacks.gpu-provision.io")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "legacy" not in schema["properties"]["spec"]["properties"]


def _is_stored(world: World, stack: dict[str, Any], **spec: str) -> bool:
    """Make a stack; say whether the server, which takes a moment to know another schema, has kept all of it."""
    world.kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps({**stack, "spec": spec}))
    return spec.items() <= world.json("gpustack", "old")["spec"].items()
