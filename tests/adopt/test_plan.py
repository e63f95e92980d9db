"""What becomes of each object and each running driver, and what stands against an adoption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.plan import Adoption, Disposition, RunningDriver
from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Severity
from gpu_provision.output import views as view
from gpu_provision.rollout.states import installation_digest
from tests.adopt.builders import adopted, driver_pod, found, node, policy
from tests.data_file import document


def fates(done: Adoption) -> dict[str, Disposition]:
    return {f"{item.ref.kind} {item.ref.name}": item.fate for item in done.objects}


def against(done: Adoption) -> set[str]:
    return {item.code for item in done.findings if item.severity is Severity.ERROR}


def with_object(cluster: OperatorInstall, kind: str, name: str, **metadata: Any) -> dict[Any, Manifest]:
    """Return the cluster's objects, one of which has other metadata."""
    return {
        ref: {**item, "metadata": {**item["metadata"], **metadata}} if (ref.kind, ref.name) == (kind, name) else item
        for ref, item in cluster.objects.items()
    }


_OLM = {"kind": "ClusterServiceVersion", "name": "gpu-operator-certified", "uid": "1"}


def test_every_object_of_operator_and_chart_has_a_fate(tmp_path: Path) -> None:
    """Nothing that would go with the ClusterPolicy, or with helm uninstall, is overlooked."""
    cluster = found()
    done = adopted(tmp_path, cluster)
    assert {item.ref for item in done.objects} == cluster.owned.keys() | cluster.chart.keys() == cluster.objects.keys()
    assert against(done) == set()
    assert [item["metadata"]["name"] for item in done.operators] == ["gpu-operator"]


