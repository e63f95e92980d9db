"""A plan as people and scripts read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import (
    Action,
    Change,
    Departure,
    Eviction,
    FieldChange,
    NodePreview,
    Plan,
    ResourceChange,
    Schedule,
    Wave,
)
from gpu_provision.output import plan, status
from gpu_provision.output.text import Style
from tests.output import samples

Golden = Callable[[str, str], None]


def test_the_whole_plan_reads_as_designed(golden: Golden) -> None:
    """Signs, grouped nodes, old -> new, effects, conflicts, one closing sentence."""
    text = plan.text(samples.PLAN, on_hosts=samples.HOSTS)
    golden("plan", text)


def test_an_empty_plan_says_that_nothing_is_to_do() -> None:
    """No counts where there is nothing to count; one that cannot be carried out never says that all is well."""
    assert plan.text(samples.EMPTY_PLAN).endswith("Plan: everything is as declared. Nothing was changed.")
    blocked = replace(samples.EMPTY_PLAN, findings=(samples.CONFLICT,))
    assert plan.closing(blocked).endswith("1 conflict. Nothing was changed.")


def test_a_digest_is_shown_only_if_nothing_else_differs() -> None:
    """It follows from a version; where a ConfigMap's content has changed it is all that there is to see."""
    path = "spec.template.spec.containers[nvidia-driver-ctr].env[DRIVER_CONFIG_DIGEST].value"
    upgrade = samples.upgrade()
    beside = replace(upgrade, fields=(*upgrade.fields, FieldChange(path, "aaaa", "bbbb")))
    assert "aaaa" not in plan.changes(replace(samples.EMPTY_PLAN, changes=(beside,)))
    alone = replace(upgrade, fields=beside.fields[1:])
    assert f"{path}: (changed)" in plan.changes(replace(samples.EMPTY_PLAN, changes=(alone,)))


def test_pods_of_one_daemonset_are_one_block() -> None:
    """Those of another are another block, also if the same changes in them."""
    changes = [
        Change(
            component="driver",
            action=Action.UPDATE,
            ref=ObjectRef("v1", "Pod", "gpu", f"driver-{group}-{suffix}"),
            fields=(FieldChange("metadata.labels.team", None, "ml"),),
            effects=("no driver restart",),
            manifest={"spec": {"nodeName": node}},
        )
        for group, suffix, node in (("a", "x7k2p", "t4-1"), ("a", "q9z4w", "t4-2"), ("b", "m3n8v", "h100-1"))
    ]
    text = plan.changes(replace(samples.EMPTY_PLAN, changes=tuple(changes)))
    titles = [line.strip() for line in text.splitlines() if "Pod" in line]
    assert titles == ["~ Pod gpu/driver-a-* on t4-1, t4-2", "~ Pod gpu/driver-b-m3n8v on h100-1"]


