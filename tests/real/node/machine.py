"""A GPU node of real parts: a control plane, containerd and kubelet on a machine of their own.

The machine is no more than processes with private file systems, network, process numbers and cgroups; nothing of it
stays behind.

    with machine(directory) as node:
        node.run("ctr", "-n", "k8s.io", "images", "ls")
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.real import binaries, control_plane
from tests.real.access import kubeconfig_file
from tests.real.node import settings
from tests.real.processes import process

_CHECKOUT = Path(__file__).resolve().parents[3]
_START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Machine:
    directory: Path
    pid: int

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "plane" / "kubeconfig"

    def kubeconfig_of(self, user: str) -> Path:
        return kubeconfig_file(self.directory / "plane", user)

    @property
    def audit_log(self) -> Path:
        return self.directory / "plane" / "audit.log"

    @property
    def network(self) -> tuple[str, ...]:
        """What to put before a command that uses the machine's network."""
        return "nsenter", "--target", str(self.pid), "--net", "--"

    @property
    def login(self) -> tuple[str, ...]:
        """What to put before a command that runs on the machine."""
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return "nsenter", "--target", str(self.pid), *spaces, "--"

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.login, *command], check=False, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def restart(self, program: str) -> None:
        before = self._started(program)
        self.run("kill", before)
        self.until(lambda: self._started(program) != before, what=f"{program} is not started again")

    def _started(self, program: str) -> str:
        return (self.directory / "pids" / program).read_text()

    def until(self, condition: Callable[[], object], *, what: str, seconds: float = _START_SECONDS) -> None:
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, f"{what}; the logs are in {self.directory}/log"
            assert Path(f"/proc/{self.pid}").exists(), f"the machine has ended; the logs are in {self.directory}"
            time.sleep(0.1)


def missing() -> str:
    """Say what this computer lacks for such a machine; an empty string if nothing."""
    if os.geteuid():
        return "a real node needs root: it mounts file systems and runs containers"
    if lacking := settings.missing_programs():
        return f"not installed: {', '.join(lacking)}"
    return control_plane.missing() or binaries.missing("kubelet")


@contextlib.contextmanager
def machine(directory: Path) -> Iterator[Machine]:
    """Start a machine whose PCI devices are in ``directory/pci``; end it with the block, or however we end."""
    holder = (sys.executable, "-m", "tests.real.node.hold", str(directory))
    command = ("setpriv", "--pdeathsig", "TERM", "--", *holder)  # it cleans up also when we are killed
    with process(directory / "machine.log", command, environment=_environment()) as holding:
        started = Machine(directory, _first_process(directory, holding))
        started.until(lambda: _says_ready(started), what="the control plane does not get ready")
        yield started


def _says_ready(started: Machine) -> bool:
    log = started.directory / "log" / f"{settings.CONTROL_PLANE}.log"
    return f"{started.kubeconfig}\n" in log.read_text()


def _environment() -> dict[str, str]:
    """The node's python3 is the one that runs us; some users' PATH lacks the folders of the system's programs."""
    folders = (str(Path(sys.executable).parent), os.environ["PATH"], "/usr/local/sbin", "/usr/sbin", "/sbin")
    programs = os.pathsep.join(folders)
    return {**os.environ, "PYTHONPATH": str(_CHECKOUT), "PATH": programs}


def _first_process(directory: Path, holder: subprocess.Popen[bytes]) -> int:
    give_up = time.monotonic() + _START_SECONDS
    while not (text := _text(directory / "pids" / "kubelet") and _text(directory / "pid")):
        assert holder.poll() is None, (directory / "machine.log").read_text()
        assert time.monotonic() < give_up, (directory / "machine.log").read_text()
        time.sleep(0.05)
    return int(text)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
