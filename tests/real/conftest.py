"""A real control plane with simulated nodes attached, and a user of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.real.authority import Certificate
from tests.real.control_plane import control_plane, missing, process
from tests.real.user import RealUser
from tests.scenarios.world import CHECKOUT

SPARE_NODES = 12
"""GPU nodes that the inventory does not name at first."""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealUser]:
    """The cluster that a module's tests share, in their order."""
    with _cluster(tmp_path_factory.mktemp("real")) as made:
        yield made


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[RealUser]:
    """A user of a cluster on which nothing ran yet."""
    with _cluster(tmp_path) as made:
        yield made


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[RealUser]:
    if reason := missing():
        pytest.skip(reason)
    default = yaml.safe_load((CHECKOUT / "gpu_provision/sandbox/fleets/default.yaml").read_text())
    spare = {"name": "spare-{:02}", "count": SPARE_NODES, "gpu": {"model": "Tesla T4", "count": 1}}
    nodes = [*default["nodes"], {**spare, "labels": {"fleet": "spare"}}]
    fleet = folder / "fleet.yaml"
    fleet.write_text(yaml.safe_dump({**default, "nodes": nodes, "timings": {"speed": 10}}))
    with control_plane(folder / "plane") as plane, contextlib.ExitStack() as attached:
        made = RealUser(folder, plane)
        attached.enter_context(_attached_nodes(made, fleet, plane.authority.issue("kubelet", "127.0.0.1")))
        yield made


@contextlib.contextmanager
def _attached_nodes(user: RealUser, fleet: Path, serving: Certificate) -> Iterator[None]:
    """Attach simulated nodes, and end them; the server cannot store custom resources, so features pass directly."""
    command = [sys.executable, "-m", "gpu_provision.sandbox.nodes", "--kubeconfig", str(user.kubeconfig)]
    command += ["--direct-features", "--fleet", str(fleet)]
    command += ["--tls-cert-file", str(serving.certificate), "--tls-private-key-file", str(serving.key)]
    log = user.folder / "nodes.log"
    with process(log, command, environment={**os.environ, "PYTHONPATH": str(CHECKOUT)}) as nodes:
        user.until(lambda: nodes.poll() is not None or b"are registered" in log.read_bytes())
        assert nodes.poll() is None, log.read_text()
        yield
