"""Objects of the inventory itself: what the cluster lacks, and what belongs to the stack."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_provision.components import problems, render_manifests
from gpu_provision.model.cluster import ClusterFacts
from gpu_provision.model.findings import Severity
from gpu_provision.planning.prepare import find_references, prepare
from tests.components import builders

RULES = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "gpus"}}


def context(*objects: dict[str, Any], **changes: Any) -> Any:
    return builders.context(builders.inventory_with({"extra_objects": [*objects], **changes}), builders.fleet())


def test_an_object_of_a_kind_that_is_not_there_is_named() -> None:
    """A run goes on without it: the kind may come later."""
    known = context(RULES)
    assert render_manifests(known)["extra_objects"] == []
    (finding,) = problems(known)
    assert (finding.code, finding.severity) == ("GP414", Severity.WARNING)
    assert "PrometheusRule gpu-operator-resources/gpus" in finding.what


@pytest.mark.parametrize(
    ("kind", "name"), [("ServiceAccount", "nvidia-dcgm-exporter"), ("ConfigMap", "nvidia-device-plugin-entrypoint")]
)
def test_an_object_of_the_stack_itself_is_refused(kind: str, name: str) -> None:
    """Both would write it in turn."""
    (finding,) = problems(context({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}))
    assert (finding.code, finding.severity) == ("GP415", Severity.ERROR)
    assert f"{kind} gpu-operator-resources/{name}" in finding.what
    other = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "node-feature-discovery"}}
    assert problems(context(other)) == ()


@pytest.mark.parametrize("text", ["many", "1e400", "1e9999999999999999999"])
def test_a_quantity_that_is_none_is_left_to_the_server(text: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": text}}}
    (made,) = render_manifests(context(quota))["extra_objects"]
    assert made["spec"] == {"hard": {"pods": text}}


def test_a_name_of_an_object_of_the_stack_is_refused() -> None:
    """One object would overwrite the other one. A Node that several components patch is no such object."""
    config = {"name": "nvidia-device-plugin-entrypoint", "data": {"a": {"version": "v1"}}}
    settings = {"device_plugin": {"config": config}, "startup_taint": {"enabled": True}}
    known = builders.context(builders.inventory_with(settings), builders.fleet())
    (finding,) = (each for each in problems(known) if each.code == "GP415")
    assert "gives its name to another one" in finding.what


def test_an_object_without_a_mapping_is_no_pod() -> None:
    """The API server refuses it; permissions are derived from the other objects."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"}, "spec": "text"}
    inventory = builders.inventory_with({"extra_objects": [service]})
    refs = find_references(prepare(inventory, ClusterFacts())[1])
    assert "extra_objects" not in {each.component for each in refs}
