"""The controller as a whole: what happens to one stack is nothing to the others."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_provision.kube.client import Cluster, connect
from gpu_provision.kube.informer import Mirror
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import controller as worker
from gpu_provision.operator import queue
from gpu_provision.operator.controller import Controller
from gpu_provision.operator.crd import definition
from gpu_provision.operator.stack import STACK, stack_of
from gpu_provision.operator.stack import inventory_of as real_inventory_of
from gpu_provision.operator.telemetry import StackEvent
from tests.sandbox.apiserver.conftest import Running

DEADLINE = 60.0


def reasons(cluster: Cluster) -> dict[str, str]:
    """Return why each stack is degraded."""
    return {
        stack["metadata"]["name"]: condition["reason"]
        for stack in cluster.list(STACK).items
        for condition in (stack.get("status") or {}).get("conditions", ())
        if condition["type"] == "Degraded"
    }


def test_a_broken_watch_makes_the_controller_unready(tmp_path: Path) -> None:
    """Old copies of objects must not pass for what is there."""
    running = Running(tmp_path)
    controller = Controller(connect(str(running.server.kubeconfig)), aim=lambda found: found, take=lambda _: None)
    assert controller.why_unready() == ""
    problem = "the watch of nodes starts again after KeyError: 'metadata'"
    controller._mirror = cast("Mirror", SimpleNamespace(problem=problem))
    assert controller.why_unready() == problem
    running.stop()


def test_a_stack_whose_loading_fails_does_not_end_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_for_one(stack: dict[str, Any]) -> Any:
        return {}["not thought of"] if stack["metadata"]["name"] == "broken" else real_inventory_of(stack)

    for module in (queue, worker):
        monkeypatch.setattr(module, "inventory_of", fail_for_one)
    running = Running(tmp_path)
    kubeconfig, notes = str(running.server.kubeconfig), list[StackEvent]()

    def aim(inventory: Inventory) -> Inventory:
        return replace(inventory, cluster=replace(inventory.cluster, kubeconfig=kubeconfig))

    cluster = connect(kubeconfig)
    cluster.apply(definition())
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-operator"}})
    cluster.create(stack_of({"name": "broken", "cluster": {}}))
    cluster.create(stack_of({"name": "invalid", "cluster": {"namespace": "other"}, "release": "9.9.9"}))
    controller = Controller(connect(kubeconfig), aim=aim, take=notes.append)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    give_up = time.monotonic() + DEADLINE
    while (found := reasons(cluster)) != {"broken": "InternalError", "invalid": "InvalidSpec"}:
        assert time.monotonic() < give_up, (found, notes)
        assert thread.is_alive(), notes
        time.sleep(0.02)
    assert controller.why_dead() == ""
    assert [note.stack for note in notes if "in fail_for_one" in note.message] == ["broken"]
    controller.stop()
    thread.join(DEADLINE)
    running.stop()
