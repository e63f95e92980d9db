"""Runs the commands of Markdown pages, in a copy of the repository and on its own sandbox.

Runs the lines of ``console`` blocks that begin with ``$ ``. A second word excludes a block: ``real-cluster`` needs a
real cluster, ``install`` needs the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SPEED = "20"  # simulated durations are divided by this
COMMAND_SECONDS = 600
TAGS = frozenset({"", "install", "real-cluster"})
_FENCE = re.compile(r"^```console *(?P<tag>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_COPIED = ("deploys", "examples", "inventories", "README.md")


@dataclass(frozen=True)
class Block:
    """One fenced block: its line, tag and commands."""

    page: str
    line: int
    tag: str
    commands: tuple[str, ...]


def blocks(page: str) -> Iterator[Block]:
    """Yield the console blocks of a page, which is named relative to the checkout."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    for block in _FENCE.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        commands = (each[2:] for each in block["body"].splitlines() if each.startswith("$ "))
        yield Block(page, line, block["tag"].strip(), tuple(commands))


class Reader:
    def __init__(self, folder: Path, *, example: str = "", fleet: str = "default") -> None:
        self.fleet = fleet
        self.checkout = folder / "gpu-provision"
        if example:
            shutil.copytree(CHECKOUT / "examples" / example, self.checkout)
        for name in () if example else _COPIED:
            source = CHECKOUT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            self.checkout.mkdir(exist_ok=True)
            copy(source, self.checkout / name)
        sandboxes = folder / "sandboxes"
        commands = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "GPU_PROVISION_SANDBOX_DIR": str(sandboxes),
            "NO_COLOR": "1",
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder / "state"),
        }
        if example:
            return
        start = f"python -m gpu_provision.sandbox.server --detach --directory {sandboxes}/{fleet} --fleet {fleet}"
        self.run(f"{start} --speed {SPEED}", f"gpu-provision sandbox up --fleet {fleet}")

    def run(self, *commands: str) -> str:
        """Run commands in one shell and return their output. Fails if a command fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        return done.stdout

    def follow(self, page: str) -> str:
        """Run every block of a page without a tag; return the output."""
        return "\n".join(self.run(*block.commands) for block in blocks(page) if not block.tag)

    def close(self) -> None:
        self.run(f"gpu-provision sandbox down --fleet {self.fleet}")
