"""How fields and owners are transferred."""

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


def test_every_managers_fields_become_ours() -> None:
    """The operator's, Helm's, those of a person, and our own."""
    live = item(
        entry("gpu-operator", {"f:data": {"f:a": {}, "f:b": {}}}),
        entry("kubectl-edit", {"f:data": {"f:c": {}}}),
        entry("gpu-provision", {"f:data": {"f:b": {}, "f:d": {}}}, "Apply"),
    )
    (ours,) = transfer_managed_fields(live)
    assert (ours["manager"], ours["operation"]) == ("gpu-provision", "Apply")
    assert ours["fieldsV1"] == {"f:data": {"f:a": {}, "f:b": {}, "f:c": {}, "f:d": {}}}


def test_status_and_fields_of_kubernetes_are_not_transferred() -> None:
    """Controllers go on writing a status, which servers before 1.22 do not mark as a subresource, and tokens."""
    status = entry("kubelet", {"f:status": {"f:phase": {}}}, subresource="status")
    other = entry("old", {"f:data": {"f:a": {}}}, apiVersion="v1beta1")
    mixed = entry("gpu-operator", {"f:status": {"f:x": {}}, "f:metadata": {"f:annotations": {"f:g": {}}}})
    tokens = entry("kube-controller-manager", {"f:secrets": {}})
    *kept, ours = transfer_managed_fields(item(status, other, tokens, mixed))
    assert kept == [status, other, tokens, {**mixed, "fieldsV1": {"f:status": {"f:x": {}}}}]
    assert ours["fieldsV1"] == {"f:metadata": {"f:annotations": {"f:g": {}}}}


def test_an_object_changes_hands_once() -> None:
    """What was transferred is not written again, nor an object without entries."""
    live = item(entry("helm", {"f:data": {"f:a": {}}}))
    assert not is_transferred(live)
    assert is_transferred(with_transferred_fields(live))
    assert is_transferred(item())


def test_what_is_not_declared_goes_once_it_is_ours() -> None:
    """Before, it would stay: a field of another manager is not removed."""
    live = item(entry("gpu-operator", {"f:data": {"f:a": {}, "f:b": {}}}), data={"a": "1", "b": "2"})
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    assert differences(wanted, live) == ()
    assert [change.path for change in differences(wanted, with_transferred_fields(live))] == ["data.b"]


def test_owner_references_are_nobodys_field() -> None:
    """Ours would have to name owners otherwise, or lose them."""
    owned = {"f:metadata": {"f:ownerReferences": {".": {}}, "f:labels": {"f:app": {}}}}
    (ours,) = transfer_managed_fields(item(entry("gpu-operator", owned)))
    assert ours["fieldsV1"] == {"f:metadata": {"f:labels": {"f:app": {}}}}
