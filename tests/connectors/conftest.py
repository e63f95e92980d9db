"""pyinfra as its users run it: the command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Pyinfra = Callable[..., subprocess.CompletedProcess[str]]

FLEET = """
nodes:
- {name: t4-1, gpu: {model: T4, count: 1}}
- {name: t4-2, gpu: {model: T4, count: 1}}
- {name: away-1, host: {reachable: false}}
"""


@pytest.fixture
def sandbox(sandbox: Path, tmp_path: Path) -> Path:
    """Directory of a sandbox of our own, with the fleet of this file."""
    (tmp_path / "mine.yaml").write_text(FLEET)
    return sandbox / "mine/hosts"


@pytest.fixture
def pyinfra(tmp_path: Path) -> Pyinfra:
    """Run the pyinfra command in an empty directory and return how it ended, everything it said in stdout."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("pyinfra"), "--yes", *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )

    return run
