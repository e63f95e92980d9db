"""An inventory from files of a user of the GPU Operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.inventory import Draft, derive_inventory
from gpu_provision.adopt.pools import HAS_GPU
from gpu_provision.adopt.sources import read_files
from gpu_provision.inventory import check
from gpu_provision.model.findings import InvalidInventoryError, Severity
from gpu_provision.model.openshift import OpenShiftFacts
from tests.adopt.builders import OF_THE_CHART, node, operator_install
from tests.data_file import document

DATA: dict[str, list[dict[str, Any]]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
VALUES = Path(__file__).with_name("chart-values-26.7.0.yaml")
BASE = {
    "name": "gpu",
    "cluster": {"namespace": "gpu-operator"},
    "release": "26.7.0",
    "host_prerequisites": {"enabled": False},
}


def derived(*files: Path, release: str = "", install: OperatorInstall | None = None) -> Draft:
    source, _ = read_files(map(str, files))
    return derive_inventory(source, name="gpu", cluster={}, release=release, install=install)


def written(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def pool(**settings: Any) -> dict[str, Any]:
    return {**settings, "node_selector": {**HAS_GPU, **settings.get("node_selector", {})}, "gpu": {}}


def test_the_charts_own_values_are_the_inventorys(tmp_path: Path) -> None:
    """Nothing is written twice, and nothing is named."""
    draft = derived(VALUES)
    assert draft.data == {**BASE, **OF_THE_CHART, "pools": {"gpus": pool()}}
    assert (*draft.unsupported, *draft.refused) == ()
    file = tmp_path / "gpu.yaml"
    file.write_text(draft.text, encoding="utf-8")
    assert check(file).errors == ()


_FILES = {
    "policy.yaml": "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspec: {operator: {use_ocp_driver_toolkit: false}}",
    "values.yaml": "{platform: {openshift: true}, operator: {use_ocp_driver_toolkit: false}}",
}


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("on_openshift", [True, False])
def test_the_platform_of_a_cluster_wins_over_that_of_a_file(tmp_path: Path, name: str, *, on_openshift: bool) -> None:
    """Only a ClusterPolicy turns the driver toolkit off; elsewhere there is no section of OpenShift."""
    cluster = operator_install()
    cluster = replace(cluster, facts=replace(cluster.facts, openshift=OpenShiftFacts() if on_openshift else None))
    draft = derived(*written(tmp_path, {name: _FILES[name]}), install=cluster)
    assert draft.data["cluster"].get("platform") == ("openshift" if on_openshift else None)
    is_off = on_openshift and name == "policy.yaml"
    assert draft.data.get("openshift") == ({"use_ocp_driver_toolkit": False} if is_off else None)
    assert draft.unsupported == []


@pytest.mark.parametrize("case", DATA["carried"], ids=lambda case: str(case["id"]))
def test_an_inventory_means_what_the_files_do(tmp_path: Path, case: dict[str, Any]) -> None:
    """What it does not carry over is named with its file and line."""
    draft = derived(*written(tmp_path, case["files"]), **case.get("options", {}))
    pools = {name: pool(**section) for name, section in case.get("pools", {"gpus": {}}).items()}
    of_chart = OF_THE_CHART if "driver.yaml" not in case["files"] else {}
    assert draft.data == {**BASE, **of_chart, **case.get("inventory", {}), "pools": pools}
    findings = (*draft.unsupported, *draft.refused)
    places = {finding.where.removeprefix(f"{tmp_path}/"): finding for finding in findings}
    named = case.get("named", {})
    assert places.keys() == named.keys()
    assert [place for place, words in named.items() if words not in str(places[place])] == []
    assert all(finding.severity is Severity.WARNING for finding in findings)
    file = tmp_path / "gpu.yaml"
    file.write_text(draft.text, encoding="utf-8")
    assert check(file).errors == ()


@pytest.mark.parametrize("case", DATA["refused"], ids=lambda case: str(case["finding"]))
def test_a_file_that_cannot_be_imported_is_one_finding(tmp_path: Path, case: dict[str, str]) -> None:
    (file,) = written(tmp_path, {"in.yaml": case["text"]})
    with pytest.raises(InvalidInventoryError) as caught:
        read_files([str(file)])
    codes_of_lines = {str(finding).partition("\n")[0] for finding in caught.value.findings}
    assert {line.replace(f"{tmp_path}/", "").startswith(case["finding"]) for line in codes_of_lines} == {True}
    assert len({finding.what for finding in caught.value.findings}) == 1


def test_other_resources_in_a_file_are_named(tmp_path: Path) -> None:
    """The output of helm template has many; a file with nothing else cannot be imported."""
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    (file,) = written(tmp_path, {"in.yaml": f"{other}---\ndriver: {{version: 580.126.20}}\n"})
    source, (finding,) = read_files([str(file)])
    assert source.spec == {"driver": {"version": "580.126.20"}}
    assert (finding.severity, finding.what) == (Severity.WARNING, "v1 ConfigMap is not read.")
    (file,) = written(tmp_path, {"in.yaml": other})
    with pytest.raises(InvalidInventoryError, match="No file has settings of the GPU Operator"):
        read_files([str(file)])


def test_no_secret_is_in_a_finding(tmp_path: Path) -> None:
    text = """
sandboxWorkloads: {enabled: true}
vgpuManager: {driverManager: {env: [{name: TOKEN, value: hunter2}]}}
driver: {apiPassword: hunter2}
migManager: {enabled: true, env: [{name: URL, value: "http://u:hunter2@x"}]}
extraObjects: [{apiVersion: v1, kind: Secret, stringData: {password: hunter2}}]
toolkit: {env: [{name: A, value: hunter2, valueFrom: hunter2}]}
operator: {logging: {url: "http://u:hunter2@x"}}
"""
    draft = derived(*written(tmp_path, {"values.yaml": text}))
    assert len(draft.unsupported) + len(draft.refused) >= 5
    shown = "".join(map(str, (*draft.unsupported, *draft.refused)))
    assert ("hunter2" in shown, "evidence: TOKEN" in shown) == (False, True)


DRIVERS = """
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: old}
spec: {image: driver, version: 570.211.01, nodeSelector: {zone: a}}
---
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: new}
spec: {image: driver, version: 580.126.20, nodeSelector: {zone: b}}
"""


def test_nodes_belong_to_the_driver_that_selects_them(tmp_path: Path) -> None:
    """A node that none selects has no driver."""
    nodes = tuple(node(name, zone=zone) for name, zone in {"n1": "a", "n2": "b", "n3": "c"}.items())
    made = derived(*written(tmp_path, {"drivers.yaml": DRIVERS}), install=operator_install(nodes=nodes)).data
    assert {name: section["driver"] for name, section in made["pools"].items()} == {
        "t4": {"enabled": False},
        "t4-new": {"version": "580.126.20"},
        "t4-old": {"version": "570.211.01"},
    }
    assert [member["pool"] for member in made["nodes"]] == ["t4-old", "t4-new", "t4"]


def test_the_text_is_the_data(tmp_path: Path) -> None:
    """Strings that YAML could misread stay strings."""
    text = "driver: {env: [{name: A, value: 'no'}, {name: B, value: '0777'}, {name: C, value: 'é: #'}]}\n"
    draft = derived(*written(tmp_path, {"values.yaml": text}))
    assert yaml.safe_load(draft.text) == draft.data
    assert draft.data["driver"]["env"] == {"A": "no", "B": "0777", "C": "é: #"}
