"""The machines that the tests of this folder share, and what was measured."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers import Answer
from tests.real.node.nodes import Clock, missing, ready_node
from tests.real.node.user import NodeUser

_CLOCK = pytest.StashKey[Clock]()
_ORDER = ("test_job", "test_k8s_node", "test_mistakes", "test_restarts", "test_stacks")
"""The modules that share one node, in the order in which they go on from one another."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that share a node in their order, where they stand."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=lambda item: _ORDER.index(item.path.stem))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def clock(request: pytest.FixtureRequest) -> Clock:
    return request.config.stash.setdefault(_CLOCK, Clock())


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[NodeUser]:
    if reason := missing():
        pytest.skip(reason)
    with ready_node(tmp_path_factory.mktemp("node"), clock) as made:
        yield made


@pytest.fixture(scope="session")
def run_on_other_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A first run with a mistake in its manifests, on a machine of its own."""
    if reason := missing():
        pytest.skip(reason)
    with ready_node(tmp_path_factory.mktemp("other"), Clock()) as made:
        made.settings(toolkit={"timeout": 40})
        with made.started(*made.apply_with("private-mounts")) as run:
            yield run


@pytest.fixture(scope="session")
def first_run(user: NodeUser, clock: Clock, run_on_other_node: subprocess.Popen[str]) -> Answer:
    """The first run's output. Most of it waits for probes' delays, and so does the run on the other node meanwhile."""
    assert run_on_other_node.poll() is None
    clock.start()
    run = user.apply(check=True)
    clock.lap("main job, gpu-provision apply")
    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if clock := config.stash.get(_CLOCK, None):
        for line in clock.lines():
            terminalreporter.write_line(f"real node: {line}")