def test_equal_changes_of_several_nodes_share_a_block() -> None:
    """Validations of three nodes are one; the scheduler's affinity pins a pod as nodeName does."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["t4-3"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pinned = replace(samples.validation("t4-3"), manifest={"spec": {"affinity": affinity}})
    found = ((samples.validation("t4-1"), "t4-1"), (samples.validation("t4-2"), "t4-2"), (pinned, "t4-3"))
    runs = tuple(replace(change, effects=(f"runs vectorAdd on {node}",)) for change, node in found)
    text = plan.validations(replace(samples.EMPTY_PLAN, changes=runs))
    assert text.splitlines() == ["validation", "  > driver_validation: will run vectorAdd on t4-1..3  (may)"]


def departure(node: str, *users: str, pods: int = 6, read: bool = True) -> Change:
    ref, fields = ObjectRef("v1", "Node", "", node), (FieldChange('metadata.labels."a"', f"of {node}", None),)
    left = Departure(pods=pods, users=users if read else None)
    return Change(component="node_labels", action=Action.UPDATE, ref=ref, fields=fields, departure=left)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([departure("t4-1")], "takes the GPU stack off node t4-1: 6 pods go, no GPU pod uses it"),
        ([departure("t4-1", pods=1, read=False)], "takes the GPU stack off node t4-1: 1 pod goes"),
        (
            [departure("t4-1", "default/train")],
            "takes the GPU stack off node t4-1: 6 pods go, 1 GPU pod uses it (default/train)",
        ),
        (
            [departure(f"gpu-{number}", f"ml/{number}") for number in range(1, 6)],
            "takes the GPU stack off nodes gpu-1..5: 30 pods go, 5 GPU pods use them (ml/1, ml/2, ml/3 and 2 more)",
        ),
    ],
)
def test_nodes_that_leave_are_one_line(changes: list[Change], expected: str) -> None:
    """Labels are in the diff and in JSON."""
    drawn = replace(samples.EMPTY_PLAN, changes=tuple(changes), components=("node_labels",))
    assert plan.changes(drawn).splitlines() == ["node_labels", f"  ~ {expected}"]
    assert plan.document(drawn)["changes"][0]["fields"][0]["path"] == 'metadata.labels."a"'


def test_a_node_that_leaves_has_no_driver_to_replace() -> None:
    train = Eviction(namespace="default", name="train", use="requests GPUs")
    outlook = NodePreview(node="t4-1", why="no longer in the inventory", leaves=True, evicts=(train,))
    rollout = Schedule(waves=(Wave(nodes=(outlook,)),))
    told = plan.text(replace(samples.EMPTY_PLAN, changes=(departure("t4-1"),), rollout=rollout))
    assert "nodes that leave: 1 node in 1 wave, 1 pod to evict" in told
    assert "driver" not in told.rpartition("Plan: ")[2]


def test_the_summary_counts_every_action() -> None:
    """The document's counts are those of the closing sentence."""
    summary = plan.document(samples.PLAN)["summary"]
    assert summary == {"create": 1, "update": 9, "delete": 1, "run": 2, "wait": 0, "conflict": 1}


def test_hosts_that_would_be_rebooted_are_counted() -> None:
    """In the last sentence, which is what people look at."""
    rebooted = HostsResult(hosts=(HostOutcome(name="t4-1", changes=("rebooted: nouveau is in use", "evicted: a/b")),))
    told = plan.text(samples.EMPTY_PLAN, on_hosts=HostsResult(hosts=(*samples.HOSTS.hosts, *rebooted.hosts)))
    assert "Plan: 4 hosts to change, 1 of them to reboot, 0 to create" in told
    assert [host["rebooted"] for host in status.hosts_document(rebooted)] == [True]


def test_a_plan_names_the_resource_that_carries_it_out() -> None:
    """Also where no object follows from it: then there is something to apply."""
    fields = (FieldChange("spec.rollout.max_parallel", 1, 2),)
    stack = ResourceChange(name="gpustack/prod", fields=fields)
    planned = Plan(inventory="prod", release="r", cluster="c", components=(), changes=(), resource=stack)
    assert not planned.is_empty
    told = plan.text(planned)
    assert "The operator carries this out: gpustack/prod is to change." in told
    assert "  ~ spec.rollout.max_parallel: 1 -> 2" in told
    assert plan.document(planned)["resource"] == {
        "name": "gpustack/prod",
        "fields": [{"path": "spec.rollout.max_parallel", "old": 1, "new": 2}],
    }
    unchanged = replace(planned, resource=ResourceChange(name="gpustack/prod"))
    assert unchanged.is_empty
    assert "gpustack/prod says so already" in plan.text(unchanged)
    assert plan.document(replace(planned, resource=None))["resource"] is None


def test_a_run_announces_its_changes_without_a_closing() -> None:
    """Its findings come at its end; that nothing was changed would be a lie."""
    text = plan.announced(samples.PLAN)
    assert text.startswith("Inventory prod, release 26.7.0")
    assert "- DaemonSet gpu-operator-resources/nvidia-mig-manager" in text
    assert "GP304" not in text
    assert "Nothing was changed" not in text


