"""The examples for Argo CD and Flux tell the health of a GPUStack as the command line does."""

from __future__ import annotations

import re
from typing import Any

import celpy
import pytest
import yaml
from celpy import json_to_cel

from gpu_provision.operator import stack
from gpu_provision.operator.crd import definition
from gpu_provision.operator.status import StackObservation, StackPhase, evaluate_status, status_of
from tests.data_file import document, documents
from tests.documents import CHECKOUT
from tools.chart import CHART

EXAMPLES = CHECKOUT / "examples/gitops"
CASES = document((CHECKOUT / "tests/examples/test_gitops.yaml").read_text(encoding="utf-8"))
TYPES = ("Ready", "Progressing", "Degraded")
_ENVIRONMENT = celpy.Environment()


def objects(name: str) -> dict[str, Any]:
    """Return the objects of an example by name."""
    found = documents((EXAMPLES / name).read_text(encoding="utf-8"))
    return {item["metadata"]["name"]: item for item in found}


def a_stack(case: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {"type": name, "status": str(name in case["true"]), "reason": "AllReady", "message": "text"} for name in TYPES
    ]
    found = {"metadata": {"name": "prod", "generation": 2}}
    return (
        {**found, "status": {"observedGeneration": case["observed"], "conditions": conditions}}
        if case["observed"]
        else found
    )


def health_of_flux(item: dict[str, Any]) -> str:
    """Return what Flux makes of the expressions: the first that is true decides; an error is no decision."""
    [rules] = objects("flux/stack.yaml")["gpu-stack-prod"]["spec"]["healthCheckExprs"]
    activation = {name: json_to_cel(value) for name, value in item.items()}
    for name, health in (("inProgress", "working"), ("failed", "failed"), ("current", "ready")):
        try:
            if _ENVIRONMENT.program(_ENVIRONMENT.compile(rules[name])).evaluate(activation):
                return health
        except celpy.CELEvalError:
            return "working"
    return "working"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_flux_and_the_command_line_agree(case: dict[str, Any]) -> None:
    found = a_stack(case)
    phases = {StackPhase.READY: "ready", StackPhase.FAILED: "failed"}
    assert health_of_flux(found) == case["health"]
    assert phases.get(evaluate_status(found).phase, "working") == case["health"]


def test_all_checks_name_conditions_that_exist() -> None:
    """In the order in which the command line evaluates them."""
    written = status_of(StackObservation(generation=1), {}, "2026-01-01T00:00:00Z")
    types = [each["type"] for each in written["conditions"]]
    lua = objects("argocd/argocd-cm.yaml")["argocd-cm"]["data"][
        "resource.customizations.health.gpu-provision.io_GPUStack"
    ]
    [rules] = objects("flux/stack.yaml")["gpu-stack-prod"]["spec"]["healthCheckExprs"]
    in_lua = re.findall(r"if found\.(\w+) then\n +return \{status = \"(\w+)\", message = found\.\1\}", lua)
    in_cel = re.findall(r"c\.type == '(\w+)'", " ".join(map(rules.get, ("inProgress", "failed", "current"))))
    assert in_lua == [("Progressing", "Progressing"), ("Degraded", "Degraded"), ("Ready", "Healthy")]
    assert in_cel == [name for name, _ in in_lua]
    assert sorted(types) == sorted(in_cel)


def test_keys_of_the_status_are_those_of_the_definition() -> None:
    [version] = definition()["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    condition = status["conditions"]["items"]["properties"]
    texts = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES.rglob("*.yaml"))
    assert set(re.findall(r"\bstatus\.(\w+)", texts)) - {"health"} <= status.keys()
    assert set(re.findall(r"\b(?:c|condition)\.(\w+)", texts)) <= condition.keys()


def test_argo_cd_ignores_what_the_controller_writes() -> None:
    own = {stack.NAMESPACE_ANNOTATION, stack.LEASE_ANNOTATION, stack.ROLLBACK_ANNOTATION}
    [ignored] = objects("argocd/applications.yaml")["gpu-stack-prod"]["spec"]["ignoreDifferences"]
    annotations = {f"/metadata/annotations/{name.replace('/', '~1')}" for name in own}
    assert (ignored["group"], ignored["kind"]) == (stack.GROUP, stack.STACK.kind)
    assert {*ignored["jsonPointers"]} == {"/status", "/metadata/finalizers", *annotations}


def test_names_and_values_are_those_of_the_project() -> None:
    """Of the API, of the chart, and in the order in which operator and stack are applied."""
    argo, flux = objects("argocd/applications.yaml"), objects("flux/stack.yaml")["gpu-stack-prod"]["spec"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    source = argo["gpu-provision"]["spec"]["source"]
    assert source["helm"]["valuesObject"].keys() <= values.keys()
    assert argo["gpu-provision"]["spec"]["destination"]["namespace"] == stack.CONTROLLER_NAMESPACE
    waves = [item["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"] for item in argo.values()]
    assert waves == ["0", "1"]
    for part in (*flux["healthChecks"], *flux["healthCheckExprs"]):
        assert (part["apiVersion"], part["kind"]) == (stack.STACK.api_version, stack.STACK.kind)
    assert [each["name"] for each in flux["dependsOn"]] == [*objects("flux/operator.yaml")]
