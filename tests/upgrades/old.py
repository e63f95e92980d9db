"""The version whose clusters stay upgradable, as it was committed: unpacked from git, and run as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMMIT = "362d0c7"
MACHINE = "machine-a"
"""Where its processes say that they run. No process of another version takes them for one of its own machine."""

_CHECKOUT = Path(__file__).resolve().parents[2]
_START = f"""
import socket, sys
from gpu_provision.cli import main
from gpu_provision.cluster import holders
socket.gethostname = lambda: {MACHINE!r}
holders._place = lambda: "0a0b0c0d"
sys.exit(main())
"""


def unpack(folder: Path) -> Path:
    """Unpack the version below a folder, and return where it is."""
    words = ("git", "-C", str(_CHECKOUT), "archive", COMMIT, "gpu_provision", "inventories")
    packed = subprocess.run(words, capture_output=True, check=False)
    assert packed.returncode == 0, (
        f"commit {COMMIT} is needed, and is not in this clone: git fetch --unshallow\n{packed.stderr.decode()}"
    )
    home = folder / COMMIT
    home.mkdir()
    subprocess.run(["tar", "-x", "-C", str(home)], input=packed.stdout, check=True)
    return home


def command(home: Path, *words: str) -> tuple[str, ...]:
    return ("env", f"PYTHONPATH={home}", "LOGNAME=ada", sys.executable, "-c", _START, *words)