def test_a_run_says_which_drivers_it_replaced() -> None:
    """By version, not by image; nodes that leave are none of them."""
    path = "spec.template.spec.containers[nvidia-driver-ctr].image"
    image = FieldChange(path, "nvcr.io/driver:595.91.07-ubuntu22.04", "nvcr.io/driver:580.126.20-ubuntu22.04")
    driver = Change(
        component="driver", action=Action.UPDATE, ref=ObjectRef("apps", "DaemonSet", "n", "d"), fields=(image,)
    )
    waves = tuple(Wave(nodes=(NodePreview(node=name, why="another driver"),)) for name in ("t4-1", "t4-2"))
    planned = replace(samples.EMPTY_PLAN, changes=(driver,), rollout=Schedule(waves=waves))
    assert plan.upgrades(planned) == ["driver 595.91.07 -> 580.126.20 on 2 nodes in 2 waves"]
    leaves = Schedule(waves=(Wave(nodes=(NodePreview(node="t4-1", why="left", leaves=True),)),))
    assert plan.upgrades(replace(samples.EMPTY_PLAN, changes=(departure("t4-1"),), rollout=leaves)) == []
    exporter = replace(samples.EMPTY_PLAN, changes=(samples.upgrade(),))
    assert plan.upgrades(exporter) == ["dcgm_exporter 4.2.0 -> 4.4.1 on 3 nodes"]


@pytest.mark.parametrize("columns", [80, 160])
def test_the_plan_of_a_rollout_fits_the_terminal(golden: Golden, columns: int) -> None:
    """By decisions: what changes, what is disrupted, what is validated, what blocks it. Plain ASCII."""
    planned = replace(samples.PLAN, rollout=samples.ROLLOUT, changes=(*samples.PLAN.changes, *RECORDS))
    text = plan.text(planned, Style(columns=columns), on_hosts=samples.HOSTS)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= columns
    golden(f"plan-{columns}", text)


RECORDS = tuple(
    Change(component="prerequisites", action=Action.CREATE, ref=ObjectRef("v1", kind, "gpu-operator-resources", name))
    for kind, name in (("Lease", "prod"), ("ConfigMap", "prod"), ("ConfigMap", "prod-history"))
)


def test_records_of_the_tool_are_no_changes() -> None:
    """They are in JSON, and neither in the list nor in the counts, unless there is nothing else to write."""
    other = replace(RECORDS[0], ref=ObjectRef("v1", "ConfigMap", "n", "other"))
    planned = replace(samples.EMPTY_PLAN, changes=(*RECORDS, other))
    text = plan.text(planned)
    assert "prod-history" not in text
    assert "Plan: 1 to create, 0 to update" in text
    assert len(plan.document(planned)["changes"]) == len(RECORDS) + 1
    assert "prod-history" in plan.text(replace(planned, changes=RECORDS))


@pytest.mark.parametrize(
    ("path", "old", "new", "title"),
    [
        ("containers[a].image", "r/driver:595.1", "r/driver:580.2", "driver 595.1 -> 580.2 (downgrade)"),
        (
            "containers[a].image",
            f"r/d@sha256:9{'a' * 63}",
            f"r/d@sha256:1{'b' * 63}",
            "driver sha256:9aaaaaaaaaaa -> sha256:1bbbbbbbbbbb",
        ),
        ("initContainers[driver-validation].image", "r/validator:v26.7.0", "r/validator:v26.3.3", "driver"),
    ],
)
def test_a_heading_names_versions_of_the_component(path: str, old: str, new: str, title: str) -> None:
    """Not those of its init containers; a digest is neither older nor newer."""
    field = FieldChange(f"spec.template.spec.{path}", old, new)
    ref = ObjectRef("apps/v1", "DaemonSet", "n", "d")
    change = Change(component="driver", action=Action.UPDATE, ref=ref, fields=(field,))
    assert plan.text(replace(samples.EMPTY_PLAN, changes=(change,))).splitlines()[2] == title


def test_what_is_not_ready_is_no_change() -> None:
    """Each node is named."""
    refs = [ObjectRef("v1", "Node", "", name) for name in ("t4-1", "t4-2")]
    waits = [Change(component="node_labels", action=Action.WAIT, ref=ref, effects=("skipped",)) for ref in refs]
    ref = ObjectRef("apps/v1", "DaemonSet", "n", "d")
    waits.append(
        Change(component="driver", action=Action.WAIT, ref=ref, nodes=("t4-1",), effects=("ContainerCreating",))
    )
    assert plan.text(replace(samples.EMPTY_PLAN, changes=tuple(waits))).splitlines()[2:7] == [
        "not ready yet",
        "  node_labels: Node t4-1, t4-2",
        "      skipped",
        "  driver: DaemonSet n/d",
        "      t4-1: ContainerCreating",
    ]
