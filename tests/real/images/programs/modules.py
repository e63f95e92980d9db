"""Kernel modules as directories of ``/sys/module``, and the containers beside the driver that load them.

No module is loaded. A machine of tests/real/node has a list of modules of its own, which all its containers see; on
another machine, only the container that loads a module sees it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from . import mounts
from .process import end_when_told, say, stay, until

_LIST = Path("/proc/1/root/sys/module")
_VISIBLE = Path("/sys/module")
_OFED_READY = Path("/run/mellanox/drivers/.driver-ready")
_DRIVER_READY = Path("/run/nvidia/validations/.driver-ctr-ready")
_DRIVER = ("gdrdrv", "nvidia_fs", "nvidia_peermem", "nvidia")


def load(name: str) -> None:
    """Make a module's directory, with the file that its users look at."""
    folder = _LIST / name
    try:
        folder.mkdir(exist_ok=True)
    except OSError:  # the real list of a kernel
        folder = _VISIBLE / name
        mounts.mount("tmpfs", str(_VISIBLE), 0, "tmpfs")
        folder.mkdir()
    (folder / "refcnt").write_text("0\n")


def unload_driver() -> None:
    """Remove the driver's modules, with those that need it."""
    for name in _DRIVER:
        shutil.rmtree(_LIST / name, ignore_errors=True)


def is_loaded(name: str) -> bool:
    return (_VISIBLE / name / "refcnt").exists()


def peermem() -> int:
    """Load nvidia-peermem after the driver and the network driver, whose own container says that it is ready."""
    waiting = "waiting for mellanox ofed and nvidia drivers to be installed"
    until(lambda: _OFED_READY.exists() and _DRIVER_READY.exists(), waiting, 1.0)
    return _serve("nvidia_peermem")


def probe_peermem() -> int:
    """Pass unless the network driver is there and the module is not."""
    if _OFED_READY.exists() and not is_loaded("nvidia_peermem"):
        say("nvidia-peermem module is not loaded")
        return 1
    return 0


def gds() -> int:
    return _build("nvidia_fs")


def gdrcopy() -> int:
    return _build("gdrdrv")


def _build(module: str) -> int:
    end_when_told()
    if sys.argv[1:2] != ["install"]:
        say(f"unknown command: {' '.join(sys.argv[1:])}")
        return 1
    if not is_loaded("nvidia") or not Path("/run/nvidia/driver/usr/src").is_dir():
        say("the sources of the driver are missing")
        return 1
    return _serve(module)


def _serve(module: str) -> int:
    load(module)
    say(f"successfully loaded {module} module")
    stay()
