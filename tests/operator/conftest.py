"""Valid inventories, their stacks as the API server stores them, and a stack that GitOps declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory.document import read_source
from gpu_provision.inventory.yaml_parser import parse
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.model.cluster import Manifest
from gpu_provision.operator.crd import definition, spec_schema
from gpu_provision.operator.stack import stack_of
from gpu_provision.sandbox.apiserver.custom_resources import fill_defaults, prune
from tests.operator.rule_cases import POOL
from tests.sandbox.apiserver.conftest import Running

REPOSITORY = Path(__file__).parents[2]
INVENTORIES = (
    *sorted((REPOSITORY / "tests/inventory/good").glob("*.yaml")),
    *sorted((REPOSITORY / "inventories").glob("*.yaml")),
    *sorted((REPOSITORY / "examples/infra-repo/inventories").glob("*.yaml")),
)
SANDBOX = REPOSITORY / "inventories" / "sandbox.yaml"


def a_stack(name: str = "prod", **spec: Any) -> Manifest:
    return stack_of({"name": name, "cluster": {}, "pools": {"gpu": POOL}, **spec})


def data_of(file: Path) -> dict[str, Any]:
    return parse(read_source(file))[0].data


def stored_stack(file: Path) -> Manifest:
    """Return the stack of an inventory as a server stores it."""
    return store_form(stack_of(data_of(file)))


def store_form(stack: Manifest) -> Manifest:
    """Return a stack as a server stores it."""
    schema = spec_schema()
    return {**stack, "spec": fill_defaults(prune(stack["spec"], schema), schema)}


@pytest.fixture(params=INVENTORIES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    running = Running(tmp_path)
    yield str(running.server.kubeconfig)
    running.stop()


@pytest.fixture
def cluster(kubeconfig: str) -> KubeClient:
    return connect(kubeconfig)


@pytest.fixture
def by_flux(cluster: KubeClient) -> KubeClient:
    """An API server with a GPUStack of the sandbox's inventory, which Flux declares, without a controller."""
    cluster.apply(definition())
    stack = stack_of({**data_of(SANDBOX), "rollout": {"stop_after_failures": 2}})
    labels = {"kustomize.toolkit.fluxcd.io/name": "gpu"}
    cluster.apply({**stack, "metadata": {**stack["metadata"], "labels": labels}}, manager="kustomize-controller")
    return cluster
