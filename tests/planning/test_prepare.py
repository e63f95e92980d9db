"""From an inventory to manifests that are marked as the stack's own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_provision.components.labels import COMPONENT, DIGEST
from gpu_provision.kube import records
from gpu_provision.model.cluster import ClusterFacts, Context, ref_of
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import Plan
from gpu_provision.planning.applyset import PART_OF, STACK, kinds_of
from gpu_provision.planning.observed import ObservedState
from gpu_provision.planning.prepare import MOST_OF_OBJECT, MOST_OF_VALUES, findings, prepare, too_many_nodes
from gpu_provision.reconcile.plan import ClusterPlan, blocking_findings
from tests.components.builders import fleet, inventory
from tests.planning.builders import Stack


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


LIMITS = [(9, 9_000, 10_000), (45, 6_500, 7_500), (253, 2_000, 3_000)]
"""Length of names, a number of nodes that fits, and one that does not."""

_LONGEST = f"{'0' * 16}.{'0' * 36}.2026-11-21T07:30:00Z"  # verdict


def known(length: int, count: int) -> Context:
    context = Stack(facts=fleet()).context
    target = context.targets[0]
    return replace(context, targets=tuple(replace(target, name=f"{each:0{length}}") for each in range(count)))


@pytest.mark.parametrize(("length", "fits", "is_too_many"), LIMITS, ids=["short", "of a cloud", "as long as may be"])
def test_a_record_that_would_not_fit_is_found_by_the_plan(length: int, fits: int, is_too_many: int) -> None:
    assert not [*too_many_nodes(known(length, fits))]
    (found,) = too_many_nodes(known(length, is_too_many))
    room = int(found.evidence.split()[-2])
    assert fits < room < is_too_many
    assert found.where == "ConfigMap gpu-operator-resources/sandbox-validations"


def test_a_plan_says_so_and_cannot_be_carried_out() -> None:
    context = known(253, 3_000)
    draft = Plan(inventory="x", release="x", cluster="x", components=(), changes=(), findings=findings(context))
    reading = ClusterPlan(context, {}, ObservedState(cluster="x", facts=context.facts), draft)
    assert "GP382" in {item.code for item in blocking_findings(reading)}


@pytest.mark.parametrize(("length", "fits"), [limit[:2] for limit in LIMITS], ids=["short", "of a cloud", "long"])
def test_what_is_said_to_fit_does(length: int, fits: int) -> None:
    """As the API server counts: values alone, and the whole with its book of fields."""
    names = [target.name for target in known(length, fits).targets]
    record = records.validations_manifest(inventory(), {("device_plugin_validation", name): _LONGEST for name in names})
    assert sum(map(len, record["data"].values())) < MOST_OF_VALUES
    book = {f"f:{name}": {} for name in names}
    data = sum(len(key) + len(value) for key, value in record["data"].items())
    assert data + len(json.dumps(book, separators=(",", ":"))) < MOST_OF_OBJECT
