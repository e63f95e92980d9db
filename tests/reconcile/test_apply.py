"""The plan as a real API server confirms it: its dry run has the last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube import records
from gpu_provision.kube.client import ApplyResult, KubeClient, connect
from gpu_provision.kube.errors import NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, UnreachableError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.plan import Action, Change
from gpu_provision.reconcile.evidence import Validations
from gpu_provision.reconcile.plan import ClusterPlan, read_and_plan
from gpu_provision.reconcile.run import Applier
from tests.components.builders import inventory
from tests.sandbox.apiserver.conftest import Running

STACK: Inventory = replace(inventory(), nodes=())
OPERANDS = STACK.cluster.namespace
_FIRST = ("Namespace", "CustomResourceDefinition")


@pytest.fixture(scope="module")
def server(server: Running) -> Running:
    """Give an API server on which the whole stack has been applied."""
    _provision(connect(str(server.server.kubeconfig)))
    return server


def _provision(cluster: KubeClient) -> None:
    changes = read_and_plan(cluster, STACK).plan.changes
    for change in sorted(changes, key=lambda change: change.ref.kind not in _FIRST):
        if change.manifest and change.ref.kind not in {"Node", "Pod"}:
            cluster.apply(change.manifest)


@pytest.fixture
def cluster(server: Running) -> KubeClient:
    """Give a client of the module's server."""
    return connect(str(server.server.kubeconfig))


def writes(reading: ClusterPlan) -> list[Change]:
    return [change for change in reading.plan.changes if change.action is not Action.WAIT]


def deployment(cluster: KubeClient) -> Manifest:
    """The live master of Node Feature Discovery."""
    found = cluster.list(_DEPLOYMENT, label_selector="gpu-provision.io/component=nfd").items
    return next(item for item in found if "master" in item["metadata"]["name"])


_DEPLOYMENT = ObjectRef("apps/v1", "Deployment", "", "").type


def edit(server: Running, live: Manifest, manager: str, **spec: object) -> None:
    """Change fields as an imperative command does."""
    ref = ref_of(live)
    path = f"/apis/apps/v1/namespaces/{ref.namespace}/deployments/{ref.name}?fieldManager={manager}"
    answer = server.ask("PATCH", path, {"spec": spec}, kind="application/merge-patch+json")
    assert answer.code == 200, answer.body


def test_a_hand_edit_is_drift_and_the_plan_says_whose(cluster: KubeClient, server: Running) -> None:
    live = deployment(cluster)
    edit(server, live, "kubectl-edit", replicas=3)
    (change,) = writes(read_and_plan(cluster, STACK))
    assert change.action is Action.UPDATE
    assert change.takes_back_from == ("kubectl-edit",)
    assert [(field.path, field.old, field.new) for field in change.fields] == [("spec.replicas", 3, 1)]
    assert "undoes an edit by kubectl-edit" in change.effects
    assert change.manifest
    cluster.apply(change.manifest, take_back=True)
    assert writes(read_and_plan(cluster, STACK)) == []


def test_a_field_of_a_controller_is_a_conflict_and_no_change(cluster: KubeClient, server: Running) -> None:
    live = deployment(cluster)
    edit(server, live, "autoscaler", replicas=5)
    reading = read_and_plan(cluster, STACK)
    assert writes(reading) == []
    (conflict,) = [finding for finding in reading.plan.findings if finding.code == "GP304"]
    assert "autoscaler" in conflict.what
    assert "replicas" in conflict.what
    assert conflict.where == str(ref_of(live))
    edit(server, live, "autoscaler", replicas=1)


def test_an_object_that_was_deleted_is_created(cluster: KubeClient) -> None:
    live = deployment(cluster)
    cluster.delete(ref_of(live))
    (change,) = writes(read_and_plan(cluster, STACK))
    assert (change.action, change.ref) == (Action.CREATE, ref_of(live))
    assert change.manifest
    cluster.apply(change.manifest)


def test_a_validation_due_again_leaves_the_record(cluster: KubeClient) -> None:
    """A repetition that fails must not leave the old success for the next reader."""
    records.write_validations(cluster, STACK, {("device_plugin_validation", "t4-1"): "a1"})
    reading = read_and_plan(cluster, STACK, revalidate=True)
    validations = Validations(cluster, reading)
    validations.forget_repeated()
    assert records.read_validations(cluster, STACK) == {}


def test_objects_of_another_stack_are_refused(start: Callable[..., Running]) -> None:
    """A removal leaves definitions, of which others may have objects: the next stack may have another name."""
    server = start()
    cluster = connect(str(server.server.kubeconfig))
    _provision(cluster)
    other = replace(STACK, name="other")
    (finding,) = [each for each in read_and_plan(cluster, other).plan.findings if each.code == "GP309"]
    assert finding.where == f"stack {STACK.name} in namespace {OPERANDS}"
    assert f"stack {STACK.name} owns " in finding.what
    assert "gpu-provision destroy -i FILE" in finding.fix
    assert "gpu-provision sandbox reset" in finding.fix
    asked = [line for line in server.server.request_log.read_text().splitlines() if "applyset.kubernetes.io/id" in line]
    assert len(asked) == 1, "who it is, is asked once"
    definitions = {
        ref for ref in read_and_plan(cluster, STACK).observed.members if ref.kind == "CustomResourceDefinition"
    }
    cluster.delete(ObjectRef("v1", "ConfigMap", OPERANDS, STACK.name))
    reading = read_and_plan(cluster, other)
    assert [finding for finding in reading.plan.findings if finding.code == "GP309"] == []
    assert definitions
    assert definitions <= {change.ref for change in writes(reading)}


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
            raise NotFoundError(Finding(code="GP306", what="it is gone"))
        self.asked.append(ref)
        self.merged.append(patch)

    def apply(self, manifest: Manifest, **_: Any) -> ApplyResult:
        """Accept everything."""
        self.asked.append(ref_of(manifest))
        return ApplyResult(manifest, created=True)

    def delete(self, ref: ObjectRef, **_: Any) -> None:
        """Accept everything."""
        self.asked.append(ref)


def objects(fake: Fake) -> Applier:
    reading = SimpleNamespace(desired={}, observed=SimpleNamespace(members={}))
    return Applier(cast("KubeClient", fake), cast("ClusterPlan", reading))


def change(action: Action, api_version: str, kind: str, namespace: str = "a") -> Change:
    ref = ObjectRef(api_version, kind, namespace if kind not in {"Namespace", "ClusterRole"} else "", "x")
    metadata = {"name": ref.name} | ({"namespace": ref.namespace} if ref.namespace else {})
    manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return Change(component="c", action=action, ref=ref, manifest=manifest)


class Showing(InformerCache):
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
    assert written.are_shown(Showing(now)), "roles are not followed"
    written.prune([change(Action.DELETE, "apps/v1", "DaemonSet")])
    assert written.are_shown(Showing())


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
