"""Which running driver is, in effect, the one that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.adopt.drivers import RunningDriver
from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout.states import installation_digest
from tests.adopt.builders import adopted, driver_pod, found, policy

Change = Callable[[Manifest], Any]


def driver_of(folder: Path, change: Change = lambda _: None, **driver: Any) -> RunningDriver:
    """Return the driver of the only node, whose pod was changed, under an inventory with driver settings."""
    pod = driver_pod()
    change(pod)
    (only,) = adopted(folder, found(pods=(pod,)), driver=driver).drivers
    return only


def container(pod: Manifest) -> dict[str, Any]:
    made: dict[str, Any] = pod["spec"]["containers"][0]
    return made


def mount(pod: Manifest, path: str, **volume: Any) -> None:
    """Give the driver container another volume."""
    pod["spec"]["volumes"].append({"name": "more", **volume})
    container(pod)["volumeMounts"].append({"name": "more", "mountPath": path})


def test_the_charts_driver_is_current_under_a_like_inventory(tmp_path: Path) -> None:
    """It keeps running, and gets every label by which our DaemonSet, plans and rollouts know it."""
    kept = driver_of(tmp_path)
    assert (kept.keeps, kept.differs) == (True, ())
    assert kept.labels[labels.DRIVER_GROUP] == "ubuntu24.04"
    assert kept.labels[labels.COMPONENT] == "driver"
    assert len(kept.labels[labels.DIGEST] or "") == 16
    marked = {**kept.live, "metadata": {**kept.live["metadata"], "labels": dict(kept.labels)}}
    assert installation_digest(marked) == kept.labels[labels.INSTALLATION] != installation_digest(kept.live)


def test_marks_of_the_cluster_policy_alone_go(tmp_path: Path) -> None:
    """The chart's labels, and what the inventory no longer declares; the mark of another program stays."""
    asked = {"labels": {"helm.sh/chart": "c", "team": "ml"}, "annotations": {"note": "x", "contact": "y"}}
    pod = driver_pod()
    pod["metadata"]["labels"] |= {"helm.sh/chart": "c", "team": "ml", "injected": "by-a-webhook"}
    pod["metadata"]["annotations"] |= {"note": "x"}
    there = found(pods=(pod,), policies=(policy(daemonsets=asked),))
    (only,) = adopted(tmp_path, there, daemonsets={"labels": {"team": "ai"}, "annotations": {"team": "ai"}}).drivers
    assert {key: only.labels.get(key, "-") for key in ("helm.sh/chart", "team", "injected")} == {
        "helm.sh/chart": None,
        "team": "ai",
        "injected": "-",
    }
    default = {"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"}
    assert only.annotations == {"note": None, "team": "ai", **default}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pod: container(pod).update(image="nvcr.io/nvidia/driver:1-ubuntu24.04"), "image nvcr.io"),
        (lambda pod: container(pod).update(args=["init", "--debug"]), "command nvidia-driver init --debug"),
        (
            lambda pod: container(pod)["env"].append({"name": "HTTPS_PROXY", "value": "x"}),
            "HTTPS_PROXY is 'x', not set",
        ),
        (lambda pod: container(pod).update(envFrom=[{"secretRef": {"name": "s"}}]), "envFrom 0 is set from elsewhere"),
        (lambda pod: mount(pod, "/drivers", configMap={"name": "params"}), "ConfigMap params is mounted"),
        (lambda pod: mount(pod, "/drivers/gridd.conf", secret={"secretName": "grid"}), "Secret grid is mounted"),
        (
            lambda pod: pod["spec"]["containers"].append({"name": "nvidia-peermem-ctr"}),
            "nvidia-peermem-ctr runs beside",
        ),
        (lambda pod: container(pod).update(name="other"), "no container nvidia-driver-ctr"),
    ],
)
def test_what_reaches_the_installation_is_a_difference(tmp_path: Path, change: Change, told: str) -> None:
    """Such a driver is restarted by a rollout: our DaemonSet takes it up, but it does not count as current."""
    other = driver_of(tmp_path, change)
    assert any(told in difference for difference in other.differs), other.differs
    assert other.labels.keys() & {labels.DIGEST, labels.INSTALLATION} == set()
    assert other.labels[labels.DRIVER_GROUP] == "ubuntu24.04"


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["spec"]["initContainers"][0].update(image="other/k8s-driver-manager:v1"),
        lambda pod: container(pod).update(resources={"limits": {"memory": "1Gi"}}),
        lambda pod: pod["metadata"]["labels"].update(team="x"),
        lambda pod: mount(pod, "/var/run/secrets/kubernetes.io/serviceaccount", secret={"secretName": "token"}),
        lambda pod: pod["spec"]["tolerations"].append({"operator": "Exists"}),
    ],
)
def test_what_does_not_reach_the_installation_is_none(tmp_path: Path, change: Change) -> None:
    """Nor do digests: they are of two makers."""
    assert driver_of(tmp_path, change).keeps


def test_another_driver_in_the_inventory_is_a_difference(tmp_path: Path) -> None:
    """Kernel modules of another kind, or another version."""
    assert "KERNEL_MODULE_TYPE is 'auto', 'open' is wanted" in driver_of(tmp_path, kernel_module_type="open").differs
    assert "580.126.20-ubuntu24.04 is wanted" in driver_of(tmp_path, version="580.126.20").differs[0]


def test_a_driver_that_is_ours_already_is_not_compared(tmp_path: Path) -> None:
    """It may have been restarted since, and is ours in any case."""
    pod = driver_pod()
    pod["metadata"]["labels"][labels.COMPONENT] = "driver"
    assert adopted(tmp_path, found(pods=(pod,))).drivers == ()
