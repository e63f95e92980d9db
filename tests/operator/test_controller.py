"""The controller and its workers: an error of one stack is reported, and does not affect the others."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.lease import lease_manifest, process_identity
from gpu_provision.model.cluster import ObjectRef
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import controller as module
from gpu_provision.operator import reconciler, schedule
from gpu_provision.operator.controller import Controller
from gpu_provision.operator.crd import definition
from gpu_provision.operator.stack import STACK, inventory_of, stack_of
from gpu_provision.operator.telemetry import StackEvent
from tests.contract.client import until
from tests.operator.conftest import a_stack


@contextmanager
def running(cluster: KubeClient, kubeconfig: str) -> Iterator[tuple[Controller, list[StackEvent]]]:
    cluster.apply(definition())
    for name in ("gpu-operator", "shared"):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def retarget(inventory: Inventory) -> Inventory:
        return replace(inventory, cluster=replace(inventory.cluster, kubeconfig=kubeconfig))

    events = list[StackEvent]()
    controller = Controller(connect(kubeconfig), retarget=retarget, on_event=events.append)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    try:
        yield controller, events
    finally:
        controller.stop()
        thread.join(60.0)


def degraded(cluster: KubeClient) -> dict[str, tuple[str, str]]:
    return {
        stack["metadata"]["name"]: (condition["reason"], condition["message"])
        for stack in cluster.list(STACK).items
        for condition in (stack.get("status") or {}).get("conditions", ())
        if condition["type"] == "Degraded"
    }


def test_another_run_is_waited_for_and_is_no_failure(
    cluster: KubeClient, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a validation by a user."""
    monkeypatch.setattr(reconciler, "OTHER_RUN_SECONDS", 0.1)
    lease = ObjectRef("coordination.k8s.io/v1", "Lease", "shared", "busy")
    pid, start = os.getppid(), Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    theirs = re.sub(r"pid \d+ start \d+", f"pid {pid} start {start}", process_identity())
    with running(cluster, kubeconfig) as (_, events):
        held = cluster.create(lease_manifest(lease, theirs, {}, 15, {}))
        cluster.create(a_stack("busy", cluster={"namespace": "shared"}))
        until(lambda: any(event.reason == "OtherRun" for event in events))
        assert not [event for event in events if event.is_warning and event.reason in {"OtherRun", "RunFailed"}]
        cluster.replace(lease_manifest(lease, "", held, 15, {}))
        until(lambda: any(event.reason == "Run" for event in events))


def test_a_broken_watch_makes_the_controller_unready(cluster: KubeClient) -> None:
    """The cache may be stale."""
    controller = Controller(cluster, retarget=lambda found: found, on_event=lambda _: None)
    assert controller.readiness_problem() == ""
    problem = "the watch of nodes starts again after KeyError: 'metadata'"
    controller._cache = cast("InformerCache", SimpleNamespace(problem=problem))
    assert controller.readiness_problem() == problem


def test_a_stack_whose_loading_fails_does_not_end_the_controller(
    cluster: KubeClient, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status reports the error, and the log has the traceback."""

    def fail_for_one(stack: dict[str, Any]) -> Any:
        return {}["not thought of"] if stack["metadata"]["name"] == "broken" else inventory_of(stack)

    for each in (schedule, module):
        monkeypatch.setattr(each, "inventory_of", fail_for_one)
    with running(cluster, kubeconfig) as (controller, events):
        cluster.create(stack_of({"name": "broken", "cluster": {}}))
        cluster.create(stack_of({"name": "invalid", "cluster": {"namespace": "other"}, "release": "9.9.9"}))
        until(lambda: degraded(cluster).keys() == {"broken", "invalid"})
        found = degraded(cluster)
        assert (found["broken"][0], found["invalid"][0]) == ("InternalError", "InvalidSpec")
        assert "KeyError: 'not thought of'" in found["broken"][1]
        assert "GP130 gpustack/invalid spec.release" in found["invalid"][1]
        assert controller.liveness_problem() == ""
        assert {event.stack for event in events if "in fail_for_one" in event.message} == {"broken"}
