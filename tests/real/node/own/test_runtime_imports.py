"""The operation on containerd's imports against a real containerd, kubelet beside it, that gets nonsense."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.real.node.machine import Machine, machine, missing

pytestmark = pytest.mark.real

CONFIG = "/etc/containerd/config.toml"
PATTERN = "/etc/containerd/conf.d/*.toml"
DROP_IN = "/etc/containerd/conf.d/99-site.toml"
RESULT = "/run/gpu-provision/runtime/result"
PATIENCE = 20
DEPLOY = f"""
from gpu_provision.operations import runtime_imports

runtime_imports(name="Imports", pattern="{PATTERN}", patience={PATIENCE})
"""
# As systemd does it: the program is ended, and the command returns when the next one has been started.
SYSTEMCTL = """#!/bin/sh
echo "$*" >>{folder}/systemctl
[ "$1" = restart ] || exit 0
before=$(cat {pid})
kill "$before"
now=$before
while [ "$now" = "$before" ]; do sleep 0.1; now=$(cat {pid}); done
"""
CRI = '[plugins."io.containerd.grpc.v1.cri"'
BROKEN = {
    "a socket elsewhere": 'version = 2\n[grpc]\n  address = "/run/containerd/other.sock"\n',
    "no CRI": 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n',
    "a CRI that fails": f'version = 2\n{CRI}.containerd]\n  default_runtime_name = "none"\n',
}


@dataclass(frozen=True)
class Node:
    machine: Machine

    def run(self, *command: str) -> str:
        return self.machine.run(*command)

    def started(self) -> subprocess.Popen[str]:
        command = [
            *self.machine.login,
            sys.executable,
            "-m",
            "pyinfra",
            "-y",
            "@local",
            f"{self.machine.directory}/d.py",
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd="/", start_new_session=True
        )

    def operate(self) -> tuple[int, str]:
        with self.started() as running:
            output, _ = running.communicate()
        return running.returncode, output

    def config(self) -> str:
        return self.run("cat", CONFIG)


def restarts(machine: Machine) -> int:
    log = machine.directory / "systemctl"
    return log.read_text().count("restart ") if log.exists() else 0


def works(machine: Machine) -> bool:
    rows = [line.split() for line in machine.run("sh", "-c", "ctr plugins ls 2>&1 || true").splitlines()]
    return ["io.containerd.grpc.v1", "cri", "ok"] in [[row[0], row[1], row[-1]] for row in rows if len(row) > 1]


@contextlib.contextmanager
def without_imports(machine: Machine) -> Iterator[None]:
    """A machine whose containerd imports nothing, and that has systemctl; as it was, when the block ends."""
    before, place = machine.run("cat", CONFIG), "/usr/local/bin/systemctl"
    shim = SYSTEMCTL.format(folder=machine.directory, pid=machine.directory / "pids/containerd")
    machine.run("sh", "-c", f"cat >{place} <<'END'\n{shim}END\nchmod 755 {place}; sed -i /^imports/d {CONFIG}")
    machine.restart("containerd")
    machine.until(lambda: works(machine), what="the CRI does not get ready")
    try:
        yield
    finally:
        machine.run("sh", "-c", f"rm {place}; cat >{CONFIG} <<'END'\n{before}END")
        machine.restart("containerd")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("imports")
    (folder / "pci").mkdir()
    (folder / "d.py").write_text(DEPLOY)
    with machine(folder) as made:
        made.run("mkdir", "-p", "/etc/containerd/conf.d")
        made.until(lambda: works(made), what="the CRI does not get ready")
        made.until(lambda: made.run("sh", "-c", "pidof kubelet || true"), what="kubelet does not start")
        with without_imports(made):
            yield Node(made)


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_containerd_that_breaks_is_restored(node: Node, text: str) -> None:
    """What it would import is valid to look at, and stops the CRI."""
    before, restarted = node.config(), restarts(node.machine)
    node.run("sh", "-c", f"cat >{DROP_IN} <<'END'\n{text}END")
    status, output = node.operate()
    assert status != 0
    assert "GP672" in output, output
    assert "evidence: " in output
    assert node.config() == before
    assert restarts(node.machine) == restarted + 2
    assert works(node.machine)
    assert "gpu-provision" not in node.run("ls", "/etc/containerd")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = [\n", f"failed to load TOML: {DROP_IN}"),
        (
            'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = 3\n',
            "Can't convert 3(int64) to string",
        ),
    ],
)
def test_what_containerd_rejects_is_not_even_tried(node: Node, text: str, words: str) -> None:
    """With containerd's own words."""
    before, restarted = node.config(), restarts(node.machine)
    node.run("sh", "-c", f"cat >{DROP_IN} <<'END'\n{text}END")
    status, output = node.operate()
    assert status != 0
    assert "GP671" in output
    assert words in output
    assert (node.config(), restarts(node.machine)) == (before, restarted)


def test_the_host_restores_by_itself_when_who_asked_is_gone(node: Node) -> None:
    """A connection that is lost between the restart and the way back."""
    before, restarted = node.config(), restarts(node.machine)
    node.run("sh", "-c", f"cat >{DROP_IN} <<'END'\n{BROKEN['no CRI']}END")
    with node.started() as running:
        node.machine.until(lambda: restarts(node.machine) > restarted, what="nothing is restarted")
        changed = node.config()
        os.killpg(running.pid, signal.SIGKILL)  # nsenter has started the command as its child
    assert changed != before
    node.machine.until(lambda: node.run("sh", "-c", f"cat {RESULT} 2>&1 || true").startswith("restored"), what="no end")
    assert node.config() == before
    assert works(node.machine)


def test_the_import_is_made_and_the_second_run_changes_nothing(node: Node) -> None:
    """One value of the configuration is new; the original is kept."""
    before = node.config()
    node.run("rm", DROP_IN)
    status, output = node.operate()
    assert status == 0, output
    assert tomllib.loads(node.config()) == {**tomllib.loads(before), "imports": [PATTERN]}
    assert PATTERN in node.config()
    assert works(node.machine)
    assert node.run("cat", f"/var/lib/gpu-provision/originals/files{CONFIG}") == before
    restarted = restarts(node.machine)
    status, output = node.operate()
    assert status == 0, output
    assert "No changes" in output or "no change" in output.lower()
    assert restarts(node.machine) == restarted
