"""What the actions of a rollout are as patches and objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_provision.components import labels
from gpu_provision.model.cluster import ref_of
from gpu_provision.reconcile.rollout import desired_drivers, patch_of, unobserved_groups
from gpu_provision.rollout import states
from gpu_provision.rollout.actions import Cordon, StateTransition
from gpu_provision.rollout.states import UpgradeState
from tests.components.builders import with_spec
from tests.planning.builders import Stack


@pytest.mark.parametrize(
    ("cordon", "spec"),
    [
        (Cordon.KEEP, {}),
        (Cordon.SET, {"spec": {"unschedulable": True}}),
        (Cordon.LIFT, {"spec": {"unschedulable": None}}),
    ],
)
def test_a_transition_is_one_patch_of_the_observed_node(cordon: Cordon, spec: dict[str, Any]) -> None:
    """State, memory and cordon never part; a write in between makes the server refuse."""
    memory = ((states.REASON, "no"), (states.SINCE, None))
    move = StateTransition(node="n1", revision="7", to=UpgradeState.FAILED, cordon=cordon, annotations=memory)
    assert patch_of(move) == {
        "metadata": {
            "resourceVersion": "7",
            "labels": {states.STATE: "upgrade-failed"},
            "annotations": {states.REASON: "no", states.SINCE: None},
        },
        **spec,
    }


def test_a_node_that_is_given_back_loses_its_label() -> None:
    """An empty value would be a label all the same."""
    move = StateTransition(node="n1", revision="7", to=UpgradeState.UNKNOWN)
    assert patch_of(move)["metadata"]["labels"] == {states.STATE: None}


@pytest.mark.parametrize(("observed", "found"), [(0, {"t4"}), (2, {"t4"}), (3, set())])
def test_a_template_is_observed_at_its_generation(observed: int, found: set[str]) -> None:
    """A DaemonSet that does not exist yet has no earlier template."""

    def daemonset(group: str) -> dict[str, Any]:
        template = {"spec": {"nodeSelector": {labels.DRIVER_GROUP: group}}}
        metadata = {"name": group, "namespace": "gpu", "generation": 3}
        return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": template}}

    old, new = daemonset("t4"), daemonset("h100")
    members = {ref_of(old): {**old, "status": {"observedGeneration": observed}}}
    seen: Any = SimpleNamespace(desired={"driver": (old, new)}, observed=SimpleNamespace(members=members))
    assert unobserved_groups(seen) == found


@pytest.mark.parametrize("enabled", [True, False])
def test_a_slot_waits_for_the_device_plugin_that_is_on(*, enabled: bool) -> None:
    """Where the inventory has none, nothing is to offer the GPUs again."""
    stack = Stack(with_spec("device_plugin", enabled=enabled))
    found = desired_drivers(stack.situation)
    assert {wish.has_device_plugin for wish in found.values()} == {enabled}
