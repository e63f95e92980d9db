"""Alerts and dashboard name metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_provision import releases
from gpu_provision.components import render_manifests
from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.telemetry import Collector, StackMetrics
from tests.components import builders
from tests.components.views import of_kind
from tests.data_file import document
from tests.operator.test_telemetry import SNAPSHOT

ROOT = Path(__file__).parents[2]
LISTS = document(Path(__file__).with_name("dcgm_metrics.yaml").read_text(encoding="utf-8"))
CASE = "with-alerts-and-dashboard"


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return render_manifests(builders.case_context(CASE))["dcgm_exporter"]


@pytest.fixture(scope="module")
def further() -> dict[str, dict[str, Any]]:
    """The alerts that only a list of metrics of the stack's own brings."""
    found = rules(render_manifests(builders.case_context("with-alerts-on-more-metrics"))["dcgm_exporter"])
    usual = rules(render_manifests(builders.case_context(CASE))["dcgm_exporter"])
    return {name: rule for name, rule in found.items() if name not in usual}


def rules(manifests: list[Manifest]) -> dict[str, dict[str, Any]]:
    [found] = of_kind(manifests, "PrometheusRule")
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


def expressions(manifests: list[Manifest]) -> list[str]:
    [found] = [item for item in of_kind(manifests, "ConfigMap") if item["metadata"]["name"].endswith("-dashboard")]
    panels = json.loads(found["data"]["nvidia-gpus.json"])["panels"]
    return [rule["expr"] for rule in rules(manifests).values()] + [panel["targets"][0]["expr"] for panel in panels]


def test_every_metric_of_the_exporter_is_exported_by_default(manifests: list[Manifest]) -> None:
    """By every version of the exporter."""
    named = set(re.findall(r"\bDCGM_\w+", " ".join(expressions(manifests))))
    assert len(named) > 10
    assert [named - {*known["metrics"]} for known in LISTS] == [set(), set()]


def test_an_alert_on_another_metric_comes_with_the_metric(further: dict[str, dict[str, Any]]) -> None:
    metrics = {name: re.findall(r"\bDCGM_\w+", rule["expr"]) for name, rule in further.items()}
    assert metrics == {
        "GPUEccError": ["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"],
        "GPUThermalThrottling": ["DCGM_FI_DEV_THERMAL_VIOLATION"],
    }
    assert {"needs"} & {key for rule in further.values() for key in rule} == set()


def test_every_exporter_of_a_release_has_a_list() -> None:
    listed = {version for known in LISTS for version in (*known["versions"], *known.get("unknown", ()))}
    assert {re.sub(r"-(ubuntu.*|distroless)$", "", version) for version in releases.versions("dcgm_exporter")} == listed


def test_every_metric_of_the_controller_exists(manifests: list[Manifest]) -> None:
    collector = Collector(lambda: SNAPSHOT._replace(stacks={"main": StackMetrics()}))
    known = {sample.name for family in collector.collect() for sample in family.samples}
    named = set(re.findall(r"\bgpu_(?:operator|provision)_\w+", " ".join(expressions(manifests))))
    assert named
    assert named <= known


def test_an_expression_names_no_other_metric(manifests: list[Manifest]) -> None:
    words = {"Hostname", "and", "by", "changes", "gpu", "hostname", "increase", "job", "label_replace", "max"}
    words |= {"namespace", "node", "or", "rate", "unless", "up", "h", "__rate_interval"}
    text = re.sub(r'"[^"]*"', "", " ".join(expressions(manifests)))
    found = {word for word in re.findall(r"[A-Za-z_]\w*", text) if not word.startswith(("DCGM_", "gpu_"))}
    assert found <= words


def test_an_alert_of_the_same_name_is_the_same(manifests: list[Manifest]) -> None:
    """Then Alertmanager notifies once, if the rules of the operator are installed as well."""
    text = (ROOT / "examples/operator/monitoring/alerts.yaml").read_text(encoding="utf-8")
    of_operator = {rule["alert"]: rule for group in document(text)["spec"]["groups"] for rule in group["rules"]}
    found = rules(manifests)
    assert found.keys() & of_operator.keys() == {"GPUNodesNotReady", "GPUDriverUpgradeFailed"}
    assert all(found[name] == of_operator[name] for name in found.keys() & of_operator.keys())


def test_settings_are_in_the_rules(manifests: list[Manifest]) -> None:
    found = rules(manifests)
    assert found["GPUHot"]["expr"].endswith("> 90")
    assert 'namespace="gpu-operator-resources"' in found["GPUMetricsDown"]["expr"]
    [item] = of_kind(manifests, "PrometheusRule")
    assert item["metadata"]["labels"].items() >= {"release": "prometheus", "app": "nvidia-dcgm-exporter"}.items()


def test_a_cluster_without_the_kind_gets_no_rules() -> None:
    inventory = builders.inventory_with(builders.CASES[CASE]["inventory"])
    assert not of_kind(render_manifests(builders.context(inventory))["dcgm_exporter"], "PrometheusRule")


def test_the_page_lists_every_alert(manifests: list[Manifest], further: dict[str, dict[str, Any]]) -> None:
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(GPU\w+)` \|", page, re.MULTILINE)) == {*rules(manifests), *further}
