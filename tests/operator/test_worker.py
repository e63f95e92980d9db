"""Who looks after a stack says what cannot be done, and goes on living."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.kube.client import Cluster, connect
from gpu_provision.kube.lease import lease_manifest, process_identity
from gpu_provision.model.cluster import Manifest, ObjectRef, ref_of
from gpu_provision.model.inventory import Inventory
from gpu_provision.operator import controller as module
from gpu_provision.operator import reconciler
from gpu_provision.operator.controller import StackWorker
from gpu_provision.operator.crd import definition
from gpu_provision.operator.queue import ReconcileRequest
from gpu_provision.operator.stack import HOME, stack_of
from gpu_provision.operator.telemetry import StackEvent
from tests.sandbox.apiserver.conftest import Running

DEADLINE = 60.0


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an API server."""
    running = Running(tmp_path_factory.mktemp("sandbox"))
    yield str(running.server.kubeconfig)
    running.stop()


@pytest.fixture(scope="module")
def cluster(kubeconfig: str) -> Cluster:
    """An API server that knows stacks."""
    made = connect(kubeconfig)
    made.apply(definition())
    return made


class Kept:
    """A stack with a worker."""

    def __init__(self, cluster: Cluster, stack: Manifest, kubeconfig: str) -> None:
        """Make it, and start."""
        self.cluster, self.notes = cluster, list[StackEvent]()
        live = cluster.create(stack)
        self.ref: ObjectRef = ref_of(live)

        def aim(inventory: Inventory) -> Inventory:
            return replace(inventory, cluster=replace(inventory.cluster, kubeconfig=kubeconfig))

        self.worker = StackWorker(cluster, ReconcileRequest(live), aim=aim, take=self.notes.append)
        self.worker.start()

    def condition(self) -> dict[str, str]:
        """Return the condition Degraded; an empty one if there is none yet."""
        status = self.cluster.read(self.ref).get("status") or {}
        found = (each for each in status.get("conditions", ()) if each["type"] == "Degraded")
        return next(found, {"reason": "", "message": ""})

    def until(self, reason: str) -> str:
        """Wait until the stack is degraded for a reason; return the message."""
        give_up = time.monotonic() + DEADLINE
        while (found := self.condition())["reason"] != reason:
            assert time.monotonic() < give_up, found
            time.sleep(0.02)
        return found["message"]

    def until_told(self, reason: str) -> None:
        """Wait until an event has a reason."""
        give_up = time.monotonic() + DEADLINE
        while not any(note.reason == reason for note in self.notes):
            assert time.monotonic() < give_up, self.notes
            time.sleep(0.02)


@pytest.fixture
def kept(cluster: Cluster, kubeconfig: str) -> Iterator[Callable[..., Kept]]:
    """Makes stacks with workers until the test ends."""
    made: list[Kept] = []

    def make(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Kept:
        stack = stack_of({"name": name, "cluster": {}, **spec})
        stack["metadata"]["annotations"] = annotations or {}
        made.append(Kept(cluster, stack, kubeconfig))
        return made[-1]

    yield make
    for each in made:
        each.worker.stop()
        each.worker.join(DEADLINE)


def test_each_finding_of_a_declaration_is_in_its_condition(kept: Callable[..., Kept]) -> None:
    """With its place, and what mends it."""
    nodes, rollout = [{"name": "n", "pool": "nope"}], {"canary": {"nodes": 0}}
    message = kept("nonsense", release="9.9.9", nodes=nodes, rollout=rollout).until("InvalidSpec")
    for code, place in (
        ("GP130", "spec.release"),
        ("GP142", "spec.nodes[0].pool"),
        ("GP168", "spec.rollout.canary.nodes"),
    ):
        assert f"{code} gpustack/nonsense {place}: " in message
    assert message.count("Fix: ") == 3


def test_stack_with_a_changed_namespace_is_left_alone(kept: Callable[..., Kept]) -> None:
    """By a server that has no rules it is stored."""
    message = kept("moved", {HOME: "old"}, cluster={"namespace": "new"}).until("InvalidSpec")
    assert "GP393 gpustack/moved spec.cluster.namespace" in message
    assert "it is in old, and declares new" in message


def test_another_run_is_waited_for_and_is_no_failure(
    kept: Callable[..., Kept], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a validation that a user has asked for."""
    monkeypatch.setattr(reconciler, "OTHER_RUN_SECONDS", 0.1)
    namespace = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shared"}})
    lease = ObjectRef("coordination.k8s.io/v1", "Lease", namespace["metadata"]["name"], "busy")
    pid, start = os.getppid(), Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    theirs = re.sub(r"pid \d+ start \d+", f"pid {pid} start {start}", process_identity())
    held = cluster.create(lease_manifest(lease, theirs, {}, 15, {}))
    pools = {"gpu": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"gpu": "yes"}}}
    found = kept("busy", cluster={"namespace": "shared"}, pools=pools)
    found.until_told("OtherRun")
    assert not [note for note in found.notes if note.is_warning and note.reason in {"OtherRun", "RunFailed"}]
    cluster.replace(lease_manifest(lease, "", held, 15, {}))
    found.until_told("Run")


def test_bug_about_one_stack_is_logged_and_ends_nothing(
    kept: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are looked after by the same process; the log has where it was."""
    what = "not thought of"

    def broken(_: Manifest) -> None:
        raise ValueError(what)

    monkeypatch.setattr(module, "inventory_of", broken)
    found = kept("unlucky")
    assert "ValueError: not thought of" in found.until("InternalError")
    assert found.worker.is_alive
    assert any("in broken" in note.message and note.is_warning for note in found.notes)
