"""Settings that all operands share, and those of single ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import render_manifests
from gpu_provision.components.pods import first_untolerated_taint
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.specs import DaemonSetSettings
from tests.components import builders, views
from tests.data_file import document


def test_a_user_cannot_break_selectors() -> None:
    """``app`` and ``app.kubernetes.io/part-of`` are ignored, as in the reference; so is what else selects."""
    bad = {"app": "x", "app.kubernetes.io/part-of": "x", "gpu-provision.io/driver": "x", "good": "x"}
    settings = DaemonSetSettings(labels=bad)
    result = render_manifests(builders.context(builders.inventory(specs=builders.specs(daemonsets=settings))))
    own = [item for name, items in result.items() if name != "nfd" for item in views.of_kind(items, "DaemonSet")]
    assert len(own) > 5
    for item in own:
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["good"] == "x"
        assert "x" not in (labels["app"], labels.get("app.kubernetes.io/part-of"))


@pytest.mark.parametrize(
    ("component", "named"),
    [("device_plugin", "device_plugin"), ("gfd", "device_plugin"), ("dcgm_exporter", "dcgm_exporter")],
)
def test_editing_a_configuration_restarts_its_readers(component: str, named: str) -> None:
    """The reference notices a label that chooses another configuration, but not another content of the same."""
    setting = {"device_plugin": "config_name", "dcgm_exporter": "metrics_config"}[named]
    chosen = builders.with_spec(named, **{setting: "mine"})
    facts = [ClusterFacts(config_maps={"mine": {"key": text}}) for text in ("old", "new")]
    result = [
        views.of_kind(render_manifests(builders.context(chosen, one))[component], "DaemonSet")[0] for one in facts
    ]
    old, new = map(views.operand, result)
    assert set(views.differences(old, new)) == {"podAnnotations gpu-provision.io/config"}


def test_an_nri_plugin_takes_the_place_of_every_runtime_class() -> None:
    """An operand without its annotation would see no GPU."""
    shared = {"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}
    plain = {
        "dcgm": {"enabled": True},
        "device_plugin": {"config": {"data": {"mps": shared}}},
        "pools": {"t4": {"device_plugin": {"config": "mps"}}, "h100": {"mig": {"config": "all-1g.10gb"}}},
    }
    on_class, on_plugin = (
        {
            item["metadata"]["name"]: item["spec"]["template"]
            for items in render_manifests(builders.context(builders.inventory_with(plain | changes))).values()
            for item in views.of_kind(items, "DaemonSet")
        }
        for changes in ({}, {"cdi": {"nri_plugin_enabled": True}})
    )
    with_class = {name for name, template in on_class.items() if "runtimeClassName" in template["spec"]}
    annotated = {
        name
        for name, template in on_plugin.items()
        if any(key.startswith("nvidia.cdi.k8s.io/") for key in template["metadata"].get("annotations", {}))
    }
    assert len(with_class) >= 7
    assert annotated == with_class
    assert not [name for name, template in on_plugin.items() if "runtimeClassName" in template["spec"]]


@pytest.mark.parametrize("part", ["worker", "master"])
def test_a_configuration_of_nfd_is_merged_over_the_default(part: str) -> None:
    """Without the default, nodes would have no labels of GPUs."""
    plain, merged = (
        {
            key: document(text)
            for item in views.of_kind(render_manifests(builders.context(chosen))["nfd"], "ConfigMap")
            for key, text in item["data"].items()
        }[f"nfd-{part}.conf"]
        for chosen in (builders.inventory(), builders.inventory_with({"nfd": {f"{part}_config": {"core": {"a": 1}}}}))
    )
    assert merged == plain | {"core": {"a": 1}}


def test_a_service_monitor_can_be_off() -> None:
    """Without its resource in the cluster, there is none: see the golden files."""
    off = {"dcgm_exporter": {"service_monitor": {"enabled": False}}}
    known = builders.case_context("with-prometheus").facts
    manifests = render_manifests(builders.context(builders.inventory_with(off), known))["dcgm_exporter"]
    assert not views.of_kind(manifests, "ServiceMonitor")


@pytest.mark.parametrize(("version", "expected"), [("", "Local"), ("v1.22.1", "Local"), ("v1.20.2", None)])
def test_old_clusters_are_not_sent_fields_that_they_do_not_know(version: str, expected: str | None) -> None:
    """A server-side apply with an unknown field is refused."""
    facts = ClusterFacts(version=version)
    manifests = render_manifests(builders.context(builders.with_spec("dcgm", enabled=True), facts))["dcgm"]
    (service,) = views.of_kind(manifests, "Service")
    assert service["spec"].get("internalTrafficPolicy") == expected


@pytest.mark.parametrize(
    ("version", "flags", "probe"),
    [
        ("v0.19.0", ["-owner-refs=pod,ds", "-port=8080"], "httpGet"),
        ("v0.18.3", ["-port=8080"], "httpGet"),
        ("v0.17.3", ["-metrics=8081", "-grpc-health=8082"], "tcpSocket"),
        ("v0.15.4", ["-metrics=8081"], None),
        ("sha256:abc", ["-owner-refs=pod,ds", "-port=8080"], "httpGet"),
    ],
)
def test_each_version_of_nfd_is_started_with_flags_it_knows(version: str, flags: list[str], probe: str | None) -> None:
    """An unknown flag ends the process, and with it every release that carries that version."""
    image = replace(builders.SPECS.nfd.image, version=version)
    manifests = render_manifests(builders.context(builders.with_spec("nfd", image=image)))["nfd"]
    (worker,) = views.of_kind(manifests, "DaemonSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert container["args"] == flags
    assert (probe in container["livenessProbe"]) if probe else ("livenessProbe" not in container)
    named = {item["name"] for item in container["ports"]}
    assert probe is None or container["livenessProbe"][probe]["port"] in named


TEAM = {"key": "team", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "toleration", "told"),
    [
        (TEAM, {}, "team=ml:NoSchedule"),
        (TEAM, {"key": "team", "operator": "Exists"}, ""),
        (TEAM, {"key": "team", "operator": "Exists", "effect": "NoExecute"}, "team=ml:NoSchedule"),
        (TEAM, {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}, ""),
        (TEAM, {"key": "team", "value": "ml"}, ""),
        (TEAM, {"key": "team", "value": "web"}, "team=ml:NoSchedule"),
        (TEAM, {"operator": "Exists"}, ""),
        (TEAM, {"operator": "Exists", "effect": "NoSchedule"}, ""),
        ({"key": "drain", "effect": "NoExecute"}, {}, "drain:NoExecute"),
        ({"key": "drain", "effect": "PreferNoSchedule"}, {}, ""),
        ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, {}, ""),
    ],
)
def test_a_taint_is_tolerated_as_the_scheduler_says(taint: Any, toleration: Any, told: str) -> None:
    """Kubernetes' own taints repeat conditions of the node, which are its reason."""
    assert first_untolerated_taint([taint], [toleration] if toleration else []) == told
