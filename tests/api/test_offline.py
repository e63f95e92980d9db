"""The library's face, as far as no cluster is needed."""

from __future__ import annotations

import gpu_provision
from gpu_provision.components import COMPONENTS
from gpu_provision.model.plan import Action
from tests.components.builders import inventory


def test_rendering_returns_every_component_that_is_on() -> None:
    rendered = gpu_provision.render(inventory())
    names = [component.name for component in COMPONENTS if component.spec(inventory()) is not None]
    assert list(rendered) == names
    assert all(manifest["metadata"]["name"] for manifests in rendered.values() for manifest in manifests)


def test_planning_offline_is_for_an_empty_cluster() -> None:
    plan = gpu_provision.plan(inventory(), offline=True)
    assert plan.cluster.cluster == "offline"
    creates = {change.ref for change in plan.changes if change.action is Action.CREATE}
    assert {ref.kind for ref in creates} >= {"Namespace", "DaemonSet", "Deployment", "ConfigMap"}
