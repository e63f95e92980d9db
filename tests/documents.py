"""Runs the commands of Markdown pages, in a copy of what they speak of and on a sandbox of its own.

A block marked ``console`` is run: its lines that begin with ``$ ``. A second word says that it cannot be run here:
``real-cluster`` needs one, ``install`` installs from the network.
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
    """One fenced block: where it begins, its tag, its commands."""

    page: str
    line: int
    tag: str
    commands: tuple[str, ...]


def blocks(page: str) -> Iterator[Block]:
    """Yield the console blocks of a page, which is named relative to the checkout."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        commands = (each[2:] for each in found["body"].splitlines() if each.startswith("$ "))
        yield Block(page, line, found["tag"].strip(), tuple(commands))


class Reader:
    """A reader who follows a page exactly, in a copy of the repository."""

    def __init__(self, folder: Path, *, example: str = "") -> None:
        """Copy the files and start the sandbox, faster than people watch it.

        Args:
            folder: An empty folder.
            example: Name of the example that is all there is in the copy; no sandbox is started then.
        """
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
        start = f"python -m gpu_provision.sandbox.server --detach --directory {sandboxes}/default --speed {SPEED}"
        self.run(start, "gpu-provision sandbox up")

    def run(self, *commands: str) -> str:
        """Run commands in one shell and return what they print. Fails if one of them does."""
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
        """Run every block of a page that can be run here; return all that they print."""
        return "\n".join(self.run(*block.commands) for block in blocks(page) if not block.tag)

    def close(self) -> None:
        """End the sandbox."""
        self.run("gpu-provision sandbox down")
