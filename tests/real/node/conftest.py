"""The machines that the tests of this folder share."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers import Answer
from tests.real.node.nodes import missing, ready_node, shared
from tests.real.node.user import NodeUser

_ORDER = ("test_job", "test_k8s_node", "test_mistakes", "test_restarts", "test_stacks", "test_helm")
"""The modules that share one node, in the order in which they go on from one another."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that share a node in their order, where they stand."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=lambda item: _ORDER.index(item.path.stem))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        shared.close()


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUser]:
    if reason := missing():
        pytest.skip(reason)
    with contextlib.closing(shared):
        yield shared.enter_context(ready_node(tmp_path_factory.mktemp("node")))


@pytest.fixture(scope="session")
def run_on_other_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A first run with a mistake in its manifests, on a machine of its own."""
    if reason := missing():
        pytest.skip(reason)
    with contextlib.closing(shared):
        made = shared.enter_context(ready_node(tmp_path_factory.mktemp("other")))
        made.settings(toolkit={"timeout": 40})
        yield shared.enter_context(made.started(*made.apply_with("private-mounts")))


@pytest.fixture(scope="session")
def first_run(user: NodeUser, run_on_other_node: subprocess.Popen[str]) -> Answer:
    """The first run's output. Most of it waits for probes' delays, and so does the run on the other node meanwhile."""
    assert run_on_other_node.poll() is None
    return user.apply(check=True)
