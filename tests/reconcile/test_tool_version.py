"""A plan says where its differences come from, if the last run was of another version of the tool."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import cast

import pytest

from gpu_provision.kube import records
from gpu_provision.kube.client import Cluster
from gpu_provision.model.cluster import ClusterFacts, ref_of
from gpu_provision.model.findings import Finding, Refused, Severity
from gpu_provision.model.history import Ending, History, Record
from gpu_provision.planning.observed import ObservedState
from gpu_provision.planning.plan import plan
from gpu_provision.planning.prepare import prepare
from gpu_provision.reconcile.plan import ClusterPlan
from gpu_provision.reconcile.tool_version import told
from tests.components.builders import inventory

NOBODY = cast("Cluster", None)
STACK = replace(inventory(), text="name: prod\n")
LAST = Record(id="a", number=7, ending=Ending.SUCCEEDED, tool="0.0.9", text="name: prod\n")


def reading(*, is_new: bool = False) -> ClusterPlan:
    context, desired = prepare(STACK, ClusterFacts())
    parent = ref_of(desired["prerequisites"][-1])
    observed = ObservedState(cluster="c", facts=ClusterFacts(), members={} if is_new else {parent: {}})
    return ClusterPlan(context, desired, observed, plan(context, desired, observed, ()))


def said(monkeypatch: pytest.MonkeyPatch, *records: Record) -> list[str]:
    monkeypatch.setattr(records, "read_history", lambda *_: History(records))
    found = told(NOBODY, reading())
    assert all(finding.severity is Severity.WARNING and finding.code == "GP381" for finding in found)
    return [finding.what for finding in found]


def test_the_same_inventory_differs_because_of_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another inventory may differ for that; runs that left the cluster alone, and older ones, do not count."""
    (same,) = said(monkeypatch, LAST)
    assert same.startswith(f"the last run was of gpu-provision 0.0.9, and this is {version('gpu-provision')}")
    assert same.endswith("that is why something differs")
    (other,) = said(monkeypatch, replace(LAST, text="name: other\n"))
    assert other.endswith("some of this may differ for that")
    ours = replace(LAST, number=8, tool=version("gpu-provision"))
    assert said(monkeypatch, LAST, ours) == []
    assert said(monkeypatch, LAST, replace(ours, only="hosts")) == [same]
    assert said(monkeypatch) == []


def test_nobody_is_asked_where_nothing_was_applied_or_the_record_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan needs no record."""

    def refuse(*_: object) -> History:
        raise Refused(Finding(code="GP303", what="no"))

    monkeypatch.setattr(records, "read_history", refuse)
    assert told(NOBODY, reading()) == ()
    monkeypatch.setattr(records, "read_history", lambda *_: pytest.fail("asked"))
    assert told(NOBODY, reading(is_new=True)) == ()
