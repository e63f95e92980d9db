"""Programs that tests start."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import processes
from tests.real.processes import NotReadyError, Program, await_ready, free_port, listening, process

SERVER = "import http.server, sys; http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), None).serve_forever()"
PARENT = """\
import sys, time
from pathlib import Path
from tests.real.processes import process
with process(Path(sys.argv[1]), ["sleep", "1000"]) as child:
    print(child.pid, flush=True)
    time.sleep(1000)
"""
CHECKOUT = Path(__file__).resolve().parents[2]


def answers(port: int) -> bool:
    """Tell whether somebody listens."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def server(log: Path) -> Program:
    """Return a program that listens at its port."""
    return Program(log, lambda port: [sys.executable, "-c", SERVER, str(port)], answers)


def test_a_program_ends_with_its_block(tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        port, started = listening(server(tmp_path / "log"), running)
        assert answers(port)
    assert started.poll() is not None
    assert not answers(port)


def test_a_program_whose_port_was_taken_meanwhile_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other, contextlib.ExitStack() as running:
        other.bind(("127.0.0.1", 0))
        taken, free = other.getsockname()[1], free_port()
        offered = iter([taken, free])
        monkeypatch.setattr(processes, "free_port", lambda: next(offered))
        assert listening(server(tmp_path / "log"), running)[0] == free


def test_a_program_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    program = Program(tmp_path / "broken.log", lambda _: [sys.executable, "-c", "exit('no such flag')"], answers)
    with pytest.raises(NotReadyError, match=r"broken did not get ready(.|\n)*no such flag"):
        listening(program, contextlib.ExitStack())


def test_a_program_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    command, sleep = [sys.executable, "-c", PARENT, str(tmp_path / "log")], shutil.which("sleep")
    assert sleep
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        started = await_ready(lambda: (child / "exe").resolve() == Path(sleep).resolve())
        parent.kill()
    assert started
    assert await_ready(lambda: not _lives(child))


def test_a_program_does_not_outlive_a_parent_that_died_before_it_was_bound(tmp_path: Path) -> None:
    """Then the kernel has nobody to tell of the death; the program itself looks who its parent is."""
    with process(tmp_path / "log", ["true"]) as child:
        command = child.args
        assert child.wait(60) == 0
    assert isinstance(command, list)
    orphan = [text if text != str(os.getpid()) else "1" for text in command]
    assert subprocess.run(orphan, check=False, timeout=60).returncode == 1


def test_an_interrupt_of_the_test_run_is_for_us_alone(tmp_path: Path) -> None:
    """Otherwise Ctrl-C ends a server before what uses it."""
    with process(tmp_path / "log", ["sleep", "1000"]) as child:
        assert os.getpgid(child.pid) != os.getpgrp()
    assert child.returncode == -signal.SIGTERM


def _lives(process_folder: Path) -> bool:
    try:
        return "State:\tZ" not in (process_folder / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
