"""A node's shell through the Kubernetes API: what is sent, what comes back, and what happens when it does not."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.kube.client import connect
from gpu_provision.kube.exec import STDERR, STDOUT
from gpu_provision.kube.lease import process_identity
from gpu_provision.kube.node_shell import CLIENT, NodeShell, open_shell
from gpu_provision.model.findings import ProvisionError
from gpu_provision.model.hosts import HelperPod
from tests.connectors.node_server import NodeServer, node_server
from tests.kube.conftest import kubeconfig

WORDS = "words-of-a-command"


@pytest.fixture
def server() -> Iterator[NodeServer]:
    with node_server() as made:
        yield made


@pytest.fixture
def shell(server: NodeServer, tmp_path: Path) -> Iterator[NodeShell]:
    made = a_shell(server, tmp_path)
    made.open()
    yield made
    made.close()


def a_shell(server: NodeServer, folder: Path, node: str = "n1") -> NodeShell:
    return NodeShell(connect(str(kubeconfig(folder, server.url))), node, HelperPod())


def outcome(shell: NodeShell, command: str, **options: object) -> tuple[int, str, str]:
    said = {STDOUT: b"", STDERR: b""}

    def listen(channel: int, data: bytes) -> None:
        said[channel] += data

    status = shell.run(command, listen=listen, **options)  # type: ignore[arg-type]
    return status, said[STDOUT].decode(), said[STDERR].decode()


def plain(command: str) -> str:
    return command


def test_commands_find_stdin_empty_unless_they_get_one(shell: NodeShell) -> None:
    assert outcome(shell, "cat; echo end") == (0, "end\n", "")


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_stdin_comes_as_a_whole_and_ends(shell: NodeShell, size: int) -> None:
    """Old servers cannot close it."""
    assert outcome(shell, "wc -c | tr -d ' '", stdin=b"x" * size) == (0, f"{size}\n", "")


def test_command_that_does_not_read_its_stdin_is_no_problem(shell: NodeShell) -> None:
    assert outcome(shell, "exit 3", stdin=b"x" * 300_000) == (3, "", "")


def test_commands_see_a_login_environment_not_the_pods(shell: NodeShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    _, out, _ = outcome(shell, "env")
    names = {line.partition("=")[0] for line in out.splitlines()}
    assert {"PATH", "HOME", "USER"} <= names
    assert "KUBERNETES_SERVICE_HOST" not in names


def test_commands_are_not_part_of_the_url(shell: NodeShell, server: NodeServer) -> None:
    """Audit logs and proxies keep URLs, and limit their length."""
    assert outcome(shell, f"x={WORDS}; : {'long ' * 10_000}") == (0, "", "")
    assert WORDS not in "".join(server.urls)
    assert max(map(len, server.urls)) < 2000


def test_command_past_its_time_ends_with_its_children(shell: NodeShell, tmp_path: Path) -> None:
    """Nothing of it goes on in secret."""
    pids = tmp_path / "pids"
    pids.touch()
    for seconds in (2, 20):  # a busy machine takes its time until the command has begun
        if len(pids.read_text().split()) < 2:
            with pytest.raises(TimeoutError):
                outcome(shell, f"sleep 600 & echo $! > {pids}; echo $$ >> {pids}; wait", timeout=seconds)
    give_up = time.monotonic() + 60
    numbers = pids.read_text().split()
    assert len(numbers) == 2
    while any(is_alive(number) for number in numbers):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def is_alive(number: str) -> bool:
    stat = Path(f"/proc/{number}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_file_error_is_what_the_shell_said(shell: NodeShell, tmp_path: Path) -> None:
    away = str(tmp_path / "away" / "file")
    with pytest.raises(OSError, match=r"[Nn]o such file|nonexistent"):
        shell.write_file(away, 1_000_000, [b"x" * 1_000_000], within=plain)
    with pytest.raises(OSError, match=r"[Nn]o such file|cannot open"):
        shell.read_file(away, io.BytesIO().write, within=plain)


def test_helper_pod_is_bound_to_the_node_and_bears_everything(shell: NodeShell, server: NodeServer) -> None:
    (pod,) = server.made
    spec = pod["spec"]
    assert (spec["nodeName"], spec["hostPID"], spec.get("hostNetwork")) == ("n1", True, None)
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    shell.close()
    assert server.pods == {}


def test_helper_pod_that_has_ended_is_replaced(shell: NodeShell, server: NodeServer) -> None:
    """At its age, or with the node's boot; the command had not begun."""
    (first,) = server.pods.values()
    first["status"] = {"phase": "Failed", "reason": "DeadlineExceeded"}
    assert outcome(shell, "echo again") == (0, "again\n", "")
    assert first["metadata"]["name"] not in server.pods
    assert len(server.pods) == 1


def test_pods_without_a_client_are_removed_and_used_ones_stay(server: NodeServer, tmp_path: Path) -> None:
    """On any node. A client elsewhere counts as alive, even if its machine has our machine's name."""
    ours, place = process_identity(), process_identity().rpartition(" ")[2]
    dead = ours.replace(f"pid {os.getpid()} start ", f"pid {os.getpid()} start 1")
    elsewhere = dead.replace(place, "0" * len(place))
    for name, client, phase, node in (
        ("dead", dead, "Running", "n1"),
        ("dead-on-another-node", dead, "Running", "n2"),
        ("ended", elsewhere, "Failed", "n1"),
        ("elsewhere", elsewhere, "Running", "n1"),
        ("live", ours, "Running", "n1"),
        ("of-an-older-version", f"{socket.gethostname()}/pid:[1] 1/1", "Running", "n1"),
    ):
        metadata = {"name": name, "namespace": "kube-system", "uid": name, "annotations": {CLIENT: client}}
        server.pods[name] = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}
    open_shell(str(kubeconfig(tmp_path, server.url)), "", "n1", HelperPod()).close()
    assert set(server.pods) == {"elsewhere", "live", "of-an-older-version"}


def test_the_image_is_pinned_by_digest(shell: NodeShell, server: NodeServer) -> None:
    assert shell
    ((image,),) = [[each["image"] for each in pod["spec"]["containers"]] for pod in server.made]
    assert re.fullmatch(r"docker\.io/library/busybox:[\d.]+@sha256:[0-9a-f]{64}", image)


def refusal(shell: NodeShell) -> str:
    with pytest.raises(ProvisionError) as caught:
        shell.open()
    return str(caught.value)


def test_node_that_is_not_there_is_a_finding(server: NodeServer, tmp_path: Path) -> None:
    said = refusal(a_shell(server, tmp_path, node="n9"))
    assert said.startswith("GP690 n9: odd has no node n9")
    assert server.made == []


def test_node_that_is_not_ready_is_a_finding_at_once(server: NodeServer, tmp_path: Path) -> None:
    """A pod would be pending there for good."""
    server.ready = False
    said = refusal(a_shell(server, tmp_path))
    assert "GP690" in said
    assert "container runtime is down" in said
    assert server.made == []


def test_helper_pod_that_does_not_start_is_removed(server: NodeServer, tmp_path: Path) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such host"}
    server.status = {"phase": "Pending", "containerStatuses": [{"name": "shell", "state": {"waiting": waiting}}]}
    said = refusal(a_shell(server, tmp_path))
    assert "GP691" in said
    assert "ImagePullBackOff: no such host" in said
    assert "busybox" in said
    assert server.pods == {}