def test_what_a_daemonset_that_stays_needs_stays_with_it(tmp_path: Path) -> None:
    """Its account, its rights and its files; what served the operator alone goes."""
    found_fates = fates(adopted(tmp_path, found()))
    kinds = ("DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert {found_fates[f"{kind} nvidia-mig-manager"] for kind in kinds} == {Disposition.LEFT}
    assert found_fates["ConfigMap default-mig-parted-config"] is Disposition.LEFT
    assert found_fates["Service gpu-operator"] is found_fates["ClusterRole gpu-operator"] is Disposition.REMOVED


def test_it_stays_also_when_only_half_of_them_were_let_go(tmp_path: Path) -> None:
    """The run was killed in between: the DaemonSet has no owner already, its account still the policy."""
    objects = with_object(found(), "DaemonSet", "nvidia-mig-manager", ownerReferences=[])
    found_fates = fates(adopted(tmp_path, found(objects=objects)))
    assert found_fates.get("DaemonSet nvidia-mig-manager") is None
    assert found_fates["ServiceAccount nvidia-mig-manager"] is Disposition.LEFT


@pytest.mark.parametrize(
    ("name", "inventory", "fate"),
    [
        ("DaemonSet nvidia-dcgm-exporter", {"dcgm_exporter": {"enabled": False}}, Disposition.REMOVED),
        ("DaemonSet gpu-operator-node-feature-discovery-worker", {"nfd": {"enabled": False}}, Disposition.LEFT),
        ("Deployment gpu-operator", {"nfd": {"enabled": False}}, Disposition.REMOVED),
    ],
)
def test_what_is_off_in_the_inventory(tmp_path: Path, name: str, inventory: Any, fate: Disposition) -> None:
    """An operand goes; Node Feature Discovery stays as it is."""
    assert fates(adopted(tmp_path, found(), **inventory))[name] is fate


def test_an_object_that_cannot_become_ours_is_replaced(tmp_path: Path) -> None:
    objects = {
        ref: {**item, "roleRef": {**item["roleRef"], "name": "other"}} if ref.kind == "ClusterRoleBinding" else item
        for ref, item in found().objects.items()
    }
    done = adopted(tmp_path, found(objects=objects))
    assert fates(done)["ClusterRoleBinding nvidia-driver"] is Disposition.REPLACED


def test_what_a_user_added_to_the_release_is_not_touched(tmp_path: Path) -> None:
    """What its values call extraObjects carries Helm's annotations, and none of the chart's labels."""
    name = "gpu-operator-node-feature-discovery-master-conf"
    objects = with_object(found(), "ConfigMap", name, labels={"mine": "1"})
    assert f"ConfigMap {name}" not in fates(adopted(tmp_path, found(objects=objects)))


def test_nodes_are_labelled_before_anything_selects_them(tmp_path: Path) -> None:
    """A DaemonSet takes its pods off nodes that it does not select: a driver would be lost."""
    (labelled,) = adopted(tmp_path, found()).nodes
    assert labelled.changes["gpu-provision.io/driver"] == "ubuntu24.04"
    assert labelled.uid == "uid-gpu-1"


@pytest.mark.parametrize(
    ("state", "manager", "codes"),
    [
        *((state, "gpu-operator", {"GP361"}) for state in ("upgrade-required", "upgrade-failed", "of-tomorrow")),
        ("pod-restart-required", "gpu-provision", set[str]()),
    ],
)
def test_a_driver_upgrade_under_way_stands_against_it(
    tmp_path: Path, state: str, manager: str, codes: set[str]
) -> None:
    """Not one of an adoption that was killed: the operator is stopped by then, so no other program would end it."""
    key = "nvidia.com/gpu-driver-upgrade-state"
    left = node(**{key: state})
    fields = {"f:metadata": {"f:labels": {f"f:{key}": {}}}}
    left["metadata"]["managedFields"] = [{"manager": manager, "operation": "Update", "fieldsV1": fields}]
    assert against(adopted(tmp_path, found(nodes=(left,)))) == codes


@pytest.mark.parametrize(
    ("changes", "inventory", "code"),
    [
        ({"policies": (policy(gds={"enabled": True}),)}, {}, "GP362"),
        ({"drivers": ({"metadata": {"name": "default"}},)}, {}, "GP362"),
        ({}, {"cluster": {"context": "any", "namespace": "elsewhere"}}, "GP363"),
        ({"pods": (driver_pod("gpu-9"),)}, {}, "GP363"),
        ({"objects": with_object(found(), "Deployment", "gpu-operator", ownerReferences=[_OLM])}, {}, "GP362"),
    ],
    ids=["GPUDirect Storage", "NVIDIADriver", "namespace", "a node", "installed by OLM, which would scale it up again"],
)
def test_what_an_inventory_cannot_take_over_stands_against_it(
    tmp_path: Path, changes: dict[str, Any], inventory: dict[str, Any], code: str
) -> None:
    assert code in against(adopted(tmp_path, found(**changes), **inventory))


def test_where_no_policy_is_there_is_nothing_to_do(tmp_path: Path) -> None:
    done = adopted(tmp_path, found(policies=(), objects={}, pods=()))
    assert done.is_over
    assert {item.code for item in done.findings} == {"GP360"}


def test_the_text_says_what_happens_first_and_to_whom(tmp_path: Path) -> None:
    """Its order is that of the steps; our marks and the server's defaults are left out."""
    text = view.adoption_text(adopted(tmp_path, found(), driver={"version": "580.126.20"}))
    places = [
        text.index(part)
        for part in (
            "ClusterPolicy cluster-policy, Helm release gpu-operator",
            "First the operator stops",
            "> gpu-1 is restarted: image nvcr.io/nvidia/driver:595.91.07-ubuntu24.04",
            "~ DaemonSet gpu-operator/nvidia-container-toolkit-daemonset",
            "-+ DaemonSet gpu-operator/nvidia-driver-daemonset",
            "- Deployment gpu-operator/gpu-operator",
            ". DaemonSet gpu-operator/nvidia-mig-manager",
        )
    ]
    assert places == sorted(places)
    assert "managed-by" not in text


DRIVERS: dict[str, dict[str, Any]] = document(Path(__file__).with_name("test_plan_drivers.yaml").read_text())


def driver_of(folder: Path, case: Mapping[str, Any], **driver: Any) -> RunningDriver:
    """Return the driver of the only node, whose pod was changed, under an inventory with driver settings."""
    pod = driver_pod()
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    container |= case.get("container", {})
    container["env"] += case.get("env", [])
    if "volume" in case:
        spec["volumes"].append({"name": "more", **case["volume"]})
        container["volumeMounts"].append({"name": "more", "mountPath": case["path"]})
    spec["containers"] += case.get("containers", [])
    spec["tolerations"] += case.get("tolerations", [])
    spec["initContainers"][0] |= case.get("init", {})
    pod["metadata"]["labels"] |= case.get("labels", {})
    (only,) = adopted(folder, found(pods=(pod,)), driver=driver).drivers
    return only


def test_the_charts_driver_is_current_under_a_like_inventory(tmp_path: Path) -> None:
    """It keeps running, and gets every label by which our DaemonSet, plans and rollouts know it."""
    kept = driver_of(tmp_path, {})
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
    assert [only.labels.get(key, "-") for key in ("helm.sh/chart", "team", "injected")] == [None, "ai", "-"]
    default = {"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"}
    assert only.annotations == {"note": None, "team": "ai", **default}


@pytest.mark.parametrize("case", DRIVERS.values(), ids=DRIVERS)
def test_what_reaches_the_installation_is_a_difference(tmp_path: Path, case: dict[str, Any]) -> None:
    """Such a driver is restarted by a rollout: our DaemonSet takes it up, but it does not count as current."""
    driver = driver_of(tmp_path, case)
    assert driver.keeps is ("told" not in case), driver.differs
    assert case.get("told", "") in "; ".join(driver.differs)
    assert driver.labels.keys() & {labels.DIGEST, labels.INSTALLATION} == (
        {labels.DIGEST, labels.INSTALLATION} if driver.keeps else set()
    )
    assert driver.labels[labels.DRIVER_GROUP] == "ubuntu24.04"


def test_another_driver_in_the_inventory_is_a_difference(tmp_path: Path) -> None:
    """Kernel modules of another kind, or another version."""
    assert (
        "KERNEL_MODULE_TYPE is 'auto', 'open' is wanted" in driver_of(tmp_path, {}, kernel_module_type="open").differs
    )
    assert "580.126.20-ubuntu24.04 is wanted" in driver_of(tmp_path, {}, version="580.126.20").differs[0]


def test_a_driver_that_is_ours_already_is_not_compared(tmp_path: Path) -> None:
    """It may have been restarted since, and is ours in any case."""
    pod = driver_pod()
    pod["metadata"]["labels"][labels.COMPONENT] = "driver"
    assert adopted(tmp_path, found(pods=(pod,))).drivers == ()
