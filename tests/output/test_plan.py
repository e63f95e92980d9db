"""A plan as text and JSON; test_plan.yaml has plans with their texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.plan import Action, Change, FieldChange, NodePreview, Plan, Schedule, Wave
from gpu_provision.output import plan
from gpu_provision.output.text import Style
from tests.data_file import document
from tests.output import samples

Golden = Callable[[str, str], None]
DATA = document(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = {each["name"]: each for each in DATA["cases"]}


def planned(name: str) -> Plan:
    return msgspec.convert({**DATA["base"], **CASES[name].get("plan", {})}, Plan)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_reads_as_its_text(name: str) -> None:
    hosts = HostsResult(hosts=msgspec.convert(CASES[name].get("hosts", ()), tuple[HostOutcome, ...]))
    assert f"{plan.text(planned(name), on_hosts=hosts)}\n" == CASES[name]["text"]


def test_a_document_has_what_the_text_leaves_out() -> None:
    """Labels of a node that leaves, records, the GPUStack, and a count of every action."""
    (change,) = plan.document(planned("a node leaves that no GPU pod uses"))["changes"]
    assert change["fields"] == [{"path": 'metadata.labels."a"', "old": "of t4-1", "new": None}]
    assert len(plan.document(planned("records of the tool are no changes"))["changes"]) == 4
    stack = planned("the resource that carries a plan out is something to apply")
    field = {"path": "spec.rollout.max_parallel", "old": 1, "new": 2}
    assert plan.document(stack)["resource"] == {"name": "gpustack/prod", "fields": [field]}
    assert (stack.is_empty, planned("a resource that is up to date is not").is_empty) == (False, True)
    whole = plan.document(samples.PLAN)
    assert (whole["resource"], whole["rollout"]) == (None, None)
    assert whole["summary"] == {"create": 1, "update": 9, "delete": 1, "run": 2, "wait": 0, "conflict": 1}


def test_the_whole_plan_reads_as_designed(golden: Golden) -> None:
    """Signs, grouped nodes, old -> new, effects, conflicts, one closing sentence."""
    golden("plan", plan.text(samples.PLAN, on_hosts=samples.HOSTS))


@pytest.mark.parametrize("columns", [80, 160])
def test_the_plan_of_a_rollout_fits_the_terminal(golden: Golden, columns: int) -> None:
    """In the order of decisions: changes, disruption, validation, blocking findings. Plain ASCII."""
    records = planned("records alone are").changes
    wide = replace(samples.PLAN, rollout=samples.ROLLOUT, changes=(*samples.PLAN.changes, *records))
    text = plan.text(wide, Style(columns=columns), on_hosts=samples.HOSTS)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= columns
    golden(f"plan-{columns}", text)


def test_a_run_announces_its_changes_without_a_closing() -> None:
    """Its findings come at its end, and the sentence "Nothing was changed" would be false."""
    text = plan.announcement(samples.PLAN)
    assert text.startswith("Inventory prod, release 26.7.0")
    assert "- DaemonSet gpu-operator-resources/nvidia-mig-manager" in text
    assert "GP304" not in text
    assert "Nothing was changed" not in text


def test_a_run_says_which_drivers_it_replaced() -> None:
    """By version, not by image, and without nodes that leave."""
    path = "spec.template.spec.containers[nvidia-driver-ctr].image"
    image = FieldChange(path, "nvcr.io/driver:595.91.07-ubuntu22.04", "nvcr.io/driver:580.126.20-ubuntu22.04")
    ref = ObjectRef("apps", "DaemonSet", "n", "d")
    toolkit = FieldChange(
        path.replace("nvidia-driver-ctr", "openshift-driver-toolkit-ctr"), "q/dev@sha256:1", "q/dev:2"
    )
    driver = Change(component="driver", action=Action.UPDATE, ref=ref, fields=(toolkit, image))
    waves = tuple(Wave(nodes=(NodePreview(node=name, why="another driver"),)) for name in ("t4-1", "t4-2"))
    replaced = replace(samples.EMPTY_PLAN, changes=(driver,), rollout=Schedule(waves=waves))
    assert plan.upgrades(replaced) == ["driver 595.91.07 -> 580.126.20 on 2 nodes in 2 waves"]
    assert plan.upgrades(planned("a node that leaves has no driver to replace")) == []
    exporter = replace(samples.EMPTY_PLAN, changes=(samples.upgrade(),))
    assert plan.upgrades(exporter) == ["dcgm_exporter 4.2.0 -> 4.4.1 on 3 nodes"]
