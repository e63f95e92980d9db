"""Simulated nodes, attached to either server as users attach them, and the nodes and namespace of one test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.contract.client import MERGE, Object, Server, until
from tests.contract.controllers.cluster import NODES, TAINTED, Cluster, status_of
from tests.real.processes import process

_CHECKOUT = Path(__file__).resolve().parents[3]
_FLEET = Path(__file__).with_name("fleet.yaml")


@pytest.fixture(scope="session")
def nodes(server: Server) -> Iterator[Path]:
    """The nodes of fleet.yaml, attached; the value is the log of the process that simulates them."""
    log = server.directory / "nodes.log"
    command = [sys.executable, "-m", "gpu_provision.sandbox.attach", "--kubeconfig", str(server.kubeconfig)]
    command += ["--fleet", str(_FLEET), *server.node_flags]
    with process(log, command, environment={**os.environ, "PYTHONPATH": str(_CHECKOUT)}):
        until(lambda: all(_is_usable(server, node) for node in (*NODES, TAINTED)))
        yield log


def _is_usable(server: Server, name: str) -> bool:
    answer = server.ask("GET", f"/api/v1/nodes/{name}")
    node = answer.body if answer.code == 200 else {}
    taints = [taint["key"] for taint in node.get("spec", {}).get("taints") or ()]
    return status_of(node, "Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


@pytest.fixture
def cluster(server: Server, nodes: Path, namespace: str) -> Cluster:
    assert nodes.exists()
    made = Cluster(server, namespace)
    # Servers before 1.24 take no pod before the service account has its token.
    until(lambda: server.at_least(1, 24) or made.get("ServiceAccount", "default").get("secrets"))
    return made


@pytest.fixture
def paper_node(server: Server) -> Iterator[Callable[..., str]]:
    """Makes nodes that exist in the API only: pods are bound to them and never start. They go after the test."""
    made: list[str] = []

    def make(*, ready: bool = True, labels: dict[str, str] | None = None, gpus: int = 0, pods: int = 20) -> str:
        name = f"paper-{uuid.uuid4().hex[:6]}"
        made.append(name)
        known = {"kubernetes.io/hostname": name, **(labels or {})}
        amounts = {"cpu": "8", "memory": "16Gi", "pods": str(pods), "nvidia.com/gpu": str(gpus)}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions(ready=ready)}
        server.make("/api/v1/nodes", {"metadata": {"name": name, "labels": known}, "status": status})
        if ready:
            until(lambda: _is_usable(server, name))
        return name

    yield make
    for name in made:
        server.delete(f"/api/v1/nodes/{name}")


def conditions(*, ready: bool) -> list[Object]:
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastHeartbeatTime": time, "lastTransitionTime": time}
    good = [
        {"type": kind, "status": "False", "reason": "Fine", "message": "", **times}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    return [*good, {"type": "Ready", "status": str(ready), "reason": "KubeletReady", "message": "", **times}]


@pytest.fixture
def on_nodes(server: Server, cluster: Cluster) -> Iterator[Callable[..., Object]]:
    """Marks nodes with the test's own label, and returns the nodeSelector for them; the label goes after the test."""
    marked: list[str] = []

    def mark(*names: str) -> Object:
        for name in names:
            marked.append(name)
            server.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {cluster.mark: "yes"}}})
        return {cluster.mark: "yes"}

    yield mark
    for name in marked:
        server.ask("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {cluster.mark: None}}}, MERGE)


@pytest.fixture
def change_node(server: Server, nodes: Path) -> Iterator[Callable[..., None]]:
    """Changes the spec of nodes for the length of a test: taints beside those that are there, or a cordon."""
    assert nodes.exists()
    changed: dict[str, Object] = {}

    def change(name: str, *, taints: tuple[Object, ...] = (), unschedulable: bool = False) -> None:
        node = server.get(f"/api/v1/nodes/{name}")
        changed.setdefault(name, node["spec"])
        spec: Object = {"unschedulable": unschedulable or None}
        if taints:
            spec["taints"] = [*(node["spec"].get("taints") or ()), *taints]
        server.patch(f"/api/v1/nodes/{name}", {"spec": spec})

    yield change
    for name, spec in changed.items():
        server.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": spec.get("taints"), "unschedulable": None}})
