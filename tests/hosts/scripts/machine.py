"""A directory that stands for a host whose container runtime is changed by the background scripts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpu_provision.hosts import background_script
from gpu_provision.hosts.background_script import ScriptResult, parse
from gpu_provision.hosts.facts.runtime import ContainerRuntime
from gpu_provision.hosts.scripts import HOME, WORK

CONTAINERD = """#!/bin/sh
case "$*" in
  'config default') echo 'version = 4' ;;
  *) ! grep -h rejected "$2" >&2 ;;
esac
"""
CTR = """#!/bin/sh
echo "TYPE ID PLATFORMS STATUS"
if [ -e "$STATE/down" ]; then echo 'ctr: connection refused' >&2; exit 1; fi
if [ -e "$STATE/broken" ]; then state=error; else state=ok; fi
echo "io.containerd.grpc.v1     cri     linux/amd64     $state"
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$STATE/calls"
[ "$1" = restart ] || exit 0
if grep -qsr "$BREAKS" "$STATE/etc"; then touch "$STATE/$AS"; else rm -f "$STATE/broken" "$STATE/down"; fi
"""
JOURNALCTL = """#!/bin/sh
[ -e "$STATE/broken" ] || exit 0
echo 'level=info msg="Start cri plugin with config {password: s3cret}"'
echo 'level=error msg="failed to load plugin cri"'
"""


@dataclass(frozen=True)
class Machine:
    """A directory with programs that only act as those of a host, files, and what happened."""

    folder: Path
    runtime: ContainerRuntime

    @classmethod
    def make(cls, folder: Path, config: str, **programs: str) -> Machine:
        """Return a machine with a containerd, and more programs."""
        (folder / "bin").mkdir()
        (folder / "etc").mkdir()
        own = {"containerd": CONTAINERD, "ctr": CTR, "systemctl": SYSTEMCTL, "journalctl": JOURNALCTL}
        machine = cls(
            folder,
            ContainerRuntime(
                kind="containerd", running=True, binary=f"{folder}/bin/containerd", config=config, socket="/run/c.sock"
            ),
        )
        for name, text in {**own, **programs}.items():
            machine.program(name, text)
        return machine

    def program(self, name: str, text: str) -> None:
        """Put a program in place."""
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run(self, command: str, *, stdin: str = "", breaks: str = "nothing", broken_as: str = "broken") -> str:
        """Run a command in this directory instead of the system's.

        Args:
            breaks: What a file holds with which the runtime does not work.
            broken_as: ``broken`` for a CRI that failed, ``down`` for no answer at all.
        """
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {"PATH": path, "STATE": str(self.folder), "BREAKS": breaks, "AS": broken_as}
        here = self.here(command).replace("sleep 1", "sleep 0.1").replace("sleep 2", "sleep 0.1")
        return subprocess.run(
            ["sh", "-c", here], input=stdin, env=environment, check=True, capture_output=True, text=True
        ).stdout

    def here(self, text: str) -> str:
        """Return a text with paths below this directory."""
        own = ("/etc/gpu-provision", "/etc/systemd/system", "/usr/local/share/ca-cert", HOME)
        for path in own:
            text = text.replace(path, f"{self.folder}{path}")
        text = text.replace(WORK, f"{self.folder}/work")
        return text.replace("/run/systemd/system", "/nonexistent").replace("/sys/fs/cgroup", "/nonexistent")

    def ask(self) -> ScriptResult | None:
        """Return the result, once it is there."""
        return parse(self.run(background_script.poll_command(seconds=60)).splitlines())

    def calls(self) -> list[str]:
        """Return what systemctl and others were asked."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []
