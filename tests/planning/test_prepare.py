"""From an inventory to manifests that are marked as the stack's own."""

from __future__ import annotations

from gpu_provision.components.labels import COMPONENT, DIGEST
from gpu_provision.model.cluster import ClusterFacts, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.planning.membership import PART_OF, STACK, kinds_of
from gpu_provision.planning.prepare import findings, prepare
from tests.components.builders import fleet, inventory


def test_every_object_but_nodes_says_whose_it_is() -> None:
    _, desired = prepare(inventory(), fleet())
    for component, manifests in desired.items():
        for manifest in manifests:
            labels = manifest["metadata"].get("labels", {})
            mark = STACK if manifest["kind"] == "Pod" else PART_OF
            if manifest["kind"] != "Node" and ref_of(manifest).name != "sandbox":
                assert labels[COMPONENT] == component, ref_of(manifest)
                assert mark in labels, ref_of(manifest)


def test_the_parent_names_every_kind_that_is_applied() -> None:
    _, desired = prepare(inventory(), fleet())
    parent = desired["prerequisites"][-1]
    assert ref_of(parent).name == "sandbox"
    assert {"DaemonSet.apps", "Deployment.apps", "ConfigMap", "Namespace"} <= kinds_of(parent)
    assert kinds_of(parent).isdisjoint({"Node", "Pod"})


def test_every_daemons_pod_can_be_told_from_one_of_other_content() -> None:
    _, desired = prepare(inventory(), fleet())
    workloads = [item for items in desired.values() for item in items if item["kind"] in {"DaemonSet", "Deployment"}]
    digests = [item["spec"]["template"]["metadata"]["labels"][DIGEST] for item in workloads]
    assert len(set(digests)) == len(workloads)


def test_equal_inputs_make_equal_manifests() -> None:
    """Else every run would restart pods."""
    assert prepare(inventory(), fleet())[1] == prepare(inventory(), fleet())[1]
    assert prepare(inventory(), ClusterFacts())[1] == prepare(inventory(), ClusterFacts())[1]


def test_warnings_about_the_file_are_findings_of_the_plan() -> None:
    """A plan shows a typo in a version, not ``validate`` alone."""
    warning = Finding(code="GP133", what="no release recommends driver 595.91.99", severity=Severity.WARNING)
    known, _ = prepare(inventory(warnings=(warning,)), fleet())
    assert warning in findings(known)
