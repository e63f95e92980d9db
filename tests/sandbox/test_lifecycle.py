"""Starting, finding and ending a sandbox."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.sandbox import lifecycle
from gpu_provision.sandbox.errors import NoAnswerError, SandboxError
from gpu_provision.sandbox.state import Sandbox, try_lock, wait_until
from tests.scenarios.client import Client


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The directory of a sandbox that is ended after the test."""
    directory = tmp_path / "boxes" / "default"
    yield directory
    lifecycle.down(directory=directory)


def names(kubeconfig: Path, kind: str) -> set[str]:
    with closing(Client(kubeconfig)) as client:
        return {item["metadata"]["name"] for item in client.get(kind)["items"]}


def make(kubeconfig: Path, kind: str, name: str, version: str = "v1", **body: Any) -> None:
    with closing(Client(kubeconfig)) as client:
        client.apply({"apiVersion": version, "kind": kind, "metadata": {"name": name}, **body})


def test_up_starts_it_once_and_down_ends_it(home: Path) -> None:
    """Also if several start it at once; its kubeconfig works; down tells whether it ended one."""
    assert lifecycle.find_running(directory=home) is None
    found: list[Sandbox] = []
    threads = [threading.Thread(target=lambda: found.append(lifecycle.up(directory=home))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sandbox = lifecycle.up(directory=home)
    assert found == [sandbox] * 3
    assert lifecycle.find_running(directory=home) == sandbox
    assert names(sandbox.kubeconfig, "nodes") == {"control-1", "cpu-1", "h100-1", "t4-1", "t4-2"}
    assert (sandbox.kubeconfig.stat().st_mode & 0o077, sandbox.context) == (0, "sandbox")
    assert lifecycle.down(directory=home)
    assert not lifecycle.down(directory=home)


def test_another_user_may_do_what_rbac_grants(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same user keeps the token; a user's name may hold what no file name does.

    A sandbox of other code, such as that of an earlier version of the tool, is reported and can be ended.
    """
    sandbox = lifecycle.up(directory=home)
    path = lifecycle.write_kubeconfig(sandbox, "team/bob:1")
    text = path.read_text()
    assert lifecycle.write_kubeconfig(sandbox, "team/bob:1").read_text() == text
    assert (path.parent, path.stat().st_mode & 0o077) == (home, 0)
    with pytest.raises(AssertionError, match='User "team/bob:1" cannot list resource "nodes"'):
        names(path, "nodes")
    rbac = {"apiGroup": "rbac.authorization.k8s.io"}
    granted = {
        "roleRef": {**rbac, "kind": "ClusterRole", "name": "view"},
        "subjects": [{**rbac, "kind": "User", "name": "team/bob:1"}],
    }
    make(sandbox.kubeconfig, "ClusterRoleBinding", "bob", f"{rbac['apiGroup']}/v1", **granted)
    assert "t4-1" in names(path, "nodes")
    monkeypatch.setattr(lifecycle, "source_digest", lambda: "another")
    with pytest.raises(SandboxError) as refused:
        lifecycle.up(directory=home)
    (finding,) = refused.value.problems
    assert (finding.code, "sandbox down" in finding.fix) == ("GP713", True)
    assert lifecycle.down(directory=home)


def test_a_killed_sandbox_starts_again_with_its_state(home: Path) -> None:
    """The stale record counts for nothing, a port in use is given up, and reset forgets everything."""
    first = lifecycle.up(directory=home)
    make(first.kubeconfig, "Namespace", "kept")
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until(lambda: lifecycle.find_running(directory=home) is None, 60)
    assert json.loads((home / "sandbox.json").read_text())["pid"] == first.pid
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", int(first.url.rsplit(":", 1)[1])))
        foreign.listen()
        second = lifecycle.up(directory=home)
    assert (second.pid != first.pid, second.url != first.url) == (True, True)
    assert "kept" in names(second.kubeconfig, "namespaces")
    for _ in range(2):
        lifecycle.reset(directory=home)
        assert not home.exists()
    assert "kept" not in names(lifecycle.up(directory=home).kubeconfig, "namespaces")


def test_a_silent_sandbox_is_reported_and_one_that_ends_meanwhile_is_started(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a killed sandbox can keep its lock for a moment longer than its port."""
    ask, seconds = lifecycle._connection_problem, lifecycle._ANSWER_SECONDS
    home.mkdir(parents=True)
    record = dict.fromkeys(("name", "kubeconfig", "context", "url"), "x") | {"pid": 1}
    (home / "sandbox.json").write_text(json.dumps(record))
    monkeypatch.setattr(lifecycle, "_ANSWER_SECONDS", -1)
    with (home / "lock").open("w") as lock:
        assert try_lock(lock.fileno())
        monkeypatch.setattr(lifecycle, "_connection_problem", lambda _: "silence")
        with pytest.raises(NoAnswerError, match="GP715"):
            lifecycle.up(directory=home)

        def end(sandbox: Sandbox) -> str:
            lock.close()
            monkeypatch.setattr(lifecycle, "_ANSWER_SECONDS", seconds)
            return "silence" if sandbox.pid == 1 else ask(sandbox)

        monkeypatch.setattr(lifecycle, "_connection_problem", end)
        assert lifecycle.up(directory=home).pid != 1


def test_a_process_with_the_recorded_id_is_left_alone(home: Path) -> None:
    """Only the holder of the sandbox's lock is the sandbox."""
    home.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as innocent:
        record = dict.fromkeys(("name", "kubeconfig", "context", "url"), "x") | {"pid": innocent.pid}
        (home / "sandbox.json").write_text(json.dumps(record))
        (home / "lock").write_text(str(innocent.pid))
        assert lifecycle.find_running(directory=home) is None
        assert not lifecycle.down(directory=home)
        assert innocent.poll() is None
        innocent.kill()


def test_a_sandbox_that_cannot_start_says_why(home: Path) -> None:
    """The end of its log is the evidence; a file in the way of its directory is another problem."""
    home.mkdir(parents=True)
    (home / "store.db").mkdir()
    with pytest.raises(SandboxError) as refused:
        lifecycle.up(directory=home)
    finding = refused.value.problems[0]
    assert (finding.code, finding.where) == ("GP711", str(home / "sandbox.log"))
    assert "Error" in finding.evidence
    (home / "file").write_text("")
    with pytest.raises(SandboxError) as refused:
        lifecycle.up(directory=home / "file" / "box")
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


def test_an_openshift_sandbox_is_upgraded_to_a_later_release(tmp_path: Path) -> None:
    """It has begun when the command returns, or is over if it waits; other releases are refused."""
    home = tmp_path / "boxes" / "openshift"
    try:
        sandbox = lifecycle.up("openshift", directory=home)
        with pytest.raises(SandboxError, match=r"it runs 4\.18\.13, and can be upgraded to: 4\.18\.24, 4\.19\.15"):
            lifecycle.upgrade(sandbox, "4.18.1")
        lifecycle.upgrade(sandbox, "4.18.24")
        with closing(Client(sandbox.kubeconfig)) as client:
            version = client.get("clusterversions", "version")
            assert version["spec"]["desiredUpdate"] == {"version": "4.18.24"}
            lifecycle.upgrade(sandbox, "4.19.15", wait=True)
            nodes = client.get("nodes")["items"]
            assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {"v1.32.8"}
            assert names(sandbox.kubeconfig, "machineconfigpools") == {"master", "worker", "gpu"}
    finally:
        lifecycle.down(directory=home)


def test_a_sandbox_of_plain_kubernetes_has_no_upgrade(home: Path) -> None:
    with pytest.raises(SandboxError, match="it is no OpenShift cluster") as refused:
        lifecycle.upgrade(lifecycle.up(directory=home), "4.18.24")
    assert refused.value.problems[0].code == "GP716"
