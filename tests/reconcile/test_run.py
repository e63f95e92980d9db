"""The order in which a run applies and prunes objects, and their visibility in the cache."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import ApplyResult, KubeClient
from gpu_provision.kube.informer import InformerCache
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, UnreachableError
from gpu_provision.model.plan import Action, Change
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.run import Applier

RBAC = "rbac.authorization.k8s.io/v1"


class Fake:
    def __init__(self) -> None:
        self.asked: list[ObjectRef] = []
        self.merged: list[object] = []

    def merge_patch(self, ref: ObjectRef, patch: object) -> None:
        self.asked.append(ref)
        self.merged.append(patch)

    def apply(self, manifest: Manifest, **_: Any) -> ApplyResult:
        self.asked.append(ref_of(manifest))
        return ApplyResult(manifest, created=True)

    def delete(self, ref: ObjectRef, **_: Any) -> None:
        self.asked.append(ref)


def objects(fake: Fake) -> Applier:
    reading = SimpleNamespace(desired={}, observed=SimpleNamespace(members={}))
    return Applier(cast("KubeClient", fake), cast("ClusterPlan", reading))


def change(action: Action, api_version: str, kind: str, namespace: str = "a") -> Change:
    ref = ObjectRef(api_version, kind, namespace if kind not in {"Namespace", "ClusterRole"} else "", "x")
    metadata = {"name": ref.name} | ({"namespace": ref.namespace} if ref.namespace else {})
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return Change(component="c", action=action, ref=ref, manifest=manifest)


def showing(*live: Manifest) -> InformerCache:
    """Return live copies of these."""

    def listed(kind: Kind) -> dict[ObjectRef, Manifest]:
        return {ref_of(each): each for each in live if ref_of(each).type == kind}

    return cast("InformerCache", SimpleNamespace(list=listed))


def test_a_write_is_visible_once_the_cache_is_as_new() -> None:
    """Copies that were there before the write are behind for a moment."""
    written = objects(Fake())
    daemonset, role = change(Action.UPDATE, "apps/v1", "DaemonSet"), change(Action.CREATE, RBAC, "Role")
    manifest = daemonset.manifest or {}
    now = {**manifest, "metadata": {**manifest["metadata"], "generation": 2}}
    written.apply([replace(daemonset, manifest=now), role])
    assert not written.are_visible(showing())
    assert not written.are_visible(showing({**manifest, "metadata": {**manifest["metadata"], "generation": 1}}))
    assert written.are_visible(showing(now)), "roles are not followed"
    written.prune([change(Action.DELETE, "apps/v1", "DaemonSet")])
    assert written.are_visible(showing())


def test_roles_come_before_bindings_and_bindings_before_pods() -> None:
    """The server compares what a binding grants with what its writer holds, so it wants to see the role."""
    fake = Fake()
    kinds = (
        ("apps/v1", "DaemonSet"),
        (RBAC, "RoleBinding"),
        (RBAC, "Role"),
        (RBAC, "ClusterRole"),
        ("v1", "Namespace"),
    )
    objects(fake).apply(change(Action.CREATE, *kind) for kind in kinds)
    kinds = [ref.kind for ref in fake.asked]
    assert kinds[0] == "Namespace"
    assert set(kinds[1:3]) == {"Role", "ClusterRole"}
    assert kinds[3:] == ["RoleBinding", "DaemonSet"]


def test_pods_are_patched_before_their_daemon_set_is_applied() -> None:
    """A run that is killed in between finds in the live template what to take off the rest of them."""
    fake = Fake()
    pod, daemonset = change(Action.UPDATE, "v1", "Pod"), change(Action.UPDATE, "apps/v1", "DaemonSet")
    patch = {"name": "x", "namespace": "a", "uid": "u", "labels": {"team": None}}
    pod = replace(pod, manifest={**(pod.manifest or {}), "metadata": patch, "spec": {"nodeName": "n"}})
    written = objects(fake)
    written.apply([daemonset, pod])
    assert [ref.kind for ref in fake.asked] == ["Pod", "DaemonSet"]
    assert fake.merged == [{"metadata": patch}]
    assert written.written == fake.asked
    assert pod.ref not in written.members


def test_a_namespace_is_deleted_after_its_objects() -> None:
    """An account's rights in it go with it."""
    fake = Fake()
    kinds = (("v1", "Namespace"), ("apps/v1", "DaemonSet"), (RBAC, "Role"), ("v1", "ConfigMap"))
    objects(fake).prune(change(Action.DELETE, *kind) for kind in kinds)
    assert [ref.kind for ref in fake.asked][-1] == "Namespace"
    assert len(fake.asked) == 4


def test_an_error_of_one_write_is_raised_after_the_others() -> None:
    """Objects are written several at a time."""
    fake, changes = Fake(), [change(Action.CREATE, "v1", kind) for kind in ("Bad", "One", "Two")]
    accept = fake.apply

    def apply(manifest: Manifest, **_: Any) -> ApplyResult:
        if manifest["kind"] == "Bad":
            raise UnreachableError(Finding(code="GP301", what="silent"))
        return accept(manifest)

    fake.apply = apply  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="silent"):
        objects(fake).apply(changes)
    assert sorted(ref.kind for ref in fake.asked) == ["One", "Two"]
