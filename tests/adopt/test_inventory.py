"""An inventory that declares what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_provision.adopt import cluster_policy as policies
from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.inventory import derive_inventory, release_of
from gpu_provision.components import labels
from gpu_provision.inventory import check
from tests.adopt.builders import found, node, policy

CLUSTER = {"kubeconfig": "", "context": "any"}


def derived(cluster: OperatorInstall) -> dict[str, Any]:
    return derive_inventory(cluster, name="gpu", cluster=CLUSTER)


def test_what_is_as_the_release_says_is_not_said_again(tmp_path: Path) -> None:
    """A file that a person would have written; our own checks find nothing wrong with it."""
    made = derived(found())
    assert made == {
        "name": "gpu",
        "cluster": {"context": "any", "namespace": "gpu-operator"},
        "release": "26.7.0",
        "host_prerequisites": {"enabled": False},
        "dcgm_exporter": {"service_monitor": {"enabled": False}},
        "pools": {"t4": {"os": "ubuntu24.04", "gpu": {"model": "T4", "count": 1}}},
        "nodes": [{"name": "gpu-1", "pool": "t4"}],
    }
    file = tmp_path / "gpu.yaml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert check(file).all == ()


CHARTS_LABELS = {"helm.sh/chart": "gpu-operator-v26.7.0", "app.kubernetes.io/managed-by": "gpu-operator"}
PLUGIN_ENV = [{"name": "PASS_DEVICE_SPECS", "value": "true"}, {"name": "DEVICE_LIST_STRATEGY", "value": "envvar"}]
GFD_ENV = [{"name": "GFD_SLEEP_INTERVAL", "value": "60s"}, {"name": "GFD_FAIL_ON_INIT_ERROR", "value": "true"}]

SAID: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("driver", {"version": "580.126.20"}, {"version": "580.126.20"}),
    ("driver", {"enabled": False}, {"enabled": False}),
    ("driver", {"kernelModuleType": "open"}, {"kernel_module_type": "open"}),
    ("driver", {"repoConfig": {"configMapName": "repos"}}, {"repo_config": "repos"}),
    ("driver", {"licensingConfig": {"secretName": "grid", "nlsEnabled": True}}, {"licensing_config": "grid"}),
    ("driver", {"manager": {"repository": "r.example.com", "image": "m", "version": "v9"}},
     {"manager": {"repository": "r.example.com", "image": "m", "version": "v9"}}),
    ("driver", {"env": [{"name": "HTTPS_PROXY", "value": "http://p:1"}]}, {"env": {"HTTPS_PROXY": "http://p:1"}}),
    ("driver", {"upgradePolicy": {"maxUnavailable": "50%", "drain": {"enable": True}}},
     {"upgrade_policy": {"max_unavailable": "50%", "drain": {"enable": True}}}),
    ("driver", {"args": ["init", "--max-threads=4"]}, {"args": ["--max-threads=4"]}),
    ("toolkit", {"args": ["init"]}, {"args": ["init"]}),
    ("toolkit", {"installDir": "/opt/nvidia"}, {"install_dir": "/opt/nvidia"}),
    ("devicePlugin", {"env": [*PLUGIN_ENV, {"name": "LOG"}, {"name": "FAIL_ON_INIT_ERROR", "value": "false"}]},
     {"env": {"LOG": "", "FAIL_ON_INIT_ERROR": "false"}}),
    ("daemonsets", {"labels": {**CHARTS_LABELS, "team": "ml"}}, {"labels": {"team": "ml"}}),
    ("daemonsets", {"labels": {**CHARTS_LABELS, "app.kubernetes.io/managed-by": "flux"}},
     {"labels": {"app.kubernetes.io/managed-by": "flux"}}),
    ("devicePlugin", {"config": {"name": "sharing", "default": "four"}},
     {"config_name": "sharing", "config_default": "four"}),
    ("dcgm", {"enabled": True}, {"enabled": True}),
    ("daemonsets", {"rollingUpdate": {"maxUnavailable": "3"}}, {"max_unavailable": 3}),
    ("mig", {"strategy": "mixed"}, {"strategy": "mixed"}),
    ("cdi", {"enabled": False}, {"enabled": False}),
    ("operator", {"runtimeClass": "gpu"}, {"runtime_class": "gpu"}),
)  # fmt: skip


@pytest.mark.parametrize(("section", "said", "declared"), SAID)
def test_what_the_policy_says_is_declared(
    tmp_path: Path, section: str, said: dict[str, Any], declared: dict[str, Any]
) -> None:
    """In the inventory's words, which its schema accepts."""
    made = derived(found(policies=(policy(**{section: said}),)))
    assert made[policies.OPERANDS.get(section, section)] == declared
    file = tmp_path / "gpu.yaml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert check(file).errors == ()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("driver", {"args": ["init"]}),
        ("devicePlugin", {"env": PLUGIN_ENV}),
        ("gfd", {"env": GFD_ENV}),
        ("validator", {"plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "false"}]}}),
    ],
)
def test_values_of_the_chart_itself_are_not_declared(section: str, said: dict[str, Any]) -> None:
    """The labels of its template, see the data, and what older charts have in their values; nor are they noted."""
    cluster = found(policies=(policy(**{section: said}),))
    assert derived(cluster) == derived(found())
    assert [note.path for note in policies.unsupported_settings(cluster.policies[0]["spec"])] == ["migManager.enabled"]


