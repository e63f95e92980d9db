"""The order in which objects come and go."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from gpu_provision.cluster.client import Applied, Cluster
from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.watching import Mirror, Scope
from gpu_provision.engine.objects import Objects
from gpu_provision.engine.reading import Reading
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding
from gpu_provision.model.plan import Action, Change

RBAC = "rbac.authorization.k8s.io/v1"


class Fake:
    """Remembers what is asked of it."""

    def __init__(self, *, gone: bool = False) -> None:
        """Nothing was asked yet; if all is gone, there is nothing to merge into."""
        self.asked: list[ObjectRef] = []
        self.merged: list[object] = []
        self._gone = gone

    def merge(self, ref: ObjectRef, patch: object) -> None:
        """Accept everything."""
        if self._gone:
            raise NotFound(Finding(code="GP306", what="it is gone"))
        self.asked.append(ref)
        self.merged.append(patch)

    def apply(self, manifest: Manifest, **_: Any) -> Applied:
        """Accept everything."""
        self.asked.append(ref_of(manifest))
        return Applied(manifest, created=True, warnings=())

    def delete(self, ref: ObjectRef, **_: Any) -> None:
        """Accept everything."""
        self.asked.append(ref)


def objects(fake: Fake) -> Objects:
    reading = SimpleNamespace(desired={}, observed=SimpleNamespace(members={}))
    return Objects(cast("Cluster", fake), cast("Reading", reading))


def change(action: Action, api_version: str, kind: str, namespace: str = "a") -> Change:
    ref = ObjectRef(api_version, kind, namespace if kind not in {"Namespace", "ClusterRole"} else "", "x")
    metadata = {"name": ref.name} | ({"namespace": ref.namespace} if ref.namespace else {})
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return Change(component="c", action=action, ref=ref, manifest=manifest)


class Showing(Mirror):
    """Live copies that a test has."""

    def __init__(self, *live: Manifest) -> None:
        """Show these."""
        self.live = live

    def of(self, what: Kind | Scope) -> dict[ObjectRef, Manifest]:
        """Return those of a kind."""
        return {ref_of(each): each for each in self.live if ref_of(each).type == what}


def test_what_was_written_is_shown_once_the_copy_is_no_older() -> None:
    """Copies that were there before the write are behind for a moment."""
    written = objects(Fake())
    daemonset, role = change(Action.UPDATE, "apps/v1", "DaemonSet"), change(Action.CREATE, RBAC, "Role")
    manifest = daemonset.manifest or {}
    now = {**manifest, "metadata": {**manifest["metadata"], "generation": 2}}
    written.apply([replace(daemonset, manifest=now), role])
    assert not written.are_shown(Showing())
    assert not written.are_shown(Showing({**manifest, "metadata": {**manifest["metadata"], "generation": 1}}))
    assert written.are_shown(Showing(now)), "nobody follows roles"
    written.prune([change(Action.DELETE, "apps/v1", "DaemonSet")])
    assert written.are_shown(Showing())


def test_a_role_is_there_before_its_binding_and_both_before_what_uses_them() -> None:
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
    told = [ref.kind for ref in fake.asked]
    assert told[0] == "Namespace"
    assert set(told[1:3]) == {"Role", "ClusterRole"}
    assert told[3:] == ["RoleBinding", "DaemonSet"]


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


def test_a_pod_that_is_gone_is_no_failure() -> None:
    """The one in its place is of the DaemonSet's template."""
    fake = Fake(gone=True)
    written = objects(fake)
    written.apply([change(Action.UPDATE, "v1", "Pod")])
    assert (written.written, written.rejected) == ([], {})


def test_a_namespace_goes_after_everything_in_it() -> None:
    """An account's rights in it go with it."""
    fake = Fake()
    kinds = (("v1", "Namespace"), ("apps/v1", "DaemonSet"), (RBAC, "Role"), ("v1", "ConfigMap"))
    objects(fake).prune(change(Action.DELETE, *kind) for kind in kinds)
    assert [ref.kind for ref in fake.asked][-1] == "Namespace"
    assert len(fake.asked) == 4
