"""The controller and its workers: what cannot be done for one stack is reported, and is nothing to the others."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.informer import InformerCache
from gpu_provision.kube.lease import lease_manifest, process_identity
from gpu_provision.model.cluster import ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import controller as module
from gpu_provision.operator import queue, reconciler
from gpu_provision.operator.controller import Controller, StackWorker
from gpu_provision.operator.crd import definition
from gpu_provision.operator.queue import ReconcileRequest
from gpu_provision.operator.stack import STACK, inventory_of, stack_of
from gpu_provision.operator.telemetry import StackEvent
from tests.sandbox.apiserver.conftest import Running

DEADLINE = 60.0


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an API server that knows stacks."""
    running = Running(tmp_path_factory.mktemp("sandbox"))
    found = str(running.server.kubeconfig)
    cluster = connect(found)
    cluster.apply(definition())
    for name in ("gpu-operator", "shared"):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield found
    running.stop()


@pytest.fixture
def cluster(kubeconfig: str) -> Iterator[KubeClient]:
    made = connect(kubeconfig)
    yield made
    for stack in made.list(STACK).items:
        made.merge(ref_of(stack), {"metadata": {"finalizers": None}})
        made.delete(ref_of(stack))


@pytest.fixture
def aim(kubeconfig: str) -> Callable[[Inventory], Inventory]:
    return lambda inventory: replace(inventory, cluster=replace(inventory.cluster, kubeconfig=kubeconfig))


def until(is_so: Callable[[], bool], told: object) -> None:
    give_up = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < give_up, told
        time.sleep(0.02)


def degraded(cluster: KubeClient) -> dict[str, dict[str, str]]:
    """Return why each stack is degraded."""
    return {
        stack["metadata"]["name"]: condition
        for stack in cluster.list(STACK).items
        for condition in (stack.get("status") or {}).get("conditions", ())
        if condition["type"] == "Degraded"
    }


@pytest.fixture
def work(cluster: KubeClient, aim: Callable[[Inventory], Inventory]) -> Iterator[Callable[..., list[StackEvent]]]:
    """Makes a stack with a worker, and returns the events of it."""
    workers: list[StackWorker] = []

    def make(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> list[StackEvent]:
        stack, events = stack_of({"name": name, "cluster": {}, **spec}), list[StackEvent]()
        stack["metadata"]["annotations"] = annotations or {}
        request = ReconcileRequest(cluster.create(stack))
        workers.append(StackWorker(cluster, request, aim=aim, take=events.append))
        workers[-1].thread.start()
        return events

    yield make
    for each in workers:
        each.stop()
        each.thread.join(DEADLINE)


def test_another_run_is_waited_for_and_is_no_failure(
    work: Callable[..., list[StackEvent]], cluster: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a validation that a user has asked for."""
    monkeypatch.setattr(reconciler, "OTHER_RUN_SECONDS", 0.1)
    lease = ObjectRef("coordination.k8s.io/v1", "Lease", "shared", "busy")
    pid, start = os.getppid(), Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    theirs = re.sub(r"pid \d+ start \d+", f"pid {pid} start {start}", process_identity())
    held = cluster.create(lease_manifest(lease, theirs, {}, 15, {}))
    pools = {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}}
    events = work("busy", cluster={"namespace": "shared"}, pools=pools)
    until(lambda: any(event.reason == "OtherRun" for event in events), events)
    assert not [event for event in events if event.is_warning and event.reason in {"OtherRun", "RunFailed"}]
    cluster.replace(lease_manifest(lease, "", held, 15, {}))
    until(lambda: any(event.reason == "Run" for event in events), events)


def test_a_broken_watch_makes_the_controller_unready(cluster: KubeClient) -> None:
    """Old copies of objects must not pass for what is there."""
    controller = Controller(cluster, aim=lambda found: found, take=lambda _: None)
    assert controller.why_unready() == ""
    problem = "the watch of nodes starts again after KeyError: 'metadata'"
    controller._mirror = cast("InformerCache", SimpleNamespace(problem=problem))
    assert controller.why_unready() == problem


def test_a_stack_whose_loading_fails_does_not_end_the_controller(
    cluster: KubeClient, kubeconfig: str, aim: Callable[[Inventory], Inventory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status says so, and the log has the traceback."""

    def fail_for_one(stack: dict[str, Any]) -> Any:
        return {}["not thought of"] if stack["metadata"]["name"] == "broken" else inventory_of(stack)

    for each in (queue, module):
        monkeypatch.setattr(each, "inventory_of", fail_for_one)
    cluster.create(stack_of({"name": "broken", "cluster": {}}))
    cluster.create(stack_of({"name": "invalid", "cluster": {"namespace": "other"}, "release": "9.9.9"}))
    events = list[StackEvent]()
    controller = Controller(connect(kubeconfig), aim=aim, take=events.append)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    expected = {"broken": "InternalError", "invalid": "InvalidSpec"}
    until(lambda: {name: each["reason"] for name, each in degraded(cluster).items()} == expected, events)
    assert "KeyError: 'not thought of'" in degraded(cluster)["broken"]["message"]
    assert controller.why_dead() == ""
    assert {event.stack for event in events if "in fail_for_one" in event.message} == {"broken"}
    controller.stop()
    thread.join(DEADLINE)
