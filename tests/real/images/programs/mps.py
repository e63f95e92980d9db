"""The MPS control daemon: the shared memory of MPS, a directory for its clients, and a file that says it is ready.

Where the driver has the real daemon, this starts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpu_provision.sandbox.operand_rules import GPU_RESOURCE

from . import gpus, mounts, sharing
from .process import end_when_told, say, stay

ROOT = Path("/mps")
READY = ROOT / ".ready"
SHM = Path("/dev/shm")  # noqa: S108 -- of the container


def main() -> int:
    end_when_told()
    try:
        if sys.argv[1:2] == ["mount-shm"]:
            return _mount_shm()
        gpus.usable()
        sharing.heed_changes()
        while True:
            _serve()
    except (gpus.NoDriver, OSError) as problem:
        say(f"error starting plugins: {problem}")
        return 1
    finally:
        READY.unlink(missing_ok=True)


def _mount_shm() -> int:
    shared = ROOT / "shm"
    shared.mkdir(exist_ok=True)
    if not os.path.ismount(shared):
        mounts.mount("shm", str(shared), 0, "tmpfs")
    return 0


def _serve() -> None:
    """Serve clients of MPS if the configuration declares it, until there is another one."""
    try:
        is_on = sharing.read_offer(None).sharing == "mps"
        if is_on:
            if not _is_shm_shared():
                message = f"{SHM} is not the shared memory of MPS"
                raise OSError(message)
            pipe = ROOT / GPU_RESOURCE / "pipe"
            pipe.mkdir(parents=True, exist_ok=True)
            _start(pipe)
        say("Starting MPS daemon" if is_on else "No devices are configured for MPS sharing; Waiting indefinitely.")
        READY.write_text("")
        stay()
    except sharing.Changed:
        READY.unlink(missing_ok=True)


def _start(pipe: Path) -> None:
    """Start the driver's daemon, which returns at once and makes its socket there; or make the socket's stand-in.

    Raises OSError.
    """
    control = Path("/", gpus.MPS_CONTROL)
    if not control.exists():
        (pipe / "control").touch()
        return
    log = pipe.with_name("log")
    log.mkdir(exist_ok=True)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    if code := subprocess.run([control, "-d"], check=False, env={**os.environ, **variables}).returncode:
        message = f"{control} ended with exit code {code}"
        raise OSError(message)


def _is_shm_shared() -> bool:
    """Tell whether the shared memory of this container is what `_mount_shm` has mounted on the host."""
    own, mounted, root = (path.stat().st_dev for path in (SHM, ROOT / "shm", ROOT))
    return own == mounted != root
