"""Starting, finding and ending a sandbox."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import lifecycle
from gpu_provision.sandbox.errors import SandboxError
from gpu_provision.sandbox.state import Sandbox
from tests.scenarios.client import Client


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The directory of a sandbox that is ended after the test."""
    directory = tmp_path / "boxes" / "default"
    yield directory
    lifecycle.down(directory=directory)


def names(kubeconfig: Path, kind: str) -> set[str]:
    """Return the names of all objects of a kind."""
    with closing(Client(kubeconfig)) as client:
        return {item["metadata"]["name"] for item in client.get(kind)["items"]}


def make(kubeconfig: Path, **manifest: Any) -> None:
    """Make an object."""
    with closing(Client(kubeconfig)) as client:
        client.apply(manifest)


NAMESPACE = {"apiVersion": "v1", "kind": "Namespace"}


def test_up_starts_it_once_and_down_ends_it(home: Path) -> None:
    """The second up returns the running one; its kubeconfig works; down tells whether it ended one."""
    assert lifecycle.find_running(directory=home) is None
    sandbox = lifecycle.up(directory=home)
    assert lifecycle.up(directory=home) == sandbox == lifecycle.find_running(directory=home)
    assert names(sandbox.kubeconfig, "nodes") == {"control-1", "cpu-1", "h100-1", "t4-1", "t4-2"}
    assert (sandbox.kubeconfig.stat().st_mode & 0o077, sandbox.context) == (0, "sandbox")
    assert lifecycle.down(directory=home)
    assert not lifecycle.down(directory=home)


def test_another_user_may_do_what_rbac_grants(home: Path) -> None:
    """The same user keeps the token; a user's name may hold what no file name does."""
    sandbox = lifecycle.up(directory=home)
    path = lifecycle.write_kubeconfig(sandbox, "team/bob:1")
    text = path.read_text()
    assert lifecycle.write_kubeconfig(sandbox, "team/bob:1").read_text() == text
    assert (path.parent, path.stat().st_mode & 0o077) == (home, 0)
    with pytest.raises(AssertionError, match='User "team/bob:1" cannot list resource "nodes"'):
        names(path, "nodes")
    rbac = {"apiGroup": "rbac.authorization.k8s.io"}
    make(
        sandbox.kubeconfig,
        apiVersion="rbac.authorization.k8s.io/v1",
        kind="ClusterRoleBinding",
        metadata={"name": "bob"},
        roleRef={**rbac, "kind": "ClusterRole", "name": "view"},
        subjects=[{**rbac, "kind": "User", "name": "team/bob:1"}],
    )
    assert "t4-1" in names(path, "nodes")


def test_two_that_start_it_at_once_get_the_same(home: Path) -> None:
    """The second one waits for the first."""
    found: list[Sandbox] = []
    threads = [threading.Thread(target=lambda: found.append(lifecycle.up(directory=home))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({sandbox.pid for sandbox in found}) == 1


def test_a_killed_sandbox_starts_again_with_its_state(home: Path) -> None:
    """The stale record that kill -9 leaves behind counts for nothing."""
    first = lifecycle.up(directory=home)
    make(first.kubeconfig, **NAMESPACE, metadata={"name": "kept"})
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while lifecycle.find_running(directory=home) is not None:
        assert time.monotonic() < deadline
    assert json.loads((home / "sandbox.json").read_text())["pid"] == first.pid
    second = lifecycle.up(directory=home)
    assert second.pid != first.pid
    assert "kept" in names(second.kubeconfig, "namespaces")


def test_a_port_in_use_is_given_up(home: Path) -> None:
    """The sandbox takes another one and writes it into the kubeconfig."""
    first = lifecycle.up(directory=home)
    lifecycle.down(directory=home)
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", int(first.url.rsplit(":", 1)[1])))
        foreign.listen()
        second = lifecycle.up(directory=home)
        assert second.url != first.url
        assert names(second.kubeconfig, "nodes")


def test_a_process_with_the_recorded_id_is_left_alone(home: Path) -> None:
    """Only the holder of the sandbox's lock is the sandbox."""
    home.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as innocent:
        record = {
            "name": "default",
            "pid": innocent.pid,
            "url": "https://127.0.0.1:1",
            "kubeconfig": "x",
            "context": "y",
        }
        (home / "sandbox.json").write_text(json.dumps(record))
        (home / "lock").write_text(str(innocent.pid))
        assert lifecycle.find_running(directory=home) is None
        assert not lifecycle.down(directory=home)
        assert innocent.poll() is None
        innocent.kill()


def test_reset_forgets_everything(home: Path) -> None:
    """Also what a half-written directory holds."""
    sandbox = lifecycle.up(directory=home)
    make(sandbox.kubeconfig, **NAMESPACE, metadata={"name": "forgotten"})
    lifecycle.reset(directory=home)
    assert not home.exists()
    lifecycle.reset(directory=home)
    assert "forgotten" not in names(lifecycle.up(directory=home).kubeconfig, "namespaces")


def test_a_sandbox_that_cannot_start_says_why(home: Path) -> None:
    """The end of its log is the evidence."""
    home.mkdir(parents=True)
    (home / "store.db").mkdir()
    with pytest.raises(SandboxError) as refused:
        lifecycle.up(directory=home)
    finding = refused.value.problems[0]
    assert (finding.code, finding.where) == ("GP711", str(home / "sandbox.log"))
    assert "Error" in finding.evidence


def test_a_directory_that_cannot_be_made_is_one_finding(tmp_path: Path) -> None:
    """A file stands in its way."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError) as refused:
        lifecycle.up(directory=tmp_path / "file" / "box")
    assert refused.value.problems[0].code == "GP712"


def test_a_fleet_file_of_ones_own(tmp_path: Path) -> None:
    """Its nodes are simulated; a change of the file is reported until the sandbox restarts."""
    fleet, home = tmp_path / "mine.yaml", tmp_path / "mine"
    fleet.write_text("nodes: [{name: one}, {name: two}]")
    try:
        sandbox = lifecycle.up(fleet, directory=home)
        assert (sandbox.name, sandbox.context) == ("mine", "sandbox-mine")
        fleet.write_text("nodes: [{name: two}, {name: three}]")
        with pytest.raises(SandboxError) as refused:
            lifecycle.up(fleet, directory=home)
        assert refused.value.problems[0].code == "GP713"
        lifecycle.down(fleet, directory=home)
        assert names(lifecycle.up(fleet, directory=home).kubeconfig, "nodes") == {"two", "three"}
    finally:
        lifecycle.down(fleet, directory=home)


def test_a_sandbox_of_other_code_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of an earlier version of the tool; it can be ended, and goes on with what it knew."""
    home = tmp_path / "box"
    try:
        lifecycle.up(directory=home)
        monkeypatch.setattr(lifecycle, "source_digest", lambda: "another")
        with pytest.raises(SandboxError) as refused:
            lifecycle.up(directory=home)
        (finding,) = refused.value.problems
        assert (finding.code, "sandbox down" in finding.fix) == ("GP713", True)
    finally:
        assert lifecycle.down(directory=home)
