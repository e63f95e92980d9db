"""Access rights, Services and Node Feature Discovery are those of the GPU Operator, but for listed differences."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.components import render_manifests
from gpu_provision.model.cluster import ClusterFacts
from tests import data_file
from tests.components import builders, views

ORACLE: dict[str, Any] = data_file.document(Path(__file__).with_name("oracle.yaml").read_text())
OPERANDS = ("driver", "toolkit", "validator", "device_plugin", "gfd", "dcgm", "dcgm_exporter")

NFD_PARTS = {"master": "Deployment", "worker": "DaemonSet", "gc": "Deployment"}


def _manifests(component: str) -> list[dict[str, Any]]:
    facts = ClusterFacts(resources=frozenset({"servicemonitors.monitoring.coreos.com"}))
    chosen = builders.inventory_with({"dcgm": {"enabled": True}, "device_plugin": {"config_name": "sharing"}})
    return render_manifests(builders.context(chosen, facts))[component]


@pytest.mark.parametrize("component", OPERANDS)
def test_an_operand_differs_from_the_reference_as_listed(component: str) -> None:
    """Access rights and Services: users' scripts and dashboards go on working. Pods: see adopt/test_operands.py."""
    manifests = _manifests(component)
    result = {
        "rbac": {kind: views.rules(manifests, kind) for kind in ("Role", "ClusterRole")},
        "service": views.service(manifests),
        "service_monitor": views.service_monitor(manifests),
    }
    paths = set(views.differences(ORACLE[component], result))
    allowed = {pattern for listed in ORACLE["differences"].values() for pattern in listed.get(component, ())}
    unexpected = {path for path in paths if not any(fnmatch(path, pattern) for pattern in allowed)}
    assert not unexpected
    unused = {pattern for pattern in allowed if not any(fnmatch(path, pattern) for path in paths)}
    assert not unused, "a listed difference is none any more"


@pytest.mark.parametrize("part", NFD_PARTS)
def test_node_feature_discovery_is_what_its_chart_makes_of_it(part: str) -> None:
    """Commands, probes, resources, security and mounts are those of chart 0.19; tolerations go further."""
    expected = ORACLE["nfd"][part]
    workload = next(
        item
        for item in views.of_kind(_manifests("nfd"), NFD_PARTS[part])
        if item["metadata"]["name"] == expected["name"]
    )
    pod = workload["spec"]["template"]["spec"]
    (result,) = pod["containers"]
    for key in ("args", "ports", "resources", "securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert result.get(key) == expected.get(key), key
    assert result["command"] == [expected["command"]]
    assert views.container(result)["env"] == expected["env"]
    for wanted in expected.get("tolerations", ()):
        assert {key: value for key, value in wanted.items() if value} in pod["tolerations"]
    mounts = {item["name"]: item for item in result.get("volumeMounts", ())}
    for name, wanted in expected.get("volumes", {}).items():
        assert (mounts[name]["mountPath"], mounts[name]["readOnly"]) == (wanted["mount"], True)
        if "hostPath" in wanted:
            assert {"name": name, "hostPath": {"path": wanted["hostPath"]}} in pod["volumes"]


def test_nfd_has_the_rules_and_configuration_of_its_chart() -> None:
    """Labels such as pci-10de.present depend on the worker's configuration."""
    manifests = _manifests("nfd")
    expected = {**ORACLE["nfd"]["rbac"]}
    name = ORACLE["nfd"]["master"]["name"].removesuffix("-master")
    expected[name] = [*expected[name], *expected.pop(ORACLE["nfd"]["gc"]["name"])]  # both are of one account
    assert views.rules(manifests, "ClusterRole") | views.rules(manifests, "Role") == expected
    names = {item["metadata"]["name"] for item in views.of_kind(manifests, "CustomResourceDefinition")}
    assert names == set(ORACLE["nfd"]["crds"])
    for item in views.of_kind(manifests, "ConfigMap"):
        ((key, text),) = item["data"].items()
        part = key.removeprefix("nfd-").removesuffix(".conf")
        assert data_file.document(text) == ORACLE["nfd"][f"{part}_config"]


def test_runtime_classes_are_those_of_the_reference() -> None:
    """Pods name them, so they must not change."""
    classes = views.of_kind(_manifests("prerequisites"), "RuntimeClass")
    assert {item["metadata"]["name"]: item["handler"] for item in classes} == ORACLE["runtime_classes"]
