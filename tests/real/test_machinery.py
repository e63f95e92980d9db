"""What starts real programs for tests, where no test that uses it would fail: leaks, and other clusters than meant."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import processes
from tests.real.control_plane import given
from tests.real.processes import Program, await_ready, free_port, listening

CHECKOUT = Path(__file__).resolve().parents[2]
SERVER = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), None).serve_forever()"
PARENT = """\
import sys, time
from pathlib import Path
from tests.real.processes import process
with process(Path(sys.argv[1]), ["sleep", "1000"]) as child:
    print(child.pid, flush=True)
    time.sleep(1000)
"""


def test_only_a_variable_of_its_own_names_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests delete what they find: neither KUBECONFIG nor a mistyped path leads them to another cluster than meant."""
    existing = tmp_path / "throw-away.yaml"
    existing.touch()
    monkeypatch.setenv("KUBECONFIG", str(existing))
    monkeypatch.delenv("GPU_PROVISION_TEST_KUBECONFIG", raising=False)
    assert given() is None
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", str(existing))
    assert given() == existing
    monkeypatch.setenv("GPU_PROVISION_TEST_KUBECONFIG", f"{existing}.mistyped")
    with pytest.raises(FileNotFoundError, match="is no file"):
        given()


def test_a_program_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time to clean up."""
    command, sleep = [sys.executable, "-c", PARENT, str(tmp_path / "log")], shutil.which("sleep")
    assert sleep
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        started = await_ready(lambda: (child / "exe").resolve() == Path(sleep).resolve())
        parent.kill()
    assert started
    assert await_ready(lambda: not _lives(child))


def _lives(process_folder: Path) -> bool:
    try:
        return "State:\tZ" not in (process_folder / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_whose_port_was_taken_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of a port and its use another program may take it, once in a hundred runs."""
    with socket.socket() as other, contextlib.ExitStack() as running:
        other.bind(("127.0.0.1", 0))
        offered = itertools.chain([taken := other.getsockname()[1]], iter(free_port, taken))
        monkeypatch.setattr(processes, "free_port", lambda: next(offered))
        program = Program(tmp_path / "log", lambda port: [sys.executable, "-c", SERVER, str(port)], _answers)
        assert listening(program, running)[0] != taken


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False
