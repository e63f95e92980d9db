"""What process 1 of the machine does: private file systems, a network, then the programs of a control plane and node.

python -m tests.real.node.boot DIRECTORY CGROUP...
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real.access import SERVICE_ADDRESS, Authority
from tests.real.node import cgroups, root, settings

_PAUSE_SECONDS = 1
"""Before a program is started again."""


def main() -> None:
    directory = Path(sys.argv[1])
    (directory / "pid").write_text(str(Path("/proc/self").readlink()))
    cgroups.join(Path(folder) for folder in sys.argv[2:])
    pci = directory / "pci"
    has_stand_ins = pci.is_dir()
    root.enter(directory, pci=pci if has_stand_ins else None)
    subprocess.run(["hostname", settings.NODE], check=True)
    _bring_network_up()
    _write(settings.files(directory, has_stand_ins=has_stand_ins))
    _issue_certificate(directory)
    _keep(settings.programs(directory), directory=directory, vital=settings.CONTROL_PLANE)


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)


def _issue_certificate(directory: Path) -> None:
    (directory / "plane").mkdir(mode=0o700)
    issued = Authority(directory / "plane").issue("kubelet", settings.NODE, settings.NODE_ADDRESS)
    for file in (issued.certificate, issued.key):
        file.rename(directory / file.name)


def _bring_network_up() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (SERVICE_ADDRESS, settings.NODE_ADDRESS):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _keep(programs: Mapping[str, Sequence[str]], *, directory: Path, vital: str) -> None:
    """Keep programs running, as systemd's Restart=always does, until the vital one ends.

    A program that ends is started alone: what it had started lives on, as under KillMode=process. ``log/<name>.log``
    gets its output, ``pids/<name>`` its process id within the machine.
    """
    (directory / "pids").mkdir()
    names = {_start(name, command, directory): name for name, command in programs.items()}
    while True:
        ended, status = os.wait()
        name = names.pop(ended, None)
        if name is None:
            continue
        with (directory / "log" / "restarts.log").open("a") as log:
            log.write(f"{time.time():.0f} {name} ended: {os.waitstatus_to_exitcode(status)}\n")
        if name == vital:
            return
        time.sleep(_PAUSE_SECONDS)
        names[_start(name, programs[name], directory)] = name


def _start(name: str, command: Sequence[str], directory: Path) -> int:
    with (directory / "log" / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (directory / "pids" / name).write_text(str(started.pid))
    return _forgotten(started)


def _forgotten(process: subprocess.Popen[bytes]) -> int:
    """Return the process id, and keep the object from waiting for it or complaining: ``_keep`` waits for them all."""
    process.returncode = 0
    return process.pid


if __name__ == "__main__":
    main()