def test_a_mirror_is_written_image_by_image() -> None:
    """Other parts of an image stay as the release says."""
    made = derived(found(policies=(policy(toolkit={"repository": "r.example.com/nvidia"}),)))
    assert made["toolkit"] == {"repository": "r.example.com/nvidia"}


def test_nodes_that_are_alike_are_a_pool() -> None:
    """Named after what sets it apart; sharing and MIG are no other model."""
    nodes = (
        node("a", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}),
        node("b", **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.count": "4"}),
        node("c", **{"nvidia.com/gpu.product": "Tesla-T4"}),
        node("d", **{"feature.node.kubernetes.io/pci-10de.present": "false"}),
    )
    made = derived(found(nodes=nodes))
    assert made["pools"].keys() == {"h100-x8", "h100-x4", "t4"}
    assert made["nodes"] == [
        {"name": "a", "pool": "h100-x8"},
        {"name": "b", "pool": "h100-x4"},
        {"name": "c", "pool": "t4"},
    ]


def test_a_driver_of_the_hosts_own_is_left_to_each_host() -> None:
    made = derived(found(nodes=(node(**{labels.DEPLOY_DRIVER: "pre-installed"}),)))
    assert made["driver"] == {"enabled": "auto"}


def test_a_foreign_node_feature_discovery_stays() -> None:
    """The chart was told to use one that was there."""
    cluster = found()
    kept = {ref: item for ref, item in cluster.objects.items() if ref not in cluster.discovery}
    assert derived(found(objects=kept))["nfd"] == {"enabled": False}


def test_the_release_is_the_charts() -> None:
    """Or the newest, with every image that is another one said."""
    assert release_of(found()) == "26.7.0"
    assert release_of(found(objects={}, policies=(policy(validator={"version": "v25.10.1"}),))) == "25.10.1"
    assert release_of(found(objects={}, policies=(policy(validator={"version": "v0.0.1"}),))) == "26.7.0"


@pytest.mark.parametrize(
    ("section", "said", "is_needed"),
    [
        ("driver", {"rdma": {"enabled": True}}, True),
        ("driver", {"usePrecompiled": True}, True),
        ("gds", {"enabled": True}, True),
        ("sandboxWorkloads", {"enabled": True}, True),
        ("cdi", {"nriPluginEnabled": True}, True),
        ("nodeStatusExporter", {"enabled": True}, False),
        ("dcgmExporter", {"hostPort": 9400}, False),
        ("daemonsets", {"podSecurityContext": {"runAsUser": 0}}, False),
        ("novelty", {"enabled": True}, False),
    ],
)
def test_a_setting_without_a_key_is_reported(section: str, said: dict[str, Any], is_needed: bool) -> None:  # noqa: FBT001
    """Also a field that is newer than this table."""
    before = {note.path for note in policies.unsupported_settings(policy()["spec"])}
    (note,) = [
        each for each in policies.unsupported_settings(policy(**{section: said})["spec"]) if each.path not in before
    ]
    assert note.path.startswith(section)
    assert note.is_needed is is_needed
    assert before == {"migManager.enabled"}
