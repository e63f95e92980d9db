"""pyinfra as its users run it: the command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pyinfra_server import PyinfraServer

_SECONDS = 300
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
def pyinfra(request: pytest.FixtureRequest, tmp_path: Path, pyinfra_server: PyinfraServer) -> Pyinfra:
    """Run the pyinfra command in an empty directory and return how it ended, everything it said in stdout."""
    is_cold = "without_isolation" in request.fixturenames  # which a process sees at its start

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = [str(Path(sys.executable).with_name("pyinfra")), "--yes", *arguments]
        variables = {**os.environ, **environment}
        if not is_cold:
            answer = pyinfra_server.run(words, folder=tmp_path, environment=variables, seconds=_SECONDS)
            return subprocess.CompletedProcess(words, answer.code, answer.out)
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    return run
