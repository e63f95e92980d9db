"""The worker process of the host phase: killed, without its parent, and with a message that cannot be sent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_provision.hosts.messages import HostMembership, NodeRole
from gpu_provision.hosts.runner import prepare
from gpu_provision.model.findings import RunFailedError
from gpu_provision.model.hosts import Reboot
from gpu_provision.model.inventory import Inventory
from tests.hosts.fleet import with_settings
from tests.hosts.operations.test_reboot import Diary

pytestmark = pytest.mark.usefixtures("cold_worker")

MODPROBE = """#!/bin/sh
echo reached >/reached
read -r line </gate
exec /.sandbox/own/modprobe "$@"
"""
PARENT = """
import sys
from gpu_provision.hosts.runner import prepare
from gpu_provision.inventory import load
prepare(load(sys.argv[1]))
"""
ODD = """
from gpu_provision.hosts.result import HostOutcome
def odd(): ...
HostOutcome.__reduce__ = lambda self: (odd, ())
"""


class Gate:
    """A host whose modprobe says that it is there, and then waits to be let through."""

    def __init__(self, root: Path) -> None:
        for name in ("reached", "gate"):
            os.mkfifo(root / name)
        program = root / ".sandbox/bin/modprobe"
        (root / ".sandbox/own").mkdir()
        program.rename(root / ".sandbox/own/modprobe")
        program.write_text(MODPROBE)
        program.chmod(0o755)
        self._reached, self._gate = root / "reached", os.open(root / "gate", os.O_RDWR)

    def wait(self) -> None:
        assert self._reached.read_text() == "reached\n"

    def open(self) -> None:
        os.write(self._gate, b"go\n")

    def close(self) -> None:
        os.close(self._gate)


@pytest.fixture
def gated(fresh: tuple[Inventory, Path]) -> Iterator[tuple[Inventory, Path, Gate]]:
    """An inventory of one host, its root, and what holds it up."""
    gate = Gate(fresh[1])
    yield *fresh, gate
    gate.close()


def workers(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (path / "status").read_text(), (path / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        if f"\nPPid:\t{parent}\n" in status and "gpu_provision.hosts.worker" in command:
            found.append(int(path.name))
    return found


def test_a_killed_worker_is_a_finding_of_its_parent(gated: tuple[Inventory, Path, Gate]) -> None:
    declared, _, gate = gated
    with ThreadPoolExecutor() as pool:
        run = pool.submit(prepare, declared)
        gate.wait()
        (worker,) = workers(os.getpid())
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RunFailedError, match="ended unexpectedly with status -9"):
            run.result()
    gate.open()
    assert not workers(os.getpid())


def test_worker_ends_after_its_parent_and_begins_nothing(gated: tuple[Inventory, Path, Gate], tmp_path: Path) -> None:
    _, root, gate = gated
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path / "inventory.yaml"]) as parent:
        gate.wait()
        worker = os.pidfd_open(workers(parent.pid)[0])
        parent.kill()
    gate.open()
    select.select([worker], [], [])
    os.close(worker)
    assert "ipmi_msghandler" in (root / "proc/modules").read_text()
    assert not (root / "etc/modprobe.d/gpu-provision-nouveau.conf").exists()


def test_request_that_cannot_be_sent_leaves_no_worker(fresh: tuple[Inventory, Path]) -> None:
    declared = with_settings(fresh[0], sysctls={"vm.max_map_count": threading.Lock()})
    with pytest.raises(TypeError, match="cannot pickle"):
        prepare(declared)
    assert not workers(os.getpid())


def test_result_that_cannot_be_read_is_a_finding(
    fresh: tuple[Inventory, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(ODD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RunFailedError, match="ended unexpectedly"):
        prepare(fresh[0])
    assert not workers(os.getpid())


class Odd(Diary):
    """Gives an answer that cannot be sent."""

    def membership(self, node: str) -> HostMembership:  # noqa: ARG002 - it is the same for all
        return HostMembership(role=NodeRole.MEMBER, unknown_reason=threading.Lock())  # type: ignore[arg-type]


def test_answer_that_cannot_be_sent_fails_its_host(
    fresh: tuple[Inventory, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    declared, root = fresh
    (root / "run/reboot-required").touch()
    (host,) = prepare(with_settings(declared, reboot=Reboot.IF_REQUIRED), maintenance=Odd()).hosts
    assert [(finding.code, finding.where) for finding in host.errors] == [("GP607", "good-1")]
