"""The node that the tests of this folder share, and its first run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.node.hardware import A30, MELLANOX
from tests.real.node.nodes import GPUS, missing, ready_node, shared
from tests.real.node.user import OPERANDS, NodeUser

_ORDER = ("test_side_cars", "test_node_status", "test_sharing", "test_mig")
"""The modules, in the order in which they go on from one another."""
_VALIDATOR, _WAIT = "nvidia-operator-validator", "driver-container-validation"
_OFED_READY = "/run/mellanox/drivers/.driver-ready"
_RUN_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that share a node in their order, where they stand."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=lambda item: _ORDER.index(item.path.stem))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A run whose node had no network driver at first, and what was there while its validator waited for that."""

    log: str  # of the init container that waits
    validations: list[str]  # names of files
    plugin: Any  # the pod
    metrics: str  # of the node status exporter
    code: int
    output: str


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUser]:
    if reason := missing():
        pytest.skip(reason)
    inventory = Path(__file__).with_name("inventory.yaml")
    folder = tmp_path_factory.mktemp("optional")
    with contextlib.closing(shared):
        yield shared.enter_context(ready_node(folder, devices=(MELLANOX, *[A30] * GPUS), inventory=inventory))


@pytest.fixture(scope="session")
def first_run(node: NodeUser) -> FirstRun:
    """Start the network driver only when the validator waits for the module that needs it."""
    command = (str(Path(sys.executable).with_name("gpu-provision")), "apply", "--yes", "-i", str(node.inventory))
    with node.started(*command) as run:
        node.machine.until(
            lambda: run.poll() is not None or "nvidia_peermem" in _log(node), what="no wait", seconds=600
        )
        assert run.poll() is None, (node.folder / "started.log").read_text()
        node.machine.until(lambda: metrics(node, check=False), what="the exporter serves nothing")
        found = {
            "log": _log(node),
            "validations": node.machine.run("ls", "-A", "/run/nvidia/validations").split(),
            "plugin": node.pod("nvidia-device-plugin-daemonset"),
            "metrics": metrics(node),
        }
        node.machine.run("touch", _OFED_READY)
        output, _ = run.communicate(timeout=_RUN_SECONDS)
    assert run.returncode == 0, output
    return FirstRun(**found, code=run.returncode, output=output)


def _log(node: NodeUser) -> str:
    pods = node.pods(_VALIDATOR)
    return node.log(pods[0], _WAIT, check=False) if pods else ""


def metrics(node: NodeUser, *, check: bool = True) -> str:
    """Return what the node status exporter serves, through its Service."""
    service = f"/api/v1/namespaces/{OPERANDS}/services/nvidia-node-status-exporter:8000/proxy/metrics"
    return node.kubectl("get", "--raw", service, check=check)
