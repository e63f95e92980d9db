"""Every request of an install and of a run with nothing to do, by verb and kind: one more is a change of a promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests import data_file
from tests.request_counts import count_requests
from tests.scenarios.on_sandbox import SandboxWorld

NODES = 5
_DATA = data_file.document(Path(__file__).with_suffix(".yaml").read_text())


def test_an_install_asks_once_for_each_object(new_sandbox: Callable[..., SandboxWorld]) -> None:
    """Of each node its labels are written once; what validations ask has tests of its own."""
    gpu = {"name": "gpu-{}", "count": NODES, "gpu": {"model": "Tesla T4", "count": 1}, "labels": {"fleet": "gpu"}}
    world = new_sandbox(nodes=[gpu])
    world.edit(_of_a_pool)
    assert _requests_of_an_apply(world) == {**_DATA["reading"], **_DATA["install"], "patch nodes": NODES}
    assert _requests_of_an_apply(world) == {**_DATA["reading"], **_DATA["nothing to do"]}


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
