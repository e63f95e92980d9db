"""Derive an inventory from a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.inventory import derive_inventory, release_of, settings_of_install
from gpu_provision.adopt.unsupported import unsupported_settings
from gpu_provision.components import labels
from gpu_provision.components.gpu_resources import SLICES
from gpu_provision.inventory import check
from gpu_provision.model.openshift import OpenShiftFacts
from tests.adopt.builders import OF_THE_CHART, node, operator_install, policy
from tests.data_file import document

CLUSTER = {"kubeconfig": "", "context": "any"}


def derive(cluster: OperatorInstall) -> dict[str, Any]:
    return derive_inventory(settings_of_install(cluster), name="gpu", cluster=CLUSTER, install=cluster).data


def test_what_is_as_the_release_says_is_not_said_again(tmp_path: Path) -> None:
    """A valid inventory without redundant keys."""
    made = derive(operator_install())
    assert made == {
        "name": "gpu",
        "cluster": {"context": "any", "namespace": "gpu-operator"},
        "release": "26.7.0",
        "host_prerequisites": {"enabled": False},
        "dcgm_exporter": {"service_monitor": {"enabled": False}},
        **OF_THE_CHART,
        "pools": {"t4": {"os": "ubuntu24.04", "gpu": {"model": "T4", "count": 1}}},
        "nodes": [{"name": "gpu-1", "pool": "t4"}],
    }
    file = tmp_path / "gpu.yaml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert check(file).all == ()


CASES: list[dict[str, Any]] = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["policy"]))
def test_what_the_policy_says_is_declared_or_reported(tmp_path: Path, case: dict[str, Any]) -> None:
    """With the keys of the inventory's schema."""
    cluster = operator_install(policies=(policy(**case["policy"]),))
    made = derive(cluster)
    assert made == derive(operator_install()) | case.get("inventory", {})
    notes = {note.path: note.is_needed for note in unsupported_settings(settings_of_install(cluster))}
    assert notes == case.get("reported", {})
    file = tmp_path / "gpu.yaml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert check(file).errors == ()


def test_nodes_that_are_alike_are_a_pool() -> None:
    """A pool's name has the difference; sharing and MIG do not change the model."""
    nodes = (
        node("a", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}),
        node("b", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.count": "4"}),
        node("c", **{"nvidia.com/gpu.product": "Tesla-T4"}),
        node("m", **{"nvidia.com/gpu.product": "H100-MIG-2g.20gb", "nvidia.com/gpu.count": "24", SLICES: "2"}),
        node("d", **{"feature.node.kubernetes.io/pci-10de.present": "false"}),
    )
    made = derive(operator_install(nodes=nodes))
    assert made["pools"].keys() == {"h100-x8", "h100-x4", "t4"}
    assert made["nodes"] == [
        {"name": "a", "pool": "h100-x8"},
        {"name": "b", "pool": "h100-x4"},
        {"name": "c", "pool": "t4"},
        {"name": "m", "pool": "h100-x8"},
    ]


@pytest.mark.parametrize(
    ("product", "size", "counted"),
    [
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.20gb", 1, 32),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", 1, 8),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb", 1, 32),
        ("NVIDIA-A30-MIG-2g.12gb", 2, 16),
        ("NVIDIA-X1000-MIG-3g.10gb", 3, 16),
    ],
)
def test_mig_devices_are_counted_back_to_gpus(product: str, size: int, counted: int) -> None:
    """By what one GPU holds of them; a model that is not known has seven slices."""
    found = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(counted), SLICES: str(size)}
    made = derive(operator_install(nodes=(node("a", **found),)))
    assert [pool["gpu"]["count"] for pool in made["pools"].values()] == [8]


def test_a_mig_configuration_is_that_of_its_pool() -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
    nodes = [
        node(name, **product, **{"nvidia.com/mig.config": config})
        for name, config in (("a", "all-1g.10gb"), ("b", "all-disabled"))
    ]
    made = derive(operator_install(nodes=tuple(nodes)))
    assert made["pools"]["h100-all-1g-10gb"]["mig"] == {"config": "all-1g.10gb"}
    assert "mig" not in made["pools"]["h100"]


def test_a_driver_of_the_hosts_own_is_left_to_each_host() -> None:
    made = derive(operator_install(nodes=(node(**{labels.DEPLOY_DRIVER: "pre-installed"}),)))
    assert made["driver"] == {"enabled": "auto"}


def test_a_foreign_node_feature_discovery_stays() -> None:
    """The chart uses one that existed before."""
    cluster = operator_install()
    kept = {ref: item for ref, item in cluster.objects.items() if ref not in cluster.discovery}
    assert derive(operator_install(objects=kept))["nfd"] == {"enabled": False}


@pytest.mark.parametrize(("validator", "release"), [("v25.10.1", "25.10.1"), ("v0.0.1", "26.7.0")])
def test_the_release_is_the_charts(validator: str, release: str) -> None:
    """Else the validator's, else the newest one, with every differing image."""
    assert release_of(settings_of_install(operator_install())) == "26.7.0"
    bare = policy(validator={"version": validator})
    bare["metadata"] = {"name": "cluster-policy"}
    assert release_of(settings_of_install(operator_install(objects={}, policies=(bare,)))) == release


@pytest.mark.parametrize(
    ("declared", "section"), [(False, {"openshift": {"use_ocp_driver_toolkit": False}}), (True, {}), (None, {})]
)
def test_the_platform_is_that_of_the_cluster(*, declared: bool | None, section: dict[str, Any]) -> None:
    """Elsewhere the driver toolkit has no effect: the chart turns it off."""
    cluster = operator_install(policies=(policy(operator={"use_ocp_driver_toolkit": declared}),))
    plain = derive(cluster)
    assert "openshift" not in plain
    on_openshift = derive(replace(cluster, facts=replace(cluster.facts, openshift=OpenShiftFacts())))
    assert on_openshift == plain | section | {"cluster": {"platform": "openshift", **plain["cluster"]}}
