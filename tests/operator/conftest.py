"""Inventories that are right, and a stack that GitOps declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.kube.client import Cluster, connect
from gpu_provision.operator.crd import definition
from gpu_provision.operator.stack import stack_of
from tests.operator.served import SANDBOX, data_of
from tests.sandbox.apiserver.conftest import Running

REPOSITORY = Path(__file__).parents[2]
INVENTORIES = (
    *sorted((REPOSITORY / "tests/inventory/good").glob("*.yaml")),
    *sorted((REPOSITORY / "inventories").glob("*.yaml")),
    *sorted((REPOSITORY / "examples/infra-repo/inventories").glob("*.yaml")),
)


@pytest.fixture(params=INVENTORIES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    """Return the path of an inventory that is right."""
    found: Path = request.param
    return found


@pytest.fixture
def by_flux(tmp_path: Path) -> Iterator[Cluster]:
    """An API server with the stack of the sandbox's inventory, which Flux declares; no controller."""
    running = Running(tmp_path)
    cluster = connect(str(running.server.kubeconfig))
    cluster.apply(definition())
    stack = stack_of({**data_of(SANDBOX), "rollout": {"stop_after_failures": 2}})
    labels = {"kustomize.toolkit.fluxcd.io/name": "gpu"}
    cluster.apply({**stack, "metadata": {**stack["metadata"], "labels": labels}}, manager="kustomize-controller")
    yield cluster
    running.stop()
