"""The chart is what ``operator render`` prints; tests with the marker real render it with helm."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.manifests import InstallOptions, manifests
from gpu_provision.operator.stack import CONTROLLER_NAMESPACE
from tests.data_file import document
from tests.real import binaries, clients
from tools import chart

VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
REPOSITORY = "registry.example.com/gpu-provision"
CASES = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def test_the_chart_is_what_is_rendered() -> None:
    """``make docs`` writes it."""
    found = {name: (chart.CHART / name).read_text(encoding="utf-8") for name in chart.files()}
    assert found == chart.files()


def test_defaults_are_those_of_the_command_line() -> None:
    [deployment] = [item for item in manifests(InstallOptions(image="x")) if item["kind"] == "Deployment"]
    assert {name: VALUES[name] or None for name in chart.VALUES} == {
        name: _field(deployment, path) for name, path in chart.VALUES.items()
    }


def _field(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = value[step] if isinstance(step, int) else value.get(step)
    return value


def test_values_and_their_schema_have_the_same_keys() -> None:
    """And each is in a template."""
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)
    monitoring = dict.fromkeys(("podMonitor", "prometheusRule"), SCHEMA["definitions"]["monitoring"])
    declared = {**SCHEMA["properties"], **monitoring}
    assert declared.keys() - {"global"} == VALUES.keys()
    parts = {name for name, part in declared.items() if part.get("additionalProperties") is False} - {"resources"}
    assert {name: declared[name]["properties"].keys() for name in parts} == {
        name: VALUES[name].keys() for name in parts
    }
    files = chart.CHART.rglob("templates/**/*")
    texts = "".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    used = set(re.findall(r"\.Values\.([\w.]+)", texts))
    wanted = {f"{name}.{key}" for name in parts for key in VALUES[name]} | (VALUES.keys() - parts)
    assert used == wanted


@pytest.mark.parametrize("values", CASES["refused"].values(), ids=CASES["refused"])
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid({**VALUES, **values})


@pytest.fixture(scope="module")
def helm() -> Path:
    path = clients.path(binaries.cache(), "helm")
    if not path.is_file():
        pytest.skip("no helm: python -m tests.real.binaries downloads it")
    return path


def run(helm: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, timeout=60, check=False)


def template(helm: Path, values: dict[str, Any], kubernetes: str) -> list[Manifest]:
    """Return the objects of the chart that are no hooks, without the annotation that keeps them."""
    options = ["--namespace", CONTROLLER_NAMESPACE, "--kube-version", kubernetes, "--no-hooks"]
    options += [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    done = run(helm, "template", "gpu-provision", str(chart.CHART), *options)
    assert done.returncode == 0, done.stderr
    objects = [*filter(None, yaml.safe_load_all(done.stdout))]
    for item in objects:
        if item["kind"] in {"CustomResourceDefinition", "Namespace"}:
            assert item["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return objects


@pytest.mark.real
@pytest.mark.parametrize("case", CASES["rendered"].values(), ids=CASES["rendered"])
def test_helm_renders_what_the_command_line_does(helm: Path, case: dict[str, Any]) -> None:
    """Except the operator's own namespace, which helm creates itself."""
    kubernetes = case.get("kubernetes", "1.36.0")
    shape = InstallOptions(kubernetes=kubernetes, **case["options"])
    expected = [item for item in manifests(shape) if item["metadata"]["name"] != CONTROLLER_NAMESPACE]
    found = template(helm, case["values"], kubernetes)
    assert _by_name(found) == _by_name(expected)


def _by_name(objects: Sequence[Manifest]) -> dict[tuple[str, str, str], Manifest]:
    return {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in objects}


@pytest.mark.real
@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("crds.enabled", {"CustomResourceDefinition"}),
        ("namespaces.create", {"Namespace"}),
        ("rbac.create", {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}),
    ],
)
def test_a_part_can_be_left_out(helm: Path, part: str, kinds: set[str]) -> None:
    everything = {item["kind"] for item in template(helm, {"image.repository": REPOSITORY}, "1.36.0")}
    rest = {item["kind"] for item in template(helm, {"image.repository": REPOSITORY, part: False}, "1.36.0")}
    assert everything - rest == kinds


@pytest.mark.real
def test_a_definition_can_have_no_rules(helm: Path) -> None:
    """For a server that refuses them."""
    found = _by_name(template(helm, {"crds.rules": False}, "1.36.0"))
    expected = _by_name(manifests(InstallOptions(kubernetes="1.28.0")))
    assert {name: item for name, item in found.items() if name[0] == "CustomResourceDefinition"} == {
        name: item for name, item in expected.items() if name[0] == "CustomResourceDefinition"
    }


@pytest.mark.real
@pytest.mark.parametrize(("value", "name"), [("podMonitor", "podmonitor.yaml"), ("prometheusRule", "alerts.yaml")])
def test_objects_of_the_prometheus_operator_are_the_examples(helm: Path, value: str, name: str) -> None:
    """With labels of the user; without them they have none."""
    base = {"image.repository": REPOSITORY}
    on = template(helm, {**base, value: {"enabled": True, "labels": {"release": "prometheus"}}}, "1.36.0")
    text = (chart.CHART.parents[1] / "examples/operator/monitoring" / name).read_text(encoding="utf-8")
    expected = document(text)
    expected["metadata"]["labels"] = {"release": "prometheus"}
    assert [item for item in on if item["kind"] == expected["kind"]] == [expected]
    assert [item for item in on if item["kind"] != expected["kind"]] == template(helm, base, "1.36.0")


@pytest.mark.real
def test_helm_finds_no_fault_with_the_chart(helm: Path) -> None:
    assert "0 chart(s) failed" in run(helm, "lint", "--strict", str(chart.CHART)).stdout


@pytest.mark.real
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--namespace=default", "add --namespace gpu-operator"),
        ("--set=replicas=0", "at '/replicas'"),
        ("--set=replica=1", "additional properties 'replica' not allowed"),
    ],
)
def test_helm_refuses_what_cannot_work(helm: Path, option: str, reason: str) -> None:
    done = run(helm, "template", "gpu-provision", str(chart.CHART), "--namespace", CONTROLLER_NAMESPACE, option)
    assert done.returncode != 0
    assert reason in done.stderr
