"""Cordons of ours, and those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpu_provision.cluster import cordon
from gpu_provision.cluster.client import Cluster
from gpu_provision.cluster.errors import NotFound
from gpu_provision.cluster.facts import node_facts
from gpu_provision.components.labels import CORDONED
from gpu_provision.model.cluster import Manifest, NodeFacts, ObjectRef

WHY = "reboot"


def ref(name: str) -> ObjectRef:
    """Return the reference of a node."""
    return ObjectRef("v1", "Node", "", name)


def made(cluster: Cluster, name: str, **spec: Any) -> None:
    """Make a node."""
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})


def facts(cluster: Cluster, name: str) -> NodeFacts:
    """Return what the cluster knows of a node."""
    return node_facts(cluster.read(ref(name)))


def test_our_cordon_says_so_and_is_taken_back(cluster: Cluster) -> None:
    made(cluster, "plain")
    assert cordon.cordon(cluster, "plain", WHY)
    found = facts(cluster, "plain")
    assert found.unschedulable
    assert cordon.is_ours(found, WHY)
    assert found.annotations[CORDONED].startswith("reboot since 20")
    assert cordon.cordon(cluster, "plain", WHY), "whoever finds it again goes on with it"
    cordon.uncordon(cluster, "plain", WHY)
    found = facts(cluster, "plain")
    assert not found.unschedulable
    assert CORDONED not in found.annotations


def test_the_cordon_of_somebody_else_is_left_alone(cluster: Cluster) -> None:
    made(cluster, "foreign", unschedulable=True)
    assert not cordon.cordon(cluster, "foreign", WHY)
    cordon.uncordon(cluster, "foreign", WHY)
    assert facts(cluster, "foreign").unschedulable
    assert CORDONED not in facts(cluster, "foreign").annotations


def test_our_cordon_for_another_purpose_is_left_alone_too(cluster: Cluster) -> None:
    made(cluster, "upgraded")
    assert cordon.cordon(cluster, "upgraded", "upgrade")
    assert not cordon.cordon(cluster, "upgraded", WHY)
    cordon.uncordon(cluster, "upgraded", WHY)
    assert cordon.is_ours(facts(cluster, "upgraded"), "upgrade")


def test_a_node_that_somebody_has_uncordoned_meanwhile_is_cordoned_again(cluster: Cluster) -> None:
    made(cluster, "undone")
    cordon.cordon(cluster, "undone", WHY)
    cluster.merge(ref("undone"), {"spec": {"unschedulable": None}})
    assert cordon.cordon(cluster, "undone", WHY)
    assert facts(cluster, "undone").unschedulable


def test_a_cordon_in_between_is_seen(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody cordons between our look and our write, which then does not count."""
    made(cluster, "contended")
    merge = cluster.merge

    def late(node: ObjectRef, change: Mapping[str, Any]) -> Manifest:
        merge(node, {"spec": {"unschedulable": True}})
        monkeypatch.setattr(cluster, "merge", merge)
        return merge(node, change)

    monkeypatch.setattr(cluster, "merge", late)
    assert not cordon.cordon(cluster, "contended", WHY)
    assert CORDONED not in facts(cluster, "contended").annotations


@pytest.mark.parametrize("do", [cordon.cordon, cordon.uncordon])
def test_a_node_that_is_gone_is_not_found(cluster: Cluster, do: Callable[[Cluster, str, str], object]) -> None:
    with pytest.raises(NotFound):
        do(cluster, "nobody", WHY)
