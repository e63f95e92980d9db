"""Settings that all operands share, and those of single ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_provision.components import desired
from gpu_provision.components.pods import first_untolerated
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.specs import DaemonSetSettings
from tests.components import builders, views

OPERANDS = ("driver", "toolkit", "validator", "device_plugin", "gfd", "dcgm", "dcgm_exporter")


def daemon_sets(inventory: Inventory, facts: ClusterFacts | None = None) -> dict[str, dict[str, Any]]:
    """Return the operands' DaemonSets by name, without Node Feature Discovery's."""
    manifests = desired(builders.context(inventory, facts))
    return {
        item["metadata"]["name"]: item
        for component in OPERANDS
        for item in views.of_kind(manifests.get(component, []), "DaemonSet")
    }


def with_settings(**fields: Any) -> Inventory:
    """Return the default inventory with other settings of all DaemonSets."""
    return builders.inventory(specs=builders.specs(daemonsets=replace(DaemonSetSettings(), **fields)))


def test_a_user_cannot_break_selectors() -> None:
    """``app`` and ``app.kubernetes.io/part-of`` are ignored, as in the reference; so is what else selects."""
    bad = {"app": "x", "app.kubernetes.io/part-of": "x", "gpu-provision.io/driver": "x", "good": "x"}
    for item in daemon_sets(with_settings(labels=bad)).values():
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["good"] == "x"


@pytest.mark.parametrize(
    ("component", "named"),
    [("device_plugin", "device_plugin"), ("gfd", "device_plugin"), ("dcgm_exporter", "dcgm_exporter")],
)
def test_editing_a_configuration_restarts_its_readers(component: str, named: str) -> None:
    """The reference notices a label that chooses another configuration, but not another content of the same."""
    setting = {"device_plugin": "config_name", "dcgm_exporter": "metrics_config"}[named]
    chosen = builders.with_spec(named, **{setting: "mine"})
    facts = [ClusterFacts(config_maps={"mine": {"key": text}}) for text in ("old", "new")]
    found = [views.of_kind(desired(builders.context(chosen, one))[component], "DaemonSet")[0] for one in facts]
    old, new = (views.operand([], item) for item in found)
    assert set(views.differences(old, new)) == {"pod_annotations.gpu-provision.io/config"}


def exporter(**fields: Any) -> list[dict[str, Any]]:
    """Return the exporter's manifests with some settings."""
    resources = fields.pop("facts", ClusterFacts())
    return desired(builders.context(builders.with_spec("dcgm_exporter", **fields), resources))["dcgm_exporter"]


def test_a_service_monitor_needs_its_resource_in_the_cluster() -> None:
    """An unknown kind would end the run."""
    known = ClusterFacts(resources=frozenset({"servicemonitors.monitoring.coreos.com"}))
    off = replace(builders.SPECS.dcgm_exporter.service_monitor, enabled=False)
    assert not views.of_kind(exporter(), "ServiceMonitor")
    assert not views.of_kind(exporter(facts=known, service_monitor=off), "ServiceMonitor")
    assert len(views.of_kind(exporter(facts=known), "ServiceMonitor")) == 1


@pytest.mark.parametrize("value", ["true", "false", ""])
def test_the_exporter_reads_pods_only_if_configured_to(value: str) -> None:
    """Least privilege, as in the reference."""
    manifests = exporter(env={"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": value} if value else {})
    (item,) = views.of_kind(manifests, "DaemonSet")
    reads = value == "true"
    assert bool(views.of_kind(manifests, "ClusterRole")) == reads
    assert item["spec"]["template"]["spec"].get("automountServiceAccountToken") is (None if reads else False)


@pytest.mark.parametrize(("version", "expected"), [("", "Local"), ("v1.22.1", "Local"), ("v1.20.2", None)])
def test_old_clusters_are_not_sent_fields_that_they_do_not_know(version: str, expected: str | None) -> None:
    """A server-side apply with an unknown field is refused."""
    facts = ClusterFacts(version=version)
    manifests = desired(builders.context(builders.with_spec("dcgm", enabled=True), facts))["dcgm"]
    (service,) = views.of_kind(manifests, "Service")
    assert service["spec"].get("internalTrafficPolicy") == expected


NFD = {
    "v0.19.0": (["-owner-refs=pod,ds", "-port=8080"], "httpGet"),
    "v0.18.3": (["-port=8080"], "httpGet"),
    "v0.17.3": (["-metrics=8081", "-grpc-health=8082"], "tcpSocket"),
    "v0.16.6": (["-metrics=8081", "-grpc-health=8082"], "tcpSocket"),
    "v0.15.4": (["-metrics=8081"], None),
    "v0.14.2": (["-metrics=8081"], None),
    "sha256:abc": (["-owner-refs=pod,ds", "-port=8080"], "httpGet"),
}


@pytest.mark.parametrize("version", NFD)
def test_each_version_of_nfd_is_started_with_flags_that_it_knows(version: str) -> None:
    """An unknown flag ends the process, and with it every release that carries that version."""
    image = replace(builders.SPECS.nfd.image, version=version)
    manifests = desired(builders.context(builders.with_spec("nfd", image=image)))["nfd"]
    (worker,) = views.of_kind(manifests, "DaemonSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    flags, probe = NFD[version]
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
    assert first_untolerated([taint], [toleration] if toleration else []) == told
