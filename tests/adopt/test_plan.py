"""What becomes of each object, and what stands against an adoption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.plan import Adoption, Disposition
from gpu_provision.model.cluster import Manifest
from gpu_provision.model.findings import Severity
from gpu_provision.output import views as view
from tests.adopt.builders import adopted, driver_pod, found, node, policy


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
    assert "DaemonSet nvidia-mig-manager" not in found_fates
    assert found_fates["ServiceAccount nvidia-mig-manager"] is Disposition.LEFT


def test_a_component_that_is_off_is_removed(tmp_path: Path) -> None:
    done = adopted(tmp_path, found(), dcgm_exporter={"enabled": False})
    assert fates(done)["DaemonSet nvidia-dcgm-exporter"] is Disposition.REMOVED


def test_an_object_that_cannot_become_ours_is_replaced(tmp_path: Path) -> None:
    cluster = found()
    objects = {
        ref: {**item, "roleRef": {**item["roleRef"], "name": "other"}} if ref.kind == "ClusterRoleBinding" else item
        for ref, item in cluster.objects.items()
    }
    done = adopted(tmp_path, found(objects=objects))
    assert fates(done)["ClusterRoleBinding nvidia-driver"] is Disposition.REPLACED


def test_the_charts_nfd_stays_where_the_inventory_has_none(tmp_path: Path) -> None:
    found_fates = fates(adopted(tmp_path, found(), nfd={"enabled": False}))
    assert found_fates["DaemonSet gpu-operator-node-feature-discovery-worker"] is Disposition.LEFT
    assert found_fates["Deployment gpu-operator"] is Disposition.REMOVED


def test_what_a_user_added_to_the_release_is_not_touched(tmp_path: Path) -> None:
    """What its values call extraObjects carries Helm's annotations, and none of the chart's labels."""
    cluster = found()
    objects = with_object(cluster, "ConfigMap", "gpu-operator-node-feature-discovery-master-conf", labels={"mine": "1"})
    assert "ConfigMap gpu-operator-node-feature-discovery-master-conf" not in fates(
        adopted(tmp_path, found(objects=objects))
    )


def test_nodes_are_labelled_before_anything_selects_them(tmp_path: Path) -> None:
    """A DaemonSet takes its pods off nodes that it does not select: a driver would be lost."""
    (labelled,) = adopted(tmp_path, found()).nodes
    assert labelled.changes["gpu-provision.io/driver"] == "ubuntu24.04"
    assert labelled.uid == "uid-gpu-1"


@pytest.mark.parametrize("state", ["upgrade-required", "pod-restart-required", "upgrade-failed", "of-tomorrow"])
def test_a_driver_upgrade_under_way_stands_against_it(tmp_path: Path, state: str) -> None:
    done = adopted(tmp_path, found(nodes=(node(**{"nvidia.com/gpu-driver-upgrade-state": state}),)))
    assert against(done) == {"GP361"}


@pytest.mark.parametrize(("manager", "codes"), [("gpu-provision", set[str]()), ("gpu-operator", {"GP361"})])
def test_a_rollout_of_an_adoption_that_was_killed_does_not(tmp_path: Path, manager: str, codes: set[str]) -> None:
    """The operator is stopped by then, so no other program would end it."""
    state = "nvidia.com/gpu-driver-upgrade-state"
    left = node(**{state: "pod-restart-required"})
    fields = {"f:metadata": {"f:labels": {f"f:{state}": {}}}}
    left["metadata"]["managedFields"] = [{"manager": manager, "operation": "Update", "fieldsV1": fields}]
    assert against(adopted(tmp_path, found(nodes=(left,)))) == codes


@pytest.mark.parametrize(
    ("changes", "inventory", "code"),
    [
        ({"policies": (policy(gds={"enabled": True}),)}, {}, "GP362"),
        ({"drivers": ({"metadata": {"name": "default"}},)}, {}, "GP362"),
        ({}, {"cluster": {"context": "any", "namespace": "elsewhere"}}, "GP363"),
        ({"pods": (driver_pod("gpu-9"),)}, {}, "GP363"),
    ],
)
def test_what_an_inventory_cannot_take_over_stands_against_it(
    tmp_path: Path, changes: dict[str, Any], inventory: dict[str, Any], code: str
) -> None:
    assert code in against(adopted(tmp_path, found(**changes), **inventory))


def test_an_operator_with_another_owner_stands_against_it(tmp_path: Path) -> None:
    """The Operator Lifecycle Manager would scale it up again."""
    owner = {"kind": "ClusterServiceVersion", "name": "gpu-operator-certified", "uid": "1"}
    objects = with_object(found(), "Deployment", "gpu-operator", ownerReferences=[owner])
    assert against(adopted(tmp_path, found(objects=objects))) == {"GP362"}


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
