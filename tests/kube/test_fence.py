"""Who holds a lock, and whether it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpu_provision.kube.fence import identity, is_alive_here, is_dead


def holder_of(pid: int) -> str:
    """Return another process of this machine as it would name itself."""
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"root@here pid {pid} start {start} on {identity().rpartition(' ')[2]}"


def test_a_process_that_was_killed_is_dead_also_while_nobody_has_waited_for_it() -> None:
    """Whoever takes over must not wait for the parent of the killed one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        holder = holder_of(process.pid)
        assert is_alive_here(holder)
        assert not is_dead(holder)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        assert is_dead(holder)
        assert not is_alive_here(holder)
