"""What counts as having moved since a plan was made, and what it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from gpu_provision.api.jobs import ApplyJob
from gpu_provision.api.results import StackPlan
from gpu_provision.cli import plan_file
from gpu_provision.hosts.result import NO_HOSTS, HostOutcome, HostsResult
from gpu_provision.inventory import load
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import (
    Action,
    Change,
    Eviction,
    FieldChange,
    NodePreview,
    Plan,
    ResourceChange,
    Schedule,
    Wave,
)
from tests.cli.harness import SANDBOX

REF = ObjectRef("apps/v1", "DaemonSet", "n", "x")
MANIFEST = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x", "resourceVersion": "7"}, "spec": {}}
UPDATE = Change(
    component="dcgm",
    action=Action.UPDATE,
    ref=REF,
    fields=(FieldChange("spec.image", "a", "b"),),
    nodes=("t4-1",),
    manifest=MANIFEST,
)
TRAIN = Eviction(namespace="default", name="train-1", owner="ReplicaSet train", budgets=("default/train",))
ROLLOUT = Schedule(waves=(Wave(nodes=(NodePreview(node="t4-1", why="x", evicts=(TRAIN,)),), not_before=1.0),))
HOSTS = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("load x",), driver=""),))


def plan(*changes: Change, rollout: Schedule | None = None) -> Plan:
    return Plan(inventory="i", release="r", cluster="c", components=("dcgm",), changes=changes, rollout=rollout)


def made(of: Plan, on_hosts: HostsResult = NO_HOSTS) -> dict[str, Any]:
    """A plan file's document, as it comes back from the file."""
    work, found = ApplyJob(inventory=load(SANDBOX)), StackPlan(cluster=of, hosts=on_hosts)
    document: dict[str, Any] = json.loads(json.dumps(plan_file.create(work, found, ignored=(), cluster_uid="u")))
    jsonschema.validate(document, dict(plan_file.schema()))
    return document


def one_node(outlook: NodePreview) -> Schedule:
    return Schedule(waves=(Wave(nodes=(outlook,)),))


SAME: list[Callable[[Plan], Plan]] = [
    lambda before: before,
    lambda before: replace(before, changes=(replace(UPDATE, nodes=("t4-1", "t4-2"), certain=False),)),
    lambda before: replace(before, changes=(*before.changes, Change(component="dcgm", action=Action.WAIT, ref=REF))),
    lambda before: replace(
        before, changes=(replace(UPDATE, manifest={**MANIFEST, "metadata": {"name": "x", "resourceVersion": "8"}}),)
    ),
    lambda before: replace(
        before,
        rollout=one_node(NodePreview(node="t4-1", why="x", evicts=(replace(TRAIN, name="train-2", budgets=()),))),
    ),
]


@pytest.mark.parametrize("later", SAME)
def test_what_changes_by_itself_has_not_moved(later: Callable[[Plan], Plan]) -> None:
    """Readiness, restarts, versions of objects, names of pods, budgets, the time of day."""
    before = plan(UPDATE, rollout=ROLLOUT)
    assert plan_file.cluster_changes(made(before), later(before)) == ()


MOVED: list[tuple[Plan, str]] = [
    (plan(rollout=ROLLOUT), "no longer: DaemonSet n/x would be updated"),
    (
        plan(UPDATE, replace(UPDATE, ref=REF._replace(name="y")), rollout=ROLLOUT),
        "DaemonSet n/y would be updated, which was not planned",
    ),
    (
        plan(replace(UPDATE, fields=(FieldChange("spec.image", "c", "b"),)), rollout=ROLLOUT),
        "DaemonSet n/x: spec.image c -> b, planned was: a -> b",
    ),
    (plan(replace(UPDATE, fields=()), rollout=ROLLOUT), "DaemonSet n/x: spec.image as it is, planned was: a -> b"),
    (
        plan(replace(UPDATE, manifest={**MANIFEST, "spec": {"image": "d"}}), rollout=ROLLOUT),
        "DaemonSet n/x: the content to apply differs",
    ),
    (plan(UPDATE), "node t4-1: its driver is not replaced, planned was: wave 1, evicts default/ReplicaSet train"),
    (
        plan(UPDATE, rollout=Schedule(skipped=(("t4-1", "it is NotReady"),))),
        "node t4-1: is skipped: it is NotReady, planned was: wave 1, evicts default/ReplicaSet train",
    ),
    (
        plan(UPDATE, rollout=one_node(NodePreview(node="t4-1", why="x", evicts=(TRAIN,), cordoned_by="me"))),
        (
            "node t4-1: wave 1, evicts default/ReplicaSet train, cordoned by me,"
            " planned was: wave 1, evicts default/ReplicaSet train"
        ),
    ),
]


PROD, LAB = ResourceChange(name="gpustack/prod"), ResourceChange(name="gpustack/lab")
SPEC = (FieldChange("spec.release", "a", "b"),)


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (None, PROD, "carried out by gpustack/prod, planned was: by this command alone, without an operator"),
        (PROD, None, "carried out by this command alone, without an operator, planned was: by gpustack/prod"),
        (PROD, replace(PROD, fields=SPEC), "gpustack/prod is to change otherwise than planned"),
        (PROD, LAB, "carried out by gpustack/lab, planned was: by gpustack/prod"),
    ],
)
def test_a_stack_that_went_to_or_from_the_operator_has_moved(
    then: ResourceChange | None, now: ResourceChange | None, told: str
) -> None:
    """What was agreed to is who carries it out, too."""
    before, after = (replace(plan(UPDATE), resource=each) for each in (then, now))
    assert plan_file.cluster_changes(made(before), after) == (told,)


@pytest.mark.parametrize(("now", "told"), MOVED)
def test_what_has_moved_is_named(now: Plan, told: str) -> None:
    assert plan_file.cluster_changes(made(plan(UPDATE, rollout=ROLLOUT)), now) == (told,)


def test_hosts_that_would_be_changed_otherwise_are_named() -> None:
    document = made(plan(), HOSTS)
    assert plan_file.host_changes(document, HOSTS) == ()
    quiet = HostsResult(hosts=(replace(HOSTS.hosts[0], changes=()),))
    assert plan_file.host_changes(document, quiet) == ("host t4-1: nothing to change, planned was: load x",)
    assert plan_file.host_changes(document, None) == ("host t4-1: takes no part, planned was: load x",)


def test_no_secret_is_in_the_file() -> None:
    """Neither of a Secret, nor of an environment, nor in the address of a proxy."""
    secret = FieldChange("data.token", "old-hunter2", "new-hunter2")
    key = FieldChange("spec.env[GIT_PAT].value", "old-hunter2", "new-hunter2")
    proxy = FieldChange("spec.env[HTTPS_PROXY].value", None, "http://user:new-hunter2@proxy:3128")
    of = plan(replace(UPDATE, ref=REF._replace(kind="Secret"), fields=(secret,)), replace(UPDATE, fields=(key, proxy)))
    text = json.dumps(made(of))
    assert "hunter2" not in text
    assert "http://(not shown)@proxy:3128" in text
