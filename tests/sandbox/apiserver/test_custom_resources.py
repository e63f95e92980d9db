"""Custom resources beyond tests/contract: several versions, and restarts."""

from __future__ import annotations

from gpu_provision.sandbox.apiserver.registry import Registry
from gpu_provision.sandbox.apiserver.resources import parse_path
from tests.sandbox.apiserver.conftest import Cluster

DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "apis/example.org/{}/namespaces/default/widgets"


def _define(cluster: Cluster) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}}
        for name in ("v1", "v1beta1")
    ]
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.org", "scope": "Namespaced", "names": names, "versions": versions}
    cluster.create(DEFINITIONS, "widgets.example.org", spec=spec)


def test_every_served_version_shows_the_same_objects(cluster: Cluster) -> None:
    """Without a conversion only apiVersion differs."""
    _define(cluster)
    cluster.create(WIDGETS.format("v1"), "one", spec={"size": 1})
    found = cluster.get(f"{WIDGETS.format('v1beta1')}/one")
    assert (found["apiVersion"], found["spec"]) == ("example.org/v1beta1", {"size": 1})


def test_definitions_are_served_again_after_a_restart(cluster: Cluster) -> None:
    _define(cluster)
    assert parse_path(WIDGETS.format("v1"), Registry(cluster.store).catalog) is not None
