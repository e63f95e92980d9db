"""Every request of an install and of a run with nothing to do, by verb and kind: one more is a change of a promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.request_counts import count_requests
from tests.scenarios.on_sandbox import SandboxWorld

NODES = 5
_CONSTANT = 70

_CLUSTER_KINDS = ("nodes", "namespaces", "customresourcedefinitions", "runtimeclasses", "clusterroles")
_READING = {
    "get /version": 1,
    "get /apis": 1,
    "list clusterrolebindings": 1,
    **{f"list {kind}": 1 for kind in _CLUSTER_KINDS},
}
_OBJECTS = {
    "patch namespaces": 2,
    "patch customresourcedefinitions": 3,
    "patch runtimeclasses": 3,
    "patch clusterroles": 3,
    "patch clusterrolebindings": 3,
    "patch roles": 7,
    "patch rolebindings": 7,
    "patch serviceaccounts": 7,
    "patch configmaps": 6 + 2,  # the record of the run at its begin and at its end
    "patch services": 1,
    "patch deployments": 2,
    "patch daemonsets": 7,
}
_WATCHED = ("nodes", "pods", "daemonsets", "deployments", "customresourcedefinitions")
_RUN = {
    "create selfsubjectrulesreviews": 1,
    "create leases": 1,
    "update leases": 1,
    **{f"watch {kind}": 1 for kind in _WATCHED},
}
_LISTED = ("pods", "roles", "rolebindings", "serviceaccounts", "services", "deployments", "daemonsets", "configmaps")
_NOTHING_TO_DO = _READING | {"get configmaps": 2, "get leases": 1, **{f"list {kind}": 1 for kind in _LISTED}}
"""The two ConfigMaps are the stack's own and the record of validations."""


def test_an_install_asks_once_for_each_object(new_sandbox: Callable[..., SandboxWorld]) -> None:
    """Of each node its labels are written once; what validations ask has tests of its own."""
    gpu = {"name": "gpu-{}", "count": NODES, "gpu": {"model": "Tesla T4", "count": 1}, "labels": {"fleet": "gpu"}}
    world = new_sandbox(nodes=[gpu])
    world.edit(_of_a_pool)
    assert _requests_of_an_apply(world) == {**_READING, **_OBJECTS, **_RUN, "patch nodes": NODES}
    assert sum({**_READING, **_OBJECTS, **_RUN}.values()) < _CONSTANT
    assert _requests_of_an_apply(world) == _NOTHING_TO_DO


def _of_a_pool(text: str) -> str:
    document: dict[str, Any] = yaml.safe_load(text)
    del document["nodes"]
    document["pools"] = {"t4": {"gpu": {"model": "T4", "count": 1}, "node_selector": {"fleet": "gpu"}}}
    return yaml.safe_dump(document)


def _requests_of_an_apply(world: SandboxWorld) -> Counter[str]:
    before = len(world.requests())
    world.apply("--cluster-only", check=True)
    return count_requests(each for each in world.requests()[before:] if not _is_of_validation(each))


def _is_of_validation(request: LoggedRequest) -> bool:
    record = request.verb == "PATCH" and request.path.endswith("-validations")
    return record or request.path.endswith("/log") or ("/pods" in request.path and request.verb != "GET")
