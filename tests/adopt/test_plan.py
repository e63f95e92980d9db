"""The disposition of objects and running drivers, and the errors that block an adoption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.adopt.discovery import OperatorInstall
from gpu_provision.adopt.plan import Adoption, Disposition, RunningDriver
from gpu_provision.components import labels
from gpu_provision.model.cluster import Manifest, index_by_ref
from gpu_provision.model.findings import Severity
from gpu_provision.model.openshift import OpenShiftFacts
from gpu_provision.output import views as view
from gpu_provision.rollout.states import installation_digest
from tests.adopt.builders import adoption_of, driver_pod, node, operator_install, policy
from tests.data_file import document


def dispositions(done: Adoption) -> dict[str, Disposition]:
    return {f"{item.ref.kind} {item.ref.name}": item.disposition for item in done.objects}


def error_codes(done: Adoption) -> set[str]:
    return {item.code for item in done.findings if item.severity is Severity.ERROR}


def with_object(cluster: OperatorInstall, kind: str, name: str, **metadata: Any) -> dict[Any, Manifest]:
    return {
        ref: {**item, "metadata": {**item["metadata"], **metadata}} if (ref.kind, ref.name) == (kind, name) else item
        for ref, item in cluster.objects.items()
    }


def with_a_daemonset_that_stays(**metadata: Any) -> OperatorInstall:
    """Return an installation with a DaemonSet that no component replaces: the MIG manager under another label."""
    labelled = {"labels": {"app": "nvidia-vfio-manager"}, **metadata}
    return operator_install(objects=with_object(operator_install(), "DaemonSet", "nvidia-mig-manager", **labelled))


_INSTALL = operator_install()
_OLM = {"kind": "ClusterServiceVersion", "name": "gpu-operator-certified", "uid": "1"}


def test_every_object_of_operator_and_chart_has_a_fate(tmp_path: Path) -> None:
    """Includes all objects that the deletion of the ClusterPolicy or helm uninstall would delete."""
    cluster = operator_install()
    done = adoption_of(tmp_path, cluster)
    assert {item.ref for item in done.objects} == cluster.owned.keys() | cluster.chart.keys() == cluster.objects.keys()
    assert error_codes(done) == set()
    assert [item["metadata"]["name"] for item in done.operators] == ["gpu-operator"]


def test_what_a_daemonset_that_stays_needs_stays_with_it(tmp_path: Path) -> None:
    """Its account, RBAC and files stay; the operator's own objects are removed."""
    found_fates = dispositions(adoption_of(tmp_path, with_a_daemonset_that_stays(), mig_manager={"enabled": False}))
    kinds = ("DaemonSet", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    assert {found_fates[f"{kind} nvidia-mig-manager"] for kind in kinds} == {Disposition.LEFT}
    assert found_fates["ConfigMap default-mig-parted-config"] is Disposition.LEFT
    assert found_fates["Service gpu-operator"] is found_fates["ClusterRole gpu-operator"] is Disposition.REMOVED


def test_it_stays_also_when_only_half_of_them_were_let_go(tmp_path: Path) -> None:
    """An interrupted run has removed the owner of the DaemonSet, but not of its account."""
    cluster = with_a_daemonset_that_stays(ownerReferences=[])
    found_fates = dispositions(adoption_of(tmp_path, cluster, mig_manager={"enabled": False}))
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
    """An operand is removed; Node Feature Discovery stays."""
    assert dispositions(adoption_of(tmp_path, operator_install(), **inventory))[name] is fate


def test_an_object_that_cannot_become_ours_is_replaced(tmp_path: Path) -> None:
    objects = {
        ref: {**item, "roleRef": {**item["roleRef"], "name": "other"}} if ref.kind == "ClusterRoleBinding" else item
        for ref, item in operator_install().objects.items()
    }
    done = adoption_of(tmp_path, operator_install(objects=objects))
    assert dispositions(done)["ClusterRoleBinding nvidia-driver"] is Disposition.REPLACED


def test_what_a_user_added_to_the_release_is_not_touched(tmp_path: Path) -> None:
    """Objects of extraObjects have Helm's annotations, without the chart's labels."""
    name = "gpu-operator-node-feature-discovery-master-conf"
    objects = with_object(operator_install(), "ConfigMap", name, labels={"mine": "1"})
    assert f"ConfigMap {name}" not in dispositions(adoption_of(tmp_path, operator_install(objects=objects)))


def test_nodes_are_labelled_before_anything_selects_them(tmp_path: Path) -> None:
    """The DaemonSet controller deletes pods on nodes that its selector lacks, including drivers."""
    (labelled,) = adoption_of(tmp_path, operator_install()).nodes
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
    """An interrupted adoption's own upgrade does not: the operator is stopped, and only the adoption can end it."""
    key = "nvidia.com/gpu-driver-upgrade-state"
    left = node(**{key: state})
    fields = {"f:metadata": {"f:labels": {f"f:{key}": {}}}}
    left["metadata"]["managedFields"] = [{"manager": manager, "operation": "Update", "fieldsV1": fields}]
    assert error_codes(adoption_of(tmp_path, operator_install(nodes=(left,)))) == codes


@pytest.mark.parametrize(
    ("changes", "inventory", "code"),
    [
        ({"policies": (policy(sandboxWorkloads={"enabled": True}),)}, {}, "GP362"),
        ({"drivers": ({"metadata": {"name": "default"}},)}, {}, "GP362"),
        ({}, {"cluster": {"context": "any", "namespace": "elsewhere"}}, "GP363"),
        ({"pods": (driver_pod("gpu-9"),)}, {}, "GP363"),
        ({"objects": with_object(_INSTALL, "Deployment", "gpu-operator", ownerReferences=[_OLM])}, {}, "GP362"),
    ],
    ids=["virtual machines", "NVIDIADriver", "namespace", "a node", "installed by OLM, which would scale it up again"],
)
def test_what_an_inventory_cannot_take_over_stands_against_it(
    tmp_path: Path, changes: dict[str, Any], inventory: dict[str, Any], code: str
) -> None:
    assert code in error_codes(adoption_of(tmp_path, operator_install(**changes), **inventory))


def test_where_no_policy_is_there_is_nothing_to_do(tmp_path: Path) -> None:
    done = adoption_of(tmp_path, operator_install(policies=(), objects={}, pods=()))
    assert done.is_complete
    assert {item.code for item in done.findings} == {"GP360"}


def test_the_text_says_what_happens_first_and_to_whom(tmp_path: Path) -> None:
    """In the order of the steps, without gpu-provision's marks and the server's defaults."""
    changes: dict[str, Any] = {"driver": {"version": "580.126.20"}, "mig_manager": {"enabled": False}}
    text = view.adoption_text(adoption_of(tmp_path, with_a_daemonset_that_stays(), **changes))
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
    """Return the plan of the only node's driver, with a changed pod and driver settings in the inventory."""
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
    (only,) = adoption_of(folder, operator_install(pods=(pod,)), driver=driver).drivers
    return only


def test_the_charts_driver_is_current_under_a_like_inventory(tmp_path: Path) -> None:
    """It keeps running, and gets every label that DaemonSet, plans and rollouts select by."""
    kept = driver_of(tmp_path, {})
    assert (kept.is_kept, kept.differences) == (True, ())
    assert kept.labels[labels.DRIVER_GROUP] == "ubuntu24.04"
    assert kept.labels[labels.COMPONENT] == "driver"
    assert len(kept.labels[labels.DIGEST] or "") == 16
    marked = {**kept.live, "metadata": {**kept.live["metadata"], "labels": dict(kept.labels)}}
    assert installation_digest(marked) == kept.labels[labels.INSTALLATION] != installation_digest(kept.live)


def test_marks_of_the_cluster_policy_alone_go(tmp_path: Path) -> None:
    """Labels of the chart and of the ClusterPolicy are removed; those of another program stay."""
    asked = {"labels": {"helm.sh/chart": "c", "team": "ml"}, "annotations": {"note": "x", "contact": "y"}}
    pod = driver_pod()
    pod["metadata"]["labels"] |= {"helm.sh/chart": "c", "team": "ml", "injected": "by-a-webhook"}
    pod["metadata"]["annotations"] |= {"note": "x"}
    there = operator_install(pods=(pod,), policies=(policy(daemonsets=asked),))
    daemonsets = {"labels": {"team": "ai"}, "annotations": {"team": "ai"}}
    (only,) = adoption_of(tmp_path, there, daemonsets=daemonsets).drivers
    assert [only.labels.get(key, "-") for key in ("helm.sh/chart", "team", "injected")] == [None, "ai", "-"]
    default = {"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"}
    assert only.annotations == {"note": None, "team": "ai", **default}


@pytest.mark.parametrize("case", DRIVERS.values(), ids=DRIVERS)
def test_what_reaches_the_installation_is_a_difference(tmp_path: Path, case: dict[str, Any]) -> None:
    """The DaemonSet adopts the driver as outdated, and a rollout restarts it."""
    driver = driver_of(tmp_path, case)
    assert driver.is_kept is ("difference" not in case), driver.differences
    assert case.get("difference", "") in "; ".join(driver.differences)
    assert driver.labels.keys() & {labels.DIGEST, labels.INSTALLATION} == (
        {labels.DIGEST, labels.INSTALLATION} if driver.is_kept else set()
    )
    assert driver.labels[labels.DRIVER_GROUP] == "ubuntu24.04"


def test_another_driver_in_the_inventory_is_a_difference(tmp_path: Path) -> None:
    """Another kind of kernel modules, or another version."""
    differences = driver_of(tmp_path, {}, kernel_module_type="open").differences
    assert "KERNEL_MODULE_TYPE is 'auto', desired: 'open'" in differences
    assert "driver:580.126.20-ubuntu24.04" in driver_of(tmp_path, {}, version="580.126.20").differences[0]


def test_a_driver_that_is_ours_already_is_not_compared(tmp_path: Path) -> None:
    """An earlier run has adopted it."""
    pod = driver_pod()
    pod["metadata"]["labels"][labels.COMPONENT] = "driver"
    assert adoption_of(tmp_path, operator_install(pods=(pod,))).drivers == ()


COREOS = "418.94.202503121207-0"
CONSTRAINTS = ("nvidia-driver", "nvidia-vfio-manager", "nvidia-operator-validator-of-old")


def with_driver_toolkit(*, release: str = COREOS) -> OperatorInstall:
    """Return an installation on OpenShift: the driver's DaemonSet is for a release of CoreOS, and named by it."""
    name, pod, there = f"nvidia-driver-daemonset-{release}", driver_pod(), operator_install()
    container = pod["spec"]["containers"][0]
    container |= {"command": ["ocp_dtk_entrypoint"], "args": ["nv-ctr-run-with-dtk"]}
    container["image"] = container["image"].replace("-ubuntu24.04", "-rhcos4.18")
    container["env"].append({"name": "OPENSHIFT_VERSION", "value": "4.18"})
    pod["spec"]["containers"].append({"name": "openshift-driver-toolkit-ctr", "image": "dtk"})
    pod["metadata"]["labels"] |= {"app": name, "openshift.driver-toolkit": "true"}
    owners = next(iter(there.owned.values()))["metadata"]["ownerReferences"]
    daemon_sets = {ref.name: item for ref, item in there.objects.items() if ref.kind == "DaemonSet"}
    daemon_sets["nvidia-driver-daemonset"]["metadata"] |= {"name": name, "labels": {"app": name}}
    staying = daemon_sets["nvidia-mig-manager"]
    staying["metadata"]["labels"] = {"app": "nvidia-vfio-manager"}
    staying["spec"]["template"]["spec"]["serviceAccountName"] = "nvidia-vfio-manager"
    constraints = (
        {
            "apiVersion": "security.openshift.io/v1",
            "kind": "SecurityContextConstraints",
            "metadata": {"name": each, "uid": f"uid-{each}", "ownerReferences": owners},
            "allowPrivilegedContainer": True,
        }
        for each in CONSTRAINTS
    )
    own = node()
    own["metadata"]["labels"] |= {
        "feature.node.kubernetes.io/system-os_release.ID": "rhcos",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "4.18",
        "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION": release,
    }
    changed = operator_install(objects=index_by_ref([*there.objects.values(), *constraints]), pods=(pod,), nodes=(own,))
    openshift = OpenShiftFacts(version="4.18.9", driver_toolkits={COREOS: "dtk"})
    return replace(changed, facts=replace(changed.facts, openshift=openshift))


def test_a_driver_of_the_driver_toolkit_keeps_running(tmp_path: Path) -> None:
    """Its DaemonSet is named by the release of CoreOS, and so is its label `app`."""
    done = adoption_of(tmp_path, with_driver_toolkit(), mig_manager={"enabled": False})
    (driver,) = done.drivers
    assert (driver.is_kept, driver.differences) == (True, ())
    assert driver.labels["app"] == "nvidia-driver-daemonset"
    fates = dispositions(done)
    assert fates[f"DaemonSet nvidia-driver-daemonset-{COREOS}"] is Disposition.REPLACED
    assert fates["ClusterRole nvidia-driver"] is Disposition.TAKEN
    constraints = [fates[f"SecurityContextConstraints {name}"] for name in CONSTRAINTS]
    assert constraints == [Disposition.TAKEN, Disposition.LEFT, Disposition.REMOVED]
    assert "MachineConfig" not in {ref.kind for ref in done.created}
