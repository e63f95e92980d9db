"""Evictions of GPU pods, foreign objects in a namespace, and causes of remaining objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from gpu_provision.destroy.discovery import ListableKind, foreign_objects_in, listable_kinds
from gpu_provision.destroy.runner import eviction_warnings, explain_remaining, gpu_pod_eviction
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model import codes
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.findings import Finding, RunFailedError
from tests.sandbox.apiserver.conftest import Running

_NODE = frozenset({"gpu-1"})


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeClient]:
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield connect(str(running.server.kubeconfig))
    running.stop()


def train(cluster: KubeClient, name: str, *, is_protected: bool = False) -> ObjectRef:
    """Create a ready pod that uses a GPU, and optionally a budget that blocks its eviction."""
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    spec = {"nodeName": "gpu-1", "containers": [container]}
    ref = ref_of(cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.merge_patch(ref, {"status": status}, part="status")
    if is_protected:
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {**metadata, "name": f"keep-{name}"},
        }
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
        cluster.create({**budget, "spec": spec})
    return ref


def time_out(cluster: KubeClient, say: Callable[[str], None] = lambda _: None) -> tuple[Sequence[Finding], list[str]]:
    """Evict GPU pods until the timeout; return the findings and the evicted pods."""
    eviction = gpu_pod_eviction(cluster, _NODE, 1, say)
    with pytest.raises(RunFailedError) as caught:
        eviction.run()
    return caught.value.findings, list(eviction.evicted.values())


def test_the_budget_that_keeps_a_pod_is_named_at_once_and_first(cluster: KubeClient) -> None:
    """So that a user can change it in time, and a narrow terminal shows it."""
    free, messages = train(cluster, "free"), list[str]()
    train(cluster, "kept", is_protected=True)
    findings, evicted = time_out(cluster, messages.append)
    assert messages[0].startswith("evicting pods that use GPUs: The disruption budget keep-kept ")
    assert messages[0].endswith("default/kept and 1 more")
    assert evicted == ["default/free"]
    assert cluster.read(free)["metadata"]["deletionTimestamp"]
    why = {each.where: each.evidence for each in findings}
    assert "keep-kept" in why["Pod default/kept"]
    assert why["Pod default/free"] == "it is still terminating"


def test_a_pod_that_only_takes_its_time_is_waited_for_by_name(cluster: KubeClient) -> None:
    """With one eviction request."""
    train(cluster, "slow")
    messages = list[str]()
    time_out(cluster, messages.append)
    assert set(messages) == {"evicting pods that use GPUs: waits for default/slow"}


def test_a_group_that_is_named_but_gone_has_nothing(answering: Callable[..., KubeClient]) -> None:
    """As for a moment after its only definition was deleted."""
    groups = {"groups": [{"preferredVersion": {"groupVersion": "gpu-provision.io/v1alpha1"}}]}
    cluster = answering((200, {}, json.dumps(groups).encode()), (404, {}, b""))
    assert listable_kinds(cluster) == []


def test_a_list_that_the_server_puts_off_is_asked_for_again(answering: Callable[..., KubeClient]) -> None:
    """Kubernetes 1.36 does so for custom resources that were never listed."""
    kind = ListableKind("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureGroup", "nodefeaturegroups")
    cluster = answering((429, {"Retry-After": "0"}, b"storage is (re)initializing"), (200, {}, b'{"items": []}'))
    assert foreign_objects_in(cluster, "gpu-operator", [kind], ()) == []


_GOING = {"deletionTimestamp": "12:00"}
_REMAINS = {"type": "NamespaceContentRemaining", "status": "True", "message": "a pod remains"}


@pytest.mark.parametrize(
    ("metadata", "node", "conditions", "cause"),
    [
        ({"ownerReferences": [{"kind": "DaemonSet", "name": "d"}]}, "", [], "the garbage collector"),
        ({**_GOING, "finalizers": ["a", "b"]}, "", [], "waits for the finalizer a, b"),
        (_GOING, "away", [], "its node away is not ready"),
        (_GOING, "well", [], "is terminating since 12:00"),
        (_GOING, "", [_REMAINS], "a pod remains"),
    ],
)
def test_the_first_cause_is_reported(metadata: dict[str, Any], node: str, conditions: list[Any], cause: str) -> None:
    """A node with a deletionTimestamp may be ready."""
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    nodes = {"away": {"metadata": {"name": "away"}}, "well": {"metadata": {"name": "well", **_GOING}, **ready}}
    item = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": conditions}}
    assert cause in explain_remaining(item, nodes)


def job(name: str, *, owner: str = "Job", **metadata: Any) -> dict[str, Any]:
    owners = [{"kind": owner, "name": "train", "controller": True}] if owner else []
    labels = {"app": "train"}
    known = {"namespace": "ml", "name": name, "uid": name, "labels": labels, "ownerReferences": owners, **metadata}
    return {"metadata": known, "spec": {"containers": []}}


def budget(allowed: int, *, namespace: str = "ml") -> dict[str, Any]:
    metadata, spec = {"namespace": namespace, "name": "train"}, {"selector": {"matchLabels": {"app": "train"}}}
    return {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}


def test_pods_without_a_controller_are_named() -> None:
    """Terminating pods are not."""
    (lost,) = eviction_warnings([job("a"), job("b", owner=""), job("c", owner="", **_GOING)], [])
    assert (lost.code, lost.where) == (codes.UNMANAGED_PODS, "Pod ml/b")


@pytest.mark.parametrize(
    ("there", "what"),
    [
        ([budget(0)], ["a PodDisruptionBudget allows the eviction of no pod now"]),
        ([budget(1)], ["a PodDisruptionBudget allows the eviction of 1 of 2 pods now"]),
        ([budget(2), budget(0, namespace="web")], []),
    ],
    ids=["none", "some", "all, or of others"],
)
def test_a_budget_that_keeps_pods_is_named(there: list[dict[str, Any]], what: list[str]) -> None:
    found = [*eviction_warnings([job("a"), job("b")], there)]
    assert [(each.code, each.what) for each in found] == [(codes.BUDGET_HOLDS, text) for text in what]
