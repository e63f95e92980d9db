"""Every request of an install and of a run with nothing to do, by verb and kind: one more is a change of a promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.scenarios.on_sandbox import SandboxWorld

NODES = 5
_CONSTANT = 70

_READING = {
    "GET version": 1,
    "GET apis": 1,
    "GET nodes": 1,
    "GET namespaces": 1,
    "GET customresourcedefinitions": 1,
    "GET runtimeclasses": 1,
    "GET clusterroles": 1,
    "GET clusterrolebindings": 1,
}
_OBJECTS = {
    "PATCH namespaces": 2,
    "PATCH customresourcedefinitions": 3,
    "PATCH runtimeclasses": 3,
    "PATCH clusterroles": 3,
    "PATCH clusterrolebindings": 3,
    "PATCH roles": 7,
    "PATCH rolebindings": 7,
    "PATCH serviceaccounts": 7,
    "PATCH configmaps": 6 + 2,  # the record of the run at its begin and at its end
    "PATCH services": 1,
    "PATCH deployments": 2,
    "PATCH daemonsets": 7,
}
_RUN = {
    "POST selfsubjectrulesreviews": 1,
    "POST leases": 1,
    "PUT leases": 1,
    **{f"WATCH {kind}": 1 for kind in ("nodes", "pods", "daemonsets", "deployments", "customresourcedefinitions")},
}
_NOTHING_TO_DO = _READING | {
    "GET configmaps": 1 + 2,  # by their mark; the stack's own; the record of validations
    "GET leases": 1,
    "GET pods": 1,
    **{
        f"GET {kind}": 1
        for kind in ("roles", "rolebindings", "serviceaccounts", "services", "deployments", "daemonsets")
    },
}


def test_an_install_asks_once_for_each_object(new_sandbox: Callable[..., SandboxWorld]) -> None:
    """Of each node its labels are written once; what validations ask has tests of its own."""
    gpu = {"name": "gpu-{}", "count": NODES, "gpu": {"model": "Tesla T4", "count": 1}, "labels": {"fleet": "gpu"}}
    world = new_sandbox(nodes=[gpu])
    world.edit(_of_a_pool)
    assert _requests_of_an_apply(world) == {**_READING, **_OBJECTS, **_RUN, "PATCH nodes": NODES}
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
    return _counted(world.requests()[before:])


def _counted(requests: Sequence[LoggedRequest]) -> Counter[str]:
    """Count by verb and kind, but for those of validations: their pods, logs and record."""
    return Counter(_named(request) for request in requests if not _is_of_validation(request))


def _is_of_validation(request: LoggedRequest) -> bool:
    record = request.verb == "PATCH" and request.path.endswith("-validations")
    return record or request.path.endswith("/log") or ("/pods" in request.path and request.verb != "GET")


def _named(request: LoggedRequest) -> str:
    parts = request.path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    verb = "DRY" if request.dry_run else "WATCH" if "watch=true" in request.query else request.verb
    return f"{verb} {rest[0] if rest else parts[-1]}"
