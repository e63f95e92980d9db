"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpu_provision.cli.display import Display
from gpu_provision.model.progress import Event, State
from gpu_provision.output.progress import HEARTBEAT
from tests.cli.harness import SANDBOX, Run
from tests.kube.conftest import kubeconfig

WAITING = Event(component="driver", node="t4-1", state=State.PROGRESSING, message="builds")
FAILED = Event(component="driver", node="t4-2", state=State.FAILED, message="does not build")


class Clock:
    """A manual clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_log_gets_a_line_per_step_and_a_heartbeat(timestamps: bool) -> None:  # noqa: FBT001 - data
    """No control characters; with -v lines have UTC times. The exit loses no event."""
    stream, clock = io.StringIO(), Clock()
    with Display(stream, clock=clock, timestamps=timestamps) as display:
        display(WAITING)
        display(WAITING)
        display.tick()
        clock.now = HEARTBEAT
        display.tick()
        display(FAILED)
    stamp = r"(?m)^\d\d:\d\d:\d\dZ "
    assert len(re.findall(stamp, stream.getvalue())) == (3 if timestamps else 0)
    assert re.sub(stamp, "", stream.getvalue()).splitlines() == [
        ". driver t4-1 progressing",
        "waiting 30 s for driver 0/1 ready; t4-1: builds",
        "! driver t4-2 failed: does not build",
    ]


class Terminal(io.StringIO):
    @property
    def screen(self) -> list[str]:
        """The visible lines."""
        screen, row = [""], 0
        for part in re.split(r"(\r|\n|\x1b\[[?\d]*[A-Za-z])", self.getvalue()):
            if part == "\x1b[2K":
                screen[row] = ""
            elif part == "\x1b[1A":
                row -= 1
            elif part == "\n":
                row += 1
                screen += [""] * (row + 1 - len(screen))
            elif not part.startswith(("\x1b", "\r")):
                screen[row] += part
        screen = [line.rstrip() for line in screen]
        return [line for line in screen if line]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


def test_a_terminal_shows_a_picture_that_is_rewritten() -> None:
    """A row for each node, progress first; only a failure stays above."""
    stream, clock = Terminal(), Clock()
    display = Display(stream, live=True, clock=clock)
    display(WAITING)
    display.tick()
    clock.now = 2.0
    display(FAILED)
    display.tick()
    assert stream.screen == [
        "! driver t4-2 failed: does not build",
        "   2 s  driver 0/2 ready; t4-1: builds",
        "t4-1  iiiiiiiiiiiiiiiiiiiiiiii  driver coming up 2 s: builds",
        "t4-2                         !  driver failed: does not build",
        "i coming up, ! failed",
    ]


def test_what_wraps_is_taken_away_whole() -> None:
    """Also while a failure is written above it."""
    stream = Terminal()
    display = Display(stream, live=True, clock=Clock())
    display(replace(WAITING, message="waits for a slot: " + "and so on " * 8))
    for _ in range(2):
        display.tick()
        display(FAILED)
    display.tick()
    assert [line for line in stream.screen if line.startswith("   0 s")] == stream.screen[1:2]
    assert sum(line.startswith("t4-1  i") for line in stream.screen) == 1
    assert all(len(line) <= 80 for line in stream.screen)


@pytest.mark.parametrize(("columns", "lines"), [("80", "24"), ("80", "9"), ("40", "24"), ("20", "12")])
def test_a_picture_of_many_nodes_fits_the_terminal(columns: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a narrow one; those that do not fit are counted."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", lines)
    stream = Terminal()
    display = Display(stream, live=True, clock=Clock())
    for number in range(100):
        display(replace(WAITING, node=f"a-node-with-a-long-name-{number}"))
    for _ in range(3):
        display.tick()
    assert len(stream.screen) <= int(lines)
    assert all(len(line) <= int(columns) for line in stream.screen)
    assert any("more: " in line or line.strip() == "..." for line in stream.screen)


def test_leaving_takes_the_picture_away_unless_interrupted() -> None:
    """Further output starts on a new line; the timelines of an interrupted run stay."""
    stream = Terminal()
    with Display(stream, live=True) as display:
        display(WAITING)
    assert stream.screen == []
    display = Display(stream, live=True, clock=Clock())
    display(WAITING)
    with pytest.raises(KeyboardInterrupt), display:
        raise KeyboardInterrupt
    stream.write("interrupted")
    assert stream.screen[-3].endswith("driver coming up 0 s: builds")
    assert stream.screen[-2:] == ["i coming up", "interrupted"]


@pytest.mark.parametrize(
    ("live", "order"), [(True, ["a plan", "i coming up"]), (False, [". driver t4-1 progressing", "a plan"])]
)
def test_what_is_said_stays_above_the_picture(live: bool, order: list[str]) -> None:  # noqa: FBT001 - a table
    """A log has a normal line for it."""
    stream = Terminal()
    display = Display(stream, live=live, clock=Clock())
    display(WAITING)
    display.tick()
    display.print_message("a plan")
    display.tick()
    assert [stream.screen[0], stream.screen[-1]] == order


_MAIN = "from gpu_provision.cli import main; main()"


class _Overloaded(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "50")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def overloaded(tmp_path: Path) -> Iterator[Path]:
    """Return the kubeconfig of an overloaded server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Overloaded) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def start(path: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    inventory = path.with_name("inventory.yaml")
    inventory.write_text(SANDBOX.read_text().replace("sandbox: default", f"kubeconfig: {path}"))
    words = (sys.executable, "-c", _MAIN, "status", "-i", str(inventory), *options)
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def test_an_interrupt_ends_retries_at_once(overloaded: Path) -> None:
    run = start(overloaded)
    assert run.stderr is not None
    said = run.stderr.readline()
    # The first requests are sent at the same time: any of them may be answered first.
    assert said.startswith("the API server answered 503; trying for another 60 s (GET ")
    run.send_signal(signal.SIGINT)
    out, rest = run.communicate(timeout=300)
    assert run.returncode == 130
    assert "Traceback" not in out + rest


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_api_timeout_bounds_the_retries(overloaded: Path, way: str) -> None:
    options, environment = (("--api-timeout", "1"), {}) if way == "option" else ((), {"GPU_PROVISION_API_TIMEOUT": "1"})
    run = start(overloaded, "--json", *options, **environment)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 69
    assert json.loads(out)
    assert "the API server is starting, ending or overloaded (503)" in out


@pytest.mark.parametrize("text", ["soon", "0", "1.5", "٣", "1\n"])
def test_an_api_timeout_is_a_number(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setenv("GPU_PROVISION_API_TIMEOUT", text)
    ran = run("operator", "status", "--kubeconfig", kubeconfig(tmp_path, "http://127.0.0.1:1"))
    assert (ran.code, "GP314" in ran.err) == (64, True)
