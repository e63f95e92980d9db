"""What process 1 of the machine does: private file systems, a network, then the programs of a control plane and node.

python -m tests.real.node.boot DIRECTORY CGROUP...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.real.access import SERVICE_ADDRESS, Authority
from tests.real.node import cgroups, keep, root, settings


def main() -> None:
    directory = Path(sys.argv[1])
    (directory / "pid").write_text(str(Path("/proc/self").readlink()))
    cgroups.join(Path(folder) for folder in sys.argv[2:])
    root.enter(directory, pci=directory / "pci")
    subprocess.run(["hostname", settings.NODE], check=True)
    _bring_network_up()
    _write(settings.files(directory))
    _issue_certificate(directory)
    keep.keep(settings.programs(directory), directory=directory, vital=settings.CONTROL_PLANE)


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)


def _issue_certificate(directory: Path) -> None:
    """Have the control plane's authority say that kubelet is who it is."""
    (directory / "plane").mkdir(mode=0o700)
    issued = Authority(directory / "plane").issue("kubelet", settings.NODE, settings.NODE_ADDRESS)
    for file in (issued.certificate, issued.key):
        file.rename(directory / file.name)


def _bring_network_up() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (SERVICE_ADDRESS, settings.NODE_ADDRESS):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


if __name__ == "__main__":
    main()
