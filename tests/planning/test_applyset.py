"""How objects are known to be ours."""

from __future__ import annotations

from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.planning.applyset import (
    applyset_id,
    component_of,
    digest_of,
    group_kind,
    kinds_of,
    member,
    parent,
)

DAEMONSET = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "ds", "namespace": "ns", "labels": {"app": "ds"}},
    "spec": {"template": {"metadata": {"labels": {"app": "ds"}}, "spec": {"containers": []}}},
}


def marked(manifest: dict) -> dict:  # type: ignore[type-arg]
    return member(manifest, component="driver", stack="prod", namespace="ns")


def test_the_id_follows_kep_3659() -> None:
    """applyset-<base64url(sha256(name.namespace.kind.group))>-v1, a legal label value."""
    found = applyset_id("prod", "gpu-operator-resources")
    assert found.startswith("applyset-")
    assert found.endswith("-v1")
    assert len(found) <= 63
    assert found != applyset_id("test", "gpu-operator-resources")


def test_the_parent_names_kinds_and_other_namespaces() -> None:
    refs = [ObjectRef("apps/v1", "DaemonSet", "ns", "a"), ObjectRef("v1", "ConfigMap", "other", "b")]
    made = parent("prod", "ns", refs)
    assert kinds_of(made) == {"DaemonSet.apps", "ConfigMap"}
    assert made["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"] == "other"
    assert made["metadata"]["labels"]["applyset.kubernetes.io/id"] == applyset_id("prod", "ns")


def test_a_member_keeps_its_own_labels() -> None:
    labels = marked(DAEMONSET)["metadata"]["labels"]
    assert labels["app"] == "ds"
    assert labels["applyset.kubernetes.io/part-of"] == applyset_id("prod", "ns")
    assert component_of(marked(DAEMONSET)) == "driver"


def test_a_pod_template_carries_the_digest_of_its_content() -> None:
    changed = {**DAEMONSET, "spec": {"template": {**DAEMONSET["spec"]["template"], "spec": {"containers": [1]}}}}  # type: ignore[index]
    before, after = (digest_of(marked(item)["spec"]["template"]) for item in (DAEMONSET, changed))
    assert before
    assert before != after
    assert digest_of(marked(DAEMONSET)["spec"]["template"]) == before


def test_pods_of_a_template_are_no_members() -> None:
    """A label of the set on a pod would make kubectl prune pods."""
    template = marked(DAEMONSET)["spec"]["template"]
    assert "applyset.kubernetes.io/part-of" not in template["metadata"]["labels"]


def test_nodes_are_not_marked() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"x": "y"}}}
    assert marked(node) == node


def test_kinds_are_written_with_their_group() -> None:
    assert group_kind(ref_of(DAEMONSET).type) == "DaemonSet.apps"
    assert group_kind(ObjectRef("v1", "Pod", "ns", "p").type) == "Pod"
