"""Guarantees of the API server that gpu_provision/kube relies on, one in each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from gpu_provision.kube.client import KINDS, KubeClient, connect
from gpu_provision.kube.errors import AlreadyExistsError, ConflictError, ExpiredError, FieldConflictError, NotFoundError
from gpu_provision.kube.informer import InformerCache, Scope
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import ForbiddenError, InvalidError
from tests.contract.api.definitions import DEFINITIONS, GROUP, definition, establish
from tests.contract.api.samples import configmap, core, pod
from tests.contract.client import SECONDS, Server, until

CONFIG_MAPS, NODES = Kind("v1", "ConfigMap"), Kind("v1", "Node")


@pytest.fixture
def cluster(server: Server) -> KubeClient:
    return connect(str(server.kubeconfig))


@pytest.fixture
def node(server: Server, namespace: str) -> Iterator[Manifest]:
    name = f"node-{namespace}"
    yield server.make("/api/v1/nodes", {"metadata": {"name": name, "labels": {"a": "1", "b": "2"}}})
    server.delete(f"/api/v1/nodes/{name}")


def sample(namespace: str, name: str = "one", data: dict[str, str] | None = None, **metadata: object) -> Manifest:
    return configmap(name, data or {"k": "v"}, namespace=namespace, **metadata)


def test_the_version_is_text_that_begins_with_v(cluster: KubeClient) -> None:
    assert cluster.version().startswith("v1.")


def test_a_known_group_has_resources_and_an_unknown_one_none(cluster: KubeClient) -> None:
    assert {"daemonsets", "deployments"} <= cluster.served_resources("apps/v1")
    assert cluster.served_resources("none.example.org/v1") == frozenset()


def test_what_is_not_there_is_none(cluster: KubeClient, namespace: str) -> None:
    assert cluster.get(ObjectRef("v1", "ConfigMap", namespace, "none")) is None


def test_a_list_gives_objects_and_the_version_to_watch_from(cluster: KubeClient, namespace: str) -> None:
    cluster.create(sample(namespace, labels={"a": "b"}))
    found = cluster.list(CONFIG_MAPS, namespace=namespace, label_selector="a=b")
    assert [(item["kind"], item["metadata"]["name"]) for item in found.items] == [("ConfigMap", "one")]
    assert found.resource_version


def test_a_kind_that_is_not_served_lists_nothing(cluster: KubeClient) -> None:
    found = cluster.list(Kind("monitoring.coreos.com/v1", "ServiceMonitor"))
    assert (found.items, found.resource_version) == ([], "")


def test_an_apply_says_whether_it_created(cluster: KubeClient, namespace: str) -> None:
    assert cluster.apply(sample(namespace)).created
    again = cluster.apply(sample(namespace))
    assert (again.created, again.object["data"]) == (False, {"k": "v"})


def test_a_dry_run_creates_nothing(cluster: KubeClient, namespace: str) -> None:
    made = cluster.apply(sample(namespace), dry_run=True)
    assert made.object["metadata"]["uid"]
    assert cluster.get(ref_of(sample(namespace))) is None


def test_a_conflict_names_field_and_manager(cluster: KubeClient, namespace: str) -> None:
    cluster.apply(sample(namespace), manager="helm")
    with pytest.raises(FieldConflictError) as refusal:
        cluster.apply(sample(namespace, data={"k": "w"}))
    assert refusal.value.managers == {"helm"}
    assert ".data.k" in str(refusal.value)


def test_an_edit_is_undone_at_the_observed_version_only(cluster: KubeClient, server: Server, namespace: str) -> None:
    looked_at = cluster.apply(sample(namespace)).object["metadata"]["resourceVersion"]
    path = core(namespace, "configmaps", "one")
    edited = server.patch(path, {"data": {"k": "edited"}})["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        cluster.apply(sample(namespace, resourceVersion=looked_at), take_back=True)
    undone = cluster.apply(sample(namespace, resourceVersion=edited), take_back=True)
    assert undone.object["data"] == {"k": "v"}


def test_an_object_that_cannot_be_is_rejected(cluster: KubeClient, namespace: str) -> None:
    with pytest.raises(InvalidError, match="422"):
        cluster.apply(sample(namespace, name="Bad_Name"))


def test_labels_of_a_node_change_only_if_the_uid_matches(cluster: KubeClient, node: Manifest) -> None:
    found = cluster.patch_labels(
        ObjectRef("v1", "Node", "", node["metadata"]["name"]), node["metadata"]["uid"], {"a": None, "c": "3"}
    )
    assert found["metadata"]["labels"] == {"b": "2", "c": "3"}


def test_labels_of_a_namesake_stay(cluster: KubeClient, node: Manifest) -> None:
    ref = ObjectRef("v1", "Node", "", node["metadata"]["name"])
    with pytest.raises(InvalidError):
        cluster.patch_labels(ref, "0e7a2e4e-5d6e-4c5e-8a53-2a4fb1e8d0a1", {"c": "3"})
    live = cluster.get(ref)
    assert live is not None
    assert "c" not in live["metadata"]["labels"]


def test_a_node_that_is_gone_is_not_made_by_labels(cluster: KubeClient) -> None:
    with pytest.raises(NotFoundError):
        cluster.patch_labels(ObjectRef("v1", "Node", "", "contract-none"), "u", {"c": "3"})


def test_a_second_create_finds_the_first(cluster: KubeClient, namespace: str) -> None:
    cluster.create(sample(namespace))
    with pytest.raises(AlreadyExistsError):
        cluster.create(sample(namespace))


def test_two_who_replace_a_lease_meet(cluster: KubeClient, namespace: str) -> None:
    """The server refuses a write with an old version."""
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    metadata = {"name": "lock", "namespace": namespace}
    now = "2026-01-01T00:00:00.000000Z"
    made = cluster.create({**head, "metadata": metadata, "spec": {"holderIdentity": "me", "renewTime": now}})
    assert made["spec"]["renewTime"] == now
    cluster.replace({**made, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
    with pytest.raises(ConflictError):
        cluster.replace({**made, "spec": {"holderIdentity": "other"}})


def test_a_lease_that_is_gone_is_not_replaced(cluster: KubeClient, namespace: str) -> None:
    """The update has a resourceVersion; without one, a real server would create the lease."""
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    made = cluster.create({**head, "metadata": {"name": "lock", "namespace": namespace}, "spec": {}})
    cluster.delete(ref_of(made))
    with pytest.raises(InvalidError):
        cluster.replace(made)


def test_deleting_what_is_gone_is_fine_and_a_namesake_is_not(cluster: KubeClient, namespace: str) -> None:
    made = cluster.create(sample(namespace))
    with pytest.raises(ConflictError):
        cluster.delete(ref_of(made), uid="other")
    cluster.delete(ref_of(made), uid=made["metadata"]["uid"])
    cluster.delete(ref_of(made), uid=made["metadata"]["uid"])


def test_a_missing_namespace_is_not_found(cluster: KubeClient) -> None:
    with pytest.raises(NotFoundError):
        cluster.apply(sample("contract-none"))


@pytest.mark.usefixtures("_controllers")
def test_a_refusal_of_admission_is_no_missing_right(cluster: KubeClient, namespace: str) -> None:
    body = pod("p", metadata={"namespace": namespace}, serviceAccountName="none")
    with pytest.raises(InvalidError) as refusal:
        cluster.create(body)
    assert not isinstance(refusal.value, ForbiddenError)


def test_a_missing_right_is_refused(server: Server, namespace: str) -> None:
    if server.user is None:
        pytest.skip("this cluster has no user to spare")
    stranger = connect(str(server.user("gpu-provision")))
    with pytest.raises(ForbiddenError, match="GP303"):
        stranger.list(CONFIG_MAPS, namespace=namespace)


def test_the_log_of_a_pod_that_is_not_there_is_not_found(cluster: KubeClient, namespace: str) -> None:
    with pytest.raises(NotFoundError):
        cluster.read_log(ObjectRef("v1", "Pod", namespace, "none"), "main")


def test_the_log_of_an_unscheduled_pod_is_empty(cluster: KubeClient, namespace: str) -> None:
    cluster.create(pod("p", metadata={"namespace": namespace}))
    assert cluster.read_log(ObjectRef("v1", "Pod", namespace, "p"), "main") == ()


def test_a_watch_tells_every_change_since_a_list(cluster: KubeClient, namespace: str) -> None:
    selector = f"of={namespace}"
    version = cluster.list(CONFIG_MAPS, label_selector=selector).resource_version
    made = cluster.create(sample(namespace, labels={"of": namespace}))
    cluster.delete(ref_of(made))
    stream = cluster.watch(CONFIG_MAPS, version, label_selector=selector)
    seen = [event.type for event in islice(stream, 2)]
    stream.close()
    assert seen == ["ADDED", "DELETED"]


@pytest.fixture
def unserved_kind(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    """A kind with expired first versions."""
    plural, kind = establish(server, definition("forgottens")), Kind(f"{GROUP}/v1", "Forgotten")
    monkeypatch.setitem(KINDS, kind, plural)
    if server.compact:
        server.compact()
    yield kind
    server.delete(f"{DEFINITIONS}/{plural}.{GROUP}")


def test_a_watch_from_a_forgotten_version_is_gone(cluster: KubeClient, unserved_kind: Kind) -> None:
    """The informer lists again."""
    stream = cluster.watch(unserved_kind, "1")
    with pytest.raises(ExpiredError):
        next(iter(stream))


def test_an_informer_cache_follows_what_happens(cluster: KubeClient, namespace: str) -> None:
    with InformerCache(cluster, [Scope(CONFIG_MAPS, f"of={namespace}")], patience=SECONDS) as cache:
        assert cache.list(CONFIG_MAPS) == {}
        made = cluster.create(sample(namespace, labels={"of": namespace}))
        until(lambda: cache.list(CONFIG_MAPS).get(ref_of(made)))
        cluster.delete(ref_of(made))
        until(lambda: not cache.list(CONFIG_MAPS))
