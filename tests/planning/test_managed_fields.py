"""The transfer of fields and owners."""

from __future__ import annotations

from typing import Any

from gpu_provision.planning.diff import differences
from gpu_provision.planning.managed_fields import is_transferred, transfer_managed_fields, with_transferred_fields

Entry = dict[str, Any]


def entry(manager: str, fields: dict[str, Any], operation: str = "Update", **more: str) -> Entry:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        **more,
    }


def item(*entries: Entry, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "managedFields": list(entries)}, **parts}


def test_fields_of_every_manager_are_transferred() -> None:
    """The operator's, Helm's, of a person, and of this tool."""
    live = item(
        entry("gpu-operator", {"f:data": {"f:a": {}, "f:b": {}}}),
        entry("kubectl-edit", {"f:data": {"f:c": {}}}),
        entry("gpu-provision", {"f:data": {"f:b": {}, "f:d": {}}}, "Apply"),
    )
    (own,) = transfer_managed_fields(live)
    assert (own["manager"], own["operation"]) == ("gpu-provision", "Apply")
    assert own["fieldsV1"] == {"f:data": {"f:a": {}, "f:b": {}, "f:c": {}, "f:d": {}}}


def test_status_and_fields_of_kubernetes_are_not_transferred() -> None:
    """Controllers go on writing a status, which servers before 1.22 do not mark as a subresource, and tokens."""
    status = entry("kubelet", {"f:status": {"f:phase": {}}}, subresource="status")
    other = entry("old", {"f:data": {"f:a": {}}}, apiVersion="v1beta1")
    mixed = entry("gpu-operator", {"f:status": {"f:x": {}}, "f:metadata": {"f:annotations": {"f:g": {}}}})
    tokens = entry("kube-controller-manager", {"f:secrets": {}})
    *kept, own = transfer_managed_fields(item(status, other, tokens, mixed))
    assert kept == [status, other, tokens, {**mixed, "fieldsV1": {"f:status": {"f:x": {}}}}]
    assert own["fieldsV1"] == {"f:metadata": {"f:annotations": {"f:g": {}}}}


def test_an_object_is_transferred_once() -> None:
    """What was transferred is not written again, nor an object without entries."""
    live = item(entry("helm", {"f:data": {"f:a": {}}}))
    assert not is_transferred(live)
    assert is_transferred(with_transferred_fields(live))
    assert is_transferred(item())


def test_undeclared_fields_go_after_the_transfer() -> None:
    """Before, it would stay: a field of another manager is not removed."""
    live = item(entry("gpu-operator", {"f:data": {"f:a": {}, "f:b": {}}}), data={"a": "1", "b": "2"})
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    assert differences(wanted, live) == ()
    assert [change.path for change in differences(wanted, with_transferred_fields(live))] == ["data.b"]


def test_owner_references_are_not_transferred() -> None:
    """Ours would have to name owners otherwise, or lose them."""
    owned = {"f:metadata": {"f:ownerReferences": {".": {}}, "f:labels": {"f:app": {}}}}
    (own,) = transfer_managed_fields(item(entry("gpu-operator", owned)))
    assert own["fieldsV1"] == {"f:metadata": {"f:labels": {"f:app": {}}}}
