"""What differs between two sets of manifests."""

from __future__ import annotations

from gpu_provision.model.plan import Action
from gpu_provision.planning.between import between


def _item(kind: str, name: str, **rest: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}, **rest}


def test_objects_come_change_and_go_and_validations_run() -> None:
    before = {"a": [_item("ConfigMap", "same"), _item("ConfigMap", "gone"), _item("Pod", "old")]}
    after = {
        "a": [_item("ConfigMap", "same", data={"k": "v"}), _item("ConfigMap", "new")],
        "b": [_item("Pod", "new")],
    }
    found = [(each.component, each.action, each.ref.name) for each in between(before, after)]
    assert found == [
        ("a", Action.UPDATE, "same"),
        ("a", Action.CREATE, "new"),
        ("b", Action.RUN, "new"),
        ("a", Action.DELETE, "gone"),
    ]
    assert between(after, after) == ()
