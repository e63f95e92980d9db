"""Which pods of others a removal has to know."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.destroy.nodes import find_remnants, running_operator
from gpu_provision.model.cluster import Manifest
from gpu_provision.rollout import states
from tests.destroy.builders import OURS, node, stack


def pod(phase: str = "Running", **labels: str) -> Manifest:
    metadata: dict[str, Any] = {"name": "p", "namespace": "gpu-operator", "uid": "u", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (pod(app="gpu-operator"), "gpu-operator/p"),
        (pod(**{"app.kubernetes.io/component": "gpu-operator"}), "gpu-operator/p"),
        (pod("Failed", app="gpu-operator"), ""),
        (pod(app="gpu-provision-operator"), ""),
        (pod(), ""),
    ],
)
def test_the_gpu_operator_is_known_by_its_pod(item: Manifest, named: str) -> None:
    """Its ClusterPolicy alone writes nothing."""
    assert running_operator([item]) == named


DCGM, DRIVER = labels.deploy("dcgm"), labels.deploy("driver")
OPERATOR = "gpu-operator"
BOOKS = "nfd.node.kubernetes.io/feature-labels"


@pytest.mark.parametrize(
    ("key", "value", "writer", "goes"),
    [
        pytest.param("team", "a", OURS, True, id="whatever we have written"),
        pytest.param("team", "a", "kubectl-label", False, id="what others have written"),
        pytest.param("team", "a", "", False, id="no known writer"),
        pytest.param(labels.GPU_PRESENT, "true", "", True, id="keys with one meaning, where the books are lost"),
        pytest.param(labels.GPU_PRESENT, "true", "kubectl-label", False, id="unless managedFields name another writer"),
        pytest.param(labels.GPU_PRESENT, "true", "nfd-master", False, id="or a rule of Node Feature Discovery"),
        pytest.param(labels.GPU_PRESENT, "true", OPERATOR, True, id="what an operator that is gone has left"),
        pytest.param(states.STATE, "upgrade-done", OPERATOR, True, id="which is true of its rollouts as well"),
        pytest.param("team", "a", OPERATOR, False, id="but not of other labels"),
        pytest.param(states.STATE, "upgrade-done", OURS, True, id="the state of a rollout"),
        pytest.param(DCGM, "true", "kubectl-label", True, id="the driver manager's hand"),
        pytest.param(DCGM, "paused-for-driver-upgrade", "k8s-driver-manager", True, id="and in the middle of its work"),
        pytest.param(DCGM, "false", "kubectl-label", False, id="a user's word about an operand"),
        pytest.param(DCGM, "false", "", False, id="also where the books are lost"),
        pytest.param(DRIVER, labels.PRE_INSTALLED, "k8s-driver-manager", True, id="the choice of the host's driver"),
        pytest.param(DCGM, labels.PRE_INSTALLED, "x", False, id="which means nothing for others"),
        pytest.param(labels.DEPLOY_OPERANDS, "true", "kubectl-label", False, id="the user's own switch"),
    ],
)
def test_a_label_goes_if_it_is_ours(key: str, value: str, writer: str, *, goes: bool) -> None:
    found = find_remnants(node({key: value}, hands={key: writer} if writer else {}), stack())
    assert (key in found.labels) is goes
    assert labels.INVENTORY in found.labels


@pytest.mark.parametrize("writer", [OURS, OPERATOR, ""])
def test_a_label_stays_while_the_gpu_operator_runs(writer: str) -> None:
    """It would write it again; who wrote it last does not matter. What is of no meaning to it goes."""
    live = node({labels.GPU_PRESENT: "true", "team": "a"}, hands={labels.GPU_PRESENT: writer, "team": OURS})
    found = find_remnants(live, stack(operator="gpu-operator/gpu-operator-7"))
    assert found.kept == {f"label {labels.GPU_PRESENT}": "Pod gpu-operator/gpu-operator-7 of the GPU Operator"}
    assert found.labels.keys() == {labels.INVENTORY, "team"}


def test_a_label_with_two_other_writers_stays_with_one() -> None:
    """The operator that is gone counts no more; the person does."""
    live = node({labels.GPU_PRESENT: "true"}, hands={labels.GPU_PRESENT: OPERATOR})
    live["metadata"]["managedFields"].append({**live["metadata"]["managedFields"][0], "manager": "kubectl-label"})
    assert find_remnants(live, stack()).kept == {f"label {labels.GPU_PRESENT}": "field managers: kubectl-label"}


@pytest.mark.parametrize("value", ["true", "others"])
def test_a_label_of_another_manager_is_reported(value: str) -> None:
    """Also if we still have a hand in it."""
    live = node({labels.GPU_PRESENT: value}, hands={labels.GPU_PRESENT: "argocd"})
    assert find_remnants(live, stack()).kept == {f"label {labels.GPU_PRESENT}": "field managers: argocd"}
    shared = node({"team": "a"}, hands={"team": OURS})
    shared["metadata"]["managedFields"].append({**shared["metadata"]["managedFields"][0], "manager": "helm"})
    found = find_remnants(shared, stack())
    assert found.kept == {"label team": "field managers: helm"}
    assert "team" not in found.labels


def test_labels_that_the_inventory_declares_go_with_it() -> None:
    """If they have its values; where the books are lost, the value decides."""
    declared = stack(declared={"n1": {"team": "a", "rack": "1"}})
    assert set(find_remnants(node({"team": "a", "rack": "2"}), declared).labels) == {"team", labels.INVENTORY}


@pytest.mark.parametrize(
    ("fields", "mark", "goes"),
    [
        pytest.param({}, "", True, id="no other stack could have written it"),
        pytest.param({"is_alone": False}, "", False, id="another stack may have"),
        pytest.param({"is_alone": False, "declared": {"n1": {}}}, "", True, id="we declare the node"),
        pytest.param({}, "other", False, id="another stack's node"),
    ],
)
def test_nodes_of_other_stacks_are_left_alone(fields: dict[str, Any], mark: str, *, goes: bool) -> None:
    marks = {labels.INVENTORY: mark, labels.DRIVER_GROUP: "x"} if mark else {}
    live = node({"team": "a", **marks}, hands={"team": OURS}, marked=False)
    found = find_remnants(live, stack(**fields))
    assert found.is_clean is not goes


def test_a_node_that_was_never_ours_is_clean() -> None:
    """Even with the labels of the GPU Operator."""
    live = node({labels.GPU_PRESENT: "true", DCGM: "true", states.STATE: "upgrade-done"}, marked=False)
    assert find_remnants(live, stack(brings_nfd=True)).is_clean


@pytest.mark.parametrize("brings", [True, False])
def test_labels_of_node_feature_discovery_go_with_it(*, brings: bool) -> None:
    """Exactly those that its books list, and the books; also on nodes without the mark."""
    seen = {"feature.node.kubernetes.io/a": "1", "nvidia.com/gpu.count": "1", "feature.node.kubernetes.io/mine": "1"}
    live = node(seen, annotations={BOOKS: "a,nvidia.com/gpu.count,gone", "mine": "1"}, marked=False)
    found = find_remnants(live, stack(brings_nfd=brings))
    assert found.discovered == (("feature.node.kubernetes.io/a", "nvidia.com/gpu.count") if brings else ())
    assert set(found.annotations) == ({BOOKS} if brings else set())


def test_annotations_of_rollouts_and_cordons_go() -> None:
    """Those that users write to ask for an upgrade stay."""
    ours = {states.CORDONED: OURS, states.SINCE: "1", labels.CORDONED: "reboot since x", states.ENABLED: "true"}
    live = node(annotations={**ours, states.REQUESTED: "true"}, hands={states.REQUESTED: "kubectl-annotate"})
    assert set(find_remnants(live, stack()).annotations) == set(ours)


@pytest.mark.parametrize(
    ("annotations", "writer", "lifted", "told"),
    [
        pytest.param({labels.CORDONED: "reboot since x"}, OURS, True, "", id="around a reboot"),
        pytest.param({states.CORDONED: OURS}, OURS, True, "", id="in a rollout"),
        pytest.param({states.CORDONED: "driver-manager"}, "driver-manager", True, "", id="inherited"),
        pytest.param({states.CORDONED: OURS}, "kubectl-cordon", False, "kubectl-cordon", id="taken over"),
        pytest.param({states.CORDONED: OURS, states.WAS_CORDONED: "true"}, "x", False, "", id="there before"),
        pytest.param({}, "kubectl-cordon", False, "", id="not ours"),
        pytest.param({}, OURS, False, "", id="without a mark"),
    ],
)
def test_a_cordon_is_lifted_if_it_is_ours(annotations: dict[str, str], writer: str, told: str, *, lifted: bool) -> None:
    found = find_remnants(node(annotations=annotations, cordoned_by=writer), stack())
    assert found.uncordon is lifted
    assert found.kept.get("cordon", "") == (f"field managers: {told}" if told else "")


def test_all_of_it_is_one_patch_of_the_node_that_was_looked_at() -> None:
    live = node({"team": "a"}, hands={"team": OURS}, annotations={states.CORDONED: OURS}, cordoned_by=OURS)
    assert find_remnants(live, stack()).patch() == {
        "metadata": {
            "resourceVersion": "7",
            "labels": {labels.INVENTORY: None, "team": None},
            "annotations": {states.CORDONED: None},
        },
        "spec": {"unschedulable": None},
    }


@pytest.mark.parametrize(
    ("others", "stay"), [((), None), (({"key": "team", "effect": "NoSchedule"},),) * 2], ids=["alone", "beside others"]
)
def test_the_startup_taint_goes_whatever_set_it(others: tuple[dict[str, str], ...], stay: Any) -> None:
    """A kubelet did; no other program would remove it."""
    live = node()
    live["spec"]["taints"] = [*others, {"key": labels.NOT_VALIDATED, "effect": "NoSchedule"}]
    found = find_remnants(live, stack())
    assert not found.is_clean
    assert found.patch()["spec"] == {"taints": list(stay) if stay else None}
    live["spec"]["taints"] = list(others)
    assert "spec" not in find_remnants(live, stack()).patch()


def test_the_startup_taint_of_another_stacks_node_stays() -> None:
    live = node({labels.INVENTORY: "other"}, marked=False)
    live["spec"]["taints"] = [{"key": labels.NOT_VALIDATED, "effect": "NoSchedule"}]
    assert find_remnants(live, stack()).is_clean
