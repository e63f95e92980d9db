"""The machine that the tests of this folder share, and what was measured.

The tests' modules go on from one another in the order of their names: the main job, mistakes, restarts.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.inventory import load
from tests.real.images.build import cached, of_inventory
from tests.real.node import hardware, settings
from tests.real.node.machine import machine, missing
from tests.real.node.user import Answer, NodeUser

GPUS = 2
_CLOCK = pytest.StashKey["Clock"]()


@dataclass
class Clock:
    """Measures, for people; no test depends on it."""

    times: dict[str, float] = field(default_factory=dict)
    facts: dict[str, int] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Begin to measure."""
        self._last = time.monotonic()

    def lap(self, what: str) -> None:
        """Note how long it has been since the last lap."""
        now = time.monotonic()
        self.times[what], self._last = now - self._last, now


@pytest.fixture(scope="session")
def clock(request: pytest.FixtureRequest) -> Clock:
    """Where times are noted that are printed at the end of the run."""
    return request.config.stash.setdefault(_CLOCK, Clock())


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[NodeUser]:
    """A user of a machine that is up, with the images on it, and without anything of ours."""
    with _node(tmp_path_factory.mktemp("node"), clock) as made:
        yield made


@pytest.fixture(scope="session")
def run_on_other_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A first run with a mistake in its manifests, on a machine of its own."""
    with _node(tmp_path_factory.mktemp("other"), Clock()) as made:
        made.settings(toolkit={"timeout": 10})
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


@contextlib.contextmanager
def _node(folder: Path, clock: Clock) -> Iterator[NodeUser]:
    if reason := missing():
        pytest.skip(reason)
    hardware.write_pci(folder / "pci", gpus=GPUS)
    clock.start()
    with machine(folder) as node:
        clock.lap("control plane up")
        made = NodeUser(folder, node)
        made.take_rights()
        node.until(lambda: is_ready(made), what="the node does not get ready")
        clock.lap("node ready")
        archive = cached(of_inventory(load(made.inventory)))
        shutil.copy(archive, folder / "images.tar")
        node.run("ctr", "-n", "k8s.io", "images", "import", str(folder / "images.tar"))
        (folder / "images.tar").unlink()
        clock.lap("images built and imported")
        yield made


def is_ready(user: NodeUser) -> bool:
    """Tell whether the node says that it is ready, and pods may come."""
    if not user.kubectl("get", "node", settings.NODE, "--ignore-not-found"):
        return False
    node: Any = json.loads(user.kubectl("get", "node", settings.NODE, "-o", "json"))
    ready = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}.get("Ready")
    return ready == "True" and not node["spec"].get("taints")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    clock = config.stash.get(_CLOCK, Clock())
    for what, seconds in clock.times.items():
        terminalreporter.write_line(f"real node: {what}: {seconds:.1f} s")
    for what, number in clock.facts.items():
        terminalreporter.write_line(f"real node: {what}: {number}")
