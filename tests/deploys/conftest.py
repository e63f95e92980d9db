"""pyinfra as its users run it, on a fleet with hosts of every kind, followed by one operation on the cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.pyinfra_server import PyinfraServer

Pyinfra = Callable[..., subprocess.CompletedProcess[str]]

FLEET = """
nodes:
- {name: good-1, gpu: {model: T4, count: 1}}
- {name: good-2, os: rhel9.4, gpu: {model: H100, count: 8}, host: {nouveau: true}}
- {name: held-1, gpu: {model: T4, count: 1}, host: {nouveau: true, in_use: [nouveau]}}
- {name: bad-1, gpu: {model: T4, count: 1}, host: {available: []}}
- {name: away-1, gpu: {model: T4, count: 1}, host: {reachable: false}}
- {name: driver-1, gpu: {model: T4, count: 1}, host: {driver: 535.183.01}}
- {name: cpu-1}
"""
INVENTORY = """
_data = {"sandbox_fleet": "mine.yaml", "gpu_inventory": "/inventory.yaml"}
_judged = {"driver-1": {"gpu_expected": {"node": "driver-1", "pool": "t4", "gpu_model": "T4", "gpu_count": 1}}}
nodes = [(f"@sandbox/{_name}", {**_data, **_judged.get(_name, {})}) for _name in NAMES]
gpu = [f"@sandbox/{_name}" for _name in NAMES if _name != "cpu-1"]
cluster = ["@cluster/sandbox"]
"""
DEPLOY = """
from gpu_provision.deploys.hosts import host_prerequisites, hosts_ready
from cluster_phase import cluster_phase

host_prerequisites()
hosts_ready()
cluster_phase()
"""
CLUSTER_PHASE = """
from pathlib import Path

from pyinfra.api.command import FunctionCommand
from pyinfra.api.deploy import deploy
from pyinfra.api.operation import operation
from pyinfra.context import host


def _run(state, host):
    Path("cluster-ran").touch()


@operation()
def applied():
    if not Path("cluster-ran").exists():
        yield FunctionCommand(_run, (), {})


@deploy("Cluster phase")
def cluster_phase():
    if "cluster" in host.groups:
        applied(name="applied")
"""


@pytest.fixture
def sandbox(sandbox: Path, tmp_path: Path) -> Path:
    """Directory that holds the hosts of the fleet above; empty until the first connection."""
    (tmp_path / "mine.yaml").write_text(FLEET)
    (tmp_path / "deploy.py").write_text(DEPLOY)
    (tmp_path / "cluster_phase.py").write_text(CLUSTER_PHASE)
    return sandbox / "mine/hosts"


@pytest.fixture
def pyinfra(sandbox: Path, tmp_path: Path, pyinfra_server: PyinfraServer) -> Pyinfra:
    """Run the deploy, or another command, on some hosts of the fleet; options go to pyinfra as they are."""
    del sandbox

    def run(
        nodes: str,
        *options: str,
        command: Sequence[str] = ("deploy.py",),
        inventory: str = "inventory.py",
        answers: str = "",
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "inventory.py").write_text(INVENTORY.replace("NAMES", repr(nodes.split())))
        words = [str(Path(sys.executable).with_name("pyinfra")), *options, inventory, *command]
        environment = {**os.environ, "COLUMNS": "300"}
        answer = pyinfra_server.run(words, folder=tmp_path, environment=environment, stdin=answers, seconds=300)
        return subprocess.CompletedProcess(words, answer.code, answer.out)

    return run
