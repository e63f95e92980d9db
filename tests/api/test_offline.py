"""The library without a cluster."""

from __future__ import annotations

import gpu_provision
from gpu_provision.components import COMPONENTS
from gpu_provision.model.plan import Action
from tests.components.builders import inventory


def test_what_is_rendered_is_planned_for_an_empty_cluster() -> None:
    """Every component that is on, and nothing else; MachineConfigs are for OpenShift."""
    rendered = gpu_provision.render(inventory())
    on = [each.name for each in COMPONENTS if each.spec(inventory()) is not None]
    assert list(rendered) == [name for name in on if name != "machine_config"]
    plan = gpu_provision.plan(inventory(), offline=True)
    assert plan.cluster.cluster == "offline"
    creates = {change.ref.name for change in plan.changes if change.action is Action.CREATE}
    manifests = [each for group in rendered.values() for each in group if each["kind"] not in {"Node", "Pod"}]
    assert creates >= {each["metadata"]["name"] for each in manifests}
